"""One browser per test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools.browser.playing import Browsing, need_browser


@pytest.fixture(scope="module")
def browse() -> Iterator[Browsing]:
    need_browser()
    browsing = Browsing()
    yield browsing
    browsing.close()


@pytest.fixture
def browser() -> None:
    need_browser()
