"""Atropos' own programs on loopback, in the environment that has them, and a trainer that does nothing but ask for batches."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import environment

import kiseki

SECONDS = 150.0
"""A bound for what has to happen; nothing comes near it on a machine that is not busy."""


def atropos_python() -> str:
    """The interpreter that has atroposlib: `KISEKI_ATROPOS_PYTHON`, that of `make consumers`, or this one."""
    named = os.environ.get("KISEKI_ATROPOS_PYTHON")
    for python in (named, f"{sys.prefix}/consumers/bin/python", sys.executable):
        if python and list(Path(python).parent.parent.glob("lib/python*/site-packages/atroposlib")):
            return python
    lacking = "no environment here has atroposlib; KISEKI_ATROPOS_PYTHON names the interpreter of one"
    if os.environ.get("KISEKI_REQUIRE_ENGINES"):
        pytest.fail(f"{lacking}, and KISEKI_REQUIRE_ENGINES is set")
    pytest.skip(lacking)


def atropos_environment() -> dict[str, str]:
    """Variables for its programs: our sources, nothing from the network."""
    own = environment(
        PYTHONPATH=str(Path(kiseki.__file__).parent.parent), HF_HUB_OFFLINE="1", WANDB_MODE="disabled", PYTHONUNBUFFERED="1"
    )
    own.pop("PYTHONDONTWRITEBYTECODE", None)  # half of the time goes into compiling their packages otherwise
    return own


def run_environment(file: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run an environment's file to its end and check its exit status."""
    command = [atropos_python(), str(file), *arguments]
    folder = Path(arguments[arguments.index("--env.dataset_file") + 1]).parent
    done = subprocess.run(command, cwd=folder, env=atropos_environment(), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == status, (done.returncode, done.stdout[-2000:], done.stderr[-6000:])
    return done


@contextlib.contextmanager
def started(*command: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that runs meanwhile; what it says goes to `log`."""
    with log.open("wb") as said:
        process = subprocess.Popen(command, cwd=log.parent, env=atropos_environment(), stdout=said, stderr=said)
        try:
            yield process
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()


class Trainer:
    """One that registers and asks for batches."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def register(self, *, batch_size: int, max_token_len: int) -> None:
        """As soon as the API is there. The first request for a batch is what lets environments in."""
        run = {"wandb_group": "tests", "wandb_project": "tests", "checkpoint_dir": "checkpoints", "save_checkpoint_interval": 0}
        steps = {"starting_step": 0, "num_steps": 1000}
        until(lambda: self.call("/info"), "the API")
        self.call("/register", {**run, **steps, "batch_size": batch_size, "max_token_len": max_token_len})
        self.call("/batch")

    def next_batch(self, environment: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
        """As soon as `environment` has made what it takes."""

        def look() -> Any:
            assert environment.poll() is None, "the environment's process has ended"
            return self.call("/batch")["batch"]

        batch: list[dict[str, Any]] = until(look, "a batch")
        return batch


def until(look: Callable[[], Any], what: str) -> Any:
    """The first of its answers that is something; what it cannot connect to is not there yet."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if found := look():
                return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
