"""Where pages can lead to: the web, what the user allowed, and nothing else of this machine or its networks."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from aiohttp import web
from support import kiseki
from tools.browser.playing import Browsing, Site, Tab, html, open_site

from kiseki.tools.browser.chromium import Browsers
from kiseki.tools.browser.proxy import Proxy

EVERY_OTHER_WAY = """(async () => {
  const out = [], place = '127.0.0.1:PORT';
  const urls = ['stun', 'turn'].map((kind) => `${kind}:${place}`);
  const peer = new RTCPeerConnection({iceServers: [{urls, username: 'a', credential: 'b'}]});
  peer.createDataChannel('x');
  await peer.setLocalDescription(await peer.createOffer());
  await new Promise((done) => {
    peer.onicegatheringstatechange = () => peer.iceGatheringState === 'complete' && done(); setTimeout(done, 3000) });
  for (const [name, way] of Object.entries({
    webtransport: async () => { await new WebTransport(`https://${place}/`).ready },
    websocket: () => new Promise((done, fail) => {
      const socket = new WebSocket(`ws://${place}/`); socket.onopen = done; socket.onerror = fail }),
    fetch: () => fetch(`http://${place}/`, {mode: 'no-cors'}).then((r) => { throw r.type }),
    localhost: () => fetch('http://localhost:PORT/', {mode: 'no-cors'}).then((r) => { throw r.type }),
  })) { try { await way(); out.push(name) } catch {} }
  return out })()"""


def test_another_port_of_this_machine_is_out_of_reach(browse: Browsing) -> None:
    async def scenario(tab: Tab, site: Site) -> None:
        async with open_site() as secret:
            secret.pages["/"] = "<title>Secret</title>top secret"
            refused = "127.0.0.1 is a private or reserved address"

            async def redirect(request: web.Request) -> web.Response:
                raise web.HTTPFound(f"{secret.root}/")

            async def secure(request: web.Request) -> web.Response:
                raise web.HTTPFound(f"https://{secret.address}/")

            site.pages |= {"/redirect": redirect, "/secure": secure, "/frame": f"<iframe src={secret.root}></iframe>"}
            site.pages["/image"] = f"<title>Image</title><img src={secret.root}><a href={secret.root}>Go</a>"
            for url in (secret.root, f"{site.root}/redirect", f"{site.root}/secure", f"https://{secret.address}"):
                assert refused in await tab.error("navigate", url=url)
            _, _, port = secret.address.partition(":")
            for host in ("localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "127.1", "0.0.0.0"):
                assert "private or reserved" in await tab.error("navigate", url=f"http://{host}:{port}/")
            await tab.open("/frame")
            assert "top secret" not in tab.shown
            await tab.open("/image")
            await tab("click", ref=tab.ref('link "Go"'))
            assert refused in tab.shown and "top secret" not in tab.shown
            assert secret.asked == []

    browse(scenario)


def test_there_is_no_way_past_the_proxy(browse: Browsing) -> None:
    came: list[bytes] = []

    class Listens(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            came.append(data)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(b"TCP")
        writer.close()

    async def scenario(tab: Tab, site: Site) -> None:
        loop = asyncio.get_running_loop()
        datagrams, _ = await loop.create_datagram_endpoint(Listens, local_addr=("127.0.0.1", 0))
        port = datagrams.get_extra_info("sockname")[1]
        streams = await asyncio.start_server(connected, "127.0.0.1", port)
        await tab.open("/")
        answer = await tab("console", expression=EVERY_OTHER_WAY.replace("PORT", str(port)))
        assert answer["value"] == "[]"
        streams.close()
        datagrams.close()

    browse(scenario, home="<title>Home</title>")
    assert came == []


def test_the_proxy_serves_its_browser_alone(browse: Browsing) -> None:
    async def ask(proxy: Proxy, head: str, secret: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        key = base64.b64encode(f"{proxy.username}:{secret}".encode()).decode()
        writer.write(f"{head}\r\nProxy-Authorization: Basic {key}\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        proxy = browse.worker.services.get(Browsers).proxy
        assert proxy
        plain = f"GET {site.root}/ HTTP/1.1\r\nHost: {site.address}"
        assert (await ask(proxy, plain, "wrong")).startswith(b"HTTP/1.1 407 ")
        assert (await ask(proxy, f"CONNECT {site.address} HTTP/1.1", "")).startswith(b"HTTP/1.1 407 ")
        answer = await ask(proxy, f"{plain}\r\nConnection: keep-alive\r\nProxy-Connection: keep-alive", proxy.password)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and b"Connection: close\r\n" in answer
        assert (await ask(proxy, "CONNECT 127.0.0.1:1 HTTP/1.1", proxy.password)).startswith(b"HTTP/1.1 403 ")
        assert (await ask(proxy, "GET /etc/passwd HTTP/1.1", proxy.password)).startswith(b"HTTP/1.1 400 ")
        assert (await ask(proxy, "GET file:///etc/passwd HTTP/1.1", proxy.password)).startswith(b"HTTP/1.1 400 ")

    browse(scenario, home="<title>Home</title>")


def test_a_body_goes_out_and_what_fails_is_said(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    async def upload(request: web.Request) -> web.Response:
        return html(f"<title>Got</title>{len(await request.read())}")

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        expression = "fetch('/upload', {method: 'POST', body: 'x'.repeat(300000)}).then((r) => r.text())"
        assert "300000" in (await tab("console", expression=expression))["value"]
        async with open_site() as gone:
            pass
        guard = browse.worker.services.get(Browsers).guard
        monkeypatch.setattr(guard, "_names", {("127.0.0.1", None)})
        assert f"cannot connect to {gone.address}" in await tab.error("navigate", url=gone.root)

    browse(scenario, home="<title>Home</title>", upload=upload)


def test_the_command_lets_out_what_the_user_allows(browse: Browsing, tmp_path: Path) -> None:
    async def scenario(tab: Tab, site: Site) -> None:
        call = ("tools", "call", "browser_navigate", f'{{"url": "{site.root}"}}', "--sandbox=local")
        allowed = await asyncio.to_thread(kiseki, *call, f"--web_allow={site.address}", cwd=tmp_path)
        assert '"title":"Home"' in allowed.stdout
        refused = await asyncio.to_thread(kiseki, *call, cwd=tmp_path, status=3)
        assert "private or reserved address" in refused.stdout

    browse(scenario, home="<title>Home</title>")
