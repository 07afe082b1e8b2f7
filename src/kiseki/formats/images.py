"""Images of a message, in the two ways that formats write them: as parts of the content, or as `<image>` in the text with their
URLs in a column of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kiseki.formats.format import Unfit
from kiseki.trajectory.example import Example
from kiseki.trajectory.text import clean_text, printable
from kiseki.trajectory.types import ImageAt, Message

PLACEHOLDER = "<image>"


def as_parts(message: Message) -> str | list[dict[str, Any]]:
    """The content as chat APIs take it: text, or a list of text and `image_url` parts where there are images."""
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = []
    done = 0
    for image in message.images:
        if image.at > done:
            parts.append({"type": "text", "text": message.content[done : image.at]})
        parts.append({"type": "image_url", "image_url": {"url": image.url}})
        done = max(done, image.at)
    if message.content[done:]:
        parts.append({"type": "text", "text": message.content[done:]})
    return parts


def from_parts(parts: Sequence[Any]) -> tuple[str, tuple[ImageAt, ...], str]:
    """(text, images, reasoning) of a list of content parts; texts are put together as they are, as chat templates do it."""
    text, reasoning, images = "", "", []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else ""
        if isinstance(part, str):
            text += clean_text(part)
        elif kind in ("thinking", "reasoning"):
            reasoning += clean_text(str(part.get("thinking") or part.get("reasoning") or part.get("text") or ""))
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            text += clean_text(part["text"])
        elif isinstance(part, dict) and (url := _url(part)):
            images.append(ImageAt(len(text), url))
        elif kind == "image":  # its URL is in the row's own column
            text += PLACEHOLDER
        elif kind == "refusal":
            text += clean_text(str(part.get("refusal") or ""))
        elif part is not None:
            raise ValueError(f"a part of a message is neither text nor an image: {printable(str(kind or part), 80)}")
    return text, tuple(images), reasoning


def with_placeholders(example: Example) -> list[str]:
    """The contents of all messages, with `<image>` where their images stand.

    Raises `Unfit` where one in the text would be taken for an image: readers and trainers count them in order.
    """
    if not any(each.images for each in example.messages):
        return [each.content for each in example.messages]
    for each in example.messages:
        if any(PLACEHOLDER in text for text in (each.content, each.reasoning, *(call.arguments for call in each.tool_calls))):
            raise Unfit("literal <image> beside images")
    return [_with_placeholders(each) for each in example.messages]


def _with_placeholders(message: Message) -> str:
    pieces, done = [], 0
    for image in message.images:
        pieces += [message.content[done : image.at], PLACEHOLDER]
        done = image.at
    return "".join([*pieces, message.content[done:]])


def urls(example: Example) -> list[str]:
    """Of all images of a conversation, in order."""
    return [image.url for message in example.messages for image in message.images]


def placeholder_reader(column: Any) -> Callable[[str], tuple[str, tuple[ImageAt, ...]]]:
    """What takes `<image>` out of one content after the other, given the row's `images`; placeholders without an image left for
    them are text."""
    listed = column if isinstance(column, list | tuple) else []
    left = [url for each in listed if (url := each if isinstance(each, str) else _url(each))]

    def read(content: str) -> tuple[str, tuple[ImageAt, ...]]:
        if not left or PLACEHOLDER not in content:
            return content, ()
        text, images = "", []
        first, *rest = content.split(PLACEHOLDER)
        text = first
        for piece in rest:
            if left:
                images.append(ImageAt(len(text), left.pop(0)))
                text += piece
            else:
                text += PLACEHOLDER + piece
        return text, tuple(images)

    return read


def _url(part: Any) -> str:
    """Of an image part in any of the usual forms; "" for one that is none."""
    if not isinstance(part, dict):
        return ""
    for name in ("image_url", "image", "url", "path"):
        value = part.get(name)
        value = value.get("url") if isinstance(value, dict) else value
        if isinstance(value, str) and value:
            return value
    return ""
