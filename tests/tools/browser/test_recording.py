"""What pages asked for is recorded, and answers them again without any network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tools.browser.playing import Site, Tab, html, open_site, worker

from kiseki.tools.browser.chromium import Browsers

pytestmark = pytest.mark.usefixtures("browser")


def set_up(site: Site) -> None:
    asked = 0

    async def data(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text=f"answer {asked}")

    async def login(request: web.Request) -> web.Response:
        response = web.HTTPFound("/me")
        response.set_cookie("who", str((await request.post())["who"]))
        raise response

    async def me(request: web.Request) -> web.Response:
        return html(f"<title>Me</title>I am {request.cookies.get('who', 'nobody')}")

    async def style(request: web.Request) -> web.Response:
        return web.Response(text="p {}", content_type="text/css", headers={"Cache-Control": "public, max-age=600"})

    async def file(request: web.Request) -> web.Response:
        return web.Response(body=b"\0\1\2", headers={"Content-Disposition": "attachment; filename=f.bin"})

    site.pages = {"/data": data, "/login": login, "/me": me, "/style.css": style, "/file": file}
    site.pages["/"] = """<title>Home</title><link rel=stylesheet href=/style.css><p id=said></p>
        <form action=/login method=post enctype=multipart/form-data><input name=who><button>Log in</button></form>
        <script>fetch('/data').then(async (r) => { said.textContent = await r.text() });
        try { new WebSocket(`ws://${location.host}/socket`) } catch {}</script>"""


async def visit(tab: Tab, who: str) -> list[Any]:
    """What a rollout sees on its way."""
    seen: list[Any] = [await tab.open("/")]
    button = tab.ref('button "Log in"')
    seen.append(await tab("type", ref=tab.ref("textbox"), text=who))
    seen.append(await tab("click", ref=button))
    seen.append(await tab.open("/"))
    seen.append(await tab("navigate", url=f"{tab.root}/none"))
    seen.append(await tab.error("navigate", url="http://127.0.0.1:9/"))
    answer = await tab("navigate", url=f"{tab.root}/file")
    assert answer["events"][0].startswith("downloaded ")
    seen.append(answer | {"events": []})
    return seen


def test_a_replay_shows_the_same_without_a_network(tmp_path: Path) -> None:
    file = str(tmp_path / "web.db")
    recorded: list[list[Any]] = []

    async def run(work: Callable[[Site], Awaitable[None]]) -> None:
        async with open_site() as site:
            set_up(site)
            await work(site)

    async def record_and_replay(site: Site) -> None:
        async with worker(site, web_record=file) as shared:
            for who in ("Ann", "Bob"):
                async with shared.rollout(who) as tab:
                    recorded.append(await visit(tab, who))
        assert "I am Ann" in recorded[0][2]["snapshot"] and "I am Bob" in recorded[1][2]["snapshot"]
        assert "answer 3" in recorded[1][0]["snapshot"]
        assert site.asked.count("GET /style.css") == 1  # may be kept by anybody; the rest is each rollout's own
        assert not [each for each in site.asked if "socket" in each]
        await site.close()
        async with worker(site, web_replay=file) as shared:
            for who, seen in (("Bob", recorded[1]), ("Ann", recorded[0])):
                async with shared.rollout(who) as tab:
                    assert await visit(tab, who) == seen
                    assert "is not in the recording" in await tab.error("navigate", url=f"{site.root}/new")
            async with shared.rollout("Cleo") as tab:
                assert "is not in the recording" in await tab.error("navigate", url=f"{site.root}/")
            assert shared.services.get(Browsers).proxy is None

    asyncio.run(run(record_and_replay))
