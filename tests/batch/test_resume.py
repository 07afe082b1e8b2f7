"""Resume by content: nothing lost, nothing bought twice, whatever happened in between."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support import FAST, environment, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.models.mock_server import MockServer


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    light = light_tools(folder)
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=3", f"--base_url={server.base_url}", "--model=mock")
    return (*base, *FAST, *light, *more)


def prompts(folder: Path) -> list[str]:
    return [row["prompt"] for row in read_rows(folder / "data" / "r" / "trajectories.jsonl")]


def test_a_reordered_and_extended_dataset_with_equal_rows(tmp_path: Path) -> None:
    first = ["a", "b", "same", "c", "same"]
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in first])
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server), cwd=tmp_path)
        assert prompts(tmp_path) == first
        second = ["new", "same", "c", "same", "a", "same", "b"]
        write_dataset(tmp_path / "p.jsonl", [{"prompt": each, "n": number} for number, each in enumerate(second)])
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert prompts(tmp_path) == second
        assert server.stats()["calls"] == len(first) + 2
        rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
        assert [json.loads(row["metadata"]["source"])["n"] for row in rows] == list(range(7)), "other columns are the newest"
        batches = {path.name: read_rows(path) for path in (tmp_path / "data/r").glob("batch_*.jsonl")}
        assert sorted(row["prompt_index"] for rows in batches.values() for row in rows) == list(range(7))
        # the same command with everything done still rebuilds the merged file, and asks nobody
        (tmp_path / "data/r/trajectories.jsonl").unlink()
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert prompts(tmp_path) == second
        assert server.stats()["calls"] == len(first) + 2


def test_rows_that_the_dataset_no_longer_has_are_kept_at_the_end(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in "abc"])
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server), cwd=tmp_path)
        write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in "cd"])
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == 4
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert [(row["prompt"], row["prompt_index"]) for row in rows] == [("c", 0), ("d", 1), ("a", -1), ("b", -1)]


def test_discarded_is_done(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "silent"}])
    with MockServer(script=[{"turns": [{"content": "no thoughts"}]}]) as server:
        for more in ((), ("--resume",), ("--resume",)):
            kiseki(*flags(tmp_path, server, *more), cwd=tmp_path)
        assert server.stats()["calls"] == 1
    assert prompts(tmp_path) == []
    kiseki("merge", "data/r", "--reasoning_filter=off", cwd=tmp_path)
    assert prompts(tmp_path) == ["silent"]
    statistics = json.loads((tmp_path / "data/r/statistics.json").read_text())
    assert statistics["outcomes"]["completed"] == 1
    kiseki("merge", "data/r", "--reasoning_filter=on", cwd=tmp_path)
    assert prompts(tmp_path) == []


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}])
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server), cwd=tmp_path)
        write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
        (tmp_path / "other.yaml").write_text("mine: 50\ntodo: 100\n")
        (tmp_path / "other.py").write_text((tmp_path / "mine.py").read_text().replace("Say it louder", "Whisper it"))
        for change, words in {
            "--model=other": "model: 'mock' → 'other'",
            "--distribution=other.yaml": "distribution_toolsets: mine 100 → 50, todo None → 100",
            "--ephemeral_system_prompt=X": "ephemeral_system_prompt: '' → 'X'",
            "--temperature=0.5": "temperature: None → 0.5",
            "--top_p=0.5": "top_p: None → 0.5",
            "--seed=3": "seed: 0 → 3",
            "--tools=other.py": "tools: shout '",
            "--reasoning_filter=off": "reasoning_filter: 'auto' → 'off'",
            "--reasoning_effort=high": "reasoning: '' → 'high'",
        }.items():
            refused = kiseki(*flags(tmp_path, server, "--resume", change), cwd=tmp_path, status=2)
            assert words in refused.stderr
            assert "--force_config" in refused.stderr
            assert len(refused.stderr.splitlines()) == 1
        refused = kiseki(*flags(tmp_path, server), cwd=tmp_path, status=2)
        assert "--resume" in refused.stderr
        assert server.stats()["calls"] == 1
        kiseki(*flags(tmp_path, server, "--resume", "--tools=other.py", "--force_config"), cwd=tmp_path)
        write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}])
        kiseki(*flags(tmp_path, server, "--resume", "--tools=other.py"), cwd=tmp_path)
    configs = [row["metadata"]["config"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")]
    assert configs[0] != configs[1] == configs[2], "each row says which configuration made it"
    statistics = json.loads((tmp_path / "data/r/statistics.json").read_text())
    assert statistics["configurations"] == {configs[0]: 1, configs[1]: 2}


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}])
    with MockServer(turns=0, latency=30) as server:
        first = start_kiseki(*flags(tmp_path, server), cwd=tmp_path)
        try:
            while not server.stats()["in_flight"]:
                time.sleep(0.05)
            refused = kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path, status=2)
            assert f"in use by process {first.pid}" in refused.stderr
            refused = kiseki("merge", "data/r", cwd=tmp_path, status=2)
            assert "in use" in refused.stderr
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.communicate()


def wait_for_calls(server: MockServer, calls: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and server.stats()["calls"] < calls:
        time.sleep(0.01)


def test_adopts_a_folder_of_batch_files(tmp_path: Path) -> None:
    """A folder without a ledger, from another tool, with a torn tail: only the torn row is run again."""

    def old(prompt: str, text: str, **more: Any) -> dict[str, Any]:
        turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": f"<think>\nhm\n</think>\n{text}"}]
        metadata = {"batch_num": 0, "timestamp": "2026-01-15T10:30:00.123", "model": "old/model"}
        row = {"prompt_index": 0, "conversations": turns, "metadata": metadata, "completed": True, "partial": False}
        return row | {"api_calls": 3, "toolsets_used": ["web"], "tool_stats": {}, "tool_error_counts": {}} | more

    folder = tmp_path / "data" / "r"
    folder.mkdir(parents=True)
    torn = json.dumps(old("torn", "lost"))[:-20]
    write_dataset(folder / "batch_0.jsonl", [old("one", "first"), old("two", "second"), torn])
    write_dataset(
        folder / "batch_10.jsonl",
        [
            old("two", "third"),
            {"prompt_index": 5, "discarded": "no_reasoning", "prompt": "silent"},
            old("gone", "elsewhere"),
            old("bad", "x", failed=True),
        ],
    )
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in ("torn", "two", "one", "silent", "two", "two", "bad")])
    with MockServer(script=[{"turns": [{"content": "new", "reasoning": "r"}]}]) as server:
        refused = kiseki(*flags(tmp_path, server), cwd=tmp_path, status=2)
        assert "already has results" in refused.stderr
        done = kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == 3, "the torn one, the third 'two' and the failed one"
    assert "batch_0.jsonl line 3 is damaged" in done.stdout
    rows = read_rows(folder / "trajectories.jsonl")
    assert [(row["prompt_index"], row["prompt"], row["conversations"][-1]["value"].split("\n")[-1]) for row in rows] == [
        (0, "torn", "new"),
        (1, "two", "second"),
        (2, "one", "first"),
        (4, "two", "third"),
        (5, "two", "new"),
        (6, "bad", "new"),
        (-1, "gone", "elsewhere"),
    ]
    assert rows[1]["metadata"]["model"] == "old/model"
    assert rows[1]["metadata"]["timestamp"] == "2026-01-15T10:30:00"
    assert rows[1]["api_calls"] == 3
    assert rows[0]["metadata"]["batch_num"] == 11
    assert {path.name for path in (folder / "adopted").iterdir()} == {"batch_0.jsonl", "batch_10.jsonl"}
    assert json.loads((folder / "statistics.json").read_text())["discarded"] == {"empty": 1}
    with MockServer(turns=0) as server:  # adopted once: the ledger is the truth from here on
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == 0
    assert len(read_rows(folder / "trajectories.jsonl")) == 7


def test_an_adoption_that_was_stopped_begins_anew(tmp_path: Path) -> None:
    """Neither a refused start nor a kill in the middle may take the old rows for the run's own files."""
    folder = tmp_path / "data" / "r"
    folder.mkdir(parents=True)
    old = [
        {"conversations": [{"from": "human", "value": f"p{n}"}, {"from": "gpt", "value": "<think>\nhm\n</think>\nold"}]}
        | {"metadata": {"batch_num": 0, "timestamp": "", "model": "m"}, "completed": True, "api_calls": 1, "toolsets_used": []}
        for n in range(1000)
    ]
    for number in range(10):
        write_dataset(folder / f"batch_{number}.jsonl", old[number * 100 : number * 100 + 100])
    rows = [{"prompt": f"p{n}"} for n in range(1000)]
    with MockServer(turns=0) as server:
        write_dataset(tmp_path / "p.jsonl", [*rows, {"prompt": "x", "image": "debian"}])
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path, status=2)
        write_dataset(tmp_path / "p.jsonl", rows)
        for wait in (100, 300):  # rows adopted by the time of the kill
            process = start_kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
            while process.poll() is None and adopted(folder) < wait:
                time.sleep(0.002)
            process.kill()
            process.communicate()
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == 0
    merged = read_rows(folder / "trajectories.jsonl")
    assert [(row["prompt_index"], row["conversations"][1]["value"][-3:]) for row in merged] == [(n, "old") for n in range(1000)]
    assert len(list((folder / "adopted").iterdir())) == 10


