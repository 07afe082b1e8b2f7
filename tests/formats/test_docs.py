"""docs/formats.md says what the formats do: its table, and its sample rows."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest
from formats.test_rows import rows
from support import REPOSITORY

from kiseki.formats.format import EVERYTHING
from kiseki.formats.table import FORMATS, find_format
from kiseki.trajectory.example import Example
from kiseki.trajectory.types import Message, ToolCall

TEXT = (REPOSITORY / "docs/formats.md").read_text(encoding="utf-8")
EXAMPLE = Example(
    messages=(
        Message(role="user", content="What is in src?"),
        Message(
            role="assistant",
            content="I look.",
            reasoning="One call is enough.",
            tool_calls=(ToolCall("c1", "ls", '{"path": "src"}'),),
        ),
        Message(role="tool", content="main.py", tool_call_id="c1", name="ls"),
        Message(role="assistant", content="One file: main.py."),
    ),
    tools=(
        {
            "type": "function",
            "function": {
                "name": "ls",
                "description": "Lists a folder.",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
            },
        },
    ),
    key="0f3a",
    prompt_messages=1,
    model="m",
    source='{"answer": "main.py"}',
    masked=frozenset({1}),
)


def table(after: str) -> list[dict[str, str]]:
    """The first table after a text, a dict for each row."""
    lines = re.findall(r"(?:^\|.*\n)+", TEXT.partition(after)[2], re.MULTILINE)[0].splitlines()
    names, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(names, line, strict=True)) for line in body]


def section(name: str) -> str:
    return TEXT.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]


def test_the_table_says_what_each_format_holds() -> None:
    told = {
        row["format"].strip("`"): {name.replace(" ", "_") for name, cell in row.items() if cell == "yes"}
        for row in table("## What a format holds")
    }
    assert told == {name: set(find_format(name).holds) for name in FORMATS}
    assert {name.replace(" ", "_") for name in table("## What a format holds")[0]} == {"format", *EVERYTHING}


def test_the_table_says_in_which_files_a_format_comes() -> None:
    told = {row["format"].strip("`"): tuple(re.findall(r"`(\.\w+)`", row["file"])) for row in table("# Formats")}
    assert told == {name: find_format(name).suffixes for name in FORMATS}


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("rl", "atropos")])
def test_a_sample_is_what_is_written(name: str) -> None:
    sample = re.search(r"```json\n(.*?)```", section(name), re.DOTALL)
    assert sample
    (row,) = rows(name, EXAMPLE)
    if name == "sts":
        for line, written in zip(sample[1].splitlines(), row["lines"], strict=True):
            _check(json.loads(line), written)
    else:
        _check(json.loads(sample[1]), row)


def _check(told: Any, written: Any) -> None:
    """A sample may leave columns out, and long texts as `…`."""
    if isinstance(told, dict):
        for name, each in told.items():
            _check(each, written[name])
    elif isinstance(told, list):
        for each, other in zip(told, written, strict=True):
            _check(each, other)
    else:
        assert told in (written, "…")


def test_the_class_for_verl_is_python() -> None:
    beside = find_format("verl").beside
    assert beside
    ((file, text),) = beside(["train.parquet"]).items()
    assert file in section("verl")
    (made,) = [each for each in ast.parse(text).body if isinstance(each, ast.ClassDef)]
    assert f"data.custom_cls.path=FOLDER/{file} data.custom_cls.name={made.name}" in section("verl")
