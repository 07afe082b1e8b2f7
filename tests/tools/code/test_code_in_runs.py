"""Programs of the model's in whole runs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from support import kiseki, read_rows, write_dataset

from kiseki.models.mock_server import MockServer
from kiseki.trajectory.record import decode_record

CODE = """
names = terminal("printf 'a\\nb\\n' >list; cat list")["output"].split()
for name in names:
    write_file(name + ".txt", name * 3)
print(sum(len(read_file(name + ".txt")["content"]) for name in names))
"""


def test_a_batch_run(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data.jsonl", [{"prompt": "Count."}, {"prompt": "Count again."}])
    (tmp_path / "mine.yaml").write_text("code_execution: 100\nterminal: 100\nfile: 100\n")
    script = [{"turns": [{"tool_calls": [{"name": "execute_code", "arguments": {"code": CODE}}]}, {"content": "Done."}]}]
    with MockServer(script=script) as server:
        flags = ("--dataset_file=data.jsonl", "--batch_size=2", "--run_name=r", "--distribution=mine.yaml", "--model=m")
        kiseki("batch", *flags, f"--base_url={server.base_url}", "--reasoning_filter=off", cwd=tmp_path)
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert len(rows) == 2
    for row in rows:
        assert row["completed"] and row["tool_stats"]["execute_code"] == {"count": 1, "success": 1, "failure": 0}
        assert row["tool_stats"]["read_file"]["count"] == row["tool_stats"]["terminal"]["count"] == 0
        assert {"output": "10\n", "exit_code": 0, "tool_calls": 5} in tool_results(row)
    with closing(sqlite3.connect(tmp_path / "data/r/run.db")) as db:
        records = [decode_record(packed) for (packed,) in db.execute("SELECT record FROM attempts")]
    for record in records:
        (ran,) = record.tool_runs
        assert [each.run.name for each in ran.inner] == ["terminal", "write_file", "write_file", "read_file", "read_file"]
        assert [each.call.id for each in ran.inner] == [f"{ran.call_id}/{n}" for n in range(1, 6)]
    assert len(records) == 2


def test_the_practice_model_runs_programs(tmp_path: Path) -> None:
    write_dataset(tmp_path / "data.jsonl", [{"prompt": "Sing of the sea, and of those who sail."}])
    (tmp_path / "mine.yaml").write_text("code_execution: 100\n")
    flags = (
        "--dataset_file=data.jsonl",
        "--batch_size=2",
        "--run_name=r",
        "--distribution=mine.yaml",
        "--model=builtin/practice",
    )
    kiseki("batch", *flags, cwd=tmp_path)
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert {"output": "39 characters, 9 words\n", "exit_code": 0, "tool_calls": 0} in tool_results(row)


def tool_results(row: dict[str, Any]) -> list[Any]:
    """What the model was given."""
    values = [turn["value"] for turn in row["conversations"] if turn["from"] == "tool"]
    parts = [part for value in values for part in value.split("<tool_response>\n")[1:]]
    return [json.loads(part.partition("\n</tool_response>")[0])["content"] for part in parts]
