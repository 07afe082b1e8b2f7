"""Taking over a run folder that has only `batch_*.jsonl` files, written by another tool with this layout.

Its rows become attempts in a new ledger, matched to the dataset by prompt text, as many as there are of each. A torn or
damaged line costs only itself. The old files are moved to `adopted/`: the run makes its own from the ledger.

Nothing is run and no file is written before the ledger says that adoption is done; one that was stopped before begins anew,
from the files wherever they are by then.
"""

from __future__ import annotations

import calendar
import hashlib
import re
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kiseki.batch.plan import prompt_key, rollout_key
from kiseki.formats.reading import read_row
from kiseki.ledger.ledger import Ledger
from kiseki.ledger.types import Attempt
from kiseki.trajectory.outcome import result_ok
from kiseki.trajectory.record import encode_record, summarize
from kiseki.trajectory.sharegpt import Turn
from kiseki.trajectory.types import Message, ModelCall, Prompt, Record, ToolRun

ADOPTED_FOLDER = "adopted"
GROUP = 200
"""Rows per transaction."""


class _OldMetadata(msgspec.Struct):
    batch_num: int = -1
    timestamp: str = ""
    model: str = ""


class _OldRow(msgspec.Struct):
    """What is read of a row; whatever else it has is passed over."""

    prompt: str = ""
    conversations: list[Turn] = []
    metadata: _OldMetadata = msgspec.field(default_factory=_OldMetadata)
    completed: bool = False
    api_calls: int = 0
    toolsets_used: list[str] = []
    failed: Any = False
    discarded: Any = None

    def text(self) -> str:
        # of a prompt with messages before it the first human turn is not the one that a row of ours names
        return self.prompt or next((turn.value for turn in self.conversations if turn.role == "human"), "")


class Adopted(msgspec.Struct):
    rows: int = 0
    unmatched: int = 0
    """Of those, rows whose prompt the dataset does not have; kept all the same."""
    damaged: int = 0
    tools: set[str] = set()
    """Names of the tools used in them."""


DONE_KEY = "adopted"
"""In the ledger's meta, once there is nothing (more) to adopt: its value names the tools in the adopted rows."""
_NONE = "-"


def foreign_files(ledger: Ledger) -> dict[int, Path]:
    """The batch files that are not this ledger's own views, by number; none once adoption is done."""
    if ledger.get_meta(DONE_KEY):
        return {}
    return batch_files(ledger.folder / ADOPTED_FOLDER) | batch_files(ledger.folder)


def adopted_tools(ledger: Ledger) -> tuple[str, ...]:
    """Names of the tools in the adopted rows."""
    return tuple(name for name in ledger.get_meta(DONE_KEY).split() if name != _NONE)


def finish_adoption(ledger: Ledger, files: dict[int, Path], tools: set[str]) -> None:
    """Put the old files aside, then let the ledger know: from here on its own files may take their names."""
    target = ledger.folder / ADOPTED_FOLDER
    for path in files.values():
        target.mkdir(exist_ok=True)
        if path.parent != target:
            path.rename(target / path.name)
    ledger.set_meta(DONE_KEY, " ".join((_NONE, *sorted(tools))))


def begin_anew(ledger: Ledger) -> None:
    """Forget the rows of an adoption that did not get to its end."""
    with ledger.transaction():
        ledger.db.execute("UPDATE rollouts SET attempt_id = NULL")
        for table in ("attempts", "rollouts", "payloads", "prompts"):
            ledger.db.execute(f"DELETE FROM {table}")


