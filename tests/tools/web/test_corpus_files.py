"""What is read from odd files of a corpus: encodings that nobody names, lenient JSON, row numbers that files have in common."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from kiseki.tools.web.corpus_files import Found, Source

KYOTO = "京都の金閣寺は有名な寺院です。"


def read(folder: Path) -> dict[str, Found]:
    return {found.url.removeprefix("corpus://"): found for found in Source(folder).documents()}


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16", "cp932", "euc_jp", "iso2022_jp"])
def test_a_text_is_read_in_whatever_encoding_it_is(tmp_path: Path, codec: str) -> None:
    (tmp_path / "a.txt").write_bytes(KYOTO.encode(codec))
    assert read(tmp_path)["a.txt"].text == KYOTO


def test_comments_without_end_hold_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"<!---->" * 280 + "café".encode("latin-1"))
    started = time.process_time()
    assert read(tmp_path)["a.txt"].text.startswith("<!---->")
    assert time.process_time() - started < 20  # else longer than the universe is old


def test_rows_that_only_python_takes_for_json_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"id": "a", "text": "cut \\ud83d"}\n{"id": "b", "text": "x", "score": NaN}\n' + "[" * 100_000
    )
    assert {url: found.text for url, found in read(tmp_path).items()} == {"a.jsonl/a": "cut \ufffd", "a.jsonl/b": "x"}


def test_rows_of_several_files_that_have_the_same_id_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": 1, "text": "heron"}))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(json.dumps({"id": 1, "text": "otter"}).encode()))
    assert {url: found.text for url, found in read(tmp_path).items()} == {"a.jsonl/1": "heron", "b.jsonl.gz/1": "otter"}
