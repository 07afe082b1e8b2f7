"""What `kiseki export` writes for a consumer is what `kiseki doctor --for` that consumer finds nothing lost in."""

from __future__ import annotations

from pathlib import Path

import pytest
from formats.consumers.cases import exported
from support import kiseki

TARGETS = ("sharegpt", "messages", "openai", "trl", "axolotl", "llamafactory", "swift", "verl", "atif", "atropos")


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_lost(name: str, tmp_path: Path) -> None:
    folder = exported(tmp_path, name)
    done = kiseki("doctor", str(folder), f"--for={name}", cwd=tmp_path, status=None)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 rows, nothing would be lost" in done.stdout
