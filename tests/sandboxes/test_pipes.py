"""Collecting output: whatever the reads' boundaries, in bounded memory."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.sandboxes.pipes import Kept, LineDrop, MarkerSearch

MARKER = b"\x1e0123abcd"
STREAM = b"out\x1e0123abce\x1e\x1e" + MARKER + b"7:/a:b\0late"


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_a_marker_is_found_however_it_is_cut(size: int) -> None:
    search = MarkerSearch(MARKER)
    before = b""
    left = STREAM
    while left and search.note is None:
        before += search.feed(left[:size])
        left = left[size:]
    assert before == b"out\x1e0123abce\x1e\x1e"
    assert search.note == b"7:/a:b"
    assert search.rest + left == b"late"


def test_a_torn_marker_is_given_back() -> None:
    search = MarkerSearch(MARKER)
    assert search.feed(b"ab\x1e0123") == b"ab"
    assert search.held() == b"\x1e0123"


def test_an_endless_note_ends() -> None:
    search = MarkerSearch(MARKER)
    search.feed(MARKER + b"0:/" + b"x" * 100_000)
    assert search.note is not None
    assert len(search.note) == MarkerSearch.NOTE_LIMIT


@pytest.mark.parametrize("size", [1, 3, 10, 1000])
@pytest.mark.parametrize("limit", [2, 9, 10, 11, 64, 999, 1000, 1001])
def test_kept_is_head_and_tail(size: int, limit: int) -> None:
    data = bytes(i % 251 for i in range(1000))
    kept = Kept(limit)
    for start in range(0, len(data), size):
        kept.add(data[start : start + size])
    half = limit // 2
    assert kept.total == 1000
    assert kept.data() == (data if limit >= 1000 else data[:half] + data[-half:])


def test_kept_does_not_grow() -> None:
    kept = Kept(100)
    for _ in range(1000):
        kept.add(b"x" * 65_536)
    assert kept.total == 65_536_000
    assert len(kept._head) + len(kept._tail) < 200_000


@given(st.data())
def test_lines_are_dropped_however_the_reads_cut_them(data: st.DataObject) -> None:
    noise = b"bash: [12: 1 (255)] noise\n"
    text = data.draw(
        st.lists(st.sampled_from([b"a", b"b", b"bash: ", b"bash: [", b"bash: [1: ", b"\n", noise, b"x" * 50])).map(b"".join)
    )
    pattern = re.compile(rb"bash: \[\d+: \d+ \(\d+\)\] noise\n")
    drop = LineDrop(b"bash: [", pattern, 40)
    given_on = b""
    left = text
    while left:
        size = data.draw(st.integers(1, 30))
        given_on += drop.feed(left[:size])
        left = left[size:]
    assert given_on + drop.held() == pattern.sub(b"", text)
