"""The corpus, through `Corpus` and the command: what is found, in which order, and how its index comes and goes."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from support import REPOSITORY, environment, kiseki, read_rows, write_dataset

from kiseki.errors import ToolError, UsageError
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.web.corpus import Corpus, Document, Hit
from kiseki.tools.web.corpus_index import describe, ensure_index

T = TypeVar("T")
EXAMPLES = REPOSITORY / "examples" / "corpus"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the indexes of this test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "kiseki"


def with_corpus(path: Path | str, use: Callable[[Corpus], Awaitable[T]], index: str = "") -> T:
    async def run() -> T:
        corpus = Corpus(Services(ToolSettings(corpus=str(path), corpus_index=index)))
        try:
            return await use(corpus)
        finally:
            await corpus.close()

    return asyncio.run(run())


def search(path: Path | str, query: str, limit: int = 5) -> list[Hit]:
    return with_corpus(path, lambda corpus: corpus.search(query, limit))


def urls(path: Path | str, query: str, limit: int = 5) -> list[str]:
    return [hit.url for hit in search(path, query, limit)]


def document(path: Path | str, url: str) -> Document | None:
    return with_corpus(path, lambda corpus: corpus.document(url))


def folder_of(folder: Path, **texts: str | bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        file = folder / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def rows_file(path: Path, rows: Iterable[Any]) -> Path:
    return write_dataset(path, rows)


# ---- what is found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("leap second", "leap-seconds.txt"),
        ("When did the railways introduce time zones?", "time-zones.html"),
        ("Harrison's CHRONOMETERS", "marine-chronometer.md"),
        ("sand-glass, speed of ships", "hourglass.md"),
        ("和時計", "ja/wadokei.md"),
        ("二挺天符について教えてください。", "ja/wadokei.md"),
        ("最初の時の鐘はどこに置かれましたか？", "ja/toki-no-kane.txt"),
        ("鐘", "ja/toki-no-kane.txt"),
        ("浅草", "ja/toki-no-kane.txt"),
        ("ｸｵｰﾂ quartz　ｗａｔｃｈ", "quartz.md"),
    ],
)
def test_the_best_document_of_the_examples_comes_first(query: str, first: str) -> None:
    assert urls(EXAMPLES, query)[0] == f"corpus://{first}"


def test_all_of_a_query_goes_before_some_of_it_and_titles_before_texts(tmp_path: Path) -> None:
    corpus = folder_of(
        tmp_path / "c",
        both_txt="One\n\nA heron stood near the mill.",
        heron_txt="Two\n\nheron heron heron heron",
        mill_txt="The mill\n\nIt ground flour for the village, year after year.",
        other_txt="Three\n\nYears ago a mill stood near it, and it ground flour for the village.",
    )
    assert urls(corpus, "mill heron")[0] == "corpus://both.txt"
    assert set(urls(corpus, "mill heron")[1:]) == {"corpus://heron.txt", "corpus://mill.txt", "corpus://other.txt"}
    assert urls(corpus, "mill", 1) == ["corpus://mill.txt"]
    assert urls(corpus, "mills")[0] == "corpus://mill.txt"  # by its stem


@pytest.mark.parametrize(
    "query",
    ["", "   ", '"', "a\" OR b*", "NEAR(", "title : x", "-", "^mill", "mill AND", "((((", "'; DROP TABLE documents; --", "\x00",
     "%_", "\ud800", "🦉", "。", "の", "ー", "a" * 100_000, "mill " * 10_000, "水" * 5_000],
)  # fmt: skip
def test_any_text_is_a_query(tmp_path: Path, query: str) -> None:
    corpus = folder_of(tmp_path / "c", a_txt="The mill\n\nground flour")
    assert len(search(corpus, query)) <= 1
    assert urls(corpus, "mill") == ["corpus://a.txt"]


def test_scripts_without_spaces_are_found_by_any_part(tmp_path: Path) -> None:
    corpus = folder_of(
        tmp_path / "c",
        ja_txt="東京都庁は西新宿にある。みかんの皮をむく。カメラを買った。",
        zh_txt="中华人民共和国的首都是北京。",
        ko_txt="서울은 대한민국의 수도이다.",
        th_txt="กรุงเทพมหานครเป็นเมืองหลวง",
    )
    for query in ("庁", "新宿", "みかん", "メラ", "都庁の場所"):
        assert urls(corpus, query)[0] == "corpus://ja.txt", query
    assert set(urls(corpus, "京")) == {"corpus://zh.txt", "corpus://ja.txt"}
    assert urls(corpus, "中国的首都是哪里？")[0] == "corpus://zh.txt"
    assert urls(corpus, "서울의 수도") == ["corpus://ko.txt"]
    assert urls(corpus, "เมืองหลวง") == ["corpus://th.txt"]
    assert urls(corpus, "大阪") == []


def test_a_snippet_shows_what_was_found_and_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    filler = "Nothing of note happened in that year, and the next one was no different. " * 60
    corpus = folder_of(
        tmp_path / "c",
        long_txt=f"Chronicle\n\n{filler}In the autumn an \x1b[31m otter \x1b[0m came\u202e to the mill.\x07 {filler}",
        ja_txt="年代記\n\n" + "その年は何事もなかった。" * 200 + "秋に川獺が水車小屋に来た。" + "その年は何事もなかった。" * 200,
    )
    (hit,) = search(corpus, "otters")
    assert "In the autumn an" in hit.snippet
    assert hit.snippet.startswith("…") and hit.snippet.endswith("…")
    assert len(hit.snippet) <= 302
    assert hit.snippet.isprintable()
    (hit,) = search(corpus, "川獺")
    assert hit.snippet.startswith("…秋に川獺が水車小屋に来た。")
    assert hit.title == "年代記"


def test_equal_corpora_give_equal_answers_in_any_order_of_writing(tmp_path: Path) -> None:
    texts = {f"n{number}_txt": f"Note {number}\n\nThe same words in all." for number in range(30)}
    one = folder_of(tmp_path / "one", **texts)
    other = folder_of(tmp_path / "other", **dict(reversed(texts.items())))
    found = search(one, "same words", 30)
    assert len(found) == 30
    assert search(other, "same words", 30) == found
    assert search(one, "same words", 7) == found[:7]


# ---- what a corpus can be ---------------------------------------------------------------------------------------------


def test_a_folder_of_many_kinds(tmp_path: Path) -> None:
    article = f"<nav>Home</nav><article><p>{'Owls hunt at night. ' * 20}</p></article>"
    html = f"<html><head><title>Owls</title></head><body>{article}</body></html>"
    corpus = folder_of(
        tmp_path / "c",
        a_txt="Im Café\n\nDie Tür war für alle geöffnet, und die Gäste hörten Musik.".encode("cp1252"),
        b_md="\ufeff# Title of b\n\nmarkdown",
        sub__c_html=html,
        d_json='{"animal": "badger"}',
        e_pdf=b"%PDF-1.4 torn",
        f_txt=b"  \n",
        g_bin=b"no text",
    )
    (corpus / ".hidden.txt").write_text("secret")
    (corpus / ".git").mkdir()
    (corpus / ".git" / "config.txt").write_text("secret")
    (corpus / "käse & co.txt").write_text("Gouda")
    (tmp_path / "outside.txt").write_text("secret")
    (corpus / "out.txt").symlink_to(tmp_path / "outside.txt")
    (corpus / "up").symlink_to(tmp_path)
    (corpus / "loop.txt").symlink_to(corpus / "loop.txt")
    (corpus / "same.txt").symlink_to(corpus / "d.json")
    os.mkfifo(corpus / "pipe.txt")
    (corpus / "dir.txt").mkdir()
    assert search(corpus, "secret") == []
    assert [hit.title for hit in search(corpus, "gäste")] == ["Im Café"]
    assert [hit.title for hit in search(corpus, "markdown")] == ["Title of b"]
    assert [hit.url for hit in search(corpus, "gouda")] == ["corpus://k%C3%A4se%20%26%20co.txt"]
    assert set(urls(corpus, "badger")) == {"corpus://d.json", "corpus://same.txt"}
    owls = document(corpus, "corpus://sub/c.html")
    assert owls and owls.title == "Owls" and "hunt at night" in owls.text and "Home" not in owls.text
    assert document(corpus, "corpus://nowhere.txt") is None
    assert describe(ensure_index(str(corpus))) == "6 documents, 2 without a text left out"


ROWS = [
    {"text": "A heron by the river.", "title": "Heron", "url": "https://birds.example/heron"},
    {"content": "An otter in the river.", "link": "https://birds.example/otter"},
    {"text": "  ", "body": "A kingfisher at the river.", "name": "Kingfisher", "id": "bird/7"},
    {"document": "River without an address"},
    {"id": 12, "text": "A river by number"},
    {"title": "no text"},
    {"text": None},
    "not json",
    [1, 2],
    {"text": "More of the heron, further down.", "url": "https://birds.example/heron"},
]


def test_rows_of_json_lines(tmp_path: Path) -> None:
    file = rows_file(tmp_path / "rows.jsonl", ROWS)
    found = search(file, "river", 10)
    assert {hit.url: hit.title for hit in found} == {
        "https://birds.example/heron": "Heron",
        "https://birds.example/otter": "An otter in the river.",
        "corpus://bird/7": "Kingfisher",
        "corpus://row-4": "River without an address",
        "corpus://12": "A river by number",
    }
    heron = document(file, "https://birds.example/heron")
    assert heron and heron.text == "A heron by the river.\n\nMore of the heron, further down."
    assert urls(file, "heron") == ["https://birds.example/heron"]
    assert describe(ensure_index(str(file))) == "6 documents, 4 without a text left out"
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert search(packed, "river", 10) == found


def test_rows_of_parquet_and_a_folder_of_row_files(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "shards"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["A heron.", "An otter."], "title": ["One", None]}), folder / "a.parquet")
    assert urls(folder / "a.parquet", "otter") == ["corpus://row-2"]
    rows_file(folder / "b.jsonl", [{"text": "An otter again", "url": "https://x.example"}])
    assert set(urls(folder, "otter")) == {"corpus://a.parquet/row-2", "https://x.example"}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda place: place / "nowhere", "--corpus: there is no file or folder"),
        (lambda place: folder_of(place / "empty"), "has no file that ends in .txt"),
        (lambda place: folder_of(place / "blank", a_txt="  "), "of its 1 files none could be read"),
        (lambda place: folder_of(place / "book", a_epub="x") / "a.epub", "takes a folder, or a file that ends in .jsonl"),
        (
            lambda place: rows_file(place / "a.jsonl", [{"question": "?", "answer": "!"}]),
            "text, content, body, document, and it has",
        ),
        (lambda place: rows_file(place / "a.jsonl", []), "is empty"),
        (lambda place: folder_of(place / "torn", a_jsonl_gz=b"\x1f\x8b\x08torn") / "a.jsonl.gz", "cannot read"),
        (lambda place: folder_of(place / "torn", a_parquet=b"PAR1 torn") / "a.parquet", "cannot read"),
    ],
)
def test_a_corpus_that_is_none_is_refused(tmp_path: Path, make: Callable[[Path], Path], said: str, cache: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(UsageError, match=said):
        ensure_index(str(path))
    assert not list(cache.glob("*.db")) and not list(cache.glob("*.half"))


def test_no_corpus_in_the_run() -> None:
    with pytest.raises(ToolError, match="no corpus"):
        Services(ToolSettings()).get(Corpus)


# ---- its index --------------------------------------------------------------------------------------------------------


def test_an_index_is_made_once_and_anew_when_the_corpus_changes(tmp_path: Path, cache: Path) -> None:
    corpus = folder_of(tmp_path / "c", a_txt="heron", b_txt="otter")
    counts: list[int] = []
    first = ensure_index(str(corpus), counts.append)
    assert counts == [2]
    assert ensure_index(str(corpus), counts.append) == first
    assert ensure_index(str(tmp_path / "c" / ".." / "c"), counts.append) == first
    assert counts == [2]
    (corpus / "c.txt").write_text("badger")
    second = ensure_index(str(corpus))
    assert second != first
    assert list(cache.glob("*.db")) == [second]
    assert urls(corpus, "badger") == ["corpus://c.txt"]
    (corpus / "c.txt").unlink()
    assert urls(corpus, "badger") == []
    other = folder_of(tmp_path / "other", a_txt="heron")
    ensure_index(str(other))
    assert len(list(cache.glob("*.db"))) == 2


def test_an_index_that_another_run_replaced_is_made_again(tmp_path: Path) -> None:
    corpus = folder_of(tmp_path / "c", a_txt="heron")
    index = ensure_index(str(corpus))
    index.unlink()
    found = with_corpus(corpus, lambda each: each.search("heron", 5), index=str(index))
    assert [hit.url for hit in found] == ["corpus://a.txt"]


def test_where_no_index_can_be_kept_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = folder_of(tmp_path / "c", a_txt="heron")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="XDG_CACHE_HOME names another place"):
        ensure_index(str(corpus))


def test_a_python_without_fts5_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What SQLite says without it, from a module name that it really does not know."""
    from kiseki.tools.web import corpus_index

    monkeypatch.setattr(corpus_index, "_SCHEMA", "CREATE VIRTUAL TABLE words USING fts5_is_not_here(title)")
    with pytest.raises(UsageError, match="SQLite with FTS5"):
        ensure_index(str(folder_of(tmp_path / "c", a_txt="heron")))


