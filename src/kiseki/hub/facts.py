"""What a dataset card says of a run, gathered from its ledger. No record is unpacked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

import msgspec

from kiseki.errors import UsageError
from kiseki.ledger.ledger import Ledger
from kiseki.views.build import ViewSettings, load_view_settings
from kiseki.views.filters import discard_reason
from kiseki.views.statistics import Statistics, make_statistics

_UNSAID = ("ephemeral_system_prompt", "prefill")
"""Settings that say something only while the run goes: a card says that there were some, and not what."""
_NAMES = {
    "model": "model",
    "distribution": "distribution of toolsets",
    "distribution_toolsets": "toolsets, percent of rollouts",
    "num_samples": "rollouts per prompt",
    "max_turns": "model calls per rollout at most",
    "on_context_full": "where the context window is full",
    "max_tokens": "output tokens per reply at most",
    "temperature": "temperature",
    "top_p": "top_p",
    "reasoning": "reasoning",
    "seed": "seed",
    "environment": "where commands ran",
    "sandbox_image": "container image",
    "network": "network of the sandbox",
    "tool_settings": "settings of tools",
    "redact": "secrets taken out of tool results",
    "ephemeral_system_prompt": "system prompt while running",
    "prefill": "messages ahead of the prompt",
}


_decode_counts = msgspec.json.Decoder(dict[str, tuple[int, int]]).decode


class Facts(msgspec.Struct, frozen=True):
    """Of one run."""

    statistics: Statistics
    settings: dict[str, str]
    """Name in words → value; values of configurations that differ are joined by " or "."""
    versions: tuple[str, ...]
    """Of kiseki, of all sessions."""
    first: str
    last: str
    """Dates, UTC, of the first and the last attempt; "" where there was none."""
    turns: dict[str, int]
    """Assistant turns per kept rollout, by range."""
    tokens: dict[str, int]
    """Tokens that the model wrote per kept rollout, by range; empty where they are not known."""
    reasoning_filter: bool
    kept: int
    tools: dict[str, tuple[int, int]]
    """(calls, failed ones) in the kept rollouts, of every tool of the run. `statistics` has those of discarded ones, too."""
    assistant_turns: int
    """Of the kept rollouts."""
    reasoning_turns: int
    """Those of them that have reasoning."""


def run_id(ledger: Ledger) -> str:
    """The same for as long as the run is the same one, wherever its folder is."""
    first = ledger.db.execute("SELECT started FROM sessions ORDER BY id LIMIT 1").fetchone()
    return f"{first[0]:.6f}" if first else ""


def view_settings(ledger: Ledger) -> ViewSettings:
    """Raises `UsageError` for a run that never started."""
    settings = load_view_settings(ledger)
    if settings is None:
        raise UsageError(f"{ledger.folder} holds a run that never started; there is nothing to push")
    return settings


def gather_facts(ledger: Ledger) -> Facts:
    """Raises `UsageError` for a run that never started."""
    views = view_settings(ledger)
    db = ledger.db
    turns: list[int] = []
    tokens: list[int] = []
    tools = dict.fromkeys(views.tools, (0, 0))
    with_reasoning = 0
    for assistant_turns, reasoning_turns, unknown, completion_tokens, counts in db.execute(
        "SELECT a.assistant_turns, a.reasoning_turns, a.unknown_tools != '[]', a.completion_tokens, a.tool_counts"
        " FROM rollouts r JOIN attempts a ON a.id = r.attempt_id WHERE r.outcome IN ('completed', 'partial')"
    ):
        if not discard_reason(
            assistant_turns=assistant_turns,
            reasoning_turns=reasoning_turns,
            has_unknown_tools=bool(unknown),
            reasoning_filter=views.reasoning_filter,
        ):
            turns.append(assistant_turns)
            tokens.append(completion_tokens)
            with_reasoning += reasoning_turns
            for name, (calls, failed) in _decode_counts(counts).items():
                if name in tools:
                    tools[name] = (tools[name][0] + calls, tools[name][1] + failed)
    versions = dict.fromkeys(version for (version,) in db.execute("SELECT version FROM sessions ORDER BY id"))
    first, last = db.execute("SELECT min(started), max(started + seconds) FROM attempts").fetchone()
    return Facts(
        statistics=make_statistics(ledger, views),
        settings=_settings(ledger),
        versions=tuple(versions),
        first=_date(first),
        last=_date(last),
        turns=_by_range(turns),
        tokens=_by_range(tokens) if any(tokens) else {},
        reasoning_filter=views.reasoning_filter,
        kept=len(turns),
        tools=tools,
        assistant_turns=sum(turns),
        reasoning_turns=with_reasoning,
    )


def _settings(ledger: Ledger) -> dict[str, str]:
    """Of the configurations that made rows, of the run itself where that is not known."""
    used = "SELECT info FROM configs WHERE hash IN (SELECT DISTINCT config FROM attempts) ORDER BY hash"
    infos = [info for (info,) in ledger.db.execute(used)] or [ledger.get_meta("run")]
    found: dict[str, str] = {}
    decoded = [msgspec.json.decode(info, type=dict[str, object]) for info in infos]
    for field, name in _NAMES.items():
        values = dict.fromkeys(_shown(field, each.get(field)) for each in decoded)
        if words := " or ".join(value for value in values if value):
            found[name] = words
    return found


def _shown(field: str, value: object) -> str:
    if value in (None, "", {}, ()):
        return ""
    if field == "seed" and not value:
        return ""
    if field in _UNSAID:
        return "there was one, it is not part of the data"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {each:g}" if isinstance(each, float) else f"{name} {each}" for name, each in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _by_range(values: Iterable[int]) -> dict[str, int]:
    """How many are in each of 0, 1, 2, 3–4, 5–8, 9–16, …; ranges in the middle that have none are there too."""
    counts = Counter((value - 1).bit_length() + 1 if value > 0 else 0 for value in values)
    if not counts:
        return {}
    return {_range(at): counts[at] for at in range(min(counts), max(counts) + 1)}


def _range(at: int) -> str:
    if at <= 2:
        return str(at)
    return f"{2 ** (at - 2) + 1:,}–{2 ** (at - 1):,}"


def _date(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds)) if seconds else ""
