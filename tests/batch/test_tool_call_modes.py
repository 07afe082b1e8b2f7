"""Runs with models that have no tool calls of their own: rows are as everybody's; how it was told to the model is not in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import kiseki, light_tools, read_rows, write_dataset

from kiseki.models.mock_server import MockServer

CALL = {"name": "shout", "arguments": {"text": "hello"}}
SAME = {**CALL, "arguments": json.dumps(CALL["arguments"]), "id": "call_0"}  # as the text has it, and as such calls are named
NATIVE: list[dict[str, Any]] = [
    {"turns": [{"reasoning": "I shout.", "tool_calls": [SAME]}, {"reasoning": "Done.", "content": "HELLO"}]}
]


def as_text(first: str, second: str) -> list[dict[str, Any]]:
    """Results are the user's words there, and it is they by which the second turn is known."""
    return [{"match": "HELLO", "turns": [{"content": second}]}, {"turns": [{"content": first}]}]


HERMES = (f"<think>\nI shout.\n</think>\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>", "<think>\nDone.\n</think>\nHELLO")
JSON = (json.dumps({"thought": "I shout.", "tool_calls": [CALL]}), json.dumps({"thought": "Done.", "answer": "HELLO"}))
BY_TURNS: list[dict[str, Any]] = [{"turns": [{"content": each} for each in HERMES]}]


def rows_of(folder: Path, script: list[dict[str, Any]], *more: str, takes_tools: bool = True) -> list[dict[str, Any]]:
    write_dataset(folder / "p.jsonl", [{"prompt": "Shout."}])
    with MockServer(script, takes_tools=takes_tools) as server:
        base = ("--dataset_file=p.jsonl", "--run_name=r", "--batch_size=1", f"--base_url={server.base_url}", "--model=mock")
        kiseki("batch", *base, *light_tools(folder), *more, cwd=folder)
    return read_rows(folder / "data/r/trajectories.jsonl")


@pytest.mark.parametrize(
    ("script", "mode", "takes_tools"),
    [
        (as_text(*HERMES), "hermes", True),
        (as_text(*JSON), "json", True),
        (BY_TURNS, "auto", True),
        (as_text(*HERMES), "auto", False),
    ],
)
def test_rows_are_the_same_as_with_native_calls(
    tmp_path: Path, script: list[dict[str, Any]], mode: str, takes_tools: bool
) -> None:
    (tmp_path / "native").mkdir()
    (native,) = rows_of(tmp_path / "native", NATIVE)
    (row,) = rows_of(tmp_path, script, f"--tool_call_mode={mode}", takes_tools=takes_tools)
    assert row["conversations"] == native["conversations"]
    assert row["tool_stats"] == native["tool_stats"] and row["completed"]


def test_another_mode_is_another_kind_of_run(tmp_path: Path) -> None:
    rows_of(tmp_path, NATIVE)
    with MockServer(NATIVE) as server:
        base = ("--dataset_file=p.jsonl", "--run_name=r", "--batch_size=1", f"--base_url={server.base_url}", "--model=mock")
        done = kiseki("batch", *base, *light_tools(tmp_path), "--resume", "--tool_call_mode=json", cwd=tmp_path, status=2)
    assert "tool_call_mode: 'auto' → 'json'" in done.stderr


def test_a_run_is_told_once_that_the_endpoint_takes_no_tools(tmp_path: Path) -> None:
    rows_of(tmp_path, as_text(*HERMES), takes_tools=False)
    told = " ".join(kiseki("log", "data/r", cwd=tmp_path, COLUMNS="400").stdout.split())
    assert told.count("they are told in the text, as by --tool_call_mode=hermes") == 1
