"""A worker's browser from its start to its end, and what a crash costs whom."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import pytest
from aiohttp import web
from support import environment
from tools.browser.playing import Browsing, Site, Tab, Worker, html, open_site, worker

from kiseki.errors import SandboxError
from kiseki.sandboxes import folders, owners, processes
from kiseki.tools.browser import chromium, memory, session

WORKER = """
import asyncio, os, sys
from kiseki.tools.context import ToolContext
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_tools
from kiseki.trajectory.types import ToolCall

async def main(url):
    services = Services(ToolSettings(web_allow=("127.0.0.1",)), environ=os.environ)
    call = ToolCall("c", "browser_navigate", '{"url": "%s"}' % url)
    message, _ = await Toolbox(load_tools(["browser"])).call(ToolContext(None, services), call)
    print(message.content, flush=True)
    await asyncio.sleep(600)

asyncio.run(main(sys.argv[1]))
"""


def ours() -> set[int]:
    """Processes of this process's browsers."""
    left = folders.left_over(owners.process_label("browser"))
    return {pid for folder in left for pid in chromium.processes_of(folder)}


async def kill(kind: str) -> None:
    """The processes of one kind: `browser`, `driver` or `renderer`. Waits until they are gone."""
    killed = set()
    for pid in ours():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except FileNotFoundError:
            continue
        is_kind = {
            "browser": "--user-data-dir" in command and "--type=" not in command,
            "driver": "run-driver" in command,
            "renderer": "--type=renderer" in command,
        }
        if is_kind[kind]:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
    assert killed
    await until_gone(killed)


async def until_gone(pids: set[int]) -> None:
    while any((found := processes.look(pid)) and found.running for pid in pids):
        await asyncio.sleep(0.02)


def play(scenario: Callable[[Worker, Site], Awaitable[None]]) -> None:
    """With a worker of its own."""

    async def run() -> None:
        async with open_site() as site, worker(site) as shared:
            await scenario(shared, site)

    asyncio.run(run())


@pytest.mark.parametrize("killed", ["browser", "driver"])
def test_a_crash_is_felt_by_those_in_it_alone(browser: None, killed: str) -> None:
    async def scenario(shared: Worker, site: Site) -> None:
        site.pages["/"] = "<title>Home</title><button>B</button>"
        async with shared.rollout("a") as first, shared.rollout("b") as second, shared.rollout("c") as third:
            await first.open("/")
            await second.open("/")
            await first("console", expression="document.cookie = 'a=1'")
            waits = asyncio.ensure_future(first.error("console", expression="new Promise(() => 0)"))
            await asyncio.sleep(0.3)
            await kill(killed)
            assert "the browser crashed" in await waits
            assert (await third.open("/")).keys() == {"title", "url", "snapshot"}
            assert "no page is open" in await first.error("snapshot")
            if killed == "browser":
                assert "the browser crashed" in await second.error("snapshot")
            else:
                assert "cookies and logins are lost" in (await second.open("/"))["events"][0]
            assert (await first.open("/"))["title"] == "Home"
            assert (await first("console", expression="document.cookie"))["value"] == '""'

    play(scenario)
    assert not ours() and not folders.left_over(owners.process_label("browser"))
    assert "PLAYWRIGHT_NODEJS_PATH" not in os.environ


def test_a_page_that_crashes_costs_that_page(browse: Browsing) -> None:
    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        await tab("console", expression="document.cookie = 'kept=1'")
        waits = asyncio.ensure_future(tab.error("console", expression="new Promise(() => 0)"))
        await asyncio.sleep(0.3)
        await kill("renderer")
        assert "the page crashed: browser_navigate opens one" in await waits
        await tab.open("/")
        assert (await tab("console", expression="document.cookie"))["value"] == '"kept=1"'

    browse(scenario, home="<title>Home</title>")


def test_a_browser_that_does_not_start_fails_the_rollout(browser: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(chromium, "find_browser", lambda environ: str(program))

    async def scenario(shared: Worker, site: Site) -> None:
        async with shared.rollout() as tab:
            with pytest.raises(SandboxError, match=f"{program} does not start"):
                await tab.open("/")

    play(scenario)


class Held(AbstractContextManager[None]):
    """How often a rollout was on hold, and whether it is."""

    def __init__(self) -> None:
        self.times = 0
        self.now = 0

    def __enter__(self) -> None:
        self.times += 1
        self.now += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.now -= 1


def test_contexts_are_bounded_by_memory(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 0.0)
    monkeypatch.setattr(chromium, "POLL_SECONDS", 0.05)
    held = Held()

    async def scenario(second: Tab, site: Site) -> None:
        second.context.on_hold = held
        async with browse.worker.rollout("a") as first:
            await first.open("/")
            waits = asyncio.ensure_future(second.open("/"))
            await asyncio.sleep(0.3)
            assert held.now > 0 and not waits.done()
        assert (await waits)["title"] == "Home"
        assert held.now == 0 and held.times
        monkeypatch.setattr(chromium, "WAIT_SECONDS", 0.1)
        async with browse.worker.rollout("c") as third:
            assert "no memory" in await third.error("navigate", url=site.root)
            monkeypatch.setattr(memory, "available", lambda: 1e12)
            await third.open("/")

    browse(scenario, home="<title>Home</title>")


def test_calls_take_turns_and_no_rollout_pays_for_the_wait(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "NAVIGATION_SECONDS", 5.0)
    held = Held()
    asked, over = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.Response:
        asked.set()
        await over.wait()
        return html("<title>Slow</title>")

    async def scenario(first: Tab, site: Site) -> None:
        browsers = browse.worker.services.get(chromium.Browsers)
        monkeypatch.setattr(browsers, "turns", asyncio.Semaphore(1))
        async with browse.worker.rollout("b") as second:
            second.context.on_hold = held
            loads = asyncio.ensure_future(first.open("/slow"))
            await asked.wait()
            waits = asyncio.ensure_future(second.open("/"))
            while not held.now:
                await asyncio.sleep(0.01)
            over.set()
            assert (await loads)["title"] == "Slow"
            assert (await waits)["title"] == "Home"
            assert held.now == 0

    browse(scenario, home="<title>Home</title>", slow=slow)


def test_nothing_survives_a_killed_worker(browser: None) -> None:
    async def scenario(shared: Worker, site: Site) -> None:
        site.pages["/"] = "<title>Home</title>"
        secret = {"OPENAI_API_KEY": "sk-very-secret"}
        started = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WORKER, site.root), stdout=subprocess.PIPE, env=environment() | secret
        )
        assert started.stdout
        assert b'"title":"Home"' in await started.stdout.readline()
        (label,) = [each for each in folders.labels() if each.startswith(f"browser-{started.pid}-")]
        pids = {pid for folder in folders.left_over(label) for pid in chromium.processes_of(folder)}
        assert len(pids) > 3
        assert not [pid for pid in pids if b"sk-very-secret" in processes.environment(pid)]
        started.kill()
        await started.wait()
        await until_gone(pids)

    play(scenario)
