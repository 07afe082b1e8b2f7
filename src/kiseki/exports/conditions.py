"""What `--only` and `--split` say, read; and what one example is to them. Pure."""

from __future__ import annotations

import hashlib
import math
import operator
import re
from collections.abc import Callable

import msgspec

from kiseki.errors import UsageError
from kiseki.trajectory.example import Example

TRAIN = "train"
"""The split of everything where none are asked for: what loaders look for first."""
NO_REWARD = "no reward"
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_SHARES_ADD_UP = 1e-6

Condition = Callable[[Example], str]
"""Why an example does not hold to it, "" where it does."""


def read_only(text: str) -> tuple[Condition, ...]:
    """The conditions of `completed,reward>0.5`. Raises `UsageError`."""
    return tuple(_condition(each.strip()) for each in text.split(",")) if text.strip() else ()


def _condition(text: str) -> Condition:
    if text == "completed":
        return lambda example: "" if example.completed else "not completed"
    if text == "partial":
        return lambda example: "" if example.partial else "not partial"
    found = re.fullmatch(r"reward\s*(>=|<=|>|<|=)\s*(\S+)", text)
    try:
        bound = float(found[2]) if found else math.nan
    except ValueError:
        bound = math.nan
    if not found or math.isnan(bound):
        words = "it takes completed, partial, reward>0.5 (also >=, <, <=, =), several with commas between"
        raise UsageError(f"--only: {text!r} is no condition; {words}, and quotes around what has < or >")
    compare = _COMPARE[found[1]]

    def by_reward(example: Example) -> str:
        if example.reward is None:
            return NO_REWARD
        return "" if compare(example.reward, bound) else f"not {text}"

    return by_reward


class Split(msgspec.Struct, frozen=True):
    """One part of the data."""

    name: str
    end: float
    """Prompts whose place is below this, and not below the end of the split before, are in it."""


def read_split(text: str) -> tuple[Split, ...]:
    """The splits of `train=0.95,val=0.05`, in that order; of "" the one that has everything. Raises `UsageError`."""
    if not text.strip():
        return (Split(TRAIN, 1.0),)
    splits: list[Split] = []
    total = 0.0
    for part in text.split(","):
        name, _, share = part.partition("=")
        name = name.strip()
        try:
            fraction = float(share)
        except ValueError:
            fraction = math.nan
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) or not 0 < fraction <= 1:
            raise UsageError(f"--split: {part.strip()!r} is no name with a share between 0 and 1; try train=0.95,val=0.05")
        if name == "all":  # the datasets library then loads nothing
            raise UsageError("--split: all is what loaders call the splits together; take another name")
        if name in [each.name for each in splits]:
            raise UsageError(f"--split: {name} is there twice")
        total += fraction
        splits.append(Split(name, total))
    if abs(total - 1) > _SHARES_ADD_UP:
        raise UsageError(f"--split: the shares add up to {total:g}, not to 1")
    splits[-1] = Split(splits[-1].name, 1.0)
    return tuple(splits)


def prompt_words(example: Example) -> str:
    """What says that two examples have the same prompt: the texts and images of the prompt's messages but the system's, where it
    is known which they are, else of the first user message; the example's key where there is nothing of the kind."""
    own = [each for each in example.messages[: example.prompt_messages] if each.role != "system"]
    if not example.prompt_messages:
        own = [each for each in example.messages if each.role == "user"][:1]
    parts = [text for each in own for text in (each.content, *(image.url for image in each.images))]
    return "\0".join(parts) if any(parts) else f"\0{example.key}"


def split_of(example: Example, splits: tuple[Split, ...], seed: int) -> str:
    """The split of an example: the same for all with its prompt, whatever else the source has."""
    if len(splits) == 1:
        return splits[0].name
    place = draw(seed, prompt_words(example))
    return next(each.name for each in splits if place < each.end)


def draw(seed: int, text: str) -> float:
    """A number from 0 to below 1 that a text and a seed have for ever."""
    digest = hashlib.blake2b(f"{seed}\0{text}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53  # as many bits as a float holds, so that it never rounds to 1
