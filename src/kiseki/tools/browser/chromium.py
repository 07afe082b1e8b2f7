"""A worker's browser: one Chromium that all its rollouts share, each with a context of its own; started again when it dies.

Chromium sees nothing of this process's environment. Its profile, and all that it writes, is in a folder that belongs to this
process as a sandbox's does, so that `sandboxes/reaper.py` finds that and the processes, should everything be killed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiseki.errors import SandboxError, ToolError, UsageError
from kiseki.sandboxes import folders, owners, processes
from kiseki.tools.browser.memory import Room
from kiseki.tools.browser.needs import find_browser
from kiseki.tools.browser.proxy import Proxy
from kiseki.tools.services import Services
from kiseki.tools.web.addresses import Guard
from kiseki.tools.web.store import Store

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

FLAGS = (
    "--disable-quic",  # would go past the proxy, as would WebRTC's UDP
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",  # names are the proxy's business
    "--autofill-server-url=http://127.0.0.1:1/",  # else Google is told of the forms that are seen
    "--disable-background-networking",
    "--disable-crash-reporter",
    "--disable-domain-reliability",
    "--no-pings",
    "--js-flags=--max-old-space-size=1024",  # MB of one page's objects
)
NO_PROXY = "http://replay.invalid:1"
"""Where a replay's browser is sent, for what is not intercepted: no name, no connection."""
NO_SANDBOX = (
    "its own sandbox needs user namespaces, which are switched off here (sysctl kernel.unprivileged_userns_clone, AppArmor)"
)
VIEWPORT = (1280, 720)
START_SECONDS = 60.0
"""For the driver and the browser; usually one."""
STARTS = 2
"""Tries, before a rollout is told that there is no browser."""
CLOSE_SECONDS = 4.0
"""For each step of an orderly end."""
WAIT_SECONDS = 900.0
"""For room for another context. The rollouts that have one end, unless all of them wait for sub-agents that want one too."""
CALLS_AT_ONCE = 2 * (os.cpu_count() or 1)
"""In one worker; the others wait. With 60 rollouts at once on two cores, pages were so slow that two thirds of them were taken to
hang; they take turns, and all of them get their pages, in less than twice the time."""
POLL_SECONDS = 0.5
"""Between looks at the memory that is left; it also changes by what others do."""


class Running:
    """A Chromium that runs, with its driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.driver: Playwright | None = None
        self.browser: Browser | None = None
        self._lost = False

    @property
    def lives(self) -> bool:
        return self.browser is not None and self.browser.is_connected() and not self._lost

    async def ask_after(self) -> None:
        """Find out whether it still answers: that the driver has died, the package does not tell."""
        try:
            if self.browser:
                async with asyncio.timeout(START_SECONDS):
                    await (await self.browser.new_browser_cdp_session()).detach()
        except Exception:
            self._lost = True

    async def close(self) -> None:
        """End it, by force if need be. Never raises."""
        for end in (self.browser.close if self.browser and self.lives else None, self.driver and self.driver.stop):
            if end:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await end()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        processes.end_all(lambda: processes_of(self.folder))
        folders.remove(self.folder)


def processes_of(folder: Path) -> list[int]:
    """Those of the browser that lives in `folder`, by environment or by arguments: Chromium writes these over its environment."""
    cookie = f"{folder}/".encode()
    return [pid for pid in processes.every_pid() if cookie in processes.environment(pid) or cookie in _arguments(pid)]


def _arguments(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextlib.asynccontextmanager
async def turn(lock: asyncio.Lock | asyncio.Semaphore, on_hold: AbstractContextManager[Any]) -> AsyncIterator[None]:
    """Hold `lock`. `on_hold` is entered while others have it."""
    if lock.locked():
        with on_hold:
            await lock.acquire()
    else:
        await lock.acquire()
    try:
        yield
    finally:
        lock.release()


class Lease:
    """A rollout's browser context, and the room it takes."""

    def __init__(self, running: Running, context: BrowserContext, room: Room) -> None:
        self.context = context
        self._running = running
        self._room = room
        self._over = False

    @property
    def lost(self) -> bool:
        """Whether the browser that it was in is gone."""
        return not self._running.lives

    async def ask_after(self) -> None:
        """Have `lost` say what is so."""
        await self._running.ask_after()

    async def close(self) -> None:
        """May be called again. Never raises."""
        if not self._over:
            self._over = True
            try:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await self.context.close()
            finally:
                self._room.give_back()


