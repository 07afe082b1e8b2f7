"""Where an export goes, and whether it may: a folder of its own, or one file. What no export made is never touched."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kiseki.errors import UsageError
from kiseki.exports.job import COMPRESSIONS, LEFT_OUT, REPORT, ExportJob, ExportReport
from kiseki.exports.sources import Source
from kiseki.formats.format import Format
from kiseki.trajectory.row_files import COMPRESSED, SUFFIXES, format_of, is_row_file

EXPORTS = "exports"
"""In a run's folder."""
_NO_FOLDERS = (".json", ".csv", ".txt", ".arrow", ".gz", ".zst", ".jsonl", ".parquet")
"""What a name ends in that is meant to be a file's."""


class Target(msgspec.Struct, frozen=True):
    """Where the files of one export go."""

    folder: Path
    suffix: str
    """Of the data files: `.jsonl`, `.jsonl.gz`, `.parquet`, …"""
    single: str = ""
    """Name of the only data file; "" where the folder is the export's own."""

    @property
    def path(self) -> Path:
        """What the user gets."""
        return self.folder / self.single if self.single else self.folder

    @property
    def partial(self) -> Path:
        """The folder of what is not done yet, on the same disk."""
        path = self.path.resolve()  # "." has no name
        return path.with_name(f".{path.name}.partial")

    def beside(self, name: str) -> str:
        """The name of a report."""
        return f"{self.single}.{name}" if self.single else name


def stem_of(name: str) -> str:
    """A file's name without what says its kind."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def find_target(job: ExportJob, source: Source, format: Format) -> Target:
    """Raises `UsageError` where the options do not go together."""
    if job.compression not in COMPRESSIONS:
        raise UsageError(f"--compression: it must be one of {', '.join(COMPRESSIONS)}")
    out = job.out
    if out is None:
        path = source.path
        in_folder = path.is_dir()
        out = path / EXPORTS / job.to if in_folder else path.with_name(f"{stem_of(path.name)}_{job.to}")
    elif not out.is_dir() and is_row_file(out):
        return _single(job, source, format, out)
    elif out.suffix in _NO_FOLDERS and not out.is_dir():
        raise UsageError(f"--out: the name of a file of rows ends in {', '.join(SUFFIXES)}; {out} does not")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out: {out} is a file")
    suffix = format.suffixes[0]
    if job.compression != "none":
        if ".jsonl" not in format.suffixes or format.file_per_row:
            what = "a file for each row" if format.file_per_row else "parquet, which is packed already"
            raise UsageError(f"--compression is for JSON lines; {job.to} is {what}")
        suffix = f".jsonl.{job.compression}"
    if not format.packed and suffix != format.suffixes[0]:
        raise UsageError(f"--compression: {job.to} is for a consumer that reads no packed files")
    if job.shard_rows is not None and format.file_per_row:
        raise UsageError(f"--shard_rows: {job.to} has a file for each row anyway")
    return Target(out, suffix)


def _single(job: ExportJob, source: Source, format: Format, out: Path) -> Target:
    kind = format_of(out)
    if format.file_per_row:
        raise UsageError(f"--out: {job.to} has a file for each row; give a folder")
    if kind not in format.suffixes:
        raise UsageError(f"--out: {job.to} is written as {' or '.join(format.suffixes)}, not as {kind}")
    if not format.packed and out.name.endswith(COMPRESSED):
        raise UsageError(f"--out: {job.to} is for a consumer that reads no packed files; leave {out.suffix} away")
    for name, given in (("split", job.split), ("shard_rows", job.shard_rows)):
        if given:
            raise UsageError(f"--{name} needs several files; --out={out} is one: give a folder")
    if job.compression != "none":
        raise UsageError(f"--compression: the name of {out} says it already")
    if out.resolve() in [file.resolve() for file in source.files]:
        raise UsageError(f"--out: {out} is what is read")
    return Target(out.parent, "".join(out.name[len(stem_of(out.name)) :]), out.name)


def earlier_report(target: Target) -> ExportReport | None:
    """Of the export that is there already; None where there is none."""
    path = target.folder / target.beside(REPORT)
    try:
        report = msgspec.json.decode(path.read_bytes(), type=ExportReport)
        if all(is_name(each.name.removesuffix("/")) for each in report.files):  # they are removed, and it may be anybody's file
            return report
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    raise UsageError(f"{path} is no report of an export; move it away, or name another --out") from None


def is_name(name: str) -> bool:
    """Whether that is the name of an entry of a folder, and of nothing outside of it."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def check_free(target: Target, earlier: ExportReport | None, beside: Iterable[str], splits: Iterable[str]) -> None:
    """Raises `UsageError` where files that no export made are in the way, or would be taken for its data.

    beside: Names of the files that the format puts beside the data. splits: Names of splits, whose folders it may write.
    """
    ours = {file.name.rstrip("/"): file.files for file in earlier.files} if earlier else {}
    own_names = {target.beside(REPORT), target.beside(LEFT_OUT), *beside}
    if target.single:
        own_names.add(target.single)
    ours |= dict.fromkeys((target.beside(REPORT), target.beside(LEFT_OUT)), 1) if earlier else {}
    for path in sorted(target.folder.iterdir()) if target.folder.is_dir() else ():
        taken = path.name in own_names or (not target.single and (is_row_file(path) or path.name in splits))
        if taken and path.name not in ours:
            raise UsageError(f"{path} is there, and no earlier export made it; move it away, or name another --out")
        if path.name in ours and path.is_dir() and files_in(path) != ours[path.name]:
            raise UsageError(f"{path} has files that no export made; move them away, or name another --out")


def files_in(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))
