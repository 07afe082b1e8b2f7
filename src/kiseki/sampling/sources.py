"""Where a sample's rows come from: one entry of `--datasets`, found, pinned, and read as JSON texts from any position on.

An entry is `ORG/NAME[:CONFIG][:SPLIT][@REVISION]` of the Hugging Face Hub, a file of rows (`trajectory/row_files.py`), or a
local folder: a dataset folder as the Hub's are, or one that has files of rows right inside it. A single part after the name
is the configuration of that name, if there is one, else the split. Without a split it is `train`, or the only one that there
is; files right inside a folder have splits if their names say so (`train.jsonl`, `test-00000.parquet`), else all are read.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from kiseki.compress.job.files import REJECTS
from kiseki.errors import DatasetError, UsageError
from kiseki.sampling.library import (
    CANNOT_READ,
    commit_of,
    failed_file,
    find_parts,
    from_network,
    library,
    may_pass,
    open_stream,
    within,
    words,
)
from kiseki.trajectory.json_columns import json_reader
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.row_files import SUFFIXES, is_row_file, read_lines

T = TypeVar("T")

PAUSES = (1.0, 4.0, 16.0, 32.0, 60.0)
"""Seconds before each new try of a stream that broke without giving a row."""
FIND_PAUSES = (1.0, 2.0)
"""The same for the first question about a dataset: without a network it should fail soon."""
ANSWER_SECONDS, OPEN_SECONDS = 25.0, 120.0
"""Until the Hub has answered at all, and for each of what is asked after that."""
CHUNK_BYTES = 8 * 2**20
"""A chunk of rows ends when it is this large, however few they are: chunks are held in memory and sent to processes."""

_HUB = re.compile(r"hf://(datasets/)?|https?://(huggingface\.co|hf\.co)/datasets/")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_HINT = (
    "; it is no local path either: check the name, the network or proxy, and HF_TOKEN if it is private or gated, or leave it out"
)
_SPLIT = re.compile(r"(?:^|[-._ \d])(train(?:ing)?|valid(?:ation)?|val|dev|test(?:ing)?|eval(?:uation)?)(?=[-._ \d]|$)")
_SPLITS = {"tra": "train", "val": "validation", "dev": "validation", "tes": "test", "eva": "test"}
"""What a split is called, by how its name begins: as the datasets library has it."""
_CONFIGS = re.compile(r"^---\n(?:(?!---).*\n)*?configs:")

Warn = Callable[[str], None]


class Source(msgspec.Struct, frozen=True):
    """One dataset, found: the same one whenever it is opened."""

    given: str
    """As it stands in `--datasets`."""
    kind: Literal["hub", "folder", "files"]
    name: str
    """`ORG/NAME`, or a path."""
    config: str = ""
    split: str = ""
    files: tuple[str, ...] = ()
    """The paths, where `kind` is "files"."""
    version: str = ""
    """The commit on the Hub, or a digest of names, sizes and times of local files."""


class Chunk(msgspec.Struct, frozen=True):
    """Rows that follow each other."""

    rows: tuple[bytes, ...]
    """JSON texts; not checked where they come from a text file."""
    position: Any
    """What `read_chunks` takes to go on after them: plain JSON values."""


# ---- finding ----------------------------------------------------------------------------------------------------------


def find_source(given: str, warn: Warn, own: tuple[Path, ...] = ()) -> Source:
    """What an entry of `--datasets` stands for, opened once so that what is wrong with it comes out before hours of reading the
    others. Asks the Hub for the commit where it is there.

    own: Files and folders that the job writes: they are never read. Default: none.

    Raises `DatasetError` for one that is not there or cannot be reached, `UsageError` for one that is not written as it should
    be, is the job's own, or needs the datasets library where that is missing.
    """
    entry, on_hub = _HUB.subn("", given, count=1) if _HUB.match(given) else (given, 0)
    if not on_hub and Path(entry).expanduser().exists():
        return _find_local(given, Path(entry).expanduser(), [], "", warn, own)
    base, _, revision = entry.partition("@")
    base, *parts = base.split(":")
    if not on_hub and base and Path(base).expanduser().exists():
        return _find_local(given, Path(base).expanduser(), parts, revision, warn, own)
    if base.startswith(("/", ".", "~")) or base.endswith(SUFFIXES):
        raise DatasetError(f"dataset file not found: {base}")
    base = base.rstrip("/") if on_hub else base
    if not _HUB_NAME.fullmatch(base) or len(parts) > 2 or not all(parts):
        raise UsageError(f"--datasets: {given!r} is neither a file or folder nor ORG/NAME[:CONFIG][:SPLIT][@REVISION]")
    return _find_on_hub(given, base, parts, revision, warn)


def _find_on_hub(given: str, name: str, parts: list[str], revision: str, warn: Warn) -> Source:
    library()

    def ask(question: Callable[[], T], seconds: float) -> T:
        try:
            return within(seconds, lambda: _try_again(question, given, FIND_PAUSES, warn), given)
        except DatasetError as error:
            raise DatasetError(f"{error}{_HUB_HINT}" if str(error).startswith(CANNOT_READ) else str(error)) from error

    commit = ask(lambda: commit_of(name, revision), ANSWER_SECONDS)
    config, split = ask(lambda: find_parts(name, parts, commit), OPEN_SECONDS)
    source = Source(given, "hub", name, config, split, version=commit)
    ask(lambda: _open(source), OPEN_SECONDS)
    return source


def _find_local(given: str, path: Path, parts: list[str], revision: str, warn: Warn, own: tuple[Path, ...]) -> Source:
    if path.is_file() and (parts or revision):
        raise UsageError(f"--datasets: {path} is a file, which has neither splits nor revisions: {given!r}")
    if revision or len(parts) > 2 or not all(parts):
        raise UsageError(f"--datasets: {path} is a local folder, which takes [:CONFIG][:SPLIT] and no revision: {given!r}")
    if any(_is_in(path, each) for each in own):
        raise UsageError(f"--datasets: {given} is what this command writes; choose another --output_name or --output_dir")
    if path.is_file():
        if not is_row_file(path):
            raise DatasetError(f"{path} holds rows in none of the formats {', '.join(SUFFIXES)}")
        return _files(given, path, [path])
    found = [] if _has_configs(path) else _row_files(path, own)
    splits = _by_split(found)
    asked = "train" if len(splits) > 1 else "".join(splits)
    if parts:
        asked = _SPLITS[parts[0][:3]] if len(parts) == 1 and _SPLIT.fullmatch(parts[0]) else ""
    if asked in splits:
        if left_out := [each.name for each in found if not _split_of(each)]:
            warn(f"{given}: the split {asked} is read; no split's are, by their names, {', '.join(left_out)}")
        return _files(given, path, splits[asked])
    if splits and not parts:
        raise DatasetError(f"{given} has the splits {', '.join(splits)}: say which, as {given}:{next(iter(splits))}")
    if found and not parts:
        return _files(given, path, found)
    if any(_is_in(each, path) for each in own):
        raise UsageError(
            f"--datasets: this command would write into {given}, which it reads as a whole; choose another --output_dir"
        )
    library()
    config, split = _try_again(lambda: find_parts(str(path), parts, None), given, (), warn)
    source = Source(given, "folder", str(path), config, split, version=_digest(sorted(path.rglob("*"))))
    _try_again(lambda: _open(source), given, (), warn)
    return source


def _files(given: str, path: Path, files: list[Path]) -> Source:
    return Source(given, "files", str(path), files=tuple(map(str, files)), version=_digest(files))


def _row_files(folder: Path, own: tuple[Path, ...]) -> list[Path]:
    """Right inside a folder, without what the job writes, what a compression rejected, and hidden files."""
    found = sorted(each for each in folder.iterdir() if each.is_file() and is_row_file(each))
    found = [each for each in found if not each.name.startswith(".") and not each.name.endswith(REJECTS)]
    return [each for each in found if not any(_is_in(each, other) for other in own)]


def _is_in(path: Path, other: Path) -> bool:
    """Whether it is the other one, or inside of it."""
    return path.resolve().is_relative_to(other.resolve()) or (path.exists() and other.exists() and path.samefile(other))


def _has_configs(folder: Path) -> bool:
    try:
        return bool(_CONFIGS.match((folder / "README.md").read_text(errors="replace")))
    except OSError:
        return False


def _by_split(files: list[Path]) -> dict[str, list[Path]]:
    splits: dict[str, list[Path]] = {}
    for file in files:
        if split := _split_of(file):
            splits.setdefault(split, []).append(file)
    return splits


def _split_of(file: Path) -> str:
    found = _SPLIT.search(file.name)
    return _SPLITS[found[1][:3]] if found else ""


def _digest(paths: list[Path]) -> str:
    files = [(str(path), stat.st_size, stat.st_mtime_ns) for path in paths if path.is_file() for stat in [path.stat()]]
    return hashlib.sha256(msgspec.json.encode(files)).hexdigest()[:40]


# ---- reading ----------------------------------------------------------------------------------------------------------


def read_chunks(
    source: Source,
    position: Any,
    rows: int,
    warn: Warn,
    sleep: Callable[[float], None] = time.sleep,
    done: int = 0,
) -> Iterator[Chunk]:
    """The dataset from `position` on (None: from the start), so many rows at a time, fewer where they are large.

    A stream that breaks is opened again where it broke; `warn` is told. `done`: how many rows are before `position`, for errors.
    Raises `DatasetError` when it breaks again and again without a row between, or cannot be read for another reason.
    """
    failures = 0
    while True:
        try:
            for chunk in _chunks(source, position, rows):
                yield chunk
                position, failures = chunk.position, 0
                done += len(chunk.rows)
            return
        except UsageError:
            raise
        except Exception as error:
            if failures == len(PAUSES) or not may_pass(error):
                raise _broken(source, done, error) from error
            warn(f"{source.given}: {words(error)}; trying again in {PAUSES[failures]:.0f} s")
        sleep(PAUSES[failures])
        failures += 1


def _chunks(source: Source, position: Any, rows: int) -> Iterator[Chunk]:
    stream = _file_rows(source, position) if source.kind == "files" else _library_rows(source, position)
    held: list[bytes] = []
    size = 0
    after = position
    try:
        for row, after in stream:
            held.append(row)
            size += len(row)
            if len(held) == rows or size >= CHUNK_BYTES:
                yield Chunk(tuple(held), after)
                held, size = [], 0
    except Exception:  # what came before it is not lost
        if held:
            yield Chunk(tuple(held), after)
        raise
    if held:
        yield Chunk(tuple(held), after)


def _file_rows(source: Source, position: Any) -> Iterator[tuple[bytes, Any]]:
    """`position`: which file, and how many of its rows are done."""
    first, done = position or (0, 0)
    for at, path in enumerate(source.files[first:], first):
        for number, (_, row) in enumerate(read_lines(Path(path)), 1):
            if at > first or number > done:
                yield row, [at, number]


def _library_rows(source: Source, position: Any) -> Iterator[tuple[bytes, Any]]:
    """`position`: the state of the library's own stream."""
    stream = _open(source)
    read = json_reader(stream.features.arrow_schema) if stream.features else None
    if position is not None:
        stream.load_state_dict(position)
    for row in stream:
        yield encode_row(read(row) if read else row), stream.state_dict()


