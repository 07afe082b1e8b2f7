"""What is wrong with a conversation in itself, whoever reads it. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from kiseki.doctor.findings import Problem
from kiseki.doctor.turns import RESPONSE, Conversation, Turn
from kiseki.formats.images import PLACEHOLDER
from kiseki.formats.reading import CALL_ROLES

_PARTS = ("text", "input_text", "output_text", "refusal", "image", "image_url", "input_image", "thinking", "reasoning")
SEVERAL = "*"
"""A result that stands for all calls of its turn."""


def check_conversation(row: dict[str, Any], conversation: Conversation) -> Iterator[Problem]:
    """Every problem of one row."""
    turns = conversation.turns
    for turn in turns:
        if not turn.role:
            yield Problem("unknown role", f"turn {turn.at}: {turn.named}")
        if turn.role == "system" and turn.at > 1:
            yield Problem("system turn not first", f"turn {turn.at}")
        if turn.role == "assistant" and not (turn.text.strip() or turn.reasoning or turn.calls):
            yield Problem("empty assistant turn", f"turn {turn.at}")
        if odd := _odd_parts(turn):
            yield Problem("part is no text", f"turn {turn.at}: {', '.join(odd)}")
        if turn.role == "tool" and not conversation.sharegpt and turn.text.lstrip().startswith(RESPONSE):
            yield Problem("wrapped result", f"turn {turn.at}")
    yield from _trained(turns)
    yield from _arguments(turns)
    yield from _answers(turns)
    yield from _tools(conversation)
    yield from _images(row, turns)
    if turns[-1].role == "tool":
        yield Problem("ends on a tool turn", f"turn {turns[-1].at}")
    if found := not_alternating(turns, joined=not conversation.sharegpt):
        yield Problem("alternation broken", found)


def _odd_parts(turn: Turn) -> list[str]:
    """Types of the parts of its content that neither templates nor exports have a place for."""
    content = turn.raw.get("value" if "from" in turn.raw else "content")
    parts = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    return list(
        dict.fromkeys(str(each["type"]) for each in parts if isinstance(each.get("type"), str) and each["type"] not in _PARTS)
    )


def _trained(turns: Sequence[Turn]) -> Iterator[Problem]:
    assistant = [turn for turn in turns if turn.role == "assistant"]
    if not assistant:
        yield Problem("no assistant turn")
    elif all(turn.masked for turn in assistant):
        yield Problem("nothing to train on")


def _arguments(turns: Sequence[Turn]) -> Iterator[Problem]:
    kinds = {
        "broken": "arguments not JSON",
        "encoded": "arguments double-encoded",
        "text": "arguments as text",
        "object": "arguments as objects",
    }
    for turn in turns:
        in_field = bool(turn.raw.get("tool_calls"))
        for call in turn.calls:
            if call.form in ("broken", "encoded") or in_field:
                yield Problem(kinds[call.form], f"turn {turn.at}, {call.name}")


def _answers(turns: Sequence[Turn]) -> Iterator[Problem]:
    """Calls and the results after them, group by group: by id where both have one, else by number."""
    at = 0
    while at < len(turns):
        turn = turns[at]
        if turn.role == "tool":  # after no calls
            yield Problem("result without call", f"turn {turn.at}")
            at += 1
            continue
        calls = list(turn.calls)
        at += 1
        if turn.role == "assistant":
            while at < len(turns) and turns[at].named in CALL_ROLES:  # calls in turns of their own
                calls += turns[at].calls
                at += 1
        if not calls:
            continue
        start = at
        while at < len(turns) and turns[at].role == "tool":
            at += 1
        yield from _group([call.id for call in calls], turns[start:at], turn.at, last=at == len(turns))


def _group(calls: list[str], answers: Sequence[Turn], at: int, *, last: bool) -> Iterator[Problem]:
    results = [each for answer in answers for each in answer.results]
    where = f"turn {at}"
    if not results:
        yield Problem("ends on calls" if last else "call without result", where)
        return
    if SEVERAL in results:
        return
    for call_id, times in Counter(each for each in results if each).items():
        if times > 1:
            yield Problem("result doubled", f"{where}: {call_id} is answered {times} times")
    if all(calls) and all(results):
        for missing in dict.fromkeys(each for each in calls if each not in results):
            yield Problem("call without result", f"{where}: {missing}")
        for orphan in dict.fromkeys(each for each in results if each not in calls):
            yield Problem("result without call", f"{where}: {orphan}")
    elif len(set(results) - {""}) + results.count("") < len(calls):
        yield Problem("call without result", f"{where}: {len(calls)} calls, {len(results)} results")
    elif len(results) > len(calls):
        yield Problem("result without call", f"{where}: {len(calls)} calls, {len(results)} results")


def _tools(conversation: Conversation) -> Iterator[Problem]:
    called = {call.name: turn.at for turn in reversed(conversation.turns) for call in turn.calls}
    if called and conversation.tools is None:
        yield Problem("tools missing", ", ".join(called))
    elif conversation.tools is not None:
        for name, at in called.items():
            if name not in conversation.tools:
                yield Problem("unknown tool", f"turn {at}: {name}")


def _images(row: dict[str, Any], turns: Sequence[Turn]) -> Iterator[Problem]:
    images = row.get("images")
    if not isinstance(images, list | tuple):
        return
    marks = sum(turn.text.count(PLACEHOLDER) for turn in turns)
    if marks != len(images):
        detail = f"{marks} {PLACEHOLDER} in the text, {len(images)} images"
        yield Problem("images and <image> differ", detail, severity=None if images else "note")


def not_alternating(turns: Sequence[Turn], *, joined: bool, strict: bool = False) -> str:
    """Where the turns do not alternate between user or tool and the assistant, or begin or end on the wrong one; "" where they
    do. A row that merely ends on a tool turn is left to its own check, unless `strict`.

    joined: Whether tool turns in a row are one. strict: Turns of calls in a row are not one.
    """
    sides: list[tuple[str, int]] = []
    for turn in turns[1:] if turns and turns[0].role == "system" else turns:
        side = "assistant" if turn.role == "assistant" else turn.role
        before = sides[-1][0] if sides else ""
        if joined and side == before == "tool":
            continue
        if not strict and turn.named in CALL_ROLES and before == "assistant":
            continue
        if not strict and side == before == "tool" and turn.named not in ("tool", "observation"):
            continue
        sides.append((side, turn.at))
    for number, (side, at) in enumerate(sides):
        wanted = "assistant" if number % 2 else "user or tool"
        if side not in wanted.split(" or "):
            return f"turn {at} is {side or 'of an unknown role'}, not {wanted}"
    if len(sides) % 2 and (strict or (sides and sides[-1][0] != "tool")):
        return f"it ends on turn {sides[-1][1]}, which is not the assistant's"
    return ""
