"""Rows that exports are tried with, and exports of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support import read_rows, write_dataset

from kiseki.exports.export import export
from kiseki.exports.job import LEFT_OUT, ExportJob, ExportReport


def chat(prompt: str, *answers: str, **more: Any) -> dict[str, Any]:
    """A row in which each answer but the last calls `look`, with a result that says which it is."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for number, answer in enumerate(answers[:-1]):
        messages += step(answer, {"at": number}, f"seen {number}", f"c{number}")
    return {"messages": [*messages, {"role": "assistant", "content": answers[-1]}], **more}


def step(text: str, arguments: Any, result: str, call_id: str = "c") -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": json.dumps(arguments)}
    calls = [{"id": call_id, "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": text, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


def export_rows(folder: Path, rows: list[Any], to: str = "messages", **options: Any) -> ExportReport:
    """An export of rows into `folder/out`. What is read is what is written and what is left out, each with its line."""
    source = write_dataset(folder / "rows.jsonl", rows)
    report = export(ExportJob(source=source, to=to, **({"out": folder / "out"} | options)))
    assert report.read == len(rows) == report.total_written + report.total_left_out
    assert len(left_out(folder)) == report.total_left_out
    return report


def written(folder: Path, name: str = "train.jsonl") -> list[dict[str, Any]]:
    return read_rows(folder / "out" / name)


def left_out(folder: Path) -> list[dict[str, Any]]:
    path = folder / "out" / LEFT_OUT
    return read_rows(path) if path.exists() else []


def prompts(folder: Path, name: str = "train.jsonl") -> list[str]:
    return [row["messages"][0]["content"] for row in written(folder, name)]


def answers(folder: Path, name: str = "train.jsonl") -> list[str]:
    return [row["messages"][-1]["content"] for row in written(folder, name)]
