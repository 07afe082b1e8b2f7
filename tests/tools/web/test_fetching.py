"""Fetching from a real site on loopback: bounds, redirects, robots.txt, politeness, and that equal fetches are one."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
import zlib

import pytest

from kiseki.errors import ToolError
from kiseki.tools.web import addresses, turns
from kiseki.tools.web.fetching import FETCH_SECONDS, Fetched, Fetcher

from .conftest import Reply, Request, Site, Web, with_web

LIMIT = 100_000


async def fetch(web: Web, url: str, timeout: float = FETCH_SECONDS) -> Fetched:
    return await web.services.get(Fetcher).fetch(url, max_bytes=LIMIT, timeout=timeout)


def refused(site: Site, url: str, because: str, *allow: str, timeout: float = FETCH_SECONDS) -> None:
    async def scenario(web: Web) -> None:
        with pytest.raises(ToolError, match=because):
            await fetch(web, url, timeout)

    with_web(scenario, web_allow=allow or (site.place,))


@pytest.fixture
def strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is as any public place: with robots.txt and politeness."""
    monkeypatch.setattr(addresses, "is_public", lambda address: True)
    monkeypatch.setattr(turns, "GAP_SECONDS", 0.0)


def test_a_page_comes_as_it_is_sent(site: Site) -> None:
    site.pages["/a%20b"] = Reply("日本".encode("euc_jp"), "text/html; charset=euc-jp")
    site.pages["/gone"] = Reply(b"gone", status=410)

    async def scenario(web: Web) -> None:
        found = await fetch(web, f"{site.url}/a b?q=1#part")
        assert found == Fetched(f"{site.url}/a%20b?q=1", 200, "text/html; charset=euc-jp", "日本".encode("euc_jp"))
        assert (await fetch(web, f"{site.url}/gone")).status == 410
        assert (await fetch(web, f"{site.url}/none")).status == 404

    with_web(scenario, web_allow=("127.0.0.0/8",))
    headers = site.asked[0].headers
    assert headers["user-agent"].startswith("Kiseki/")
    assert not headers.keys() & {"cookie", "authorization", "referer", "proxy-authorization"}
    assert "/robots.txt" not in site.times()


def test_a_header_that_is_no_text_does_not_matter(site: Site) -> None:
    site.pages["/a"] = Reply(b"text", 'text/html; charset="\xff"')

    async def scenario(web: Web) -> None:
        assert (await fetch(web, f"{site.url}/a")).content_type == 'text/html; charset="\ufffd"'

    with_web(scenario, web_allow=(site.place,))


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://e.test/a",
        "data:text/html,hi",
        "javascript:alert(1)",
        "e.test/page",
        "",
        "http://",
        "//e.test/",
    ],
)
def test_only_http_is_fetched(site: Site, url: str) -> None:
    refused(site, url, "is no address of a page")


def test_what_is_not_public_is_not_asked(site: Site) -> None:
    for url in (
        site.url,
        f"http://localhost:{site.port}/",
        f"http://[::ffff:127.0.0.1]:{site.port}/",
        f"http://2130706433:{site.port}",
    ):
        refused(site, url, "private or reserved", "192.168.0.1")
    refused(site, site.url, "private or reserved", f"127.0.0.1:{site.port + 1}")
    refused(site, f"http://user:secret@{site.place}/", "user name or password")
    refused(site, f"http://{site.place}:99999/", "no address of a page")
    assert not site.asked


