"""A worker's browser with pages to go to: a real Chromium, and a site on loopback that it may reach."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp import web
from support import open_sandbox

from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.browser.needs import why_no_browser
from kiseki.tools.context import RolloutInfo, ToolContext
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_tools
from kiseki.trajectory.types import ToolCall, ToolRun

Page = str | Callable[[web.Request], Awaitable[web.StreamResponse]]


def need_browser() -> None:
    """Skip the test where there is no browser, or let it fail where KISEKI_REQUIRE_ENGINES is set."""
    why = why_no_browser(ToolSettings(), None, os.environ)
    if why and os.environ.get("KISEKI_REQUIRE_ENGINES"):
        pytest.fail(f"{why}, and KISEKI_REQUIRE_ENGINES is set")
    if why:
        pytest.skip(why)


class Site:
    """Answers by path, with HTML or as a function says."""

    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.asked: list[str] = []
        """Method and path of each request."""
        self.address = ""
        self.root = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"{host}:{port}"
        self.root = f"http://{self.address}"

    async def close(self) -> None:
        if self._runner:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        page = self.pages.get(request.path)
        if page is None:
            raise web.HTTPNotFound()
        return html(page) if isinstance(page, str) else await page(request)


def html(text: str) -> web.Response:
    return web.Response(text=f"<!doctype html><link rel=icon href=data:,>{text}", content_type="text/html")


class Tab:
    """One rollout. Calling it calls a tool and gives the result's JSON."""

    def __init__(self, context: ToolContext, root: str) -> None:
        self.context = context
        self.root = root
        self.shown = ""
        """The snapshot, or what changed in it, of the last result."""
        self.run: ToolRun | None = None

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        call = ToolCall("c", f"browser_{name}", msgspec.json.encode(arguments).decode())
        message, self.run = await _toolbox().call(self.context, call)
        answer = msgspec.json.decode(message.content)
        assert isinstance(answer, dict)
        assert self.run.ok == ("error" not in answer), answer
        self.shown = answer.get("snapshot") or answer.get("changes") or self.shown
        return answer

    async def open(self, path: str) -> dict[str, Any]:
        """Go to a page of the site."""
        answer = await self("navigate", url=f"{self.root}{path}")
        assert "error" not in answer, answer
        return answer

    async def error(self, name: str, **arguments: Any) -> str:
        """The error of a call that has to fail."""
        answer = await self(name, **arguments)
        assert "error" in answer, answer
        return str(answer["error"])

    def ref(self, element: str) -> str:
        """That of the first element whose line in the last result begins so."""
        found = re.search(rf"^ *- {re.escape(element)}.*?\[(@\w+)\]", self.shown, re.MULTILINE)
        assert found, (element, self.shown)
        return found[1]


def _toolbox() -> Toolbox:
    return Toolbox(load_tools(["browser"]))


class Worker:
    """What rollouts share."""

    def __init__(self, services: Services, site: Site) -> None:
        self.services = services
        self.site = site

    @asynccontextmanager
    async def rollout(self, key: str = "key", **more: Any) -> AsyncIterator[Tab]:
        """A new one, with a sandbox."""
        sandbox = await open_sandbox(SandboxSettings(backend="local", label="browser-tests"))
        context = ToolContext(sandbox, self.services, RolloutInfo(key, 0, 0, 1, 0), **more)
        try:
            yield Tab(context, self.site.root)
        finally:
            await context.close()
            await sandbox.close()


@asynccontextmanager
async def worker(site: Site, **settings: Any) -> AsyncIterator[Worker]:
    """One, which may reach the site and nothing else of this machine."""
    services = Services(ToolSettings(web_allow=(site.address,), **settings), environ=os.environ)
    try:
        yield Worker(services, site)
    finally:
        await services.close()


@asynccontextmanager
async def open_site() -> AsyncIterator[Site]:
    site = Site()
    await site.start()
    try:
        yield site
    finally:
        await site.close()


Scenario = Callable[[Tab, Site], Awaitable[None]]


class Browsing:
    """One worker and its browser, for all the tests of a module, each with a rollout of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.Runner()
        self._site = open_site()
        self.site = self._loop.run(self._site.__aenter__())
        self._worker = worker(self.site)
        self.worker = self._loop.run(self._worker.__aenter__())

    def run(self, work: Awaitable[None]) -> None:
        async def waits() -> None:
            await work

        self._loop.run(waits())

    def __call__(self, scenario: Scenario, **pages: Page) -> None:
        """Play it. `pages`: of the site, by path without its slash; `home` is `/`."""
        self.site.pages = {f"/{path}" if path != "home" else "/": page for path, page in pages.items()}
        self.site.asked.clear()

        async def play() -> None:
            async with self.worker.rollout() as tab:
                await scenario(tab, self.site)

        self.run(play())

    def close(self) -> None:
        self._loop.run(self._worker.__aexit__(None, None, None))
        self._loop.run(self._site.__aexit__(None, None, None))
        self._loop.close()