class Browsers:
    """The worker's service."""

    def __init__(self, services: Services) -> None:
        self.store = services.get(Store)
        self.guard = Guard(services.settings.web_allow)
        self.proxy: Proxy | None = None
        """None until a browser runs, and in a replay."""
        self._environ = services.environ
        self._running: Running | None = None
        self._starting = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._room = Room()
        self.turns = asyncio.Semaphore(CALLS_AT_ONCE)
        """Of calls, to have pages do something."""
        self._closed = False

    @property
    def recorded(self) -> bool:
        """Whether what pages ask for is recorded, or comes from a recording."""
        return self.store.mode != "live"

    async def open(self, on_hold: AbstractContextManager[Any]) -> Lease:
        """A new context. `on_hold` is entered while it waits for room, and for a turn.

        Raises `SandboxError` when no browser starts, and `ToolError` when there is no room for too long.
        """
        with on_hold:
            async with self._turn:
                await self._wait_for_room()
        try:
            async with turn(self.turns, on_hold):
                return await self._open()
        except BaseException:
            self._room.give_back()
            raise

    async def _open(self) -> Lease:
        for tries_left in reversed(range(STARTS)):
            running = await self._get()
            try:
                async with asyncio.timeout(START_SECONDS):
                    context = await running.browser.new_context(  # type: ignore[union-attr]
                        viewport={"width": VIEWPORT[0], "height": VIEWPORT[1]},
                        locale="en-US",
                        timezone_id="UTC",
                        reduced_motion="reduce",
                        service_workers="block" if self.recorded else "allow",
                    )
                return Lease(running, context, self._room)
            except Exception as error:
                if (running.lives and not isinstance(error, TimeoutError)) or not tries_left:
                    raise SandboxError(f"the browser opens no page: {_first_line(error)}") from error
                await self._end(running)
        raise AssertionError

    async def close(self) -> None:
        self._closed = True
        async with self._starting:
            running, self._running = self._running, None
            if running:
                await running.close()
            if self.proxy:
                await self.proxy.close()

    async def _wait_for_room(self) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not self._room.take():
            if time.monotonic() > end:
                raise ToolError("there is no memory for another browser page on this machine; go on without, or try again later")
            await asyncio.sleep(POLL_SECONDS)

    async def _get(self) -> Running:
        async with self._starting:
            if self._running and not self._running.lives:
                await self._running.close()
                self._running = None
            if self._closed:
                raise SandboxError("the browser is closed: the worker ends")
            if not self._running:
                self._running = await self._start()
            return self._running

    async def _end(self, running: Running) -> None:
        async with self._starting:
            if self._running is running:
                self._running = None
                await running.close()

    async def _start(self) -> Running:
        program = find_browser(self._environ)
        if not program:
            raise UsageError("there is no Chromium; `playwright install chromium` installs one")
        if not self.proxy and self.store.mode != "replay":
            self.proxy = await Proxy.start(self.guard.resolve)
        label = owners.process_label("browser")
        owners.hold(label)
        for tries_left in reversed(range(STARTS)):
            running = Running(folders.make(label))
            try:
                async with asyncio.timeout(START_SECONDS):
                    await self._launch(running, program)
                return running
            except BaseException as error:
                await running.close()
                if not isinstance(error, Exception) or not tries_left:
                    if isinstance(error, Exception):
                        why = NO_SANDBOX if "No usable sandbox" in str(error) else _first_line(error)
                        raise SandboxError(f"{program} does not start: {why}") from error
                    raise
        raise AssertionError

    async def _launch(self, running: Running, program: str) -> None:
        from playwright.async_api import async_playwright

        home = running.folder / "home"
        temporary = running.folder / "tmp"
        for folder in (home, temporary):
            folder.mkdir()
        environment = {
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "DBUS_SESSION_BUS_ADDRESS": "disabled:",  # Chromium would start one
        }
        with _driver_in(running.folder, environment):
            running.driver = await async_playwright().start()
        proxy = self.proxy
        running.browser = await running.driver.chromium.launch(
            executable_path=program,
            args=FLAGS,
            env=dict(environment),
            chromium_sandbox=os.geteuid() != 0,  # it refuses to have one as root
            handle_sigint=False,  # the worker decides when it ends
            handle_sigterm=False,
            handle_sighup=False,
            proxy={"server": proxy.url, "username": proxy.username, "password": proxy.password, "bypass": "<-loopback>"}
            if proxy
            else {"server": NO_PROXY, "bypass": "<-loopback>"},
        )


@contextlib.contextmanager
def _driver_in(folder: Path, environment: dict[str, str]) -> Any:
    """Have Playwright's driver, a program of Node's, started with this environment alone, in a session of its own: an interrupt
    at the keyboard is for the run to handle. The package takes only the path of another program for that."""
    import playwright

    name = "PLAYWRIGHT_NODEJS_PATH"
    before = os.environ.get(name)
    bundled = Path(playwright.__file__).parent / "driver" / "node"
    node = before or (str(bundled) if bundled.is_file() else shutil.which("node"))
    script = folder / "node"
    session = "setsid " if sys.platform == "linux" and shutil.which("setsid") else ""
    words = " ".join(shlex.quote(f"{key}={value}") for key, value in environment.items())
    passed = " ".join(f'"{key}=${key}"' for key in ("PW_LANG_NAME", "PW_LANG_NAME_VERSION", "PW_CLI_DISPLAY_VERSION"))
    script.write_text(f'#!/bin/sh\nexec env -i {words} {passed} {session}{shlex.quote(str(node))} "$@"\n')
    script.chmod(0o700)
    if not node or not os.access(script, os.X_OK):  # no program may be run from there (noexec)
        yield
        return
    os.environ[name] = str(script)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0][:500]
