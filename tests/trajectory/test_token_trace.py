"""Token ids of calls: kept without what the call before already says, and put together again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kiseki.trajectory.token_trace import Piece, Segment, prompts, segments, sequence, share
from kiseki.trajectory.types import CallTokens, ModelCall


def call(prompt: list[int], completion: list[int] | None, logprobs: list[float] | None = None) -> ModelCall:
    """As a client gives it: with its whole prompt. Without a completion: without ids."""
    tokens = None if completion is None else CallTokens(tuple(prompt), tuple(completion), tuple(logprobs or ()))
    return ModelCall(1.0, 1.0, tokens=tokens)


def kept(*calls: ModelCall) -> list[ModelCall]:
    found: list[ModelCall] = []
    for each in calls:
        found.append(share(each, found))
    return found


def test_a_prompt_that_begins_with_the_sequence_so_far_keeps_only_what_is_new() -> None:
    calls = kept(call([1, 2], [3, 4], [-0.5, -0.25]), call([1, 2, 3, 4, 5], [6]))
    assert [each.tokens for each in calls] == [
        CallTokens((1, 2), (3, 4), (-0.5, -0.25)),
        CallTokens((5,), (6,), (), shared=4),
    ]
    assert segments(calls) == [Segment((1, 2), (Piece((3, 4), 0, (-0.5, -0.25)), Piece((5,)), Piece((6,), 1)))]
    assert segments(calls)[0].ids == (1, 2, 3, 4, 5, 6)


def test_a_rewritten_history_begins_a_new_segment() -> None:
    calls = kept(call([1, 2], [3, 4]), call([1, 2, 4, 5], [6]), call([1, 2, 4, 5, 6, 7], [8]))
    assert calls[1].tokens == CallTokens((4, 5), (6,), (), shared=2)
    assert [each.ids for each in segments(calls)] == [(1, 2, 3, 4), (1, 2, 4, 5, 6, 7, 8)]
    assert segments(calls)[1].prompt == (1, 2, 4, 5)


def test_a_prompt_that_stops_short_of_the_sequence_so_far_begins_a_new_segment() -> None:
    calls = kept(call([1, 2], [3, 4]), call([1, 2, 3], [5]))
    assert calls[1].tokens == CallTokens((), (5,), (), shared=3)
    assert [each.ids for each in segments(calls)] == [(1, 2, 3, 4), (1, 2, 3, 5)]


def test_what_a_call_without_ids_said_counts_as_put_in() -> None:
    calls = kept(call([1], [2]), call([], None), call([1, 2, 3, 4], [5]))
    assert segments(calls) == [Segment((1,), (Piece((2,), 0), Piece((3, 4)), Piece((5,), 2)))]
    assert prompts(calls) == [(1,), None, (1, 2, 3, 4)]


def test_without_any_ids_there_is_nothing() -> None:
    calls = kept(call([], None))
    assert (sequence(calls), segments(calls), prompts(calls)) == ((), [], [None])


ids = st.lists(st.integers(0, 2), max_size=6)  # few values, so that prefixes often agree in part


@given(st.lists(st.tuples(st.booleans(), ids.filter(bool), ids), max_size=6))
def test_everything_comes_back(turns: list[tuple[bool, list[int], list[int]]]) -> None:
    so_far: list[int] = []
    calls, whole = [], []
    for continues, more, completion in turns:
        prompt = so_far + more if continues else more
        calls.append(call(prompt, completion))
        whole.append((*prompt, *completion))
        so_far = prompt + completion
    stored = kept(*calls)
    assert prompts(stored) == [each.tokens.prompt for each in calls if each.tokens]
    assert sequence(stored) == (whole[-1] if whole else ())
    found = segments(stored)
    assert [piece.ids for each in found for piece in each.pieces if piece.call is not None] == [
        each.tokens.completion for each in calls if each.tokens and each.tokens.completion
    ]
    assert {each.ids for each in found} <= set(whole)
    assert not whole or found[-1].ids == whole[-1]
