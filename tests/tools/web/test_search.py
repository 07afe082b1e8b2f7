"""Each provider as its documentation describes it, spoken by a site on loopback; and what comes of their failures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from ddgs.ddgs import DDGS
from ddgs.exceptions import DDGSException, RatelimitException

from kiseki.tools.settings import ToolSettings
from kiseki.tools.web.needs import choose_provider, why_no_search
from kiseki.tools.web.providers import base, brave, ddgs, exa, serper, tavily

from .conftest import Reply, Request, Site, Web, with_web

KEY = "sk-secret-key-of-the-user"


def rows(title: str, url: str, snippet: str, count: int = 3) -> list[dict[str, Any]]:
    """Results by a provider's names, with some that no result may have."""
    good: list[dict[str, Any]] = [
        {title: f"T{n}", url: f"https://e.test/{n}", snippet: f"about\n {n}\u202e"} for n in range(count)
    ]
    return [*good[:1], {title: "no url"}, {url: None}, {title: "again", url: "https://e.test/0"}, *good[1:]]


def answers(body: Any) -> Reply:
    return Reply(json.dumps(body).encode(), "application/json")


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited between tries, and is not."""
    found: list[float] = []

    async def fake(seconds: float) -> None:
        found.append(seconds)
        await asyncio.sleep(0)

    for module in (base, ddgs):  # and nobody else's: other threads of this process wait, too
        monkeypatch.setattr(module, "sleep", fake)
    return found


def search(environ: Mapping[str, str], limit: int = 2, **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def scenario(web: Web) -> None:
        found.update(await web("web_search", query=" what  is\nit ", limit=limit))

    with_web(scenario, environ=environ, **settings)
    return found


EXPECTED = {
    "results": [{"title": f"T{n}", "url": f"https://e.test/{n}", "snippet": f"about {n} ", "position": n + 1} for n in range(2)]
}


def test_brave(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brave, "ENDPOINT", f"{site.url}/res/v1/web/search")
    site.pages["/res/v1/web/search"] = answers({"web": {"results": rows("title", "url", "description")}})
    assert search({"BRAVE_API_KEY": KEY}) == EXPECTED
    (asked,) = site.asked
    assert parse_qs(urlsplit(asked.path).query) == {"q": ["what is it"], "count": ["2"], "text_decorations": ["false"]}
    assert asked.headers["x-subscription-token"] == KEY
    site.pages["/res/v1/web/search"] = answers({"type": "search"})
    assert search({"BRAVE_API_KEY": KEY}, 100)["results"] == []
    assert "count=20" in site.asked[1].path


def test_tavily(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tavily, "ENDPOINT", f"{site.url}/search")
    site.pages["/search"] = answers({"results": rows("title", "url", "content")})
    assert search({"TAVILY_API_KEY": KEY}) == EXPECTED
    (asked,) = site.asked
    assert (asked.method, asked.headers["authorization"]) == ("POST", f"Bearer {KEY}")
    assert json.loads(asked.body) == {"query": "what is it", "max_results": 2, "search_depth": "basic"}


def test_exa(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exa, "ENDPOINT", f"{site.url}/search")
    found = rows("title", "url", "highlights")
    for row in found:
        row["highlights"] = [row.get("highlights", "")]
    site.pages["/search"] = answers({"results": found})
    assert search({"EXA_API_KEY": KEY}) == EXPECTED
    (asked,) = site.asked
    assert (asked.method, asked.headers["x-api-key"]) == ("POST", KEY)
    assert json.loads(asked.body)["numResults"] == 2


def test_serper(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serper, "ENDPOINT", f"{site.url}/search")
    site.pages["/search"] = answers({"organic": rows("title", "link", "snippet")})
    assert search({"SERPER_API_KEY": KEY}) == EXPECTED
    (asked,) = site.asked
    assert (asked.method, asked.headers["x-api-key"], json.loads(asked.body)) == ("POST", KEY, {"q": "what is it", "num": 2})


def test_searxng_is_asked_for_as_many_pages_as_it_takes(site: Site) -> None:
    def page(request: Request) -> Reply:
        number = int(parse_qs(urlsplit(request.path).query)["pageno"][0])
        found = rows("title", "url", "content", count=12)
        return answers({"results": found[(number - 1) * 6 : number * 6]})

    site.pages["/sub/search"] = page
    found = search({"SEARXNG_URL": f"{site.url}/sub/"}, 8)
    assert [hit["url"] for hit in found["results"]] == [f"https://e.test/{n}" for n in range(8)]
    assert len(site.asked) == 2
    assert len(search({"SEARXNG_URL": f"{site.url}/sub"}, 50)["results"]) == 12


def test_ddgs(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    failures: list[Exception] = [RatelimitException("x"), DDGSException("timeout of something")]

    def text(self: DDGS, query: str, max_results: int) -> list[dict[str, Any]]:
        assert (query, max_results) == ("what is it", 2)
        if failures:
            raise failures.pop()
        return rows("title", "href", "body")

    monkeypatch.setattr(DDGS, "text", text)
    assert search({}) == EXPECTED
    assert len(slept) == 2
    failures[:] = [DDGSException("No results found.")]
    assert search({})["results"] == []
    failures[:] = [RatelimitException("x")] * 9
    assert search({})["error"] == f"the search provider ddgs does not answer (too many requests), asked {base.TRIES} times"


def test_what_may_pass_is_tried_again_as_late_as_the_provider_asks_for(
    site: Site, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    monkeypatch.setattr(tavily, "ENDPOINT", f"{site.url}/search")
    replies = iter([Reply(status=429, headers={"Retry-After": "7"}), Reply(status=503), answers({"results": []})])
    site.pages["/search"] = lambda request: next(replies)
    assert search({"TAVILY_API_KEY": KEY})["results"] == []
    assert slept[0] == 7
    assert slept[1] <= 2


@pytest.mark.parametrize(
    ("reply", "words", "times"),
    [
        (Reply(status=401), "refuses the request: HTTP 401", 1),
        (Reply(status=302, headers={"Location": "http://elsewhere.test/"}), "refuses the request: HTTP 302", 1),
        (Reply(status=500), "does not answer (HTTP 500), asked 4 times", 4),
        (Reply(b"[1]"), "something else than a JSON object", 1),
        (Reply(b"<html>"), "something else than a JSON object", 1),
        (Reply(b"[" * 100_000), "something else than a JSON object", 1),
        (Reply(b" " * (base.MAX_ANSWER + 1)), "more than 5,000,000 bytes", 1),
    ],
)
@pytest.mark.usefixtures("slept")
def test_a_failure_names_the_provider_and_the_reason_and_no_key(
    site: Site, monkeypatch: pytest.MonkeyPatch, reply: Reply, words: str, times: int
) -> None:
    monkeypatch.setattr(brave, "ENDPOINT", f"{site.url}/search")
    site.pages["/search"] = reply
    error = search({"BRAVE_API_KEY": KEY})["error"]
    assert error == f"the search provider brave {error.removeprefix('the search provider brave ')}"
    assert words in error
    assert KEY not in error
    assert len(site.asked) == times
    site.stop()
    secret = f"http://user:{KEY}@{site.place}"
    assert (
        search({"SEARXNG_URL": secret})["error"] == "the search provider searxng does not answer (no connection), asked 4 times"
    )


def test_a_snippet_that_is_cut_in_a_character_costs_no_result(site: Site) -> None:
    site.pages["/search"] = Reply(
        rb'{"results": [{"title": "a", "url": "https://e.test/", "content": "fish \ud83d"}], "time": NaN}'
    )
    assert search({"SEARXNG_URL": site.url})["results"][0]["snippet"] == "fish \ufffd"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SEARXNG_URL": "localhost:8080"}, "SEARXNG_URL is no address of an instance; as in http://localhost:8080"),
        ({"SEARXNG_URL": "http://"}, "SEARXNG_URL is no address of an instance"),
        ({"SEARXNG_URL": "http://e.test:port/"}, "SEARXNG_URL is no address of an instance"),
        ({"BRAVE_API_KEY": f"{KEY}\n{KEY}"}, "BRAVE_API_KEY is no key: there is a space, a line break or the like in it"),
        ({"EXA_API_KEY": "ключ"}, "EXA_API_KEY is no key"),
    ],
)
def test_a_key_that_cannot_be_one_is_known_before_the_run(environ: dict[str, str], words: str) -> None:
    why = why_no_search(ToolSettings(), None, environ)
    assert why.startswith(words)
    assert KEY not in why


def test_equal_searches_are_one(site: Site) -> None:
    def slow(request: Request) -> Reply:
        time.sleep(0.02)
        return answers({"results": rows("title", "url", "content")})

    site.pages["/search"] = slow

    async def scenario(web: Web) -> None:
        found = await asyncio.gather(*(web("web_search", query=query, limit=3) for query in ("a b", " a  b ") * 5))
        assert all(each == found[0] for each in found)
        await web("web_search", query="a b", limit=2)

    with_web(scenario, environ={"SEARXNG_URL": site.url})
    assert len(site.asked) == 2


def test_what_a_result_may_hold_is_bounded(site: Site) -> None:
    found = [{"title": "t" * 3000, "url": f"https://e.test/{n}/" + "u" * 1500, "content": "日" * 3000} for n in range(100)]
    site.pages["/search"] = answers({"results": [{"url": "https://e.test/" + "u" * 3000}, *found]})

    async def scenario(web: Web) -> None:
        answer = await web("web_search", query="x", limit=100)
        assert web.run and web.run.ok and not web.run.truncated
        assert 10 < len(answer["results"]) < 100
        assert {len(hit["title"]) for hit in answer["results"]} == {201}
        for arguments in ({"query": " "}, {"query": "x" * 2000}, {"query": "x", "limit": 0}, {"query": "x", "limit": 101}):
            assert await web.error("web_search", **arguments)

    with_web(scenario, environ={"SEARXNG_URL": site.url})


def test_the_provider_is_the_one_asked_for_or_the_first_with_a_key() -> None:
    keys = {"EXA_API_KEY": "x", "SERPER_API_KEY": "x", "BRAVE_API_KEY": " "}
    assert choose_provider(ToolSettings(), keys) == "exa"
    assert choose_provider(ToolSettings(search_provider="serper"), keys) == "serper"
    assert choose_provider(ToolSettings(corpus="c"), keys) == "corpus"
    assert choose_provider(ToolSettings(), {}) == "ddgs"
