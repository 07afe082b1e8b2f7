"""What goes into the ledger and what comes out of it."""

from __future__ import annotations

import msgspec

from kiseki.trajectory.record import Summary
from kiseki.trajectory.types import Prompt


class Attempt(msgspec.Struct, frozen=True, tag=True):
    """One attempt that ended, ready to be written: made by a worker, committed by the driver."""

    key: str
    summary: Summary
    record: bytes
    """`trajectory.record.encode_record`."""
    tool_schemas: dict[str, str] = {}
    """By hash, those that the record and its children's name, the first time that a worker uses them: the tools as sent, a JSON
    list."""


class OpenRollout(msgspec.Struct, frozen=True):
    """A rollout that is still to be run."""

    rollout_id: int
    prompt_key: bytes
    prompt: Prompt
    sample_index: int
    batch_num: int
    attempts: int
    """Attempts that ended so far, over all sessions."""
    suspect: bool = False
    """A worker died with it and others in it: it runs in a process of its own."""
    spent: float = 0.0
    """US dollars that its attempts have cost so far."""


class Decision(msgspec.Struct, frozen=True):
    """Something that changed how fast a run goes, or ended it."""

    at: float
    """Unix seconds."""
    kind: str
    """`limit`, `pause`, `fault`, `hold`, `resume`, `budget`, `tokens`, `stop`."""
    detail: str
    """In words, with the figures."""


class SessionState(msgspec.Struct, frozen=True):
    """What a session has to show beside its outcomes, kept with every commit so that a killed session counts too."""

    seconds: float = 0.0
    cost: float = 0.0
    """US dollars of every model call of the session, also of rollouts that were lost with a worker or cancelled."""
    tokens: int = 0
    """Prompt and completion tokens of the same calls."""
    decisions: tuple[Decision, ...] = ()
    """Those since the last commit."""
    suspects: tuple[tuple[int, int], ...] = ()
    """(rollout id, level) of rollouts with which a worker died since the last commit: 1 with others in it, `POISON` alone."""


class DoneRollout(msgspec.Struct, frozen=True):
    """A rollout with the attempt that counts, as views read it."""

    position: int
    """`prompt_index`; -1 when the dataset as last given no longer has the row."""
    sample_index: int
    batch_num: int
    outcome: str
    reasoning_turns: int
    assistant_turns: int
    unknown_tools: str
    payload: bytes
    record: bytes


class RunInfo(msgspec.Struct, frozen=True):
    """The run's identity: what a resume must agree with."""

    run_name: str
    model: str
    distribution: str
    distribution_toolsets: dict[str, float]
    batch_size: int
    num_samples: int
    max_turns: int
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    seed: int
    reasoning: str
    """The reasoning flags in words, "" for the provider's default."""
    reasoning_filter: str
    ephemeral_system_prompt: str
    prefill: str
    """Its messages as JSON, "" for none."""
    tools: dict[str, str] | str
    """Every tool of the run → hash of its schema; one hash of all in runs that began with an older version."""
    redact: bool = True
    """Whether secrets are taken out of tool results."""
    environment: str = "host"
    """Whose programs the commands find: `host` (of the machine that the run is on), `image`, `ssh` (of another machine)."""
    sandbox_image: str = ""
    """Of prompts that name none."""
    network: str = "none"
    """Whether commands reach the network: `none` or `on`."""
    on_context_full: str = "stop"
    """What is done where a conversation no longer fits the model's context window."""
    tool_settings: dict[str, str] = {}
    """Flags of the toolsets that were given, by name, as far as they decide what tools answer."""
    api_mode: str = "auto"
    tool_call_mode: str = "auto"
    extra_body: str = ""
    """As JSON, without secrets; "" for none."""
    fallback: str = ""
    """Models that are asked in the place of the run's, comma-separated."""
