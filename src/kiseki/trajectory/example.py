"""One trajectory as the formats write it, and as it is read back from their files: what a `Record` and a row of a dataset have
in common. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.trajectory.types import Message, ModelCall, Usage


class Example(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation with its tools, what is known of how it ended, and which of its messages no loss falls on."""

    messages: tuple[Message, ...]
    """In order, the system's first where there is one. Every result names its call: ids that were missing are made up."""
    tools: tuple[dict[str, Any], ...] = ()
    """Schemas in OpenAI's form: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    key: str = ""
    """Names it in reports: the rollout's key, or file and row."""
    prompt_index: int = 0
    """In the dataset of prompts; the row's number, from 0, where a file does not say it."""
    sample_index: int = 0
    prompt_messages: int = 0
    """How many of `messages` are the prompt's own; 0 where that is not known."""
    masked: frozenset[int] = frozenset()
    """Positions in `messages` that are not to be trained on, beside those that never are (system, user, tool)."""
    failed: frozenset[int] = frozenset()
    """Positions of tool messages whose call failed, by the rule in `trajectory/outcome.py`."""
    completed: bool = True
    partial: bool = False
    stop_reason: str = ""
    """`answered`, or what stopped it early; "" where it is not known."""
    finish_reason: str = ""
    """Of the last model call; "" where it is not known."""
    model: str = ""
    reward: float | None = None
    started: float = 0.0
    """Unix seconds; 0 where it is not known."""
    seconds: float = 0.0
    usage: Usage = Usage()
    """Of all that the rollout did; zeros where it is not known."""
    calls: tuple[ModelCall, ...] = ()
    """Of the model, one for each assistant message after the prompt's, in order; empty where they are not known."""
    toolsets: tuple[str, ...] = ()
    source: str = "{}"
    """The prompt row's other columns as one JSON object."""
    metadata: str = "{}"
    """What else the row has, as one JSON object."""


def prompt_text(example: Example) -> str:
    """What was asked: the prompt's last user message, the first one where it is not known which that is; "" without any."""
    messages = example.messages[: example.prompt_messages] if example.prompt_messages else example.messages
    asked = [each.content for each in messages if each.role == "user"]
    return asked[-1 if example.prompt_messages else 0] if asked else ""


def trained(example: Example) -> list[int]:
    """Positions of the messages that a loss falls on: the assistant's, but for the prompt's own and the masked."""
    return [
        at
        for at, message in enumerate(example.messages)
        if message.role == "assistant" and at >= example.prompt_messages and at not in example.masked
    ]


def without_tail(example: Example) -> Example:
    """The example up to its last assistant message; the same object where it ends on one, or has none."""
    last = max((at for at, each in enumerate(example.messages) if each.role == "assistant"), default=-1)
    if last in (-1, len(example.messages) - 1):
        return example
    kept = last + 1
    return msgspec.structs.replace(
        example,
        messages=example.messages[:kept],
        prompt_messages=min(example.prompt_messages, kept),
        masked=frozenset(at for at in example.masked if at < kept),
        failed=frozenset(at for at in example.failed if at < kept),
    )


def final_answer(example: Example) -> str:
    """The text of the last message where that is the assistant's and calls nothing; "" otherwise."""
    last = example.messages[-1] if example.messages else None
    return last.content if last and last.role == "assistant" and not last.tool_calls else ""
