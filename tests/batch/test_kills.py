"""Exactly once, through 80 kills: driver, workers or both at random moments, and the dataset in another order after each."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support import children, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.models.mock_server import MockServer
from kiseki.trajectory.record import decode_record

KILLS = 20
"""Of each of four tests."""
SAMPLES, CONCURRENCY, WORKERS = 2, 4, 2
PROMPTS = [f"p{number % 70}" for number in range(90)]  # some of them twice
PROMPTS += ["silent 1", "silent 2", "silent 2", "down 1", "down 2", "down 2", "flaky 1", "flaky 2", "flaky 3", "flaky 3"]
CALL = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "{{prompt}}"}}]}
ANSWER = {"content": "ok {{prompt}}", "reasoning": "r"}
SCRIPT = [
    {"match": "silent", "turns": [{"content": "no thoughts"}]},
    {"match": "down", "turns": [{"content": "x", "fault": {"kind": "bad_request"}}]},
    {"match": "flaky", "turns": [CALL | {"fault": {"kind": "error_500", "times": 1}}, ANSWER]},
    {"turns": [CALL, ANSWER]},
]
CALLS = 2
"""Of one rollout at most, but for the one that fails with 500, which the server does once per conversation."""
FLAKY = sum(prompt.startswith("flaky") for prompt in PROMPTS) * SAMPLES


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "seed"), [("processes", 1), ("processes", 2), ("processes", 3), ("inprocess", 4)])
def test_killed_at_random_moments(tmp_path: Path, engine: str, seed: int) -> None:
    choose = random.Random(seed)
    flags = ("--dataset_file=p.jsonl", "--run_name=r", "--batch_size=7", "--model=mock", f"--num_samples={SAMPLES}")
    machine = (f"--concurrency={CONCURRENCY}", f"--num_workers={WORKERS}", f"--engine={engine}")
    light = light_tools(tmp_path)
    rows = list(PROMPTS)
    folder = tmp_path / "data" / "r"
    kills = 0
    may_be_lost = 0  # calls of what was in flight at the kills
    with MockServer(script=SCRIPT, latency=0.02, jitter=0.06) as server:
        command = ("batch", f"--base_url={server.base_url}", *flags, *machine, *light, "--resume")
        while kills < KILLS:
            choose.shuffle(rows)
            write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in rows])
            process = start_kiseki(*command, cwd=tmp_path)
            # a run gives up on workers that die in a row, so no more than a few in a session
            workers_first = choose.choice((0, 0, 0, 1, 1, 2)) if engine == "processes" else 0
            for _ in range(min(workers_first, KILLS - kills - 1)):
                wait(choose, server, process)
                kills += 1
                may_be_lost += kill_workers(choose, process)
            wait(choose, server, process)
            kills += 1
            # what ran, and what had ended and was on its way to the disk: in the 20 ms of a group no more than as many again
            may_be_lost += 2 * CONCURRENCY * CALLS
            workers = children(process.pid) if choose.random() < 0.5 else []
            for pid in choose.sample([process.pid, *workers], 1 + len(workers)):
                kill(pid)
            process.communicate()  # ends when the last worker has
        lost = server.stats()["calls"] - calls_in_ledger(folder / "run.db")
        assert 0 < lost <= may_be_lost + FLAKY
        done = kiseki(*command, "--retry_poison", cwd=tmp_path, status=3)
        assert server.stats()["calls"] - calls_in_ledger(folder / "run.db") == lost, "undisturbed, nothing is bought twice"
    whole = [prompt for prompt in rows if prompt[0] in "pf"]
    assert f"{SAMPLES * sum(prompt.startswith('down') for prompt in rows)} rollouts failed" in done.stdout
    verified = kiseki("verify", "data/r", "--list", cwd=tmp_path)
    listed = [line.split("\t")[:3] for line in verified.stdout.splitlines()]
    outcomes = {"s": "discarded:no_reasoning", "d": "failed:BadRequest", "p": "completed", "f": "completed"}
    assert listed == [[str(index), str(k), outcomes[prompt[0]]] for index, prompt in enumerate(rows) for k in range(SAMPLES)]
    merged = read_rows(folder / "trajectories.jsonl")
    assert [(row["prompt"], row["sample_index"]) for row in merged] == [(prompt, k) for prompt in whole for k in range(SAMPLES)]


def wait(choose: random.Random, server: MockServer, process: subprocess.Popen[str]) -> None:
    """Until a random moment: now and then right after the start, mostly when more calls have been made."""
    if choose.random() < 0.15:
        time.sleep(choose.uniform(0.0, 0.4))
        return
    calls = server.stats()["calls"] + choose.randint(1, 8)
    while server.stats()["calls"] < calls:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)


def kill_workers(choose: random.Random, process: subprocess.Popen[str]) -> int:
    """One of them or all. Returns how many calls may be lost with them."""
    workers = children(process.pid)
    share = -(-CONCURRENCY // WORKERS)
    victims = choose.sample(workers, choose.choice((1, len(workers)))) if workers else []
    for pid in victims:
        kill(pid)
    return min(len(victims) * share, CONCURRENCY) * CALLS


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, signal.SIGKILL)


def calls_in_ledger(path: Path) -> int:
    """Calls of the attempts that ended, requests that were tried again and those that failed included."""
    with sqlite3.connect(path) as db:
        records = [decode_record(packed) for (packed,) in db.execute("SELECT record FROM attempts")]
    failed = sum(record.error_class == "BadRequest" for record in records)
    return failed + sum(1 + call.retries for record in records for call in record.calls)
