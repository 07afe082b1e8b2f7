"""Calls of a conversation with their results."""

from __future__ import annotations

from collections.abc import Iterator

from kiseki.trajectory.example import Example
from kiseki.trajectory.types import ToolCall


def calls_with_results(example: Example) -> Iterator[tuple[int, ToolCall, int | None]]:
    """(position of the assistant turn, call, position of its result or None) of each call, in order.

    A result is looked for right after its turn: ids may come again later in a conversation.
    """
    messages = example.messages
    for at, message in enumerate(messages):
        if not message.tool_calls:
            continue
        results: dict[str, int] = {}
        for place in range(at + 1, len(messages)):
            if messages[place].role != "tool":
                break
            results.setdefault(messages[place].tool_call_id, place)
        for call in message.tool_calls:
            yield at, call, results.get(call.id)
