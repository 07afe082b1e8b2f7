"""Agents that write their commands as text, in code blocks or tags of their own, and get the outputs back as human turns."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from kiseki.compress.turns import Call, Turn

_ACTIONS = ("<function=", "<command>", "<execute_", '{"command"')
"""Tags in which agents without tool calls write what is to be run."""
_FENCE = "```"
LEAST_ACTIONS = 3
SHARE = 0.8
"""Of answers and outputs that must look like an agent's."""
LEAST_PROMPT = 3
"""Characters of a line that outputs have in common: a shell's prompt, a heading."""


def as_text_protocol(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Conversations of agents that write their commands as text and get the outputs back as human turns: those turns are `tool`
    turns for all that is done here. Any other conversation as it is.

    It is one where there are no tool turns, every answer but the last gets exactly one human turn, and either nearly all
    answers have an agent's tag, or nearly all have a code block and nearly all outputs begin, or end, with the same line: people
    who talk about code do not.
    """
    if any(turn.role == "tool" or turn.data.get("tool_calls") for turn in turns):
        return turns
    asked = [number for number, turn in enumerate(turns) if turn.role == "gpt"]
    answered = [number for number in asked if number + 1 < len(turns)]
    if len(answered) < LEAST_ACTIONS or any(turns[number + 1].role != "human" for number in answered):
        return turns
    if any(second - first != 2 for first, second in itertools.pairwise(asked)):
        return turns
    answers = [turns[number].text for number in answered]
    outputs = [turns[number + 1].text for number in answered]
    tagged = _share(any(mark in text for mark in _ACTIONS) for text in answers) >= SHARE
    fenced = _share(_FENCE in text for text in answers) >= SHARE
    if not tagged and not (fenced and _same_line(outputs)):
        return turns
    results = {number + 1 for number in answered}
    return tuple(msgspec.structs.replace(turn, role="tool") if at in results else turn for at, turn in enumerate(turns))


def _share(which: Iterable[bool]) -> float:
    values = list(which)
    return sum(values) / len(values)


def _same_line(texts: Sequence[str]) -> bool:
    for place in (0, -1):
        lines = Counter(text.strip().splitlines()[place].strip() for text in texts if text.strip())
        line, times = max(lines.items(), key=lambda each: each[1], default=("", 0))
        if len(line) >= LEAST_PROMPT and times >= SHARE * len(texts):
            return True
    return False


def commands(text: str) -> list[Call]:
    """The command of an answer that has it in a code block: the last one."""
    pieces = text.split(_FENCE)
    if len(pieces) < 3 or len(pieces) % 2 == 0:  # none, or one that is not closed
        return []
    code = pieces[-2].partition("\n")[2] if "\n" in pieces[-2] else pieces[-2]
    return [Call("command", msgspec.json.encode({"command": code.strip()}).decode())]
