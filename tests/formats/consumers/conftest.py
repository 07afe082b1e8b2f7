"""A consumer's program, asked once for all the tests of its module and for all workers of the session."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consumer_python import once
from support import REPOSITORY

SECONDS = 600
"""A bound for one test, which may have to wait for the program that another worker runs; none comes near it."""
Asked = Callable[[str, Callable[[Path], Any]], Any]
PROGRAMS = Path(__file__).parent / "programs"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def asked(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Asked:
    """(name, make) → what `make` gave for a folder of its own."""
    base = tmp_path_factory.getbasetemp()
    return lambda name, make: once(name, base if worker_id == "master" else base.parent, make)


@pytest.fixture(scope="session")
def pasted() -> Callable[[str, str], str]:
    """(section, language) → the first block of that language in a section of docs/training.md: what readers paste."""
    sections = re.split(r"^## ", (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    by_name = {each.partition("\n")[0].strip(): each for each in sections}

    def find(section: str, language: str) -> str:
        block = re.search(rf"^```{language}\n(.*?)^```", by_name[section], flags=re.MULTILINE | re.DOTALL)
        assert block, (section, language)
        return block[1]

    return find