def adopted(folder: Path) -> int:
    try:
        with sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True) as db:
            return int(db.execute("SELECT count(*) FROM attempts").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_failures_that_are_no_longer_wanted_are_left_alone(tmp_path: Path) -> None:
    fail = [{"turns": [{"content": "x", "fault": {"kind": "bad_request"}}]}]
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in "abcd"])
    with MockServer(script=fail) as server:
        kiseki(*flags(tmp_path, server, "--num_samples=2"), cwd=tmp_path, status=3)
        assert server.stats()["calls"] == 8
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in "ab"])
    with MockServer(turns=0) as server:
        done = kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == 2, "one sample of each of two prompts"
    assert "2 rollouts, 2 to run" in done.stdout
    statistics = json.loads((tmp_path / "data/r/statistics.json").read_text())
    assert statistics["outcomes"] == {"completed": 2, "partial": 0, "discarded": 0, "failed": 0, "pending": 0}
    assert statistics["attempts"] == 10
    checkpoint = json.loads((tmp_path / "data/r/checkpoint.json").read_text())
    assert checkpoint["completed_prompts"] == [[0, 1]]


def test_a_disk_that_takes_no_more_is_one_line_and_nothing_is_lost(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"{n} " + random.Random(n).randbytes(3000).hex()} for n in range(60)])
    with MockServer(turns=0) as server:
        # a limit on file size stands in for the full disk: writing past it fails in the same place
        limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (650_000,) * 2); "
        limit += "os.execv(sys.executable, [sys.executable, '-m', 'kiseki', *sys.argv[1:]])"
        command = [sys.executable, "-c", limit, *flags(tmp_path, server)]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("kiseki: ")
        assert len(done.stderr.splitlines()) == 1, done.stderr
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
    assert len(prompts(tmp_path)) == 60


