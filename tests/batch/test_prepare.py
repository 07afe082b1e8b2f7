"""Which toolsets a run has, and what each rollout draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiseki.batch.config import BatchConfig
from kiseki.batch.prepare import Toolsets, prepare_toolsets
from kiseki.models.endpoints import ModelSettings
from kiseki.sandboxes.settings import SandboxSettings

TOOLS = """
from kiseki import tool

@tool(toolset="mine")
def one() -> str:
    "One."
    return "1"

@tool(toolset="yours")
def two() -> str:
    "Two."
    return "2"
"""


def toolsets(folder: Path, distribution: str) -> Toolsets:
    (folder / "tools.py").write_text(TOOLS)
    (folder / "d.yaml").write_text(distribution)
    return prepare_toolsets(
        BatchConfig(
            dataset_file="p.jsonl",
            batch_size=1,
            run_name="r",
            model=ModelSettings("builtin/practice"),
            distribution=str(folder / "d.yaml"),
            tools=(str(folder / "tools.py"),),
        ),
        SandboxSettings("local"),
    )


@pytest.mark.parametrize(
    ("distribution", "drawn", "tools"),
    [
        ("terminal: 100\n", {("terminal", "mine", "yours")}, {"terminal", "process", "one", "two"}),
        ("mine: 100\nyours: 0\n", {("mine",)}, {"one"}),
        ("mine: 100\nskills: 100\n", {("mine", "yours")}, {"one", "two"}),
        ("mine: 50\nyours: 50\n", {("mine",), ("yours",), ("mine", "yours")}, {"one", "two"}),
    ],
)
def test_own_toolsets_are_on_unless_the_distribution_names_them(
    tmp_path: Path, distribution: str, drawn: set[tuple[str, ...]], tools: set[str]
) -> None:
    found = toolsets(tmp_path, distribution)
    assert {found.draw(0, f"key{number}") for number in range(60)} == drawn
    assert {tool.name for tool in found.tools} == tools


def test_draws_depend_on_seed_and_key_alone(tmp_path: Path) -> None:
    found = toolsets(tmp_path, "mine: 50\nyours: 50\nterminal: 50\n")
    keys = [f"key{number}" for number in range(50)]
    first = [found.draw(1, key) for key in keys]
    assert [found.draw(1, key) for key in reversed(keys)] == first[::-1]
    assert [found.draw(2, key) for key in keys] != first