def _open(source: Source) -> Any:
    return open_stream(source.name, source.config, source.split, source.version if source.kind == "hub" else None)


# ---- what goes wrong --------------------------------------------------------------------------------------------------


def _try_again(ask: Callable[[], T], given: str, pauses: tuple[float, ...], warn: Warn) -> T:
    for pause in (*pauses, None):
        try:
            return ask()
        except Exception as error:  # the library raises dozens of classes for a name, a split or a network that is not there
            if pause is None or not may_pass(error):
                raise _unreadable(given, error) from error
            warn(f"{given}: {words(error)}; trying again in {pause:.0f} s")
            time.sleep(pause)
    raise AssertionError


def _unreadable(given: str, error: Exception) -> UsageError:
    return error if isinstance(error, UsageError) else DatasetError(f"{CANNOT_READ} {given}: {words(error)}")


def _broken(source: Source, done: int, error: Exception) -> UsageError:
    """For a stream that ends too early."""
    if from_network(error) or source.kind == "files":
        return _unreadable(source.given, error)
    file = failed_file()
    return DatasetError(
        f"{CANNOT_READ} {source.given}{f', {file},' if file else ''} after row {done:,}: {words(error)}; name the file itself in"
        " --datasets, a local copy of it, and only its bad rows are left out; or leave the dataset out: what was read of those"
        " before it is kept"
    )