def test_a_lost_display_does_not_stop_a_run(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(20)])
    with MockServer(turns=1, latency=0.1) as server:
        process = start_kiseki(*flags(tmp_path, server, "--concurrency=2", "--verbose"), cwd=tmp_path)
        assert process.stdout
        process.stdout.close()
        assert process.wait(60) == 0
    assert len(prompts(tmp_path)) == 20


def test_batch_files_follow_a_change_although_the_session_that_made_it_died(tmp_path: Path) -> None:
    """Rows moved and other columns changed by a start that was killed before it could write anything."""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{n}", "n": n} for n in range(6)])
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server), cwd=tmp_path)
    changed = [{"prompt": "new"}, *({"prompt": f"p{n}", "n": 10 * n} for n in reversed(range(6)))]
    write_dataset(tmp_path / "p.jsonl", changed)
    with MockServer(turns=0, latency=60) as server:
        process = start_kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        wait_for_calls(server, 1, process)
        process.kill()
        process.communicate()
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
    folder = tmp_path / "data/r"
    merged = read_rows(folder / "trajectories.jsonl")
    assert [json.loads(row["metadata"]["source"]).get("n") for row in merged] == [None, 50, 40, 30, 20, 10, 0]
    batches = [row for path in folder.glob("batch_*.jsonl") for row in read_rows(path)]
    assert sorted(batches, key=lambda row: row["prompt_index"]) == merged


def test_a_damaged_record_costs_only_its_row(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in "abc"])
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server), cwd=tmp_path)
    with sqlite3.connect(tmp_path / "data/r/run.db") as db:
        db.execute("UPDATE attempts SET record = x'00' WHERE id = (SELECT max(id) FROM attempts)")
    done = kiseki("merge", "data/r", cwd=tmp_path)
    assert "records that cannot be read: 1" in done.stdout
    assert len(prompts(tmp_path)) == 2
