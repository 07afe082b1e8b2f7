"""Text that can be stored, and cuts in the middle."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from kiseki.trajectory.text import clean_text, cut_middle


@given(st.text(st.characters()))
def test_clean_text_can_always_be_encoded(text: str) -> None:
    cleaned = clean_text(text)
    cleaned.encode()
    if not re.search("[\ud800-\udfff]", text):
        assert cleaned == text


def test_a_surrogate_pair_becomes_its_character() -> None:
    assert clean_text("a\ud83d\ude00b\udc00") == "a\U0001f600b\ufffd"


@given(st.text(min_size=1), st.integers(1, 60))
def test_cut_middle_keeps_whole_characters_and_says_what_is_missing(text: str, limit: int) -> None:
    data = clean_text(text).encode()
    cut = cut_middle(data, limit)
    if len(data) <= limit:
        assert cut == data
        return
    decoded = cut.decode()  # no character is torn
    found = re.search(r"\n\[\.\.\. ([\d,]+) of ([\d,]+) bytes left out here \.\.\.\]\n", decoded)
    assert found
    kept = len(cut) - len(found[0].encode())
    assert int(found[2].replace(",", "")) == len(data)
    assert int(found[1].replace(",", "")) == len(data) - kept
    assert kept <= limit + 1


def test_cut_middle_of_what_already_lost_its_middle() -> None:
    cut = cut_middle(b"headtail", 8, total=1000)
    assert cut == b"head\n[... 992 of 1,000 bytes left out here ...]\ntail"
