"""From the stream of prompts to what is still to be run: keys, resume by content, batches.

A prompt's key is a hash of what defines it (messages, image, cwd) and of which one it is among equal rows, so that a
reordered or extended dataset resumes right and equal rows stay separate. Other columns are not part of it: they can change
and ride along in their newest form. The plan lives in the ledger, so memory does not depend on the dataset.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kiseki.batch.prompts import BadRow
from kiseki.errors import DatasetError
from kiseki.ledger.ledger import IS_OPEN, WANTED, Ledger
from kiseki.trajectory.types import Prompt
from kiseki.views.build import mark_stale

CHUNK = 5000
"""Rows per statement: large enough that a statement costs nothing per row, within SQLite's 32,766 variables."""
CHUNK_CHARACTERS = 16_000_000
"""Of prompts and other columns in one chunk at most, give or take a row: what planning holds in memory."""
CHUNKS_PER_COMMIT = 10
"""Keys are random, so a transaction touches most pages of their index: few large ones write much less than many small ones."""

_encode = msgspec.msgpack.encode


class Plan(msgspec.Struct, frozen=True):
    """What a start of the run has before it."""

    rollouts: int
    """Prompts times samples."""
    done: int
    """Of those, done already."""
    poison: int
    """Of those, given up since they kill their worker."""
    batches: dict[int, int]
    """Batch number → rollouts to run in it."""

    @property
    def to_run(self) -> int:
        return sum(self.batches.values())


def read_into_ledger(
    ledger: Ledger,
    rows: Iterable[Prompt | BadRow],
    *,
    num_samples: int,
    bad_row: Callable[[BadRow], None],
    planned: Callable[[int], None],
) -> int:
    """Bring the ledger's prompts in line with the dataset. Returns how many rows are unusable.

    `bad_row` gets each unusable row, `planned` how many rows were read so far. Raises `DatasetError` when no row is usable.
    """
    db = ledger.db
    # temporary tables spill to disk: which prompts this dataset has, and how often a content was seen more than once
    db.execute("CREATE TEMP TABLE IF NOT EXISTS seen (prompt_id INTEGER PRIMARY KEY)")
    db.execute("CREATE TEMP TABLE IF NOT EXISTS equal_rows (content BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")
    db.execute("DELETE FROM seen")
    db.execute("DELETE FROM equal_rows")
    usable, bad, first_bad = 0, 0, None
    chunks = _chunks(rows)
    more = True
    while more:
        with ledger.transaction():
            for _ in range(CHUNKS_PER_COMMIT):
                chunk = next(chunks, [])
                if not (more := bool(chunk)):
                    break
                prompts = [row for row in chunk if isinstance(row, Prompt)]
                for row in chunk:
                    if isinstance(row, BadRow):
                        bad += 1
                        first_bad = first_bad or row
                        bad_row(row)
                usable += len(prompts)
                if _plan_prompts(db, prompts):
                    mark_stale(ledger)
                planned(usable + bad)
    if not usable:
        first = f"; line {first_bad.line}: {first_bad.reason}" if first_bad else ""
        raise DatasetError(f"the dataset has no usable row ({bad} unusable{first})")
    with ledger.transaction():
        gone = "UPDATE prompts SET position = NULL WHERE position IS NOT NULL AND id NOT IN (SELECT prompt_id FROM seen)"
        if db.execute(gone).rowcount:
            mark_stale(ledger)
        db.executemany(
            "INSERT INTO rollouts (prompt_id, sample_index) SELECT s.prompt_id, ?1 FROM seen s WHERE NOT EXISTS"
            " (SELECT 1 FROM rollouts r WHERE r.prompt_id = s.prompt_id AND r.sample_index = ?1) ORDER BY s.prompt_id",
            [(sample,) for sample in range(num_samples)],
        )
        db.execute("DELETE FROM rollouts WHERE outcome = 'pending' AND attempts = 0 AND sample_index >= ?", (num_samples,))
    return bad


def make_plan(ledger: Ledger, *, num_samples: int, batch_size: int, first_batch: int) -> Plan:
    """Batch what is not done of the ledger's prompts. `first_batch`: no batch gets a lower number."""
    db = ledger.db
    with ledger.transaction():
        _number_batches(ledger, num_samples, batch_size, first_batch)
    wanted = f"FROM rollouts r JOIN prompts p ON p.id = r.prompt_id WHERE {WANTED}"
    still_open = f"SELECT r.batch_num, count(*) {wanted} AND {IS_OPEN} GROUP BY 1"
    batches = dict(db.execute(still_open, (num_samples,)).fetchall())
    (total,) = db.execute(f"SELECT count(*) {wanted}", (num_samples,)).fetchone()
    poison = ledger.count_poison(num_samples)
    return Plan(
        rollouts=total,
        done=total - sum(batches.values()) - poison,
        poison=poison,
        batches=batches,
    )