def test_a_redirect_is_judged_as_the_first_address_was(site: Site) -> None:
    def redirect(to: str) -> Reply:
        return Reply(status=302, headers={"Location": to})

    site.pages |= {
        "/ok": redirect("/there?x=1#y"),
        "/there": Reply(b"here", headers={"Set-Cookie": "a=b"}),
        "/loop": redirect("/loop"),
        "/metadata": redirect("http://169.254.169.254/latest/meta-data"),
        "/name": redirect("http://localhost:1/there"),
        "/file": redirect("file:///etc/passwd"),
        "/login": redirect(f"http://a:b@{site.place}/there"),
        "/broken": redirect("http://[::1"),
        "/nowhere": Reply(b"no Location", status=302),
    }

    async def scenario(web: Web) -> None:
        found = await fetch(web, f"{site.url}/ok")
        assert (found.url, found.body) == (f"{site.url}/there?x=1", b"here")
        assert (await fetch(web, f"{site.url}/nowhere")).status == 302

    with_web(scenario, web_allow=(site.place,))
    for path, because in (
        ("loop", "more than 5 redirects"),
        ("metadata", "169.254.169.254 is a private"),
        ("name", "localhost is in a private"),
        ("file", "no address of a page"),
        ("login", "user name or password"),
        ("broken", "no address of a page"),
    ):
        refused(site, f"{site.url}/{path}", because)
    assert site.times()["/loop"] == 6
    assert not any("cookie" in request.headers for request in site.asked)


def test_a_name_that_changes_its_address_is_connected_to_where_it_was_checked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["127.0.0.2"], ["127.0.0.1"], ["127.0.0.1"]])
    monkeypatch.setattr(addresses, "look_up", lambda host, port: next(answers))
    monkeypatch.setattr(addresses, "is_public", lambda address: str(address) == "127.0.0.2")
    refused(site, f"http://rebinding.test:{site.port}/", "no connection can be made", "10.0.0.1")
    monkeypatch.setattr(addresses, "_KEPT_SECONDS", 0.0)  # even if the connection asked anew
    refused(site, f"http://rebinding.test:{site.port}/", "in a private or reserved", "10.0.0.1")
    assert not site.asked