SLOW = """
import sys
from kiseki.tools.web import corpus_index
def read(count):
    print(count, flush=True)
    sys.stdin.readline()
corpus_index.TELL_EVERY = 1
print(corpus_index.ensure_index(sys.argv[1], read), flush=True)
"""


def start(corpus: Path) -> subprocess.Popen[str]:
    """Makes the index, and waits after each document for a line."""
    command = [sys.executable, "-c", SLOW, str(corpus)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())


def test_a_killed_process_leaves_no_half_index_and_two_make_one(tmp_path: Path, cache: Path) -> None:
    corpus = folder_of(tmp_path / "c", a_txt="heron", b_txt="otter", c_txt="badger")
    with start(corpus) as killed:
        assert killed.stdout and killed.stdout.readline() == "1\n"
        assert not list(cache.glob("*.db"))
        assert list(cache.glob("*.half"))
        killed.send_signal(signal.SIGKILL)
    with start(corpus) as one:
        assert one.stdout and one.stdin and one.stdout.readline() == "1\n"
        with start(corpus) as other:
            one.stdin.write("\n" * 4)
            one.stdin.close()
            index = one.stdout.read().splitlines()[-1]
            assert other.stdout and other.stdout.read().splitlines() == [index]
    assert list(cache.glob("*.db")) == [Path(index)]
    assert not list(cache.glob("*.half"))
    with sqlite3.connect(index) as database:
        assert database.execute("SELECT count(*) FROM documents").fetchone() == (3,)
    assert urls(corpus, "badger") == ["corpus://c.txt"]


