"""Prompts that kill or hang their worker: found, given up after two deaths, and no neighbour pays for them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

from support import kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.agent.settings import RolloutSettings
from kiseki.batch.engines import Lost, Processes, Result
from kiseki.models.admission import Admission
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_server import MockServer
from kiseki.models.rate_limit import RateLimit
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.trajectory.types import Message, Prompt, RolloutSpec

POISON = """
import os
from kiseki import tool

@tool(toolset="mine")
def shout(text: str) -> str:
    "Say."
    if "poison" in text:
        with open("tries", "a") as file:
            file.write("x")
        os.kill(os.getpid(), 11)
    return text
"""
CALL = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "{{prompt}}"}}]}
SCRIPT = [{"turns": [CALL, {"content": "ok"}]}]


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=9", f"--base_url={server.base_url}", "--model=m")
    light = light_tools(folder)
    (folder / "mine.py").write_text(POISON)
    return (*base, *light, "--engine=processes", "--num_workers=1", "--concurrency=3", *more)


def tries(folder: Path) -> int:
    return len((folder / "tries").read_text()) if (folder / "tries").exists() else 0


def statistics(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "data/r/statistics.json").read_text())
    return found


def test_it_is_given_up_after_two_deaths_also_on_resume(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "poison"}, {"prompt": "good"}, {"prompt": "fine"}])
    with MockServer(script=SCRIPT) as server:
        done = kiseki(*flags(tmp_path, server, "--max_attempts=5"), cwd=tmp_path, status=3)
        assert tries(tmp_path) == 2
        assert "1 rollouts killed their worker twice" in done.stdout
        assert "tries them again" in done.stdout and "1 rollouts failed" not in done.stdout, "one way on, not two"
        assert statistics(tmp_path)["failed"] == {"WorkerDied": 1}
        calls = server.stats()["calls"]
        done = kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path, status=3)
        assert (tries(tmp_path), server.stats()["calls"]) == (2, calls), "not a third time"
        assert "--retry_poison" in done.stdout and "(2 done before)" in done.stdout
        kiseki(*flags(tmp_path, server, "--resume", "--retry_poison"), cwd=tmp_path, status=3)
        assert tries(tmp_path) == 3, "asked for: alone from the start, so once is enough"
    assert [row["prompt"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")] == ["good", "fine"]
    error = kiseki("verify", "data/r", "--list", cwd=tmp_path).stdout
    assert "failed:WorkerDied" in error


def test_one_worker_is_a_process_too(tmp_path: Path) -> None:
    """Else what kills it kills the driver, and nobody would be left to say why."""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "poison"}, {"prompt": "good"}])
    with MockServer(script=SCRIPT) as server:
        command = [each for each in flags(tmp_path, server) if each != "--engine=processes"]
        kiseki(*command, cwd=tmp_path, status=3)
    assert statistics(tmp_path)["failed"] == {"WorkerDied": 1}
    assert [row["prompt"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")] == ["good"]


def test_a_death_is_remembered_when_the_driver_dies_too(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "poison"}, {"prompt": "good"}])
    with MockServer(script=SCRIPT) as server:
        process = start_kiseki(*flags(tmp_path, server), cwd=tmp_path)
        while not suspects(tmp_path):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        before = tries(tmp_path)
        done = kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path, status=3)
    assert tries(tmp_path) <= before + 1
    assert done.stdout.count("a worker died with prompt") == 1, "it was alone, so nobody else was in the worker"
    assert statistics(tmp_path)["failed"] == {"WorkerDied": 1}
    assert [row["prompt"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")] == ["good"]


def suspects(folder: Path) -> int:
    try:
        with sqlite3.connect(f"file:{folder / 'data/r/run.db'}?mode=ro", uri=True) as db:
            return int(db.execute("SELECT count(*) FROM rollouts WHERE suspect > 0 AND outcome = 'pending'").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


HANGS = """
import time
from kiseki import tool

@tool(toolset="mine")
async def shout(text: str) -> str:
    "Say."
    if "hang" in text:
        time.sleep(1000)
    return text
"""


def test_a_worker_whose_event_loop_hangs_is_ended(tmp_path: Path) -> None:
    """A user's tool that blocks the loop it runs on: no timeout inside the process could end it."""
    (tmp_path / "mine.py").write_text(HANGS)
    results: list[Result] = []

    async def run(server: MockServer) -> None:
        settings = RolloutSettings(
            model=ModelSettings("m", server.base_url),
            sandbox=SandboxSettings(label="test-hang"),
            tool_files=(str(tmp_path / "mine.py"),),
            run_tools=("shout",),
        )
        admission = Admission(RateLimit(2), Breaker(300), Budget())
        engine = Processes(settings, admission, 2, 1, silent_seconds=6)

        async def specs() -> AsyncIterator[RolloutSpec]:
            for text in ("hang", "fine"):
                prompt = Prompt(index=0, messages=(Message(role="user", content=text),))
                yield RolloutSpec(text, prompt, 0, 0, 1, 0, ("mine",), alone=text == "fine")
            while len(results) < 2:
                await asyncio.sleep(0.05)

        try:
            await engine.run(specs(), results.append)
        finally:
            await engine.close()
        assert admission.limit.in_flight == 0, "what the worker had under way is given back"

    with MockServer(script=SCRIPT) as server:
        asyncio.run(run(server))
    lost = [each for each in results if isinstance(each, Lost)]
    assert [(each.key, "no sign of life" in each.why) for each in lost] == [("hang", True)]
    (other,) = [each for each in results if not isinstance(each, Lost)]
    assert other.summary.outcome == "completed"
