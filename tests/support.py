"""What many tests need: the command line as a user runs it, datasets, rows, and the mock server's flags."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kiseki.models.retry import Pause

REPOSITORY = Path(__file__).parent.parent
SECONDS = 120
"""A bound for one command; none comes near it."""

FAST = ("--num_workers=1",)
"""For runs where it does not matter which engine runs them: one worker means no processes to start."""

IN_PROCESS_TOOL = '''
from kiseki import tool

@tool(toolset="mine")
def shout(text: str) -> str:
    """Say it louder.

    Args:
        text: What to say.
    """
    return text.upper()
'''


def environment(**more: str) -> dict[str, str]:
    """The process's environment without anything that would change what a command does."""
    own = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return own | {"COLUMNS": "200"} | more


def kiseki(*arguments: str, cwd: Path, status: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `kiseki …` to its end and check its exit status."""
    command = [sys.executable, "-m", "kiseki", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=SECONDS)
    assert status is None or done.returncode == status, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done


def start_kiseki(*arguments: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
    """Start `kiseki …` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "kiseki", *arguments],
        cwd=cwd,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def children(pid: int) -> list[int]:
    """Processes that `pid` has started: a driver's workers."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def write_dataset(path: Path, rows: Iterable[Any]) -> Path:
    """A JSONL file; a row that is text already is written as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def light_tools(folder: Path) -> tuple[str, str]:
    """Flags for a run whose only tool needs no sandbox, so that a rollout costs a millisecond."""
    (folder / "mine.py").write_text(IN_PROCESS_TOOL)
    (folder / "mine.yaml").write_text("mine: 100\n")
    return "--tools=mine.py", "--distribution=mine.yaml"


class FakeTime:
    """A clock that only sleeping moves, and what was slept."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def pause(self) -> Pause:
        return Pause(lambda: self.now, self.sleep)
