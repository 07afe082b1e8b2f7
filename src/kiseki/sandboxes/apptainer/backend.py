"""Sandboxes in instances of Apptainer, or of Singularity: for machines of many users, where it is what there is.

An instance is started per sandbox, by `apptainer instance start`, and every stream into it is an `apptainer exec instance://…`
of this machine. What Apptainer keeps of an instance (its files, logs, temporary files) lies in the sandbox's own folder of
`folders.make`, which the environment of its processes names, so that `reaper.py` finds all of it.

Inside: the image read-only, and over it the sandbox's own writable layer, which is gone with it; nothing of the host's home,
/tmp, working folder or environment, no /sys, few devices; own processes and IPC, and network none unless it was asked for.
Users are root inside where Apptainer's --fakeroot works, else themselves. When root runs it, the sandbox's root is the host's,
with the capabilities alone that installing packages takes: an ordinary user is the safer one to run as.

Installations differ in what they allow, so the ways to start an instance (`Way`) are tried, the best first. The first that works
is kept, once each better one has failed twice where it worked: a failure may pass. None leaves the network to a sandbox that must
have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes import cgroup, folders
from kiseki.sandboxes.apptainer import images as apptainer_images
from kiseki.sandboxes.apptainer.instance import (
    CALL_TIMEOUT,
    CONFIGURATION,
    STOP_TIMEOUT,
    Instance,
    Way,
    environment_of,
    instance_name,
)
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.shell import ShellSandbox
from kiseki.sandboxes.streams.remote import open_remote

open_images = apptainer_images.open_images

_IMAGE_FAULT = re.compile(r"image format not recognized|could not open image|while loading image", re.IGNORECASE)
"""Words of Apptainer for an image that is none."""
TRIES = 2
"""Of a way, before a lesser one is kept: it would hold for all that this process opens, with less of the limits in force."""
_NO_SHELL = "executable file not found"
"""Its words for a program that the image does not hold."""


class Apptainer:
    """The `Backend`: knows which way works here, once one sandbox has started."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._way: Way | None = None
        self._failures: Counter[Way] = Counter()
        """Where a lesser way worked; what fails in all is no fault of the way."""
        self._choosing = asyncio.Lock()

    async def open(self, image: str) -> ShellSandbox:
        path = apptainer_images.find(image)
        program = apptainer_images.program()
        if not program:
            raise SandboxError(apptainer_images.NO_PROGRAM)
        machine = await self._start_some_way(program, path)
        try:
            return await open_remote(machine, {**machine.describe(), "image": image})
        except SandboxError as error:
            if _NO_SHELL in str(error):
                raise ImageError(f"image {image!r} has no `sh`, which a sandbox needs: {error}") from error
            raise

    async def close(self) -> None:
        """Nothing is held."""

    async def _start_some_way(self, program: str, image: Path) -> Instance:
        if not self._way:
            async with self._choosing:
                if not self._way:
                    return await self._choose(program, image)
        assert self._way
        return await self._start(program, image, self._way)

    async def _choose(self, program: str, image: Path) -> Instance:
        *ways, last = [way for way in _ways() if self._failures[way] < TRIES]
        failed: list[Way] = []
        for way in ways:
            with contextlib.suppress(SandboxError):
                return self._works(await self._start(program, image, way), way, failed)
            failed.append(way)
        # It asks for the least: what fails there too is the cause.
        return self._works(await self._start(program, image, last), last, failed)

    def _works(self, machine: Instance, way: Way, failed: list[Way]) -> Instance:
        self._failures.update(failed)
        if all(self._failures[better] >= TRIES for better in failed):
            self._way = way
        return machine

    async def _start(self, program: str, image: Path, way: Way) -> Instance:
        machine = Instance(program, image, self._settings, way)
        try:
            await machine.start()
        except BaseException as error:
            await settled(machine.abandon())
            said = error.strerror if isinstance(error, OSError) else str(error)
            if isinstance(error, SandboxError | OSError):
                kind = ImageError if _IMAGE_FAULT.search(said or "") else SandboxError
                raise kind(f"no instance of the image {image} starts: {said}") from error
            raise
        return machine


def open_backend(settings: SandboxSettings) -> Apptainer:
    return Apptainer(settings)


def _ways() -> list[Way]:
    """The best first: with a bounded disk before all else; then with limits, by whoever can set them; then as root inside."""
    layers = (True, False)
    if os.getuid() == 0:
        return [Way(layer, False, engine) for layer in layers for engine in (True, False)]
    user = [(False, True), (True, False)] if "memory" not in cgroup.parents() else [(True, False)]
    # What a user who is root inside made in a folder may belong to other users, and only they could remove it.
    return [Way(layer, *how) for layer in layers for how in (*user, (False, False)) if layer or not how[0]]


def why_unavailable(settings: SandboxSettings) -> str:
    """Why no sandbox can be had here; "" when one can."""
    program = apptainer_images.program()
    if not program:
        return apptainer_images.NO_PROGRAM
    try:
        asked = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=CALL_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run: {error}"
    return "" if asked.returncode == 0 else f"{program}: {apptainer_images.cleaned(asked.stderr.decode(errors='replace'))}"


def reap(settings: SandboxSettings) -> int:
    """Stops instances whose processes can't be told by their environment: where Apptainer is setuid, the kernel hides that."""
    program = apptainer_images.program()
    for folder in folders.left_over(settings.label):
        if program and (folder / CONFIGURATION).is_dir():
            words = [program, "--silent", "instance", "stop", "--force", instance_name(folder)]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    words, env=environment_of(folder), stdin=subprocess.DEVNULL, capture_output=True, timeout=STOP_TIMEOUT
                )
    return 0
