"""Conversations for trainers that know nothing but turns which alternate: the user's (or results) and the assistant's.

Whoever reads such a file pairs turns by position, and drops the row where two of a side follow each other.
"""

from __future__ import annotations

import re

import msgspec

from kiseki.formats.columns import check_answers, in_call_order
from kiseki.formats.format import Options, Unfit
from kiseki.trajectory.example import Example
from kiseki.trajectory.sharegpt import escape_text, unescape_text
from kiseki.trajectory.types import ImageAt, Message

_THINK = re.compile(r"\A<think>\n(.*?)\n</think>\n\n", re.DOTALL)
_BETWEEN = "\n\n"
"""What stands between the texts of messages that become one."""


def alternating(example: Example) -> Example:
    """The example with a system message at most, users' messages that follow each other as one, and a user's after results at
    the end of the last of them; results stand in the order of their calls.

    Raises `Unfit` for what cannot be put so: calls without results and results without calls, two assistant turns in a row, a
    system message in the middle, a conversation that does not begin with a user or does not end on the assistant.
    """
    check_answers(example)
    made: list[Message] = []
    place: dict[int, int] = {}  # of each message, where it is now
    for at in in_call_order(example.messages):
        message = example.messages[at]
        before = made[-1].role if made else "none"
        if message.role == "system" and before not in ("none", "system"):
            raise Unfit("a system message in the middle")
        if message.role == "assistant" and before not in ("user", "tool"):
            raise Unfit("two assistant turns in a row" if before == "assistant" else "does not begin with a user turn")
        if made and ((message.role == before and before in ("system", "user")) or (message.role == "user" and before == "tool")):
            made[-1] = _joined(made[-1], message)
        else:
            made.append(message)
        place[at] = len(made) - 1
    if not made or made[-1].role != "assistant":
        raise Unfit("does not end on an assistant turn")
    return msgspec.structs.replace(
        example,
        messages=tuple(made),
        prompt_messages=place[example.prompt_messages - 1] + 1 if example.prompt_messages else 0,
        masked=frozenset(place[at] for at in example.masked),
        failed=frozenset(place[at] for at in example.failed),
    )


def _joined(first: Message, then: Message) -> Message:
    between = _BETWEEN if first.content and then.content else ""
    moved = len(first.content) + len(between)
    images = (*first.images, *(ImageAt(each.at + moved, each.url) for each in then.images))
    return msgspec.structs.replace(first, content=first.content + between + then.content, images=images)


# ---- reasoning in the text ----------------------------------------------------------------------------------------------


def with_think(reasoning: str, text: str, options: Options) -> str:
    """An assistant's text with its reasoning in a `<think>` block before it, as Qwen3's template has it. Literal tags in either
    are marked as such (`trajectory.sharegpt.escape_text`)."""
    if reasoning:
        return f"<think>\n{escape_text(reasoning)}\n</think>\n\n{escape_text(text)}"
    return ("<think>\n\n</think>\n\n" if options.empty_think == "keep" else "") + escape_text(text)


def split_think(value: str) -> tuple[str, str]:
    """(reasoning, the rest, still escaped) of what `with_think` gave."""
    block = _THINK.match(value)
    return (unescape_text(block[1]), value[block.end() :]) if block else ("", value)
