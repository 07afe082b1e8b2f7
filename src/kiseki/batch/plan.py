"""From the stream of prompts to what is still to be run: keys, resume by content, batches.

A prompt's key is a hash of what defines it (messages, image, cwd) and of which one it is among equal rows, so that a
reordered or extended dataset resumes right and equal rows stay separate. Other columns are not part of it: they can change
and ride along in their newest form. The plan lives in the ledger, so memory does not depend on the dataset.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from itertools import islice

import msgspec

from kiseki.batch.prompts import BadRow
from kiseki.errors import DatasetError
from kiseki.ledger.ledger import Ledger
from kiseki.trajectory.types import Prompt

CHUNK = 5000
"""Rows per transaction: large enough that a commit costs nothing per row, small enough to keep the journal short."""

_encode = msgspec.msgpack.encode


class Plan(msgspec.Struct, frozen=True):
    """What a start of the run has before it."""

    prompts: int
    """Usable rows of the dataset."""
    bad_rows: int
    rollouts: int
    """Prompts times samples."""
    done: int
    """Of those, done already."""
    moved: int
    """Prompts known from before whose place in the dataset is another now."""
    batches: dict[int, int]
    """Batch number → rollouts to run in it."""

    @property
    def to_run(self) -> int:
        return sum(self.batches.values())


def make_plan(
    ledger: Ledger,
    rows: Iterable[Prompt | BadRow],
    *,
    num_samples: int,
    batch_size: int,
    first_batch: int,
    bad_row: Callable[[BadRow], None],
    planned: Callable[[int], None],
) -> Plan:
    """Bring the ledger's prompts in line with the dataset and batch what is not done.

    `first_batch`: no batch gets a lower number. `bad_row` gets each unusable row, `planned` how many rows were read so far.
    Raises `DatasetError` when no row is usable.
    """
    db = ledger.db
    # temporary tables spill to disk: which prompts this dataset has, and how often each content was seen
    db.execute("CREATE TEMP TABLE IF NOT EXISTS seen (prompt_id INTEGER PRIMARY KEY)")
    db.execute("CREATE TEMP TABLE IF NOT EXISTS equal_rows (content BLOB PRIMARY KEY, count INTEGER) WITHOUT ROWID")
    db.execute("DELETE FROM seen")
    db.execute("DELETE FROM equal_rows")
    usable, bad, moved, first_bad = 0, 0, 0, None
    stream = iter(rows)
    while chunk := list(islice(stream, CHUNK)):
        with ledger.transaction():
            for row in chunk:
                if isinstance(row, BadRow):
                    bad += 1
                    first_bad = first_bad or row
                    bad_row(row)
                else:
                    usable += 1
                    moved += _plan_prompt(ledger, row, num_samples)
        planned(usable + bad)
    if not usable:
        first = f"; line {first_bad.line}: {first_bad.reason}" if first_bad else ""
        raise DatasetError(f"the dataset has no usable row ({bad} unusable{first})")
    with ledger.transaction():
        moved += db.execute(
            "UPDATE prompts SET position = NULL WHERE position IS NOT NULL AND id NOT IN (SELECT prompt_id FROM seen)"
        ).rowcount
        db.execute("DELETE FROM rollouts WHERE outcome = 'pending' AND attempts = 0 AND sample_index >= ?", (num_samples,))
        _number_batches(ledger, batch_size, first_batch)
    counts = "SELECT {} FROM rollouts r JOIN prompts p ON p.id = r.prompt_id WHERE p.position IS NOT NULL"
    still_open = counts.format("r.batch_num, count(*)") + " AND r.outcome IN ('pending', 'failed') GROUP BY 1"
    batches = dict(db.execute(still_open).fetchall())
    (total,) = db.execute(counts.format("count(*)")).fetchone()
    return Plan(
        prompts=usable,
        bad_rows=bad,
        rollouts=total,
        done=total - sum(batches.values()),
        moved=moved,
        batches=batches,
    )


def prompt_key(prompt: Prompt, number: int) -> bytes:
    """16 bytes that name the prompt: its content, and which of the equal rows it is, from 0."""
    content = _encode((prompt.messages, prompt.image, prompt.cwd, number))
    return hashlib.blake2b(content, digest_size=16).digest()


def rollout_key(key: bytes, sample_index: int) -> str:
    return f"{key.hex()}-{sample_index}"


def draw_seed(run_seed: int, key: str) -> int:
    """The rollout's own seed: 31 bits, the range that inference servers accept."""
    return int.from_bytes(hashlib.blake2b(f"{run_seed}:{key}".encode(), digest_size=4).digest()) >> 1


def _plan_prompt(ledger: Ledger, prompt: Prompt, num_samples: int) -> bool:
    """Returns whether the prompt was known and has moved."""
    db = ledger.db
    (count,) = db.execute(
        "INSERT INTO equal_rows VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1 RETURNING count",
        (prompt_key(prompt, 0),),
    ).fetchone()
    key = prompt_key(prompt, count - 1)
    known = db.execute("SELECT id, position FROM prompts WHERE key = ?", (key,)).fetchone()
    moved = known is not None and known[1] != prompt.index
    if known is None:
        prompt_id = db.execute("INSERT INTO prompts (key, position) VALUES (?, ?)", (key, prompt.index)).lastrowid
    else:
        prompt_id = known[0]
        if moved:
            db.execute("UPDATE prompts SET position = ? WHERE id = ?", (prompt.index, prompt_id))
    payload = _encode(msgspec.structs.replace(prompt, index=0))  # a moved row is not a changed one
    db.execute(
        "INSERT INTO payloads VALUES (?, ?) ON CONFLICT DO UPDATE SET payload = excluded.payload"
        " WHERE payload != excluded.payload",
        (prompt_id, payload),
    )
    db.execute("INSERT INTO seen VALUES (?)", (prompt_id,))
    for sample in range(num_samples):
        db.execute("INSERT OR IGNORE INTO rollouts (prompt_id, sample_index) VALUES (?, ?)", (prompt_id, sample))
    return moved


def _number_batches(ledger: Ledger, batch_size: int, first_batch: int) -> None:
    """Open rollouts get batches of `batch_size` prompts in dataset order, numbered after every batch that has an attempt."""
    (highest,) = ledger.db.execute("SELECT coalesce(max(batch_num), -1) FROM rollouts WHERE attempts > 0").fetchone()
    ledger.db.execute(
        "UPDATE rollouts SET batch_num = ranked.batch FROM ("
        "  SELECT r.id AS id, ? + (dense_rank() OVER (ORDER BY p.position) - 1) / ? AS batch"
        "  FROM rollouts r JOIN prompts p ON p.id = r.prompt_id"
        "  WHERE r.outcome IN ('pending', 'failed') AND p.position IS NOT NULL"
        ") AS ranked WHERE rollouts.id = ranked.id",
        (max(highest + 1, first_batch), batch_size),
    )
