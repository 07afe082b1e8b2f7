"""What a Docker sandbox costs: a command in its persistent shell, beside an exec of the engine for each and a plain shell here.

Needs an engine (DOCKER_HOST, or the default socket) and an image with bash, named by KISEKI_BENCH_IMAGE; it is pulled where it is
missing. The four ways take turns within one loop, so that they meet the same load; each figure is the median of one command's
time, since most of it is waiting.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from benchmarks.figures import Figure, Result
from kiseki.sandboxes.factory import Sandboxes, backend_module, with_backend
from kiseki.sandboxes.settings import SandboxSettings

DEFAULT_IMAGE = "debian:stable-slim"
LABEL = "benchmark-containers"
COMMANDS = 100
SANDBOXES = 10
BUILTIN, FORK = "echo hello", "/bin/true"
END = "end-of-command"


def main() -> Result:
    image = os.environ.get("KISEKI_BENCH_IMAGE", DEFAULT_IMAGE)
    settings = with_backend(SandboxSettings(backend="docker", label=LABEL, image=image))
    store = backend_module("docker").open_images(settings)
    if not store.has(image):
        store.pull(image, lambda _: None)
    return asyncio.run(_measure(settings))


async def _measure(settings: SandboxSettings) -> Result:
    sandboxes = Sandboxes(settings)
    figures: list[Figure] = []
    opening: list[float] = []
    try:
        for _ in range(SANDBOXES):
            began = time.perf_counter()
            await (await sandboxes.open()).close()
            opening.append(time.perf_counter() - began)
        sandbox = await sandboxes.open()
        try:
            for kind, command in (("a builtin", BUILTIN), ("a command with a fork", FORK)):
                figures += await _compare(kind, command, sandbox)
        finally:
            await sandbox.close()
    finally:
        await sandboxes.close()
    return Result(
        title=f"containers: Docker, {settings.image}, medians of {COMMANDS} commands in turn, wall time",
        floor="the same line in a bash on this machine that goes on, through two pipes",
        figures=[*figures, Figure("open and close", 1000 * median(opening), "ms", note=f"{SANDBOXES}, one after the other")],
    )


async def _compare(kind: str, command: str, sandbox: Any) -> list[Figure]:
    import docker

    api = docker.from_env().api
    (container,) = api.containers(filters={"label": f"kiseki.label={LABEL}"})
    plain = subprocess.Popen(["bash"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert plain.stdin and plain.stdout
    lines_in, lines_out = plain.stdin, plain.stdout

    async def session() -> None:
        result = await sandbox.exec(command, timeout=60)
        assert result.exit_code == 0, result

    async def shell() -> None:
        lines_in.write(f"{command}; echo {END}\n".encode())
        lines_in.flush()
        while lines_out.readline() != f"{END}\n".encode():
            pass

    async def engine() -> None:
        program = api.exec_create(container["Id"], ["bash", "-c", command])
        api.exec_start(program)
        assert api.exec_inspect(program)["ExitCode"] == 0

    async def client() -> None:
        argv = ["docker", "exec", container["Id"], "bash", "-c", command]
        subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)

    ways: dict[str, Callable[[], Awaitable[None]]] = {"session": session, "shell": shell, "engine": engine, "client": client}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(COMMANDS):
        for name, way in ways.items():
            began = time.perf_counter()
            await way()
            taken[name].append(1000 * (time.perf_counter() - began))
    lines_in.close()
    plain.wait()
    api.close()
    times = {name: median(each) for name, each in taken.items()}
    floor = times["shell"]
    return [
        Figure(f"{kind}, persistent shell", times["session"], "ms", goal=floor + 5, floor=floor, note=f"{command}; 5 ms over"),
        Figure(f"{kind}, an exec by the API", times["engine"], "ms", floor=floor, note="create, start, exit status"),
        Figure(f"{kind}, `docker exec`", times["client"], "ms", floor=floor, note="the command line client"),
    ]
