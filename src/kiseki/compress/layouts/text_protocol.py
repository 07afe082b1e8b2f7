"""Agents that write their commands as text, in code blocks or tags of their own, and get the outputs back as human turns."""

from __future__ import annotations

import itertools

import msgspec

from kiseki.compress.turns import Call, Turn

_ACTIONS = ("```", "<function=", "<command>", "<execute_", '{"command"')
"""How agents without tool calls write what is to be run."""
LEAST_ACTIONS = 3
ACTION_SHARE = 0.8


def as_text_protocol(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Conversations of agents that write their commands as text and get the outputs back as human turns: those turns are `tool`
    turns for all that is done here. Any other conversation as it is.

    It is one where there are no tool turns, every answer but the last gets exactly one human turn, and nearly all of the
    answers hold an action (a code block, a function tag).
    """
    if any(turn.role == "tool" or turn.data.get("tool_calls") for turn in turns):
        return turns
    asked = [number for number, turn in enumerate(turns) if turn.role == "gpt"]
    answered = [number for number in asked if number + 1 < len(turns)]
    if len(answered) < LEAST_ACTIONS or any(turns[number + 1].role != "human" for number in answered):
        return turns
    if any(second - first != 2 for first, second in itertools.pairwise(asked)):
        return turns
    actions = sum(any(mark in turns[number].text for mark in _ACTIONS) for number in answered)
    if actions < ACTION_SHARE * len(answered):
        return turns
    results = {number + 1 for number in answered}
    return tuple(msgspec.structs.replace(turn, role="tool") if at in results else turn for at, turn in enumerate(turns))


def commands(text: str) -> list[Call]:
    """The command of an answer that has it in a code block: the last one."""
    pieces = text.split("```")
    if len(pieces) < 3:
        return []
    code = pieces[-2].partition("\n")[2] if "\n" in pieces[-2] else pieces[-2]
    return [Call("command", msgspec.json.encode({"command": code.strip()}).decode())]
