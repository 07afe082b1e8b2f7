"""What one export reads, chooses and writes, and what came of it. No I/O."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from kiseki.formats.format import Options

Drop = Literal["loops", "refusals", "truncated", "tool_errors"]
Mask = Literal["errors", "summaries"]
DROPS: tuple[Drop, ...] = ("loops", "refusals", "truncated", "tool_errors")
MASKS: tuple[Mask, ...] = ("errors", "summaries")
COMPRESSIONS = ("none", "gz", "zst")
REPORT, LEFT_OUT = "report.json", "left_out.jsonl"
"""Beside the data. Of an export into one file they begin with its name: `mine.jsonl.report.json`."""


class ExportJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one export reads, chooses and writes."""

    source: Path
    """A run's folder, a file of rows, or a folder of such files."""
    to: str
    """Name of a format (`formats.table.FORMATS`)."""
    out: Path | None = None
    """A folder; or a file that ends in .jsonl, .jsonl.gz, .jsonl.zst or .parquet, which gets all rows then. None:
    `SOURCE/exports/FORMAT`, or `NAME_FORMAT` beside a file."""
    only: str = ""
    """Conditions, all of which have to hold: `completed`, `partial`, `reward>0.5` (>, >=, <, <=, =), with commas between."""
    max_per_prompt: int | None = None
    """Examples of one prompt that are written at most. None: all."""
    min_turns: int | None = None
    """Assistant turns after the prompt's own."""
    max_turns: int | None = None
    dedup: Literal["", "exact", "near"] = ""
    decontaminate: Path | None = None
    """A benchmark: examples that share 13 words in a row with it are left out (`overlap.py`)."""
    drop: tuple[Drop, ...] = ()
    """Kinds of examples that are left out (`drops.py`)."""
    split: str = ""
    """`train=0.95,val=0.05`: names and shares, which add up to 1. "": all in `train`."""
    seed: int = 42
    """Of the split, and of the draw among samples of a prompt that are equally good."""
    mask: tuple[Mask, ...] = ()
    """Assistant turns that no loss is to fall on (`masks.py`)."""
    options: Options = Options()
    """How rows are written."""
    shard_rows: int | None = None
    """Rows of one file at most. None: a file for each split."""
    compression: Literal["none", "gz", "zst"] = "none"
    """Of JSON lines. A single file's name says it itself."""


class WrittenFile(msgspec.Struct, frozen=True):
    """A file of an export, or a folder with a file for each row."""

    name: str
    """In the export's folder; a folder's ends in `/`."""
    split: str
    """"" for what belongs to no split: a file that the consumer wants beside the data."""
    rows: int
    bytes: int
    files: int = 1
    """In a folder."""


class ExportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an export did: `report.json`. `read` = all of `written` + all of `left_out`."""

    kiseki: str
    """Its version."""
    date: str
    """When it was done: ISO 8601, UTC."""
    source: str
    source_kind: Literal["run", "files"]
    format: str
    target: str
    """The folder or the file that was written."""
    settings: dict[str, Any]
    """The options that were given."""
    read: int
    """Examples of the source, those that could not be read or had failed included."""
    written: dict[str, int]
    """Examples, by split."""
    rows: dict[str, int]
    """Rows, by split: where the format makes one row of one example, as many as examples."""
    left_out: dict[str, int]
    """Examples, by reason; 0 for what was asked for and not found."""
    cut_tails: int = 0
    """Examples that were written without the results after their last assistant turn."""
    masked_turns: int = 0
    """Assistant turns that `mask` took out of the loss."""
    frames: tuple[str, ...] = ()
    """Of `decontaminate`: words that many lines of the benchmark share, which were not looked for; the first few."""
    matched: dict[str, int] = {}
    """Of `decontaminate`: `FILE:LINE` → examples that it left out, the most first, a thousand at most."""
    seconds: float = 0.0
    files: tuple[WrittenFile, ...] = ()

    @property
    def total_written(self) -> int:
        return sum(self.written.values())

    @property
    def total_left_out(self) -> int:
        return sum(self.left_out.values())
