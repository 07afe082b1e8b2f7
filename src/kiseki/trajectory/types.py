"""The plain types that every package speaks. No behaviour, no I/O.

Texts in here are clean (`trajectory.text.clean_text`): valid UTF-8, no lone surrogates. Times are Unix seconds (UTC),
durations are seconds.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
Outcome = Literal["completed", "partial", "failed"]
"""How a rollout ended. The fourth outcome, `discarded`, is a view of the ledger (`views/filters.py`), not a fact of it."""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call as the model wrote it."""

    id: str
    """Unique within the rollout (repaired where the model's was missing or taken)."""
    name: str
    arguments: str
    """The JSON text as the model wrote it; may be invalid."""


class ImageAt(msgspec.Struct, frozen=True):
    """An image inside a message's content."""

    at: int
    """Characters of the content before it."""
    url: str
    """An http or https URL, a data URI, or a path, as the row had it."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One chat message, OpenAI-style."""

    role: Role
    content: str = ""
    reasoning: str = ""
    """The model's native or inline reasoning, without its tags."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """On role `tool`: which call this answers."""
    name: str = ""
    """On role `tool`: the tool's name as called."""
    provider_fields: dict[str, Any] = {}
    """Fields that the provider wants back unchanged on the next turn (`reasoning_details`, signatures)."""
    images: tuple[ImageAt, ...] = ()
    """In order. Only of conversations that were read from files: the agent's own have their images as files in the sandbox."""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens and money of one model call or of many added up. Zero where the provider did not say."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Part of `completion_tokens`."""
    cached_tokens: int = 0
    """Part of `prompt_tokens`."""
    cost: float = 0.0
    """US dollars, as the provider reported them."""
    cache_write_tokens: int = 0
    """Part of `prompt_tokens`: put into the provider's cache, where that has a price of its own."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cost + other.cost,
            self.cache_write_tokens + other.cache_write_tokens,
        )


class CallTokens(msgspec.Struct, frozen=True, omit_defaults=True):
    """Token ids of one model call, as the server that sampled them gave them. Nothing here was tokenised again."""

    prompt: tuple[int, ...]
    """Ids of the prompt after the `shared` first ones; with `shared` 0, empty where the server gave none of it (llama.cpp)."""
    completion: tuple[int, ...]
    """Ids that were sampled, the one that ended the reply included where the server gives it."""
    logprobs: tuple[float, ...] = ()
    """Of the completion's ids, natural logarithms; empty where the server gave none."""
    shared: int = 0
    """How many of the prompt's first ids are those of the rollout's sequence so far: prompt and completion of the call before.
    Kept apart so that a long rollout does not hold every prompt whole."""

    @property
    def whole(self) -> bool:
        """Whether the prompt's ids are there too: without them the completion's are part of no known sequence."""
        return bool(self.prompt or self.shared)


class ModelCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of one model call beside the message that it gave."""

    started: float
    seconds: float
    finish_reason: str = ""
    usage: Usage = Usage()
    usage_reported: bool = True
    """False where the provider gave no usage, so that zeros are not taken for a count."""
    cost_reported: bool = False
    """False where the provider gave no cost: then it is by the price, or 0 where that is not known."""
    model: str = ""
    """The model that the provider says answered."""
    provider: str = ""
    """The upstream provider, where a router names it."""
    response_id: str = ""
    retries: int = 0
    """Requests that failed before the one that was answered."""
    waited: float = 0.0
    """Seconds before the answered request in which the call waited for its turn: rate limits, pauses, retries."""
    tokens: CallTokens | None = None
    """Where they were asked for and the server gave them (`--capture_tokens`)."""
    tool_calls_as: str = ""
    """How the reply's tool calls were written where it was not the API's own way: the name of the text format, or `json`."""
    fallback: str = ""
    """The model that was asked, where it was not the run's own but a fallback."""
    refused: Usage = Usage()
    """What replies took of models that were asked before it and refused. Not part of `usage`."""


class ToolRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of one tool call beside its `tool` message."""

    call_id: str
    name: str
    ok: bool
    """By the one rule in `trajectory/outcome.py`."""
    seconds: float = 0.0
    invalid: bool = False
    """The call itself was wrong (unknown tool, bad JSON, wrong types), so nothing ran."""
    truncated: bool = False
    """The result was cut to its size limit."""
    exit_code: int | None = None
    """Of the command, for tools that run one."""
    timed_out: bool = False
    """The tool, or the command that it ran, was cut off at its time limit."""
    redacted: int = 0
    """Secrets that were taken out of the result."""
    usage: Usage = Usage()
    """Of the model calls that the tool itself made; those of `children` are in their own records."""
    inner: tuple[InnerCall, ...] = ()
    """Tool calls that a program of the model made (`execute_code`), in the order in which they ended."""
    children: tuple[Record, ...] = ()
    """Rollouts of sub-agents that the call started (`delegate_task`). The key of each is its parent's and a number."""


class InnerCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call that no model wrote, and what it gave. Not a part of the conversation."""

    call: ToolCall
    content: str
    run: ToolRun


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One usable dataset row."""

    index: int
    """Position among the usable and unusable rows of the dataset, from 0, blank lines not counted."""
    messages: tuple[Message, ...]
    """What the model is asked; the last one is the user's."""
    image: str = ""
    cwd: str = ""
    source: str = "{}"
    """The row's other columns as one JSON object text."""

    @property
    def text(self) -> str:
        return self.messages[-1].content


class RolloutSpec(msgspec.Struct, frozen=True, tag=True):
    """One rollout to be run: what the worker gets."""

    key: str
    """Hash of what defines the rollout (`batch/plan.py`)."""
    prompt: Prompt
    sample_index: int
    batch_num: int
    attempt: int
    """From 1, over all sessions of the run."""
    seed: int
    """Of this rollout, drawn from the run's seed and the key."""
    toolsets: tuple[str, ...]
    """Drawn for this rollout from the distribution."""
    alone: bool = False
    """Run in a worker process of its own: the one that had it before died, perhaps because of it."""
    spent: float = 0.0
    """US dollars that earlier attempts at it have cost."""


class ContextCut(msgspec.Struct, frozen=True):
    """A tool result that the model was sent without its middle from some call on, to fit its context window."""

    call: int
    """Position in `Record.calls` of the first model call that was sent it so."""
    message: int
    """Position in `Record.messages`, where the result is whole."""
    kept: int
    """Characters of it that were sent, head and tail together."""
    characters: int
    """That it has."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One whole attempt at a rollout, lossless: what the ledger keeps and every view is made from."""

    key: str
    sample_index: int
    attempt: int
    seed: int
    messages: tuple[Message, ...]
    """The prompt's messages, then every assistant and tool message in order. Neither ephemeral prompt nor prefill."""
    prompt_messages: int
    """How many of `messages` are the prompt's own."""
    outcome: Outcome
    reason: str
    """Why it ended: `answered`; `max_turns`, `timeout`, `length`, `content_filter`, `invalid_tool_calls`, `empty_answer`,
    `budget`, `prompt_budget`, `context_full` (partial); or the error's class (failed)."""
    model: str
    toolsets: tuple[str, ...]
    tools_hash: str
    """Names the tool schemas as sent (stored once per run)."""
    calls: tuple[ModelCall, ...] = ()
    tool_runs: tuple[ToolRun, ...] = ()
    unknown_tools: tuple[str, ...] = ()
    """Names called that are no tool of the whole run."""
    error_class: str = ""
    error: str = ""
    retryable: bool = False
    started: float = 0.0
    seconds: float = 0.0
    config: str = ""
    """Which of the run's configurations made it: a hash that the ledger's table `configs` explains."""
    sandbox: dict[str, str] = {}
    """Backend, image, limits: what the tools ran in."""
    unavailable_toolsets: tuple[str, ...] = ()
    """Toolsets of the distribution that the run was told to do without."""
    adopted_conversation: str = ""
    """For a row taken over from files of another tool: its ShareGPT turns as they stood, as JSON."""
    context_cuts: tuple[ContextCut, ...] = ()
    """What the model was not sent whole (`--on_context_full=truncate_tool_outputs`), in order; a result may be cut again."""
    versions: dict[str, str] = {}
