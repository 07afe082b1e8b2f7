"""Any conversation as ShareGPT turns of just `from` and `value`, for files in which all rows must have one layout."""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.compress.layouts.messages import MESSAGES, ROLES
from kiseki.compress.layouts.text_content import content_text
from kiseki.compress.rows import Trajectory
from kiseki.formats.reading import read_row
from kiseki.formats.sharegpt import turns_of
from kiseki.trajectory.example import Example
from kiseki.trajectory.reasoning import native_reasoning, split_content

TOOLS_COLUMN = "tools"
_MEDIA = ("image", "audio", "video", "file")


class Converted(msgspec.Struct, frozen=True):
    """A conversation as ShareGPT turns."""

    turns: list[dict[str, str]]
    has_tools: bool = False
    """The row's tools are in the system turn."""
    media: int = 0
    """Images and the like in whose place there is only a note, as `[image]`."""


def as_sharegpt(trajectory: Trajectory) -> Converted:
    """Turns that are ShareGPT's lose what they have beside `from` and `value`. Messages become the Hermes format where they
    have calls, results or reasoning in fields of their own (`trajectory/sharegpt.py`); where all is in their text, it stays
    as it is."""
    turns = trajectory.turns
    name = "content" if trajectory.layout is MESSAGES else "value"
    media = sum(_media_kind(part) != "" for turn in turns for part in _parts(turn.data.get(name)))
    if trajectory.layout is not MESSAGES:
        return Converted([{"from": str(turn.data["from"]), "value": _text(turn.data.get(name))} for turn in turns], media=media)
    if not any(_has_fields(turn.data) for turn in turns):
        made = [{"from": str(ROLES[str(turn.data["role"])]), "value": _text(turn.data.get(name))} for turn in turns]
        return Converted(made, media=media)
    example = _read(trajectory)
    return Converted(turns_of(example.messages, example.tools), bool(example.tools), media)


def _has_fields(data: dict[str, Any]) -> bool:
    told = data.get("tool_calls") or data.get("tool_call_id") or data.get("role") in ("tool_call", "tool_response")
    return bool(told or native_reasoning(data) or split_content(data.get("content"))[1])


def _read(trajectory: Trajectory) -> Example:
    """As read from its columns, with a note in the place of each image and the like."""
    turns = [turn.data | {"content": _noted(turn.data.get("content"))} for turn in trajectory.turns]
    tools = trajectory.columns.get(TOOLS_COLUMN)
    return read_row({"messages": turns, TOOLS_COLUMN: None if tools is None else msgspec.json.decode(tools)})


# ---- parts that are no text -------------------------------------------------------------------------------------------


def _text(content: Any) -> str:
    """The text of any content, with a note in the place of each image and the like."""
    return content_text(_noted(content))


def _noted(content: Any) -> Any:
    """The content with a note in the place of each part that is no text."""
    if not isinstance(content, list):
        return content
    return [f"[{kind}]" if (kind := _media_kind(part)) else part for part in content]


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _media_kind(part: Any) -> str:
    """`image`, `audio`, …; "" for a part that is text or something else."""
    if not isinstance(part, dict) or isinstance(part.get("text"), str):
        return ""
    return next((kind for kind in _MEDIA if kind in str(part.get("type"))), "")
