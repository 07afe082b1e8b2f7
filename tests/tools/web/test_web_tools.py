"""`web_extract` as the model gets it, and whole runs by `kiseki batch` that are recorded and replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import FAST, kiseki, read_rows, write_dataset

from kiseki.models.mock_server import MockServer
from kiseki.tools.web.tools import ALL_BYTES, PAGE_BYTES

from .conftest import Reply, Request, Site, Web, article, with_web


def test_pages_are_read_all_at_once_and_one_that_fails_does_not_take_the_others(site: Site) -> None:
    site.pages |= {
        "/a": Reply(article("Page A", "The first of the pages has this text in it.")),
        "/b.json": Reply(b'{"b": 1}', "application/json"),
        "/c.png": Reply(b"\x89PNG\0", "image/png"),
    }
    urls = [f"{site.url}/a#top", f" {site.url}/b.json ", f"{site.url}/c.png", f"{site.url}/none", "http://10.0.0.1/"]

    async def scenario(web: Web) -> None:
        answer = await web("web_extract", urls=urls)
        assert web.run and web.run.ok
        first, second, *failed = answer["results"]
        assert (first["url"], first["title"]) == (urls[0], "Page A")
        assert first["content"].startswith("# Page A\n\nThe first of the pages has this text in it.")
        assert (second["url"], second["content"]) == (urls[1], '{"b": 1}')
        assert [each["url"] for each in failed] == urls[2:]
        errors = [each["error"] for each in failed]
        assert errors[0] == "it has no text to read: image/png, 5 bytes"
        assert errors[1] == "HTTP 404 Not Found"
        assert "10.0.0.1 is a private" in errors[2]

    with_web(scenario, web_allow=(site.place,))


def test_a_call_fails_when_no_page_can_be_read_and_says_why(site: Site) -> None:
    async def scenario(web: Web) -> None:
        error = await web.error("web_extract", urls=[f"{site.url}/x", "file:///etc/passwd"])
        assert f"{site.url}/x: HTTP 404 Not Found; file:///etc/passwd: " in error
        for urls in ([], ["http://e.test/"] * 6, "http://e.test/"):
            assert "wrong values" in await web.error("web_extract", urls=urls)

    with_web(scenario, web_allow=(site.place,))


def test_long_pages_are_cut_at_their_end_to_what_a_result_may_hold(site: Site) -> None:
    site.pages |= {f"/{n}": Reply(("軌跡\n\\" * 30_000).encode(), "text/plain; charset=utf-8") for n in range(5)}
    site.pages["/short"] = Reply(b"a" * PAGE_BYTES, "text/plain")

    async def scenario(web: Web) -> None:
        answer = await web("web_extract", urls=[f"{site.url}/{n}" for n in range(5)])
        assert web.run and web.run.ok and not web.run.truncated
        for each in answer["results"]:
            assert each["truncated"] is True
            assert each["content"].startswith("軌跡\n\\軌跡")
            assert ALL_BYTES // 5 - 3 <= len(each["content"].encode()) <= ALL_BYTES // 5
        (whole,) = (await web("web_extract", urls=[f"{site.url}/short"]))["results"]
        assert "truncated" not in whole

    with_web(scenario, web_allow=(site.place,))


def test_pages_of_a_corpus_need_no_network(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "trees.md").write_text("# On trees\n\nOaks are old, birches are not.")
    corpus, recording = str(tmp_path / "docs"), str(tmp_path / "r.db")
    seen: list[dict[str, Any]] = []

    async def scenario(web: Web) -> None:
        hits = (await web("web_search", query="oaks"))["results"]
        seen.append({"hits": hits, "pages": await web("web_extract", urls=[hits[0]["url"]])})
        assert "no document" in await web.error("web_extract", urls=["corpus://none.md"])

    async def replayed(web: Web) -> None:
        hits = (await web("web_search", query="oaks"))["results"]
        seen.append({"hits": hits, "pages": await web("web_extract", urls=[hits[0]["url"]])})
        assert "no document" in await web.error("web_extract", urls=["corpus://none.md"])
        assert "not in the recording r.db" in await web.error("web_search", query="birches")

    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*environ.popitem())
        with_web(scenario, corpus=corpus)
        with_web(scenario, corpus=corpus, web_record=recording)
    with_web(replayed, web_replay=recording)
    assert seen[0] == seen[1] == seen[2]
    assert "Oaks are old" in seen[0]["pages"]["results"][0]["content"]


# ---- whole runs -----------------------------------------------------------------------------------------------------------


def script(site: Site) -> list[dict[str, Any]]:
    """Every rollout searches, reads what all read and what only it reads, and fails at two more."""
    search = {"name": "web_search", "arguments": {"query": "trees", "limit": 2}}
    shared = {"name": "web_extract", "arguments": {"urls": [f"{site.url}/oak", f"{site.url}/gone", f"{site.url}/shaky"]}}
    nothing = {"name": "web_extract", "arguments": {"urls": [f"{site.url}/redirect", "http://192.168.0.1/"]}}
    turns = [{"tool_calls": [search, shared], "reasoning": "r"}, {"tool_calls": [nothing]}, {"content": "done"}]
    return [{"turns": turns}]


def tool_results(folder: Path) -> list[list[str]]:
    return [[turn["value"] for turn in row["conversations"] if turn["from"] == "tool"] for row in read_rows(folder)]


def test_a_recorded_run_is_replayed_byte_by_byte_with_no_site(site: Site, tmp_path: Path) -> None:
    def found(request: Request) -> Reply:
        rows = [{"title": "Oaks", "url": f"{site.url}/oak", "content": "of oaks"}]
        return Reply(json.dumps({"results": rows}).encode(), "application/json")

    site.pages |= {
        "/search": found,
        "/oak": Reply(article("Oaks", "Oaks grow slowly, and they grow for a very long time.")),
        "/shaky": Reply(status=503),
        "/redirect": Reply(status=302, headers={"Location": "http://169.254.169.254/latest"}),
    }
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(6)])
    with MockServer(script=script(site)) as server:
        base = ("batch", "--dataset_file=p.jsonl", "--batch_size=3", f"--base_url={server.base_url}", "--model=mock")
        web = ("--distribution=minimal", f"--web_allow={site.place}")
        kiseki(*base, *web, "--run_name=live", "--num_workers=2", "--web_record=r.db", cwd=tmp_path, SEARXNG_URL=site.url)
        times = site.times()
        assert times.pop("/search?q=trees&format=json&pageno=1") == 1
        # with two worker processes; a failure too is asked for once, since the recording has it
        assert {path: count for path, count in times.items() if "search" not in path} == {
            "/oak": 1,
            "/gone": 1,
            "/shaky": 1,
            "/redirect": 1,
        }
        site.stop()
        before = len(site.asked)
        kiseki(*base, *FAST, "--distribution=minimal", "--run_name=again", "--web_replay=r.db", cwd=tmp_path)
        missing = kiseki(*base, *web, *FAST, "--run_name=x", "--web_replay=none.db", cwd=tmp_path, status=2)
    assert len(site.asked) == before
    assert "there is no file none.db" in missing.stderr
    live, again = (tool_results(tmp_path / "data" / name / "trajectories.jsonl") for name in ("live", "again"))
    assert live == again
    assert len(live) == 6
    assert all("Oaks grow slowly" in row[0] and "HTTP 503" in row[0] for row in live)
    assert all("169.254.169.254 is a private" in row[1] for row in live)
