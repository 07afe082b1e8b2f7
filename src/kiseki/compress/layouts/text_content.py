"""Content that is text, or a list of parts as multimodal messages have it: read, edited and extended in the form that it has."""

from __future__ import annotations

from typing import Any

from kiseki.compress.turns import Edit
from kiseki.trajectory.text import clean_text, printable


def content_text(content: Any) -> str:
    """The text of any content; parts that are no text count for nothing, other JSON values stand as JSON."""
    if isinstance(content, str):
        return clean_text(content)
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := part_text(part)))
    import msgspec

    return msgspec.json.encode(content).decode()


def shown(value: Any) -> str:
    """A value of a row, as a message can hold it."""
    return printable(repr(value), 80)


def part_text(part: Any) -> str:
    """The text of one part, "" where it is an image or the like."""
    if isinstance(part, str):
        return clean_text(part)
    text = part.get("text") if isinstance(part, dict) else None
    return clean_text(text) if isinstance(text, str) else ""


def edit_parts(content: Any, edit: Edit) -> Any:
    """The content with `edit` applied to its text, or to the text of each part."""
    if isinstance(content, str):
        return edit(content)
    if not isinstance(content, list):
        return content
    return [
        edit(part)
        if isinstance(part, str)
        else part | {"text": edit(part["text"])}
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]


def append_text(content: Any, text: str) -> Any:
    """The content with a paragraph after it: in the text, or as one more part."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": text}]
    before = content_text(content)
    return f"{before}\n\n{text}" if before else text
