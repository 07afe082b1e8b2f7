"""Sandboxes at Modal, through its SDK: each is one instance there, of the prompt's image, with the limits that Modal has.

Images are built on Modal's side out of their name in a registry, once, and kept there. Tags say whose an instance is, by which
`reap` and `left_over` find it; where nobody comes to reap, it ends by itself soon after its owner has fallen silent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kiseki.errors import ImageError, KisekiError, SandboxError, UsageError
from kiseki.sandboxes import folders
from kiseki.sandboxes.base import Limits
from kiseki.sandboxes.modal.machine import DETACH_SECONDS, LIFETIME, REMOVE_SECONDS, ModalMachine, first_program
from kiseki.sandboxes.modal.sdk import APP, ModalImages, answer, asking, client, image_error, image_of, sdk
from kiseki.sandboxes.owners import LeftOver, Owner, machine_id
from kiseki.sandboxes.settings import Backend, ImageStore, SandboxSettings
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.shell import ShellSandbox
from kiseki.sandboxes.streams.machine import TORN
from kiseki.sandboxes.streams.remote import open_remote

RESERVED_CPUS, RESERVED_MB = 0.125, 128
"""What is paid for also while nothing runs: Modal's defaults. A sandbox mostly waits for its model."""
CREATE_GRACE = 30.0
"""Seconds that an instance under way which nobody wants any more may take, to be ended as soon as it is there."""
END_GRACE = REMOVE_SECONDS + DETACH_SECONDS
"""Seconds for the end of one. Whoever waits for a start waits for this too, so it must not take for ever where Modal hangs."""
REAP_THREADS = 16

_LABEL, _MACHINE, _OWNER, _CREATED = "kiseki_label", "kiseki_machine", "kiseki_owner", "kiseki_created"
_TAG_CHARS = 63
"""Of a tag's value, which may have letters, digits, dots, dashes and underscores."""
_CANNOT_RUN = (126, 127, 128)
"""Statuses of a program that could not be started."""


def why_unavailable(settings: SandboxSettings) -> str:
    try:
        client()
    except KisekiError as error:
        return str(error)
    return ""


def open_backend(settings: SandboxSettings) -> Backend:
    return ModalBackend(settings)


def open_images(settings: SandboxSettings) -> ImageStore:
    return ModalImages()


def reap(settings: SandboxSettings) -> int:
    label = folders.clean_label(settings.label)
    with asking("end what is left there"), ThreadPoolExecutor(REAP_THREADS) as threads:
        found = _instances({_label_tag(label.count(".")): label})
        return len(list(threads.map(lambda instance: instance.terminate(wait=True), found)))


def left_over(settings: SandboxSettings) -> list[LeftOver]:
    with asking("list its sandboxes"), ThreadPoolExecutor(REAP_THREADS) as threads:
        every = threads.map(lambda instance: instance.get_tags(), _instances({}))
        return [_left_over(tags) for tags in every if _LABEL in tags]


class ModalBackend:
    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._app: Any = None
        self._images: dict[str, Any] = {}
        self._folders: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def open(self, image: str) -> ShellSandbox:
        with asking("start a sandbox"):
            built = await self._image(image)
            instance = await self._create(built)
        machine = ModalMachine(instance, self._settings.limits)
        try:
            machine.folder = await self._folder(image, machine)
        except BaseException:
            await settled(_quietly(machine.remove()))
            raise
        return await open_remote(machine, _describe(self._settings.limits, image))

    async def close(self) -> None:
        """The SDK's connection is the process's."""

    async def _image(self, name: str) -> Any:
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self._images:
                image, modal = image_of(name), sdk()
                if self._app is None:
                    known = await answer(modal.Client.from_env.aio())
                    self._app = await answer(modal.App.lookup.aio(APP, create_if_missing=True, client=known))
                try:
                    await answer(image.build.aio(self._app))
                except Exception as error:
                    raise image_error(name, error) from error
                self._images[name] = image
            return self._images[name]

    async def _create(self, image: Any) -> Any:
        limits, modal = self._settings.limits, sdk()
        creating = asyncio.ensure_future(
            modal.Sandbox.create.aio(
                *first_program(),
                app=self._app,
                image=image,
                tags=_tags(self._settings),
                timeout=LIFETIME,
                cpu=(min(RESERVED_CPUS, limits.cpus), limits.cpus),
                memory=(min(RESERVED_MB, limits.memory_mb), limits.memory_mb),
                block_network=not limits.network,
            )
        )
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            # The request is on its way: an instance may come of it whatever happens to us.
            await settled(_end_late(creating))
            raise

    async def _folder(self, image: str, machine: ModalMachine) -> str:
        """The image's working folder. Asked once per image: it takes a program to know."""
        if image not in self._folders:
            said, status = bytearray(), TORN
            stream = None
            try:
                stream = await machine.open(["pwd"])
                stream.follow(said.extend)
                status = await stream.exited
                how = "without a status" if status == TORN else f"with status {status}"
                why = f"`pwd` ends {how}" if status else ""
            except SandboxError as error:
                why = str(error)
            finally:
                if stream:
                    stream.close()
            why = why and (await machine.why_dead() or why)
            if status in _CANNOT_RUN or machine.status in _CANNOT_RUN:
                raise ImageError(f"image {image!r} has no `sh`, which a sandbox needs: {why}")
            if why:
                raise SandboxError(f"image {image!r} does not run at Modal: {why}")
            folder = said.decode(errors="replace").rstrip("\n")
            self._folders[image] = "" if folder == "/" else folder
        return self._folders[image]


