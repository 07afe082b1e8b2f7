"""Chat messages as people write them, in datasets and few-shot files: the one reader, and the one vocabulary of roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, Role

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}


def read_message(value: Any, where: str) -> Message:
    """One `{role, content}` or `{from, value}`. Raises `ValueError`, which begins with `where`, for one that is none."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {kind_of(value)}, not an object")
    named = value.get("role", value.get("from"))
    role = ROLES.get(str(named))
    if role is None:
        raise ValueError(f"{where} has the role {named!r}; roles are system, user and assistant")
    content = value.get("content", value.get("value"))
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        content = "\n".join(texts) if len(texts) == len(content) else None
    if not isinstance(content, str):
        raise ValueError(f"{where} has no text content")
    return Message(role=role, content=clean_text(content))


def kind_of(value: Any) -> str:
    """What a value is, in JSON's words where it has one: "a number", "an array", …"""
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array", dict: "an object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)
