"""`run.db`: opened by one process at a time, written by it alone, group by group.

All methods are synchronous and belong to one thread at a time; the driver calls them from a thread of its own so that a
disk never holds up the rollouts.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from kiseki import __version__
from kiseki.ledger.schema import POISON
from kiseki.ledger.types import Attempt, DoneRollout, OpenRollout, RunInfo, SessionState
from kiseki.ledger.words import LEDGER_NAME, code, damaged, in_words
from kiseki.trajectory.types import Prompt

BUSY_SECONDS = 30.0
"""How long to wait for another program that holds the database, such as an editor; another run is kept out by the lock file."""
SAID_AFTER_SECONDS = 1.0
"""Of that wait, before the user is told."""
PAGE = 50
"""Lines per query when walking a large table, so that memory does not depend on the run's size; few, since each may have
megabytes."""

_DONE_COLUMNS = (
    "coalesce(p.position, -1), r.sample_index, r.batch_num, r.outcome,"
    " a.reasoning_turns, a.assistant_turns, a.unknown_tools, y.payload, a.record"
)
_DONE_JOINS = "JOIN rollouts r ON r.prompt_id = p.id JOIN attempts a ON a.id = r.attempt_id JOIN payloads y ON y.prompt_id = p.id"
WANTED = "p.position IS NOT NULL AND r.sample_index < ?"
"""A rollout that the run is about: of the dataset as last given, and of as many samples (the parameter) as last asked for."""
IS_UNDONE = "r.outcome IN ('pending', 'failed')"
IS_OPEN = f"{IS_UNDONE} AND r.suspect < {POISON}"
"""What a start of the run has to run."""
_IS_DONE = "r.outcome IN ('completed', 'partial')"

NEW_SESSION = SessionState()

# by name: in a ledger that began with version 1 the newer columns come last
_ATTEMPT_COLUMNS = (
    *("rollout_id", "session_id", "attempt", "outcome", "reason", "error_class", "error"),
    *("started", "seconds", "model_seconds", "tool_seconds", "api_calls"),
    *("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens", "cost"),
    *("assistant_turns", "reasoning_turns", "unknown_tools", "tool_counts", "tool_timeouts", "redacted", "config"),
    *("children", "context_cuts", "cache_write_tokens", "fallback_calls", "record"),
)
_NEW_ATTEMPT = f"INSERT INTO attempts ({', '.join(_ATTEMPT_COLUMNS)}) VALUES ({', '.join('?' * len(_ATTEMPT_COLUMNS))})"

_decode_prompt = msgspec.msgpack.Decoder(Prompt).decode


class _ImageOf(msgspec.Struct):
    """Of a `Prompt`, what `open_images` reads; the rest is skipped."""

    image: str = ""


_decode_image = msgspec.msgpack.Decoder(_ImageOf).decode
_to_json = msgspec.json.encode


class Ledger:
    """The open ledger of one run folder. Make one with `opening.open_ledger`.

    As a context it closes at the end, and whatever SQLite says inside leaves it as an error of ours (`in_words`).
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: int) -> None:
        self.folder = folder
        self.db = connection
        self._lock = lock
        self.session_id = 0
        self.held = False
        """Another program holds it, or held it when a write was given up."""
        self.waiting: Callable[[str], None] = lambda line: None
        """Is told, from whichever thread writes, when another program holds the ledger."""

    def close(self) -> None:
        self.db.close()
        os.close(self._lock)  # which gives up the lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.ProgrammingError):  # which is a bug of ours
            raise in_words(self.folder, error) from error
        if isinstance(error, msgspec.DecodeError):  # what comes from elsewhere is caught where it comes from
            raise damaged(self.folder, str(error)) from error

    # ---- identity -------------------------------------------------------------------------------------------------

    def get_meta(self, key: str) -> str:
        line = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(line[0]) if line else ""

    def set_meta(self, key: str, value: str) -> None:
        with self.transaction():
            self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def start_session(self, settings: str, config: str = "", info: RunInfo | None = None) -> None:
        """`settings`: of this start, as JSON. `config`: the hash that its attempts will bear, which stands for `info`."""
        with self.transaction():
            if info:
                self.db.execute("INSERT OR IGNORE INTO configs VALUES (?, ?)", (config, _to_json(info).decode()))
            cursor = self.db.execute(
                "INSERT INTO sessions (started, settings, version) VALUES (?, ?, ?)", (time.time(), settings, __version__)
            )
        self.session_id = cursor.lastrowid or 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block's writes or none."""
        try:
            self._begin()
            yield
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:  # some errors have ended it already
                self.db.execute("ROLLBACK")
            raise

    def _begin(self) -> None:
        try:
            self._set_patience(SAID_AFTER_SECONDS)
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if code(error) != sqlite3.SQLITE_BUSY:
                raise
            path = self.folder / LEDGER_NAME
            self.waiting(f"another program holds {path}; waiting up to {BUSY_SECONDS:g} s for it to let go")
            self._set_patience(BUSY_SECONDS)
            self.held = True
            self.db.execute("BEGIN IMMEDIATE")
            self.held = False
        finally:
            self._set_patience(BUSY_SECONDS)

    def _set_patience(self, seconds: float) -> None:
        self.db.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")

    def spent(self) -> tuple[float, int]:
        """US dollars and tokens that all sessions have spent, on rollouts without an outcome too."""
        # sessions of a ledger of version 1 did not count, so there it is what their attempts took
        cost, tokens = self.db.execute(
            "SELECT coalesce(sum(max(s.cost, coalesce(a.cost, 0.0))), 0.0),"
            " coalesce(sum(max(s.tokens, coalesce(a.tokens, 0))), 0) FROM sessions s LEFT JOIN (SELECT session_id,"
            " sum(cost) AS cost, sum(prompt_tokens + completion_tokens) AS tokens FROM attempts GROUP BY 1) a"
            " ON a.session_id = s.id"
        ).fetchone()
        return cost, tokens

    def count_poison(self, num_samples: int) -> int:
        """Wanted rollouts that have killed their worker twice."""
        query = f"SELECT count(*) FROM rollouts r JOIN prompts p ON p.id = r.prompt_id WHERE {WANTED} AND r.suspect = {POISON}"
        return int(self.db.execute(query, (num_samples,)).fetchone()[0])

    def forgive_poison(self) -> None:
        """Let them be run again, each alone."""
        with self.transaction():
            self.db.execute(f"UPDATE rollouts SET suspect = 1 WHERE suspect = {POISON}")

    # ---- writing --------------------------------------------------------------------------------------------------

    def open_rollouts(self, num_samples: int) -> Iterator[OpenRollout]:
        """Every wanted rollout that is pending or failed, in dataset order, siblings together."""
        last = (-1, -1, -1)
        query = (
            "SELECT r.id, p.key, y.payload, r.sample_index, r.batch_num, r.attempts, r.suspect,"
            " (SELECT coalesce(sum(cost), 0.0) FROM attempts a WHERE a.rollout_id = r.id), p.position, p.id FROM prompts p"
            " CROSS JOIN rollouts r ON r.prompt_id = p.id CROSS JOIN payloads y ON y.prompt_id = p.id"
            f" WHERE {WANTED} AND {IS_OPEN} AND (p.position, p.id, r.sample_index) > (?, ?, ?)"
            " ORDER BY p.position, p.id, r.sample_index LIMIT ?"
        )
        while lines := self.db.execute(query, (num_samples, *last, PAGE)).fetchall():
            for rollout_id, key, payload, sample, batch, attempts, suspect, spent, position, prompt_id in lines:
                last = (position, prompt_id, sample)
                prompt = msgspec.structs.replace(_decode_prompt(payload), index=position)
                yield OpenRollout(rollout_id, key, prompt, sample, batch, attempts, bool(suspect), spent)

    def open_images(self, num_samples: int) -> dict[str, int]:
        """Image → prompts with an open rollout that name it, in dataset order; "" for those that name none."""
        found: dict[str, int] = {}
        query = (
            "SELECT y.payload FROM prompts p CROSS JOIN payloads y ON y.prompt_id = p.id WHERE p.position IS NOT NULL AND EXISTS"
            f" (SELECT 1 FROM rollouts r WHERE r.prompt_id = p.id AND r.sample_index < ? AND {IS_OPEN}) ORDER BY p.position"
        )
        for (payload,) in self.db.execute(query, (num_samples,)):
            image = _decode_image(payload).image
            found[image] = found.get(image, 0) + 1
        return found

    def commit(self, attempts: Sequence[tuple[int, Attempt]], session: SessionState = NEW_SESSION) -> None:
        """Write ended attempts, each with its rollout's id, in one transaction. When this returns they are safe."""
        with self.transaction():
            self.db.execute(
                "UPDATE sessions SET seconds = ?, cost = ?, tokens = ? WHERE id = ?",
                (session.seconds, session.cost, session.tokens, self.session_id),
            )
            self.db.executemany(
                "INSERT INTO decisions VALUES (NULL, ?, ?, ?, ?)",
                [(self.session_id, each.at, each.kind, each.detail) for each in session.decisions],
            )
            self.db.executemany(
                "UPDATE rollouts SET suspect = max(suspect, ?) WHERE id = ?",
                [(level, rollout_id) for rollout_id, level in session.suspects],
            )
            for rollout_id, attempt in attempts:
                self.write(rollout_id, attempt)

    def write(self, rollout_id: int, attempt: Attempt) -> None:
        """Write one ended attempt inside a transaction of the caller's."""
        s, use = attempt.summary, attempt.summary.usage
        self.db.executemany("INSERT OR IGNORE INTO tool_schemas VALUES (?, ?)", attempt.tool_schemas.items())
        (number,) = self.db.execute(
            "UPDATE rollouts SET attempts = attempts + 1 WHERE id = ? RETURNING attempts", (rollout_id,)
        ).fetchone()
        cursor = self.db.execute(
            _NEW_ATTEMPT,
            (
                *(rollout_id, self.session_id, number, s.outcome, s.reason, s.error_class, s.error),
                *(s.started, s.seconds, s.model_seconds, s.tool_seconds, s.api_calls),
                *(use.prompt_tokens, use.completion_tokens, use.reasoning_tokens, use.cached_tokens, use.cost),
                *(s.assistant_turns, s.reasoning_turns, _to_json(s.unknown_tools).decode()),
                *(_to_json(s.tool_counts).decode(), s.tool_timeouts, s.redacted, s.config),
                *(s.children, s.context_cuts, use.cache_write_tokens, s.fallback_calls, attempt.record),
            ),
        )
        # a late failure never replaces an outcome that was already paid for
        self.db.execute(
            "UPDATE rollouts SET outcome = ?, attempt_id = ? WHERE id = ? AND outcome IN ('pending', 'failed')",
            (s.outcome, cursor.lastrowid, rollout_id),
        )

    # ---- reading --------------------------------------------------------------------------------------------------

    def done_rollouts(self, *, only_parents: bool = False) -> Iterator[DoneRollout]:
        """Completed and partial rollouts, in dataset order; those that the dataset no longer has come last, oldest first. With
        `only_parents` only those that had sub-agents."""
        # two walks, each along an index and page by page: one over the dataset, one over what it no longer has
        also = " AND a.children > 0" if only_parents else ""
        yield from self._walk(f"p.position IS NOT NULL{also}", "p.position")
        yield from self._walk(f"p.position IS NULL{also}", "p.id")

    def _walk(self, where: str, order: str) -> Iterator[DoneRollout]:
        query = (
            f"SELECT {_DONE_COLUMNS}, {order}, p.id FROM prompts p {_DONE_JOINS}"
            f" WHERE {where} AND {_IS_DONE} AND ({order}, p.id, r.sample_index) > (?, ?, ?)"
            f" ORDER BY {order}, p.id, r.sample_index LIMIT ?"
        )
        last = (-1, -1, -1)  # with the prompt's id: after a plan that was stopped half-way two may share a position
        while lines := self.db.execute(query, (*last, PAGE)).fetchall():
            for line in lines:
                last = (line[-2], line[-1], line[1])
                yield DoneRollout(*line[:-2])

    def done_in_batch(self, batch_num: int) -> Iterator[DoneRollout]:
        """The same for one batch."""
        ids = self.db.execute(
            "SELECT p.id, r.sample_index FROM rollouts r JOIN prompts p ON p.id = r.prompt_id"
            f" WHERE r.batch_num = ? AND {_IS_DONE} ORDER BY p.position IS NULL, p.position, p.id, r.sample_index",
            (batch_num,),
        ).fetchall()
        query = f"SELECT {_DONE_COLUMNS} FROM prompts p {_DONE_JOINS} WHERE p.id = ? AND r.sample_index = ?"
        for pair in ids:
            line = self.db.execute(query, pair).fetchone()
            if line is None:  # an index that says otherwise than its table
                raise damaged(self.folder, f"batch {batch_num} names rollouts that are not there")
            yield DoneRollout(*line)

    def tool_schemas(self) -> dict[str, str]:
        return dict(self.db.execute("SELECT hash, schemas FROM tool_schemas"))
