"""The Hub's answers, and how long they are waited for."""

from __future__ import annotations

from threading import Event

import pytest

from kiseki.errors import DatasetError
from kiseki.sampling import sources
from kiseki.sampling.library import find_parts, within
from kiseki.sampling.sources import find_source


def test_an_answer_that_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    never = Event()
    monkeypatch.setattr(sources, "ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(sources, "commit_of", lambda name, revision: never.wait())
    with pytest.raises(DatasetError, match=r"cannot read the dataset org/name: no answer in 0.05 s; it is no local path either"):
        find_source("org/name", print)
    never.set()


def test_what_was_raised_arrives() -> None:
    assert within(60, lambda: 5, "org/name") == 5
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 / 0, "org/name")


def test_nothing_is_asked_where_nothing_is_said() -> None:
    assert find_parts("org/name", [], None) == ("", "")
