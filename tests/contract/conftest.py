"""Runs each test of the contract suite on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from contract.backends import ALL, Place, tested


@pytest.fixture(scope="module", params=ALL)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with tested(request.param) as place:
        yield place
