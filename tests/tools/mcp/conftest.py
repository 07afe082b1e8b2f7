"""What most tests of MCP servers need."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp_rollouts import Play


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)
