"""What each model of the Messages API documents: how it is told to think, or not to; what else it refuses. Pure, no I/O.

Claude models go by their names, since Anthropic documents thinking, effort and sampling per model (platform.claude.com/docs,
"Extended thinking", "Adaptive thinking", "Effort", "Model migration"). Other models go by their host: DeepSeek
(api-docs.deepseek.com, "Anthropic API"), and the rest by the first form of the field, which MiniMax documents and local servers
copy. Names of models that are newer than this table are taken for the newest kind.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kiseki.errors import UsageError
from kiseki.models.endpoints import ModelSettings
from kiseki.models.hosts import EFFORTS, Host

ANTHROPIC = "Anthropic"
BUDGETS = {"minimal": 1024, "low": 4096, "medium": 10_000, "high": 16_000}
"""Tokens of thinking for an effort, where the API wants a number: 1,024 is the least that it takes, and 16,000 leaves half of
the default `max_tokens` to the answer. Never more than half of `--max_tokens`."""
LEAST_BUDGET = 1024
LEAST_TOP_P = 0.95
"""While it thinks."""
MAX_TOKENS = 32_000
"""Output tokens of a reply where `--max_tokens` is not given: the API has no default of its own. The most that Opus 4 and 4.1
can give; more than agents' turns take, thinking included."""
MAX_TOKENS_EFFORTFUL = 64_000
"""The same at `xhigh` and `max`, for which Anthropic recommends no less."""
MAX_TOKENS_CLAUDE_3 = 4096
INTERLEAVED = "interleaved-thinking-2025-05-14"
"""Beta: thinking between tool calls, for the models of Claude 4 that think by a budget; newer ones do it unasked."""
BINDING = "thinking-binding-controls-2026-08-01"
"""Beta: thinking whose conversation was changed before it (a tool output that was cut) is left out, and not refused with 400."""

_NAME = re.compile(r"claude-(?:([a-z]+)-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)(?:-([a-z]+))?")
_DISABLED = {"type": "disabled"}
_ALL = ("low", "medium", "high", "xhigh", "max")


class Thinking(msgspec.Struct, frozen=True):
    """How a model is told to think."""

    on: str
    """`adaptive`, `budget` (tokens), `enabled` (no number), or "" for a model that cannot."""
    off: dict[str, Any] | None = {}
    """`thinking` for none; empty: it is left out. None: it always thinks."""
    efforts: tuple[str, ...] = ()
    """What `output_config.effort` takes; empty: the model has no such field."""
    unasked: bool = False
    """It thinks where `thinking` is left out."""
    samples: bool = True
    """It takes `temperature` and `top_p`."""
    samples_by_both: bool = True
    """At once."""
    bound: bool = False
    """Its thinking is bound to the conversation before it (`BINDING`)."""
    interleaves: bool = True
    """False: only with the beta `INTERLEAVED`."""
    schema: bool = True
    """It takes `output_config.format`."""


_OWN_MODELS = ("DeepSeek", "Moonshot", "Z.ai", "MiniMax")
"""Hosts with models of their own, also behind the names of Claude's."""


def _claude(host: Host, model: str) -> re.Match[str] | None:
    return None if host.name in _OWN_MODELS else _NAME.search(model.lower())


def thinking_of(host: Host, model: str) -> Thinking:
    """What a model at a host documents."""
    found = _claude(host, model)
    if found is None:
        return _of_host(host)
    word, major, minor = found[1] or found[4] or "", int(found[2]), int(found[3] or 0)
    if major < 4:
        return Thinking("budget" if (major, minor) == (3, 7) else "", schema=False)
    if major == 4:
        return _of_claude_4(word, minor)
    bound = major > 5 or minor > 0
    if word in ("fable", "mythos") or (word, major, minor) == ("opus", 5, 5):
        return Thinking("adaptive", None, efforts=_ALL, unasked=True, samples=False, bound=bound)
    if (word, major, minor) == ("sonnet", 5, 5):
        return Thinking("adaptive", {"type": "between_tools"}, efforts=_ALL, unasked=True, samples=False, bound=bound)
    return Thinking("adaptive", _DISABLED, efforts=_ALL, unasked=True, samples=False, bound=bound)


