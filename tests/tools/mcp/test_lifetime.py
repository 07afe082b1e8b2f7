"""Servers, and what they start, end with the process that started them, however that one ends."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mcp_rollouts import Play, Rollout
from mcp_servers import config, odd
from support import children, environment, start_kiseki, until, write_dataset

from kiseki.models.mock_server import MockServer
from kiseki.sandboxes import processes

WORKER = """
import asyncio, sys
from kiseki.tools.context import ToolContext
from kiseki.tools.mcp.discovery import discover
from kiseki.tools.mcp.tools import mcp_tools
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.trajectory.types import ToolCall

async def main(servers):
    box, context = Toolbox(mcp_tools(servers)), ToolContext(None, Services(ToolSettings()))
    for name in ("mcp_odd_look", "mcp_odd_spawn"):
        print((await box.call(context, ToolCall("c", name, "{}")))[0].content, flush=True)
    await asyncio.sleep(float(sys.argv[2]))

servers, lost = discover(sys.argv[1], SandboxSettings(backend="local"))
asyncio.run(main(servers))
"""


def lives(pid: int) -> bool:
    found = processes.look(pid)
    return found is not None and found.running


def start(folder: Path, seconds: float) -> tuple[subprocess.Popen[str], list[int]]:
    """A process with a stubborn server that has started a program, and the pids of both of these."""
    file = config(folder, odd=odd(env={"STUBBORN": "1"}))
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, file, str(seconds)], stdout=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout
    return process, [json.loads(process.stdout.readline())[0], int(process.stdout.readline())]


def test_nothing_survives_a_process_that_is_killed(tmp_path: Path) -> None:
    process, pids = start(tmp_path, 600)
    assert all(lives(each) for each in pids)
    process.kill()
    process.communicate()
    wait_for_the_end(pids)


def test_nothing_survives_a_process_that_closes_nothing(tmp_path: Path) -> None:
    process, pids = start(tmp_path, 0)
    process.communicate()
    assert not any(lives(each) for each in pids)


def test_what_has_left_the_group_of_a_server_ends_with_it(play: Play) -> None:
    play.find(odd=odd(scope="rollout"))

    async def scenario(rollout: Rollout) -> None:
        pid = int(await rollout("mcp_odd_spawn"))
        assert lives(pid)
        await rollout.context.close()
        await until(lambda: not lives(pid))

    play(scenario)


@pytest.mark.parametrize("killed", ["driver", "all"])
def test_nothing_survives_a_run_that_is_killed(tmp_path: Path, killed: str) -> None:
    log = tmp_path / "log"
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "p"}])
    (tmp_path / "tools.yaml").write_text("mcp-odd: 100\n")
    file = config(tmp_path, odd=odd(log, env={"STUBBORN": "1"}))
    call = {"name": "mcp_odd_hang", "arguments": {}}
    with MockServer([{"turns": [{"reasoning": "r", "tool_calls": [call]}]}]) as server:
        flags = ("--dataset_file=p.jsonl", "--run_name=r", "--batch_size=1", f"--base_url={server.base_url}", "--model=m")
        more = ("--api_key=k", "--distribution=tools.yaml", "--num_workers=1", "--engine=processes", f"--mcp_config={file}")
        process = start_kiseki("batch", *flags, *more, cwd=tmp_path)
        try:
            asyncio.run(until(lambda: process.poll() is not None or (log.exists() and log.read_text().count("start") == 2)))
            workers = [each for each in children(process.pid) if b"kiseki.batch.worker" in arguments(each)]
            servers = [each for worker in workers for each in children(worker) if b"odd_server" in arguments(each)]
            assert len(servers) == 1
            processes.send([process.pid, *(workers if killed == "all" else ())], signal.SIGKILL)
            wait_for_the_end(servers)
        finally:
            process.kill()
            process.communicate()


def wait_for_the_end(pids: list[int]) -> None:
    asyncio.run(until(lambda: not any(lives(each) for each in pids)))


def arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
