"""What one kind of image API does: a prompt to its request, its answer to an image. Pure; one module for each kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from kiseki.trajectory.types import Usage

Ratio = Literal["landscape", "square", "portrait"]


class Drawn(msgspec.Struct, frozen=True):
    """What an answer holds."""

    image: str = ""
    """A `data:` URI, an http(s) URL or bare base64; "" where there is none."""
    words: str = ""
    """What it says beside the image, or instead of one."""
    refused: bool = False
    """Whether what was asked for is not drawn."""
    usage: Usage = Usage()
    cost_reported: bool = False


class ImageApi(msgspec.Struct, frozen=True):
    """One kind of endpoint."""

    default_model: str
    path: Callable[[str], str]
    """Model id → what stands behind the API base."""
    body: Callable[[str, str, Ratio], dict[str, Any]]
    """Model id, prompt and ratio → the request's JSON."""
    read: Callable[[dict[str, Any]], Drawn]
    """Never raises, whatever the answer is."""
    scheme: str = "Bearer"
    """Of the Authorization header."""


def dict_of(value: Any) -> dict[str, Any]:
    """`value` where it is an object, else an empty one: answers are a stranger's."""
    return value if isinstance(value, dict) else {}


def first_of(value: Any) -> dict[str, Any]:
    """The first object of a list; an empty one where there is none."""
    return dict_of(value[0]) if isinstance(value, list) and value else {}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def usage_of(value: Any, prompt: str, completion: str) -> tuple[Usage, bool]:
    """Tokens under these names and `cost`, and whether that was there."""
    found = dict_of(value)
    tokens = (found.get(name) for name in (prompt, completion))
    prompt_tokens, completion_tokens = (each if type(each) is int and each >= 0 else 0 for each in tokens)
    cost = found.get("cost")
    reported = isinstance(cost, int | float) and 0 <= cost < 1_000
    return Usage(prompt_tokens, completion_tokens, cost=float(cost) if reported and cost is not None else 0.0), reported
