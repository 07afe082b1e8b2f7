"""Search over the user's own documents (`--corpus`): no network, the same answers every time."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kiseki.errors import ToolError
from kiseki.tools.services import Services
from kiseki.tools.web.corpus_index import ensure_index, open_index
from kiseki.tools.web.corpus_terms import EXCERPT_SCANNED, excerpt, read_query
from kiseki.trajectory.text import clean_text, printable

T = TypeVar("T")
MAX_HITS = 100
"""As many as `web_search` gives at most."""
MAX_DOCUMENT_CHARS = 1_000_000
"""Of the text under one URL: far more than any result shows of it."""
SNIPPET_CHARS = 300
TITLE_CHARS = 200
MAX_RANKED = 20_000
"""Documents that one search puts in order at most: some 20 ms. A word that more have says little; the first of them are
looked at."""
TITLE_WEIGHT = 4.0
"""A word in the title says as much as four in the text."""


class Hit(NamedTuple):
    """One document found."""

    title: str
    url: str
    snippet: str
    """About `SNIPPET_CHARS` characters around what was found, on one line."""


class Document(NamedTuple):
    """All that the corpus has under one URL."""

    url: str
    title: str
    text: str
    """Cut at `MAX_DOCUMENT_CHARS`."""


class Corpus:
    """The worker's connection to the index of `ToolSettings.corpus`. A `Service`."""

    def __init__(self, services: Services) -> None:
        """Raises `ToolError` where the run has no corpus."""
        if not services.settings.corpus:
            raise ToolError("there is no corpus in this run")
        self._settings = services.settings
        # of its own: a queue of searches in the default threads would hold up name look-ups and whatever else waits for one
        self._thread = ThreadPoolExecutor(1, "kiseki-corpus")
        self._database: sqlite3.Connection | None = None

    async def search(self, query: str, limit: int) -> list[Hit]:
        """The documents that fit `query` best, the best first: those that have all of its words, then those that have some.

        Any text is a query: there are no operators. Equal corpora give equal answers. `limit`: 1 to `MAX_HITS`.
        """
        return await self._in_thread(self._search, query, min(max(limit, 1), MAX_HITS))

    async def document(self, url: str) -> Document | None:
        """What `url` names, the rows of one URL joined in their order; None where the corpus has no such URL."""
        return await self._in_thread(self._document, clean_text(url))

    async def close(self) -> None:
        await self._in_thread(self._close)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            path = Path(self._settings.corpus_index)
            if not self._settings.corpus_index or not path.exists():  # another run's index of a changed corpus took its place
                path = ensure_index(self._settings.corpus)
            self._database = open_index(path)
        return self._database

    def _search(self, query: str, limit: int) -> list[Hit]:
        terms = read_query(query)
        found: dict[str, Hit] = {}
        if not terms.every:
            return []
        database = self._open()
        _add(database, terms.every, terms.words, limit, found)
        if len(found) < limit and (some := _rarest(database, terms.some)) not in ("", terms.every):
            _add(database, some, terms.words, limit, found)
        return list(found.values())

    def _document(self, url: str) -> Document | None:
        rows = self._open().execute(
            "SELECT title, substr(text, 1, ?) FROM documents WHERE url = ? ORDER BY id", (MAX_DOCUMENT_CHARS, url)
        )
        first = rows.fetchone()
        if first is None:
            return None
        title, text = first
        parts = [text]
        size = len(text)
        for _, more in rows:
            if size >= MAX_DOCUMENT_CHARS:
                break
            parts.append(more)
            size += len(more) + 2
        return Document(url, printable(title, TITLE_CHARS), "\n\n".join(parts)[:MAX_DOCUMENT_CHARS])


def _add(database: sqlite3.Connection, match: str, words: tuple[str, ...], limit: int, found: dict[str, Hit]) -> None:
    """Add what `match` finds to `found`, by URL, until there are `limit`."""
    beyond = database.execute("SELECT rowid FROM words WHERE words MATCH ? LIMIT 1 OFFSET ?", (match, MAX_RANKED)).fetchone()
    ranked = database.execute(
        "SELECT rowid FROM words WHERE words MATCH ? AND rowid < ? ORDER BY bm25(words, ?, 1.0), rowid",
        (match, beyond[0] if beyond else 2**62, TITLE_WEIGHT),
    )
    for (number,) in ranked:
        url, title, text = database.execute(
            "SELECT url, title, substr(text, 1, ?) FROM documents WHERE id = ?", (EXCERPT_SCANNED, number)
        ).fetchone()
        if url not in found:
            found[url] = Hit(printable(title, TITLE_CHARS), url, excerpt(text, words, SNIPPET_CHARS))
        if len(found) == limit:
            return


def _rarest(database: sqlite3.Connection, parts: tuple[str, ...]) -> str:
    """An expression for what has one of `parts`: of those that say most, as many as `MAX_RANKED` allows."""
    counted = []
    for part in parts:
        (count,) = database.execute(
            "SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT ?)", (part, MAX_RANKED)
        ).fetchone()
        counted.append((count, part))
    chosen: list[str] = []
    total = 0
    for count, part in sorted(counted, key=lambda each: each[0]):
        total += count
        if count and (not chosen or total <= MAX_RANKED):
            chosen.append(part)
    return " OR ".join(chosen)
