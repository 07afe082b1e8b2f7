"""Runs with the built-in language model: what it says is its affair, what becomes of it is not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

from support import children, kiseki, light_tools, read_rows, start_kiseki, until, write_dataset

from kiseki.agent.agent import AIAgent
from kiseki.models.smollm2 import KEY_PREFIX, SMOLLM2

SHORT = (f"--model={SMOLLM2}", "--max_tokens=64", "--max_turns=2", "--reasoning_filter=off", "--batch_size=2", "--run_name=r")
PROMPTS = [{"prompt": f"Say {word} louder."} for word in ("hello", "good night", "three")]


def servers(pid: int) -> list[int]:
    """Of a run's driver, and of its workers."""
    below = [each for child in children(pid) for each in (child, *children(child))]
    return [each for each in below if b"smollm2_server" in Path(f"/proc/{each}/cmdline").read_bytes()]


def test_a_run(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", PROMPTS)
    tools = light_tools(tmp_path)
    done = kiseki("batch", "--dataset_file=p.jsonl", *SHORT, *tools, "--base_url=http://10.0.0.1/v1", cwd=tmp_path)

    assert f"model {SMOLLM2}" in done.stdout
    assert f"{SMOLLM2} takes no notice of --base_url" in done.stdout
    folder = tmp_path / "data" / "r"
    rows = read_rows(folder / "trajectories.jsonl")
    assert {row["metadata"]["model"] for row in rows} == {SMOLLM2}
    assert all(row["api_calls"] >= 1 for row in rows)
    statistics = json.loads((folder / "statistics.json").read_text())
    assert statistics["model"] == SMOLLM2
    assert statistics["outcomes"]["discarded"] == 3 - len(rows)  # a name of a tool can be wrong: no failure of ours
    assert statistics["outcomes"]["failed"] == statistics["outcomes"]["pending"] == 0
    assert statistics["tokens"]["completion"] > 0
    assert statistics["cost"] == 0
    for file in folder.iterdir():
        assert KEY_PREFIX.encode() not in file.read_bytes(), file

    other = kiseki(
        "batch", "--dataset_file=p.jsonl", *SHORT, *tools, "--resume", "--model=builtin/practice", cwd=tmp_path, status=2
    )
    assert "model: 'builtin/smollm2' → 'builtin/practice'" in other.stderr


def test_all_workers_of_a_run_share_a_server_that_ends_with_it(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", PROMPTS * 20)
    flags = (*SHORT, *light_tools(tmp_path), "--num_workers=2", "--concurrency=2")
    run = start_kiseki("batch", "--dataset_file=p.jsonl", *flags, cwd=tmp_path)
    ledger = tmp_path / "data" / "r" / "batch_0.jsonl"
    try:
        asyncio.run(until(ledger.exists))
        (server,) = servers(run.pid)
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=60)
        assert run.returncode == 130, said
        assert not Path(f"/proc/{server}").exists()
    finally:
        run.kill()


def test_two_conversations_of_an_agent_at_once(tmp_path: Path) -> None:
    agent = AIAgent(SMOLLM2, enabled_toolsets=["todo"], max_tokens=40, max_turns=2, seed=1)

    async def both() -> None:
        for result in await asyncio.gather(agent.arun("Plan a picnic."), agent.arun("Plan a walk.")):
            assert not result.error
            assert result.record.model == SMOLLM2
            assert result.record.calls[0].usage.completion_tokens > 0

    asyncio.run(both())
    assert len(servers(os.getpid())) == 1