async def _end_late(creating: asyncio.Future[Any]) -> None:
    """End an instance as soon as it is there."""
    await asyncio.wait([creating], timeout=CREATE_GRACE)
    if not creating.done():
        creating.cancel()
    elif not creating.cancelled() and not creating.exception():
        await _quietly(creating.result().terminate.aio())


async def _quietly(ending: Awaitable[Any]) -> None:
    """Not for longer than `END_GRACE`."""
    with contextlib.suppress(Exception):
        await answer(ending, END_GRACE)


def _instances(tags: dict[str, str]) -> list[Any]:
    """Those that run and have these tags. Raises SandboxError where Modal can't be asked."""
    try:
        known = client()
    except UsageError as error:
        raise SandboxError(str(error)) from error
    modal = sdk()
    try:
        app = modal.App.lookup(APP, client=known)
    except modal.exception.NotFoundError:
        return []
    return list(modal.Sandbox.list(app_id=app.app_id, tags=tags, client=known))


def _tags(settings: SandboxSettings) -> dict[str, str]:
    """One tag per level of the label, so that those below a label can be asked for; the owner's path over as many as it takes."""
    label = folders.clean_label(settings.label)
    ends = [*(dot.start() for dot in re.finditer(r"\.", label)), len(label)]
    owner = base64.urlsafe_b64encode(settings.owner.encode()).decode().rstrip("=")
    parts = [owner[at : at + _TAG_CHARS] for at in range(0, len(owner), _TAG_CHARS)]
    return {
        **{_label_tag(depth): label[:end] for depth, end in enumerate(ends)},
        **{f"{_OWNER}_{number}": part for number, part in enumerate(parts)},
        _MACHINE: machine_id(),
        _CREATED: f"{time.time():.0f}",
    }


def _label_tag(depth: int) -> str:
    return f"{_LABEL}_{depth}" if depth else _LABEL


def _left_over(tags: dict[str, str]) -> LeftOver:
    labels = [tags[name] for depth in range(len(tags)) if (name := _label_tag(depth)) in tags]
    owner = "".join(tags.get(f"{_OWNER}_{number}", "") for number in range(len(tags)))
    created = tags.get(_CREATED, "")
    file = ""
    with contextlib.suppress(ValueError):  # Others may set tags as well.
        file = base64.urlsafe_b64decode(owner + "=" * (-len(owner) % 4)).decode()
    return LeftOver(
        label=labels[-1],
        owner=Owner(machine=tags.get(_MACHINE, ""), file=file),
        created=float(created) if created.isascii() and created.isdigit() else 0.0,
    )


def _describe(limits: Limits, image: str) -> dict[str, str]:
    return {
        "backend": "modal",
        "isolation": "an instance at Modal: own file system, processes" + ("" if limits.network else ", network"),
        "network": "Modal's default" if limits.network else "none",
        "disk": f"{limits.disk_mb} MB per file",
        "memory": f"{limits.memory_mb} MB",
        "cpus": f"{limits.cpus:g}",
        "processes": "not limited",
        "image": image,
    }