# ---- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_over_the_examples_answers_from_them(tmp_path: Path, cache: Path) -> None:
    """The practice model over two worker processes: what it is asked for stands in what it quotes."""
    prompts = REPOSITORY / "examples" / "web_prompts.jsonl"
    asked = [json.loads(line) for line in prompts.read_text("utf-8").splitlines()]
    done = kiseki(
        *("batch", f"--dataset_file={prompts}", "--batch_size=5", "--run_name=r", "--model=builtin/practice", "--num_workers=2"),
        *(f"--corpus={EXAMPLES}", "--distribution=minimal"),
        cwd=tmp_path,
        XDG_CACHE_HOME=str(cache.parent),
    )
    assert "12 documents" in done.stdout
    assert len(list(cache.glob("*.db"))) == 1
    rows = read_rows(tmp_path / "data" / "r" / "trajectories.jsonl")
    answers = {row["prompt"]: row["conversations"][-1]["value"] for row in rows}
    assert len(rows) == len(asked)
    for row in asked:
        if "image" not in row.get("tags", ()):
            assert row.get("answer", "found nothing") in answers[row["prompt"]], row
    assert rows[0]["tool_stats"]["web_search"]["failure"] == 0


def test_a_corpus_that_is_none_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "hello"}])
    done = kiseki(
        *("batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", "--model=builtin/practice"),
        *("--distribution=minimal", "--corpus=nowhere"),
        cwd=tmp_path,
        status=2,
    )
    assert "nowhere" in done.stderr
    assert not (tmp_path / "data").exists()
