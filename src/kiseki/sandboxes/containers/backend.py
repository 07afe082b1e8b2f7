"""Sandboxes in containers, with Docker and with Podman; what is in them is the image's alone, and `sh` is all that it must have.

Each is one container without network (unless the run says so), without mounts of the host's and with few capabilities. Its first
process waits and collects orphans; shells and programs come in by the engine's exec, whose streams `stream.py` puts on
the event loop. The container is removed with its volumes; `reap` and `left_over` find what dead runs left, by its labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import math
import secrets
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kiseki.errors import SandboxError, UsageError
from kiseki.sandboxes import folders
from kiseki.sandboxes.containers import create
from kiseki.sandboxes.containers.disk import DiskWatch
from kiseki.sandboxes.containers.engine import Engine, UnreachableError, not_there, reason
from kiseki.sandboxes.containers.images import EngineImages
from kiseki.sandboxes.containers.stream import Connection, EngineStream
from kiseki.sandboxes.owners import LeftOver, Owner
from kiseki.sandboxes.settings import Backend, ImageStore, SandboxSettings
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.shell import ShellSandbox
from kiseki.sandboxes.streams.machine import TORN, Stream
from kiseki.sandboxes.streams.remote import Exceeded, open_remote

STATUS_PAUSE = 0.05
"""Seconds between questions for a program's exit status: engines close its output a few milliseconds before they know it."""
STATUS_SECONDS = 20.0
"""Until a status that an engine under load does not know yet counts as lost."""
SIGNALLED = 128
"""Exit statuses from here on are those of programs that a signal ended."""
DEATH_SECONDS = 2.0
"""After a program was cut off, in which an engine may still say of a container that it runs: some milliseconds, without load."""
DOWN_SECONDS = 45.0
"""In which an engine that cannot be reached may come back, before sandboxes fail to open: restarts take up to half a minute.
Less than a sandbox usually has for its start, so that the reason is told. Counted once for all that wait, so that a run whose
engine is down for good is over soon."""
DOWN_SHARE = 0.75
"""Of a start's own limit, where that is shorter."""
DOWN_PAUSE = 1.0
"""Seconds between the tries."""
REAP_THREADS = 16


def why_unavailable(settings: SandboxSettings) -> str:
    engine = Engine(settings.backend)
    try:
        _ = engine.client
    except (SandboxError, UsageError) as error:
        return str(error)
    finally:
        engine.close()
    return ""


def open_backend(settings: SandboxSettings) -> Backend:
    return ContainerBackend(settings)


def open_images(settings: SandboxSettings) -> ImageStore:
    return EngineImages(settings.backend)


def reap(settings: SandboxSettings) -> int:
    with contextlib.closing(Engine(settings.backend)) as engine:
        label = folders.clean_label(settings.label)
        found = [
            container["Id"]
            for container in _ours(engine)
            if (theirs := container["Labels"][create.LABEL]) == label or theirs.startswith(f"{label}.")
        ]
        with ThreadPoolExecutor(REAP_THREADS) as threads:
            list(threads.map(lambda container: create.remove(engine, container), found))
        return len(found)


def left_over(settings: SandboxSettings) -> list[LeftOver]:
    with contextlib.closing(Engine(settings.backend)) as engine:
        return [
            LeftOver(
                label=(labels := container["Labels"])[create.LABEL],
                owner=Owner(machine=labels.get(create.MACHINE, ""), file=labels.get(create.OWNER, "")),
                created=_seconds(container.get("Created")),
            )
            for container in _ours(engine)
        ]


GONE = "the container is gone: it was removed from outside, or its engine lost it"


class ContainerBackend:
    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._engine = Engine(settings.backend)
        self._down = math.inf  # since when it cannot be reached

    async def open(self, image: str) -> ShellSandbox:
        settings, engine = self._settings, self._engine
        name = f"kiseki-{folders.clean_label(settings.label)}-{secrets.token_hex(8)}"
        try:
            made = await self._create(image, name)
        except BaseException:
            # Also where the engine did not say so, a container may be there.
            await settled(asyncio.to_thread(_remove_quietly, engine, name))
            raise
        container = Container(engine, made, settings)
        return await open_remote(container, made.description, watch=container.watch)

    async def _create(self, image: str, name: str) -> create.Made:
        """Waits for an engine that is down. Raises as `create.create`."""
        engine = self._engine
        again = False
        while True:
            try:
                if again:  # It may have gone down after it had made the container.
                    await engine.run(create.remove, engine, name)
                made = await engine.run(create.create, engine, self._settings, image, name)
            except UnreachableError:
                now = time.monotonic()
                self._down = min(self._down, now)
                if now - self._down > min(DOWN_SECONDS, DOWN_SHARE * self._settings.start_timeout):
                    raise
            else:
                self._down = math.inf
                return made
            again = True
            await asyncio.sleep(DOWN_PAUSE)

    async def close(self) -> None:
        self._engine.close()


