"""Opens the sandboxes that a run asked for.

A prompt's wish that a backend cannot fulfil (an image, where it has none) is an error: nothing ever runs somewhere else instead.
A backend is one module with these functions, imported when it is asked for:

    why_unavailable(settings) -> str            why no sandbox can be had here, "" when one can; blocks
    open_backend(settings) -> Backend           at once, without I/O
    open_images(settings) -> ImageStore         only where `HAS_IMAGES`
    reap(settings) -> int                       only where `LEAVES_MORE`: remove every sandbox labelled `settings.label` or below
                                                (`abc`: also `abc.3`, never `abcd`), also live ones; how many that were; blocks
    left_over(settings) -> list[LeftOver]       only where `LEAVES_MORE`: every sandbox of Kiseki's that is there, with whatever
                                                label, of whatever machine and owner, also live ones; blocks

The last two raise SandboxError, in one line, where the backend cannot be asked (no engine answers, no host is named) or doesn't
remove what it should, and UsageError where its package is missing. Each sandbox carries `settings.label`, `settings.owner` and
`owners.machine_id()` from the moment it exists, so that none is ever found without. Where each has a folder of `folders.make`,
`reaper.py` finds them by itself, with their processes and cgroups; of Apptainer's it has `reap` stop the instances before.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import msgspec

from kiseki.errors import ImageError, SandboxTimeout, UsageError
from kiseki.sandboxes import owners
from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.bubblewrap import working_program
from kiseki.sandboxes.owners import LeftOver
from kiseki.sandboxes.settings import Backend, ImageStore, SandboxSettings
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.shell import ShellSandbox
from kiseki.sandboxes.slots import NOT_HELD, Slots
from kiseki.sandboxes.warm import WarmPool
from kiseki.trajectory.text import clean_text

MODULES = {
    "bubblewrap": "bubblewrap",
    "local": "local",
    "docker": "containers.backend",
    "podman": "containers.backend",
    "apptainer": "apptainer.backend",
    "modal": "modal.backend",
    "ssh": "ssh.backend",
}
BACKENDS = tuple(MODULES)
AUTO = ("bubblewrap", "local")
"""The best first: what "auto" tries, in order."""
HAS_IMAGES = ("docker", "podman", "apptainer", "modal")
LEAVES_MORE = ("docker", "podman", "modal", "ssh")
"""Than what belongs to folders of this machine."""


class BackendModule(Protocol):
    def why_unavailable(self, settings: SandboxSettings) -> str: ...
    def open_backend(self, settings: SandboxSettings) -> Backend: ...
    def open_images(self, settings: SandboxSettings) -> ImageStore: ...
    def reap(self, settings: SandboxSettings) -> int: ...
    def left_over(self, settings: SandboxSettings) -> list[LeftOver]: ...


def backend_module(name: str) -> BackendModule:
    return cast(BackendModule, importlib.import_module(f"kiseki.sandboxes.{MODULES[name]}"))


def choose_backend(settings: SandboxSettings) -> str:
    """The backend that `settings.backend` means on this machine.

    Raises UsageError for one that is unknown or cannot work here, and for settings that mean nothing to it.
    """
    name = settings.backend
    if name not in ("auto", *BACKENDS):
        raise UsageError(f"there is no sandbox backend {name!r}; the backends are auto, {', '.join(BACKENDS)}")
    if settings.image and name not in HAS_IMAGES:
        raise UsageError(f"sandbox_image (--sandbox_image): sandbox backend {name!r} has no images; {', '.join(HAS_IMAGES)} have")
    if settings.host and name != "ssh":
        raise UsageError(f"ssh_host (--ssh_host) is for sandbox backend 'ssh', and the backend is {name!r}")
    if name == "ssh" and not settings.host:
        raise UsageError("sandbox backend 'ssh' needs ssh_host (--ssh_host=[user@]host[:port]): where its sandboxes are")
    reasons: list[str] = []
    for candidate in AUTO if name == "auto" else (name,):
        reason = backend_module(candidate).why_unavailable(msgspec.structs.replace(settings, backend=candidate))
        if not reason:
            return candidate
        reasons.append(reason)
    raise UsageError(f"sandbox backend {name!r} does not work here: {'; '.join(reasons)}")


def with_backend(settings: SandboxSettings) -> SandboxSettings:
    """`settings` with what `choose_backend` says, so that no worker has to find out again. Raises as that."""
    backend = choose_backend(settings)
    program = working_program()[0] if backend == "bubblewrap" else ""
    return msgspec.structs.replace(settings, backend=backend, program=program)


def why_no_image(settings: SandboxSettings, image: str) -> str:
    """Why the chosen backend can have no sandbox of `image` ("": the run's own), before any engine is asked; "" when it may."""
    image = image or settings.image
    if image and settings.backend not in HAS_IMAGES:
        return f"sandbox backend {settings.backend!r} has no images, so {image!r} cannot be used; choose one that has"
    if not image and settings.backend in HAS_IMAGES:
        return (
            f"sandbox backend {settings.backend!r} needs an image: sandbox_image (--sandbox_image) names one for prompts without"
        )
    return ""


class Sandboxes:
    """Opens the sandboxes of one worker, with what they share."""

    def __init__(self, settings: SandboxSettings) -> None:
        """Raises UsageError as `choose_backend`, which is asked when the settings leave it open."""
        backend = choose_backend(settings) if settings.backend == "auto" else settings.backend
        self._settings = msgspec.structs.replace(settings, backend=backend)
        self._backend = backend_module(backend).open_backend(self._settings)
        owners.record(settings.label, settings.owner)
        self._slots = Slots()
        self._warm = WarmPool(settings.warm, lambda image: self._slots.start(lambda: self._start(image), ahead=True))
        self._closing: asyncio.Task[None] | None = None

    async def open(self, *, image: str = "", cwd: str = "", on_hold: AbstractContextManager[Any] = NOT_HELD) -> Sandbox:
        """A fresh sandbox; the caller closes it. `cwd` is the folder that its session starts in, made where it is missing; a
        relative one, also as `~/…`, is below the home folder. Default: the image's, or the home folder. `on_hold` is entered
        while it waits until others have started, so that such a wait counts against nobody.

        Raises ImageError for an image that cannot be had, UsageError for a `cwd` that cannot be had, SandboxTimeout when the
        sandbox doesn't start in time, SandboxError when it doesn't otherwise.
        """
        image = self._image(image)
        if "\0" in cwd:
            raise UsageError(f"the working folder's name {cwd!r} holds a NUL character")
        warm = await self._warm.take(image)
        if warm is None:
            return await self._slots.start(lambda: self._start(image, cwd), on_hold)
        async with self._in_time():
            return await _entered(warm, cwd)

    async def close(self) -> None:
        """Close what stands ready and let go of what they share. Never raises, and goes on when it is cancelled."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._warm.close()
        with contextlib.suppress(Exception):
            await self._backend.close()

    async def _start(self, image: str, cwd: str = "") -> ShellSandbox:
        async with self._in_time():
            return await _entered(await self._backend.open(image), cwd)

    @contextlib.asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        limit = asyncio.timeout(self._settings.start_timeout)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            allowed = f"{self._settings.start_timeout:g} s"
            raise SandboxTimeout(
                f"the sandbox did not start within {allowed}; sandbox_timeout (--sandbox_timeout) allows more"
            ) from None

    def _image(self, image: str) -> str:
        if why := why_no_image(self._settings, image):
            raise ImageError(why)
        image = image or self._settings.image
        if image in self._settings.lost_images:
            raise ImageError(self._settings.lost_images[image])
        return image


async def _entered(sandbox: ShellSandbox, cwd: str) -> ShellSandbox:
    """The sandbox with its session in `cwd`, unless that is empty; closed when it cannot be."""
    try:
        if cwd:
            await sandbox.enter(clean_text(cwd))
    except BaseException:
        await settled(sandbox.close())
        raise
    return sandbox
