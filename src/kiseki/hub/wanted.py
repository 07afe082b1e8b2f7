"""What a repository is to hold of a run: its merged rows, its finished batches, or an export; ready in a staging folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from rich.console import Console

from kiseki.errors import UsageError
from kiseki.hub.card import DataFiles
from kiseki.hub.contents import hold, stage_file, stage_rows
from kiseki.hub.facts import view_settings
from kiseki.hub.repository import Local
from kiseki.hub.scan import Guard
from kiseki.ledger.ledger import Ledger
from kiseki.views.bar import counting_bar
from kiseki.views.build import CHILDREN, TRAJECTORIES, Views, batch_path

SHAREGPT = "ShareGPT conversations with tool calls in Hermes tags, JSON lines"


class Listed(msgspec.Struct, frozen=True):
    """A file as `kiseki.json` lists it."""

    size: int
    sha256: str
    rows: int
    blob: str = ""
    """Git's hash of it."""


class Wanted(msgspec.Struct, frozen=True):
    data: tuple[DataFiles, ...]
    """The default configuration first."""
    files: tuple[Local, ...]
    format: str
    """What the rows are, in words."""
    left_out: dict[str, int] = {}
    """Examples that an export left out, by reason."""


def whole_run(ledger: Ledger, staging: Path, guard: Guard, console: Console) -> Wanted:
    """The merged dataset, and the rows of sub-agents as a configuration of their own."""
    views = Views(ledger, view_settings(ledger))
    data: list[DataFiles] = []
    files: list[Local] = []
    for config, into, named, lines in (
        ("default", "data", TRAJECTORIES, views.trajectory_lines),
        ("children", "children", CHILDREN, views.child_lines),
    ):
        with counting_bar(console, f"checking {named} for secrets") as written:
            made = stage_rows(staging, "train", lines(), guard, named=named, into=into, written=written)
        if made:
            rows = sum(each.rows for each in made)
            data.append(DataFiles(config, {"train": f"{into}/train-*.jsonl"}, {"train": rows}))
            files += made
    return Wanted(tuple(data), tuple(files), SHAREGPT, {"damaged record": len(views.damaged)} if views.damaged else {})


def finished_batches(
    ledger: Ledger, staging: Path, guard: Guard, console: Console, known: Mapping[str, Listed] = MappingProxyType({})
) -> Wanted:
    """The batch files that are there: each is written when all of its rollouts have ended.

    known: What the repository has of them. One of the same size is not read again: else the cost of a checkpoint would grow with
    the run. The end of the run reads everything.
    """
    numbers = [n for (n,) in ledger.db.execute("SELECT DISTINCT batch_num FROM rollouts WHERE batch_num >= 0 ORDER BY 1")]
    paths = [path for number in numbers if (path := batch_path(ledger.folder, number)).exists()]
    files = []
    held = staging / "held"
    held.mkdir()
    with counting_bar(console, "checking batches for secrets", len(paths)) as done:
        for number, path in enumerate(paths, 1):
            name = f"checkpoints/{path.name}"
            there = known.get(name)
            if there and there.size == path.stat().st_size:
                files.append(Local(name, path, there.size, there.sha256, there.blob, there.rows, read=False))
            else:
                files.append(stage_file(staging, hold(held, path), guard, name))
            done(number)
    rows = sum(each.rows for each in files)
    return Wanted((DataFiles("default", {"train": "checkpoints/*.jsonl"}, {"train": rows}),), tuple(files), SHAREGPT)


def exported(folder: Path, to: str, split: str, seed: int, staging: Path, guard: Guard, console: Console) -> Wanted:
    """The run as `kiseki export` writes it, with its splits. Raises what `exports.export.export` raises."""
    from kiseki.exports.export import export
    from kiseki.exports.job import ExportJob
    from kiseki.exports.loading import README
    from kiseki.exports.sources import DISCARDED, FAILED

    out, cleaned = staging / "export", staging / "cleaned"
    report = export(ExportJob(source=folder, to=to, out=out, split=split, seed=seed), console)
    cleaned.mkdir()
    files: list[Local] = []
    patterns: dict[str, str] = {}
    for each in report.files:
        if each.name == README:  # the card says what it says
            continue
        if each.name.endswith("/"):
            raise UsageError(
                f"--to={to} makes a file of each row, which a dataset of the Hub is not read from; export it instead"
            )
        files.append(stage_file(cleaned, out / each.name, guard, f"data/{each.name}", each.rows))
        if each.split:
            pattern = f"data/{each.split}-*{''.join(Path(each.name).suffixes)}"
            patterns[each.split] = pattern if each.split in patterns else f"data/{each.name}"
    words = f"{to}, as kiseki export writes it"
    # the card counts those that failed and those that filters discard by itself
    left_out = {name: count for name, count in report.left_out.items() if name != FAILED and not name.startswith(DISCARDED)}
    return Wanted((DataFiles("default", patterns, report.rows),), tuple(files), words, left_out)
