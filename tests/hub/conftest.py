"""A hub of each test's own, and one run for those that only push it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_uploads import UploadHub, upload_hub
from pushing import make_run


@pytest.fixture
def hub() -> Iterator[UploadHub]:
    with upload_hub() as made:
        yield made


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run data/mine: 12 rollouts in 6 batches."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder, "mine", [{"prompt": f"Say number {n} aloud."} for n in range(12)])
    return folder