def batch_files(folder: Path) -> dict[int, Path]:
    """`batch_N.jsonl` files by N, in order."""
    found = ((re.fullmatch(r"batch_(\d+)\.jsonl", path.name), path) for path in folder.glob("batch_*.jsonl"))
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def adopt(ledger: Ledger, files: dict[int, Path], num_samples: int, log: Callable[[str], None]) -> Adopted:
    """Take the rows of `files` into the ledger, whose prompts are there. `log` gets a line per damaged row."""
    result = Adopted()
    db = ledger.db
    db.execute("CREATE TEMP TABLE old_rows (id INTEGER PRIMARY KEY, text BLOB, batch INTEGER, row BLOB)")
    db.execute("CREATE INDEX temp.old_text ON old_rows (text)")
    with ledger.transaction():
        for batch_num, line, row in _read(files, result, log):
            db.execute("INSERT INTO old_rows VALUES (NULL, ?, ?, ?)", (_text_hash(row.text()), batch_num, line))

    def take(rollout_id: int, key: str, prompt: Prompt, sample: int, batch_num: int, line: bytes) -> None:
        record = _to_record(msgspec.json.decode(line, type=_OldRow), key, prompt, sample)
        result.rows += 1
        result.tools.update(run.name for run in record.tool_runs)
        ledger.write(rollout_id, Attempt(key, summarize(record), encode_record(record)))
        db.execute("UPDATE rollouts SET batch_num = ? WHERE id = ?", (batch_num, rollout_id))

    opened = ledger.open_rollouts(num_samples)
    while group := list(islice(opened, GROUP)):
        with ledger.transaction():
            for rollout in group:
                wanted = (_text_hash(rollout.prompt.text),)
                old = db.execute("SELECT id, batch, row FROM old_rows WHERE text = ? ORDER BY id LIMIT 1", wanted).fetchone()
                if old:
                    db.execute("DELETE FROM old_rows WHERE id = ?", (old[0],))
                    key = rollout_key(rollout.prompt_key, rollout.sample_index)
                    take(rollout.rollout_id, key, rollout.prompt, rollout.sample_index, old[1], old[2])
    # what is left has no prompt in the dataset
    last = 0
    while lines := db.execute("SELECT id, batch, row FROM old_rows WHERE id > ? ORDER BY id LIMIT ?", (last, GROUP)).fetchall():
        with ledger.transaction():
            for row_id, batch_num, line in lines:
                text = msgspec.json.decode(line, type=_OldRow).text()
                prompt = Prompt(index=0, messages=(Message(role="user", content=text),))
                # beyond any number that planning gives to equal rows, so that none of the dataset's is taken for it
                new_key = prompt_key(prompt, -1 - row_id)
                prompt_id = db.execute("INSERT INTO prompts (key) VALUES (?)", (new_key,)).lastrowid
                db.execute("INSERT INTO payloads VALUES (?, ?)", (prompt_id, msgspec.msgpack.encode(prompt)))
                new = db.execute("INSERT INTO rollouts (prompt_id, sample_index) VALUES (?, 0)", (prompt_id,)).lastrowid
                take(new or 0, rollout_key(new_key, 0), prompt, 0, batch_num, line)
                result.unmatched += 1
                last = row_id
    db.execute("DROP TABLE old_rows")
    return result


def _read(files: dict[int, Path], result: Adopted, log: Callable[[str], None]) -> Iterator[tuple[int, bytes, _OldRow]]:
    for batch_num, path in files.items():
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = msgspec.json.decode(line, type=_OldRow)
                    usable = bool(row.text())
                except (msgspec.DecodeError, UnicodeDecodeError):
                    usable = False
                if not usable:
                    result.damaged += 1
                    log(f"{path.name} line {number} is damaged and is left out; its prompt will be run again")
                elif not row.failed:
                    yield batch_num, line, row


def _to_record(row: _OldRow, key: str, prompt: Prompt, sample: int) -> Record:
    try:
        read = read_row({"conversations": msgspec.to_builtins(row.conversations)}).messages
        said = [each for each in read if each.role in ("assistant", "tool")]
        messages = said[sum(each.role in ("assistant", "tool") for each in prompt.messages) :]  # the prompt's own come first
    except ValueError:  # another dialect inside the turns: the turns themselves are kept as they are
        messages = [Message(role="assistant", content=turn.value) for turn in row.conversations if turn.role == "gpt"]
    completed = row.completed and not row.discarded
    return Record(
        key=key,
        sample_index=sample,
        attempt=1,
        seed=0,
        messages=(*prompt.messages, *messages),
        prompt_messages=len(prompt.messages),
        outcome="completed" if completed else "partial",
        reason="answered" if completed else "adopted",
        model=row.metadata.model,
        toolsets=tuple(row.toolsets_used),
        tools_hash="",
        calls=(ModelCall(started=0.0, seconds=0.0, usage_reported=False),) * row.api_calls,
        tool_runs=tuple(
            ToolRun(call_id=each.tool_call_id, name=each.name, ok=result_ok(each.content))
            for each in messages
            if each.role == "tool"
        ),
        started=_timestamp(row.metadata.timestamp),
        adopted_conversation=msgspec.json.encode(row.conversations).decode(),
    )


def _timestamp(text: str) -> float:
    try:
        return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))
    except ValueError:
        return 0.0


def _text_hash(text: str) -> bytes:
    return hashlib.blake2b(text.strip().encode(), digest_size=16).digest()