def _chunks(rows: Iterable[Prompt | BadRow]) -> Iterator[list[Prompt | BadRow]]:
    """The rows in lists that are bounded both ways: long prompts make short lists."""
    chunk: list[Prompt | BadRow] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += len(row.source) + len(row.text) if isinstance(row, Prompt) else 0
        if len(chunk) == CHUNK or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def prompt_key(prompt: Prompt, number: int) -> bytes:
    """16 bytes that name the prompt: its content, and which of the equal rows it is, from 0."""
    content = _encode((prompt.messages, prompt.image, prompt.cwd, number))
    return hashlib.blake2b(content, digest_size=16).digest()


def rollout_key(key: bytes, sample_index: int) -> str:
    return f"{key.hex()}-{sample_index}"


def draw_seed(run_seed: int, key: str) -> int:
    """The rollout's own seed: 31 bits, the range that inference servers accept."""
    return int.from_bytes(hashlib.blake2b(f"{run_seed}:{key}".encode(), digest_size=4).digest()) >> 1


class _Known(NamedTuple):
    """A prompt that the ledger has."""

    id: int
    position: int | None
    payload: bytes
    seen: int
    """Whether this dataset has given it already."""


def _plan_prompts(db: sqlite3.Connection, prompts: Sequence[Prompt]) -> int:
    """Plan one chunk, in a few statements for all of it. Returns how many known prompts have moved or changed."""
    contents = [prompt_key(prompt, 0) for prompt in prompts]
    known = _look_up(db, contents)
    numbers = _number_equal_rows(db, contents, known)
    keys = [prompt_key(prompt, n) if n else content for prompt, content, n in zip(prompts, contents, numbers, strict=True)]
    known |= _look_up(db, [key for key, number in zip(keys, numbers, strict=True) if number])
    (next_id,) = db.execute("SELECT coalesce(max(id), 0) + 1 FROM prompts").fetchone()
    new, moved, payloads, ids = [], [], [], []
    for prompt, key in zip(prompts, keys, strict=True):
        payload = _encode(msgspec.structs.replace(prompt, index=0))  # a moved row is not a changed one
        before = known.get(key)
        prompt_id = before.id if before else next_id
        if before is None:
            next_id += 1
            new.append((prompt_id, key, prompt.index))
        elif before.position != prompt.index:
            moved.append((prompt.index, prompt_id))
        if before is None or before.payload != payload:
            payloads.append((prompt_id, payload))
        ids.append((prompt_id,))
    db.executemany("INSERT INTO prompts (id, key, position) VALUES (?, ?, ?)", new)
    db.executemany("UPDATE prompts SET position = ? WHERE id = ?", moved)
    db.executemany("INSERT OR REPLACE INTO payloads VALUES (?, ?)", payloads)
    db.executemany("INSERT INTO seen VALUES (?)", ids)
    return len(moved) + len(payloads) - len(new)


def _look_up(db: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, _Known]:
    lines = db.execute(
        "SELECT p.key, p.id, p.position, y.payload, s.prompt_id IS NOT NULL FROM prompts p"
        " JOIN payloads y ON y.prompt_id = p.id LEFT JOIN seen s ON s.prompt_id = p.id"
        f" WHERE p.key IN ({_marks(keys)})",
        keys,
    )
    return {key: _Known(*rest) for key, *rest in lines}


def _number_equal_rows(db: sqlite3.Connection, contents: Sequence[bytes], known: Mapping[bytes, _Known]) -> list[int]:
    """How many rows of the same content came before each. Only contents that came more than once are kept in the table."""
    counts = {content: 1 for content in contents if content in known and known[content].seen}
    counts.update(db.execute(f"SELECT * FROM equal_rows WHERE content IN ({_marks(counts)})", list(counts)).fetchall())
    numbers = []
    for content in contents:
        numbers.append(counts.get(content, 0))
        counts[content] = numbers[-1] + 1
    db.executemany("INSERT OR REPLACE INTO equal_rows VALUES (?, ?)", [pair for pair in counts.items() if pair[1] > 1])
    return numbers


def _marks(values: Collection[bytes]) -> str:
    return ",".join("?" * len(values))


def _number_batches(ledger: Ledger, num_samples: int, batch_size: int, first_batch: int) -> None:
    """Open rollouts get batches of `batch_size` prompts in dataset order, numbered after every batch that has an attempt."""
    (highest,) = ledger.db.execute("SELECT coalesce(max(batch_num), -1) FROM rollouts WHERE attempts > 0").fetchone()
    ledger.db.execute(
        "UPDATE rollouts SET batch_num = ranked.batch FROM ("
        "  SELECT r.id AS id, ? + (dense_rank() OVER (ORDER BY p.position) - 1) / ? AS batch"
        f"  FROM rollouts r JOIN prompts p ON p.id = r.prompt_id WHERE {WANTED} AND {IS_OPEN}"
        ") AS ranked WHERE rollouts.id = ranked.id",
        (max(highest + 1, first_batch), batch_size, num_samples),
    )
