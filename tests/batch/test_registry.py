"""The tools of a run are fixed and written down: every row has the same keys, whatever later sessions bring or rename."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

from mcp_servers import ODD_SERVER
from support import FAST, IN_PROCESS_TOOL, kiseki, read_rows, write_dataset

from kiseki.models.mock_server import MockServer

SHOUT = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "hi"}}]}
YELL = {"reasoning": "r", "tool_calls": [{"name": "yell", "arguments": {"text": "hi"}}]}
ANSWER = {"reasoning": "r", "content": "ok"}
SCRIPT = [{"match": "shout", "turns": [SHOUT, ANSWER]}, {"match": "yell", "turns": [YELL, ANSWER]}]


def flags(server: MockServer, *more: str) -> tuple[str, ...]:
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=2", f"--base_url={server.base_url}", "--model=mock")
    return (*base, *FAST, "--distribution=d.yaml", *more)


def prompts(folder: Path, *texts: str) -> None:
    write_dataset(folder / "p.jsonl", [{"prompt": each} for each in texts])


def prepare(folder: Path) -> None:
    (folder / "old.py").write_text(IN_PROCESS_TOOL)
    (folder / "new.py").write_text(IN_PROCESS_TOOL.replace("def shout", "def yell"))
    (folder / "d.yaml").write_text("mine: 100\n")


def rows(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "data/r/trajectories.jsonl")


def counts(row: dict[str, Any]) -> dict[str, int]:
    return {name: stats["count"] for name, stats in row["tool_stats"].items()}


def test_a_tool_that_was_renamed_costs_no_old_row(tmp_path: Path) -> None:
    prepare(tmp_path)
    prompts(tmp_path, "shout 1", "yell 1")
    with MockServer(script=SCRIPT) as server:
        kiseki(*flags(server, "--tools=old.py"), cwd=tmp_path)
        assert [(row["prompt"], counts(row)) for row in rows(tmp_path)] == [("shout 1", {"shout": 1})], "yell is no tool yet"
        prompts(tmp_path, "shout 1", "yell 1", "shout 2", "yell 2")
        refused = kiseki(*flags(server, "--tools=new.py", "--resume"), cwd=tmp_path, status=2)
        assert "tools: shout '" in refused.stderr
        assert "yell None → '" in refused.stderr
        kiseki(*flags(server, "--tools=new.py", "--resume", "--force_config"), cwd=tmp_path)
        assert server.stats()["calls"] == 8, "nothing was run again"
    merged = [(row["prompt"], counts(row)) for row in rows(tmp_path)]
    # each is judged by the tools that there were when it ran
    assert merged == [("shout 1", {"shout": 1, "yell": 0}), ("yell 2", {"shout": 0, "yell": 1})]
    assert {tuple(row["tool_error_counts"]) for row in rows(tmp_path)} == {("shout", "yell")}
    batches = [row for path in sorted((tmp_path / "data/r").glob("batch_*.jsonl")) for row in read_rows(path)]
    assert batches == rows(tmp_path), "also those that were written before"
    statistics = json.loads((tmp_path / "data/r/statistics.json").read_text())
    assert {name: each["count"] for name, each in statistics["tool_statistics"].items()} == {"shout": 2, "yell": 2}
    assert statistics["discarded"] == {"unknown_tool": 2}
    before = (tmp_path / "data/r/trajectories.jsonl").read_bytes()
    kiseki("merge", "data/r", cwd=tmp_path)
    assert (tmp_path / "data/r/trajectories.jsonl").read_bytes() == before
    kiseki("verify", "data/r", cwd=tmp_path)


def test_a_tool_that_is_no_longer_there_keeps_its_place_and_figures(tmp_path: Path) -> None:
    prepare(tmp_path)
    prompts(tmp_path, "shout 1")
    with MockServer(script=SCRIPT) as server:
        kiseki(*flags(server, "--tools=old.py"), cwd=tmp_path)
        (tmp_path / "d.yaml").write_text("todo: 100\n")
        prompts(tmp_path, "shout 1", "other")
        kiseki(*flags(server, "--resume", "--force_config"), cwd=tmp_path)
        kiseki(*flags(server, "--resume"), cwd=tmp_path)
    assert [list(row["tool_stats"]) for row in rows(tmp_path)] == [["shout", "todo"]] * 2
    assert counts(rows(tmp_path)[0])["shout"] == 1


def test_an_mcp_server_that_offers_something_else_is_another_run(tmp_path: Path) -> None:
    server_file = tmp_path / "server.py"
    server_file.write_text(ODD_SERVER.read_text())
    entry = {"command": sys.executable, "args": ["-S", str(server_file)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"odd": entry}}))
    (tmp_path / "d.yaml").write_text("mcp-odd: 100\n")
    prompts(tmp_path, "a")
    with MockServer(turns=0) as server:
        kiseki(*flags(server, "--mcp_config=mcp.json"), cwd=tmp_path)
        server_file.write_text(ODD_SERVER.read_text().replace('f"{name} it"', '"another" if name == "count" else f"{name} it"'))
        prompts(tmp_path, "a", "b")
        refused = kiseki(*flags(server, "--mcp_config=mcp.json", "--resume"), cwd=tmp_path, status=2)
        assert "tools: mcp_odd_count '" in refused.stderr
        assert "mcp_odd_look" not in refused.stderr, "only what changed is named"
        kiseki(*flags(server, "--mcp_config=mcp.json", "--resume", "--force_config"), cwd=tmp_path)
    first, second = rows(tmp_path)
    assert list(first["tool_stats"]) == list(second["tool_stats"])
    assert "count it" in first["conversations"][0]["value"]
    assert "another" in second["conversations"][0]["value"]


def test_a_run_of_an_older_version_goes_on(tmp_path: Path) -> None:
    """Whose settings know neither flags of toolsets nor each tool by itself."""
    prepare(tmp_path)
    prompts(tmp_path, "shout 1")
    with MockServer(script=SCRIPT) as server:
        kiseki(*flags(server, "--tools=old.py"), cwd=tmp_path)
        prompts(tmp_path, "shout 1", "shout 2")
        with sqlite3.connect(tmp_path / "data/r/run.db") as db:
            (text,) = db.execute("SELECT value FROM meta WHERE key = 'run'").fetchone()
            run = json.loads(text)
            assert run.pop("tool_settings") == {}
            run["tools"] = "0123456789abcdef"
            db.execute("UPDATE meta SET value = ? WHERE key = 'run'", (json.dumps(run),))
        kiseki(*flags(server, "--tools=old.py", "--resume"), cwd=tmp_path)
    assert [counts(row) for row in rows(tmp_path)] == [{"shout": 1}] * 2
    kiseki("verify", "data/r", cwd=tmp_path)
    kiseki("log", "data/r", cwd=tmp_path)