def _of_claude_4(word: str, minor: int) -> Thinking:
    if minor >= 7:
        return Thinking("adaptive", _DISABLED, efforts=_ALL, samples=False)
    if minor == 6:
        return Thinking("adaptive", efforts=("low", "medium", "high", "max"), samples_by_both=False)
    if (word, minor) == ("opus", 5):
        return Thinking("budget", efforts=("low", "medium", "high"), interleaves=False, samples_by_both=False)
    newer = minor > 0
    return Thinking("budget", interleaves=False, schema=newer, samples_by_both=not newer)


def _of_host(host: Host) -> Thinking:
    if host.name == "DeepSeek":  # it thinks as hard as the effort says, and ignores the budget
        return Thinking("enabled", _DISABLED, efforts=_ALL, schema=False)
    return Thinking("" if host.name in ("Moonshot", "Z.ai") else "budget", _DISABLED, schema=False)


def max_tokens_of(host: Host, settings: ModelSettings) -> int:
    """The `max_tokens` of a request, which the API requires."""
    if settings.max_tokens is not None:
        return settings.max_tokens
    found = _claude(host, settings.model)
    if found is not None and int(found[2]) == 3 and found[3] != "7":
        return MAX_TOKENS_CLAUDE_3
    return MAX_TOKENS_EFFORTFUL if settings.reasoning_effort in ("xhigh", "max") else MAX_TOKENS


def thinking_fields(thinking: Thinking, settings: ModelSettings, max_tokens: int, *, controls: bool) -> dict[str, Any]:
    """The body fields that say what `settings` say of reasoning. `controls`: Anthropic's own fields, beyond what others copy.

    Raises UsageError for what the model has no field for.
    """
    effort = settings.reasoning_effort
    if effort and effort not in EFFORTS:
        raise UsageError(f"--reasoning_effort {effort!r} is none of: {', '.join(EFFORTS)}.")
    if settings.reasoning_disabled or effort == "none":
        if thinking.off is None:
            raise UsageError(f"--reasoning_disabled: {settings.model} always thinks; --reasoning_effort=low is the least.")
        return {"thinking": thinking.off} if thinking.off else {}
    if not effort:
        return {"thinking": _adaptive(thinking, controls)} if thinking.unasked else {}
    if not thinking.on:
        raise UsageError(f"--reasoning_effort: no documented field sets it for {settings.model} in this API.")
    takes = thinking.efforts or tuple(BUDGETS)
    if effort not in takes:
        raise UsageError(f"--reasoning_effort {effort!r}: {settings.model} takes only {', '.join(takes)}.")
    fields: dict[str, Any] = {"output_config": {"effort": effort}} if thinking.efforts else {}
    if thinking.on == "budget":
        if max_tokens <= LEAST_BUDGET:
            raise UsageError(f"--reasoning_effort: {settings.model} thinks within --max_tokens; set more than {LEAST_BUDGET}.")
        budget = max(LEAST_BUDGET, min(BUDGETS[effort], max_tokens // 2))
        return {"thinking": {"type": "enabled", "budget_tokens": budget}, **fields}
    return {"thinking": _adaptive(thinking, controls) if thinking.on == "adaptive" else {"type": "enabled"}, **fields}


def _adaptive(thinking: Thinking, controls: bool) -> dict[str, Any]:
    """Summaries are asked for, since these models otherwise give a signature and no text."""
    made: dict[str, Any] = {"type": "adaptive", "display": "summarized"}
    if thinking.bound and controls:
        made["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
    return made


def sampling_fields(host: Host, thinking: Thinking, settings: ModelSettings, *, thinks: bool) -> dict[str, Any]:
    """`temperature` and `top_p`. `thinks`: thinking is switched on. Raises UsageError for what the model refuses."""
    fields = {name: value for name in ("temperature", "top_p") if (value := getattr(settings, name)) is not None}
    if not fields or _claude(host, settings.model) is None:
        return fields
    model, flags = settings.model, " and ".join(f"--{name}" for name in fields)
    if not thinking.samples and set(fields.values()) != {1}:
        raise UsageError(f"{flags}: {model} takes no sampling settings; leave them out.")
    if fields.get("temperature", 0) > 1:
        raise UsageError(f"--temperature must be between 0 and 1 for {model}, not {fields['temperature']}.")
    if len(fields) == 2 and not thinking.samples_by_both:
        raise UsageError(f"{flags}: {model} takes only one of them.")
    if thinks and (fields.get("temperature", 1) != 1 or fields.get("top_p", 1) < LEAST_TOP_P):
        raise UsageError(f"{flags}: with thinking on, {model} takes only a temperature of 1 and a top_p from {LEAST_TOP_P} to 1.")
    return fields
