"""Sandboxes in containers, with Docker and with Podman; what is in them is the image's alone, and `sh` is all that it must have.

Each is one container without network (unless the run says so), without mounts of the host's and with few capabilities. Its first
process waits and collects orphans; shells and programs come in by the engine's exec, whose streams `containers_stream.py` puts on
the event loop. The container is removed with its volumes; `reap` and `left_over` find what dead runs left, by its labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kiseki.errors import SandboxError, UsageError
from kiseki.sandboxes import containers_create as create
from kiseki.sandboxes import folders
from kiseki.sandboxes.containers_disk import DiskWatch
from kiseki.sandboxes.containers_engine import Engine, not_there, reason, settled
from kiseki.sandboxes.containers_images import EngineImages
from kiseki.sandboxes.containers_stream import Connection, EngineStream
from kiseki.sandboxes.machine import TORN, Stream
from kiseki.sandboxes.owners import LeftOver, Owner
from kiseki.sandboxes.remote import Exceeded, open_remote
from kiseki.sandboxes.settings import Backend, ImageStore, SandboxSettings
from kiseki.sandboxes.shell import ShellSandbox

STATUS_ROUNDS = 40
STATUS_PAUSE = 0.05
"""Seconds between questions for a program's exit status: engines close its output a few milliseconds before they know it."""
DEATH_ROUNDS = 10
"""As many pauses as above until a container whose program was cut off says that it is dead, if it is."""
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


class ContainerBackend:
    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._engine = Engine(settings.backend)

    async def open(self, image: str) -> ShellSandbox:
        settings, engine = self._settings, self._engine
        name = f"kiseki-{folders.clean_label(settings.label)}-{secrets.token_hex(8)}"
        try:
            made = await engine.run(create.create, engine, settings, image, name)
        except BaseException:
            # Also where the engine did not say so, a container may be there.
            await settled(asyncio.ensure_future(asyncio.to_thread(_remove_quietly, engine, name)))
            raise
        container = Container(engine, made, settings)
        return await open_remote(container, made.description, watch=container.watch)

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

    def watch(self, exceeded: Exceeded) -> None:
        if self._disk:
            self._watching = asyncio.get_running_loop().create_task(self._disk.run(exceeded))

    async def open(self, argv: list[str]) -> Stream:
        try:
            program, connection = await self._engine.run(self._exec, argv)
        except SandboxError as error:
            died = await self._death()
            raise SandboxError(died or str(error)) from error
        return EngineStream(connection, lambda: self._status(program))

    async def why_dead(self) -> str:
        return await self._engine.run(self._why_dead)

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
            raise SandboxError(f"{self._engine.kind}: {reason(error)}") from error

    def _why_dead(self) -> str:
        from docker.errors import APIError

        try:
            state = self._engine.call("inspect_container", self._name)["State"]
        except SandboxError as error:
            return str(error)
        except APIError as error:
            if not_there(error):
                return "the container is gone: it was removed from outside, or its engine lost it"
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
        except (APIError, SandboxError):
            return TORN
        return None if found.get("Running") or found.get("ExitCode") is None else int(found["ExitCode"])

    # On the event loop

    async def _status(self, program: str) -> int:
        for _ in range(STATUS_ROUNDS):
            if self._removed:  # Its programs end by that, and nobody waits for their status.
                break
            status = await self._engine.run(self._inspect_program, program)
            if status is not None:
                return status
            await asyncio.sleep(STATUS_PAUSE)
        return TORN

    async def _death(self) -> str:
        """Why the container is dead; waits a little for it, "" when it is not."""
        for _ in range(DEATH_ROUNDS):
            if died := await self.why_dead():
                return died
            await asyncio.sleep(STATUS_PAUSE)
        return ""


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
