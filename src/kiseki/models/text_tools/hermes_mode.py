"""The mode `hermes`: tools, calls and results between tags, written as Kiseki's own rows have them (`trajectory/sharegpt.py`);
calls are read in whatever format the model prefers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools.parsing import parse
from kiseki.models.text_tools.rewriting import Mode, Reading
from kiseki.trajectory.sharegpt import call_text, response_text, tools_text
from kiseki.trajectory.types import Message


def prompt(tools: tuple[ToolSchema, ...]) -> str:
    """The tools as OpenAI's API lists them, and how to call one."""
    functions = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
    return tools_text(msgspec.Raw(msgspec.json.encode([{"type": "function", "function": each} for each in functions])))


def write_turn(message: Message) -> str:
    """What the assistant said, then its calls."""
    return "\n".join([*([message.content] if message.content else []), *map(call_text, message.tool_calls)])


def write_results(results: Sequence[Message]) -> str:
    return "\n".join(map(response_text, results))


def read(text: str, tools: tuple[ToolSchema, ...]) -> Reading:
    return Reading(*parse(text, tools))


HERMES = Mode(prompt, lambda tools: msgspec.Raw(b""), write_turn, write_results, read, writes_answers=False)