def test_sizes_are_bounded_also_of_what_is_unpacked(site: Site) -> None:
    bomb = gzip.compress(bytes(20 * LIMIT))
    gzipped = {"Content-Encoding": "gzip"}
    endless = {"Content-Length": "", "Connection": "close"}
    site.pages |= {
        "/long": Reply(b"x" * (LIMIT + 1)),
        "/endless": Reply(b"x" * (LIMIT + 1), headers=endless),
        "/bomb": Reply(bomb, headers=gzipped),
        "/fits": Reply(gzip.compress(b"y" * LIMIT), headers=gzipped),
        "/members": Reply(gzip.compress(b"a") + gzip.compress(b"b"), headers=gzipped),
        "/deflate": Reply(zlib.compress(b"hello"), headers={"Content-Encoding": "deflate"}),
        "/bare": Reply(zlib.compress(b"hello")[2:-4], headers={"Content-Encoding": "deflate"}),
        "/empty_members": Reply(gzip.compress(b"") * (LIMIT // 20 + 1), headers=gzipped | endless),
        "/padding": Reply(gzip.compress(b"a") + bytes(LIMIT), headers=gzipped | endless),
        "/broken": Reply(b"no gzip", headers=gzipped),
        "/brotli": Reply(b"?", headers={"Content-Encoding": "br"}),
    }
    assert len(bomb) < LIMIT

    async def scenario(web: Web) -> None:
        assert (await fetch(web, f"{site.url}/fits")).body == b"y" * LIMIT
        assert (await fetch(web, f"{site.url}/members")).body == b"ab"
        assert (await fetch(web, f"{site.url}/deflate")).body == (await fetch(web, f"{site.url}/bare")).body == b"hello"

    with_web(scenario, web_allow=(site.place,))
    for path, because in (
        ("long", "100,001 bytes, more than the 100,000"),
        ("endless", "more than the 100,000 bytes"),
        ("bomb", "more than the 100,000 bytes"),
        ("empty_members", "more than the 100,000 bytes"),
        ("padding", "more than the 100,000 bytes"),
        ("broken", "not, or damaged"),
        ("brotli", "not asked for"),
    ):
        refused(site, f"{site.url}/{path}", because)


def test_a_site_that_does_not_answer_is_left(site: Site) -> None:
    over = threading.Event()

    def hang(request: Request) -> Reply:
        over.wait(60)
        return Reply()

    site.pages["/hang"] = hang
    refused(site, f"{site.url}/hang", r"no whole answer within 0\.2 seconds", timeout=0.2)
    over.set()
    site.stop()
    refused(site, f"{site.url}/", "no connection can be made")


def test_equal_fetches_are_one_and_failures_are_tried_again(site: Site) -> None:
    replies = iter([Reply(status=503), Reply(b"well")])
    site.pages |= {"/page": Reply(b"text"), "/shaky": lambda request: next(replies)}

    async def scenario(web: Web) -> None:
        found = await asyncio.gather(*(fetch(web, f"{site.url}/page#{number}") for number in range(20)))
        assert {each.body for each in found} == {b"text"}
        assert (await fetch(web, f"{site.url}/page")).body == b"text"
        assert [(await fetch(web, f"{site.url}/shaky")).status for _ in range(3)] == [503, 200, 200]

    with_web(scenario, web_allow=(site.place,))
    assert site.times() == {"/page": 1, "/shaky": 2}


def test_a_fetch_goes_on_for_the_others_when_one_caller_is_gone(site: Site) -> None:
    asked, over = threading.Event(), threading.Event()

    def slow(request: Request) -> Reply:
        asked.set()
        over.wait(60)
        return Reply(b"text")

    site.pages["/slow"] = slow

    async def scenario(web: Web) -> None:
        first, second = (asyncio.create_task(fetch(web, f"{site.url}/slow")) for _ in range(2))
        await asyncio.to_thread(asked.wait, 60)
        first.cancel()
        await asyncio.wait([first])
        over.set()
        assert (await second).body == b"text"

    with_web(scenario, web_allow=(site.place,))
    assert site.times() == {"/slow": 1}


@pytest.mark.usefixtures("strange")
def test_robots_txt_is_asked_once_and_kept_to(site: Site) -> None:
    site.pages |= {
        "/robots.txt": Reply(b"User-agent: kiseki\nDisallow: /private\nAllow: /\n" + b"# \n" * 300_000, "text/plain"),
        "/page": Reply(b"text"),
        "/to_private": Reply(status=301, headers={"Location": "/private/x"}),
    }

    async def scenario(web: Web) -> None:
        assert (await fetch(web, f"{site.url}/page")).body == b"text"
        for path in ("/private/x", "/to_private"):
            with pytest.raises(ToolError, match="does not allow programs"):
                await fetch(web, site.url + path)

    with_web(scenario)
    assert site.times() == {"/robots.txt": 1, "/page": 1, "/to_private": 1}


@pytest.mark.usefixtures("strange")
@pytest.mark.parametrize(("status", "allowed"), [(404, True), (403, True), (500, False), (429, False)])
def test_a_robots_txt_that_cannot_be_had(site: Site, status: int, allowed: bool) -> None:
    site.pages |= {"/robots.txt": Reply(b"User-agent: *\nDisallow: /", status=status), "/page": Reply(b"text")}

    async def scenario(web: Web) -> None:
        if allowed:
            assert (await fetch(web, f"{site.url}/page")).body == b"text"
        else:
            with pytest.raises(ToolError, match=f"robots.txt cannot be read.*HTTP {status}"):
                await fetch(web, f"{site.url}/page")

    with_web(scenario)
    assert site.times()["/page"] == (1 if allowed else 0)


@pytest.mark.usefixtures("strange")
def test_a_host_gets_few_requests_at_once_and_who_waits_is_on_hold(site: Site) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def slow(request: Request) -> Reply:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return Reply(b"text")

    class Hold:
        entered = left = 0

        def __enter__(self) -> None:
            self.entered += 1

        def __exit__(self, *_: object) -> None:
            self.left += 1

    site.pages |= {f"/{number}": slow for number in range(8)}
    hold = Hold()

    async def scenario(web: Web) -> None:
        fetcher = web.services.get(Fetcher)
        await asyncio.gather(*(fetcher.fetch(f"{site.url}/{n}", max_bytes=LIMIT, on_hold=hold) for n in range(8)))

    with_web(scenario)
    assert most <= turns.AT_ONCE
    assert hold.entered == hold.left == 8
