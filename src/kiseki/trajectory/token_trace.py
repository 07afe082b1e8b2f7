"""The token ids of a rollout's model calls: kept without what the call before already says, and put together again. Pure.

The sequence so far of a rollout is the prompt and completion of its last call with ids. The next call's prompt usually begins
with it, results of tools and what the template puts around them follow. Where it does not (a template that takes old reasoning
out, a message that goes back otherwise than it was sampled), the model saw another text, and a new segment begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from kiseki.trajectory.types import CallTokens, ModelCall

Ids = tuple[int, ...]


class Piece(msgspec.Struct, frozen=True):
    """Ids that follow each other and come from one place."""

    ids: Ids
    call: int | None = None
    """Position of the model call that sampled them; None for those that were put into its prompt."""
    logprobs: tuple[float, ...] = ()
    """Of sampled ids, natural logarithms; empty where the server gave none."""


class Segment(msgspec.Struct, frozen=True):
    """One sequence that the model saw and continued, call after call."""

    prompt: Ids
    """Of its first call, whole."""
    pieces: tuple[Piece, ...]
    """What follows: sampled ids first, then in turn those that the next prompt added and those that were sampled."""

    @property
    def ids(self) -> Ids:
        """The whole sequence."""
        return (*self.prompt, *(each for piece in self.pieces for each in piece.ids))


def share(call: ModelCall, before: Iterable[ModelCall]) -> ModelCall:
    """The call without the first ids of its prompt that are the sequence so far's.

    call: With its whole prompt, as a client gives it; one without ids comes back as it is.
    before: The rollout's calls before it, in order, as this function gave them.
    """
    tokens = _own(call)
    if tokens is None:
        return call
    shared = _common(tokens.prompt, sequence(before))
    if not shared:
        return call
    kept = msgspec.structs.replace(tokens, prompt=tokens.prompt[shared:], shared=shared)
    return msgspec.structs.replace(call, tokens=kept)


def sequence(calls: Iterable[ModelCall]) -> Ids:
    """Prompt and completion of the last call that has ids; empty where none has."""
    so_far: Ids = ()
    for call in calls:
        if (tokens := _own(call)) is not None:
            so_far = (*so_far[: tokens.shared], *tokens.prompt, *tokens.completion)
    return so_far


def prompts(calls: Iterable[ModelCall]) -> list[Ids | None]:
    """The whole prompt of each call, None for those without its ids."""
    found: list[Ids | None] = []
    so_far: Ids = ()
    for call in calls:
        if (tokens := _own(call)) is None:
            found.append(None)
            continue
        prompt = (*so_far[: tokens.shared], *tokens.prompt)
        found.append(prompt)
        so_far = (*prompt, *tokens.completion)
    return found


def segments(calls: Sequence[ModelCall]) -> list[Segment]:
    """The contiguous sequences of a rollout, in order; empty where no call has ids.

    What a call without ids of prompt and completion said stands, as far as a later prompt repeats it, among the ids that were put
    into that prompt.
    """
    found: list[tuple[Ids, list[Piece]]] = []
    so_far: Ids = ()
    for at, call in enumerate(calls):
        if (tokens := _own(call)) is None:
            continue
        prompt = (*so_far[: tokens.shared], *tokens.prompt)
        if found and tokens.shared == len(so_far):
            found[-1][1].append(Piece(tokens.prompt))
        else:
            found.append((prompt, []))
        found[-1][1].append(Piece(tokens.completion, at, tokens.logprobs))
        so_far = (*prompt, *tokens.completion)
    return [Segment(prompt, tuple(piece for piece in pieces if piece.ids)) for prompt, pieces in found]


def _own(call: ModelCall) -> CallTokens | None:
    """The ids of a call as far as they are part of the run's model's sequence: a fallback's mean other text, and are not its."""
    return call.tokens if call.tokens is not None and call.tokens.whole and not call.fallback else None


def _common(one: Ids, other: Ids) -> int:
    """How many first ids are the same in both. By halves, since comparing slices costs next to nothing."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:  # the first `low` are the same, the first `high` are not
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