class Container:
    """A `Machine` (see machine.py): a running container."""

    def __init__(self, engine: Engine, made: create.Made, settings: SandboxSettings) -> None:
        self.environment: dict[str, str] = {}
        self.folder = made.folder
        self.mark = ""
        self._engine = engine
        self._name = made.name
        self._memory = settings.limits.memory_mb
        self._disk = DiskWatch(engine, made, settings.limits.disk_mb) if made.watched else None
        self._watching: asyncio.Task[None] | None = None
        self._removed = False
        self._cut_off = -math.inf  # when a program last ended in a way in which it would if the container were dead

    def watch(self, exceeded: Exceeded) -> None:
        if self._disk:
            self._watching = asyncio.get_running_loop().create_task(self._disk.run(exceeded))

    async def open(self, argv: list[str]) -> Stream:
        job = self._engine.begin(self._exec, argv)
        try:
            program, connection = await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            job.add_done_callback(_close_late)
            raise
        except SandboxError:
            self._cut_off = time.monotonic()
            raise
        return EngineStream(connection, lambda: self._status(program))

    async def why_dead(self) -> str:
        while True:
            try:
                why = await self._engine.ask(self._why_dead)
            except SandboxError as error:
                return str(error)
            if why or time.monotonic() > self._cut_off + DEATH_SECONDS:
                return why
            await asyncio.sleep(STATUS_PAUSE)

    async def restart(self) -> bool:
        return await self._engine.run(self._restart)

    async def remove(self) -> None:
        self._removed = True
        if self._watching:
            self._watching.cancel()
        await self._engine.run(create.remove, self._engine, self._name)

    # In threads

    def _exec(self, argv: list[str]) -> tuple[str, Connection]:
        from docker.errors import APIError

        try:
            program = self._engine.call("exec_create", self._name, argv, stdin=True)["Id"]
            return program, Connection(self._engine.call("exec_start", program, socket=True))
        except APIError as error:
            raise SandboxError(GONE if not_there(error) else f"{self._engine.kind}: {reason(error)}") from error

    def _why_dead(self) -> str:
        from docker.errors import APIError

        try:
            state = self._engine.call("inspect_container", self._name)["State"]
        except SandboxError as error:
            return str(error)
        except APIError as error:
            if not_there(error):
                return GONE
            return f"{self._engine.kind}: {reason(error)}"
        return create.why_not_running(state, self._memory)

    def _restart(self) -> bool:
        from docker.errors import APIError

        try:
            self._engine.call("restart", self._name, timeout=0)
        except (APIError, SandboxError):
            return False
        return not self._why_dead()

    def _inspect_program(self, program: str) -> int | None:
        """Its exit status, None while it runs."""
        from docker.errors import APIError

        try:
            found = self._engine.call("exec_inspect", program)
        except APIError:
            return TORN
        status = found.get("ExitCode")
        if found.get("Running") or status is None:
            return None
        return int(status) if status >= 0 else TORN  # Podman's -1: it cannot tell.

    # On the event loop

    async def _status(self, program: str) -> int:
        status = await self._ask_status(program)
        if not 0 <= status < SIGNALLED:
            self._cut_off = time.monotonic()
        return status

    async def _ask_status(self, program: str) -> int:
        end = time.monotonic() + STATUS_SECONDS
        while time.monotonic() < end and not self._removed:  # Removal ends its programs, and nobody waits for their status.
            try:
                status = await self._engine.ask(self._inspect_program, program)
            except SandboxError:
                break
            if status is not None:
                return status
            await asyncio.sleep(STATUS_PAUSE)
        return TORN


def _close_late(job: Future[tuple[str, Connection]]) -> None:
    """Nobody waits any more for this program. It ends when its stdin does."""
    if not job.cancelled() and not job.exception():
        job.result()[1].close()


def _remove_quietly(engine: Engine, name: str) -> None:
    with contextlib.suppress(SandboxError, UsageError):
        create.remove(engine, name)


def _ours(engine: Engine) -> list[dict[str, Any]]:
    from docker.errors import APIError

    try:
        return list(engine.call("containers", all=True, filters={"label": create.LABEL}))
    except (APIError, UsageError) as error:
        raise SandboxError(f"{engine.kind}: {reason(error)}") from error


def _seconds(created: object) -> float:
    """Docker says Unix seconds; Podman has also said a date."""
    if isinstance(created, str):
        with contextlib.suppress(ValueError):
            return datetime.datetime.fromisoformat(created).timestamp()
    return float(created) if isinstance(created, int | float) else 0.0
