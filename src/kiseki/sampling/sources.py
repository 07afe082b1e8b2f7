"""Where a sample's rows come from: one entry of `--datasets`, found, pinned, and read as JSON texts from any position on.

An entry is `ORG/NAME[:CONFIG][:SPLIT][@REVISION]` of the Hugging Face Hub, a file of rows (`trajectory/row_files.py`), or a
local folder: a dataset folder as the Hub's are, or one that has files of rows right inside it. A single part after the name
is the split if it begins as splits are called (train, test, valid, dev, eval), or if the dataset has no configuration of that
name. Without a split it is `train`, or the only one that there is.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from kiseki.errors import DatasetError, UsageError
from kiseki.trajectory.row_files import SUFFIXES, encode_row, is_row_file, read_lines
from kiseki.trajectory.text import printable

PAUSES = (1.0, 4.0, 16.0, 32.0, 60.0)
"""Seconds before each new try of a stream that broke without giving a row."""
FIND_PAUSES = (1.0, 2.0)
"""The same for the first question about a dataset: without a network it should fail soon."""
ASK_SECONDS = 20.0
CHUNK_BYTES = 8 * 2**20
"""A chunk of rows ends when it is this large, however few they are: chunks are held in memory and sent to processes."""
ERROR_CHARS = 600

_SPLIT = re.compile(r"train|test|val|dev|eval")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_NETWORK_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests", "urllib3")


class Source(msgspec.Struct, frozen=True):
    """One dataset, found: the same one whenever it is opened."""

    given: str
    """As it stands in `--datasets`."""
    kind: Literal["hub", "folder", "files"]
    name: str
    """`ORG/NAME`, or a path."""
    config: str = ""
    split: str = ""
    version: str = ""
    """The commit on the Hub, or a digest of names, sizes and times of local files."""


class Chunk(msgspec.Struct, frozen=True):
    """Rows that follow each other."""

    rows: tuple[bytes, ...]
    """JSON texts; not checked where they come from a text file."""
    position: Any
    """What `read_chunks` takes to go on after them: plain JSON values."""


# ---- finding ----------------------------------------------------------------------------------------------------------


def find_source(given: str, warn: Callable[[str], None]) -> Source:
    """What an entry of `--datasets` stands for, opened once so that what is wrong with it comes out before hours of reading the
    others. Asks the Hub for the commit where it is there.

    Raises `DatasetError` for one that is not there or cannot be reached, `UsageError` for one that is not written as it should
    be or needs the datasets library where that is missing.
    """
    entry = given.removeprefix("hf://")
    if Path(entry).expanduser().exists():
        return _find_local(given, Path(entry).expanduser(), [], "")
    base, _, revision = entry.partition("@")
    base, *parts = base.split(":")
    if Path(base).expanduser().exists() and base:
        return _find_local(given, Path(base).expanduser(), parts, revision)
    if base.startswith(("/", ".", "~")) or base.endswith(SUFFIXES):
        raise DatasetError(f"dataset file not found: {base}")
    if not _HUB_NAME.fullmatch(base) or len(parts) > 2 or not all(parts):
        raise UsageError(f"--datasets: {given!r} is neither a file or folder nor ORG/NAME[:CONFIG][:SPLIT][@REVISION]")
    _library()
    commit = _try_again(lambda: _commit(base, revision), given, FIND_PAUSES, warn)
    config, split = _try_again(lambda: _config_and_split(base, parts, commit), given, FIND_PAUSES, warn)
    source = Source(given, "hub", base, config, split, commit)
    _try_again(lambda: _open(source), given, FIND_PAUSES, warn)
    return source


def _find_local(given: str, path: Path, parts: list[str], revision: str) -> Source:
    if path.is_file() and (parts or revision):
        raise UsageError(f"--datasets: {path} is a file, which has neither splits nor revisions: {given!r}")
    if revision or len(parts) > 2 or not all(parts):
        raise UsageError(f"--datasets: {path} is a local folder, which takes [:CONFIG][:SPLIT] and no revision: {given!r}")
    if path.is_file():
        if not is_row_file(path):
            raise DatasetError(f"{path} holds rows in none of the formats {', '.join(SUFFIXES)}")
        return Source(given, "files", str(path), version=_digest([path]))
    if not parts and (files := _row_files(path)):
        return Source(given, "files", str(path), version=_digest(files))
    _library()
    config, split = _try_again(lambda: _config_and_split(str(path), parts, None), given, (), lambda line: None)
    source = Source(given, "folder", str(path), config, split, _digest(sorted(path.rglob("*"))))
    _try_again(lambda: _open(source), given, (), lambda line: None)
    return source


def _row_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file() and is_row_file(each))


def _digest(paths: list[Path]) -> str:
    files = [(str(path), stat.st_size, stat.st_mtime_ns) for path in paths if path.is_file() for stat in [path.stat()]]
    return hashlib.sha256(msgspec.json.encode(files)).hexdigest()[:40]


def _commit(name: str, revision: str) -> str:
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(name, revision=revision or None, timeout=ASK_SECONDS).sha)


def _config_and_split(name: str, parts: list[str], commit: str | None) -> tuple[str, str]:
    if len(parts) != 1:
        return (parts[0], parts[1]) if parts else ("", "")
    if _SPLIT.match(parts[0]):
        return "", parts[0]
    known = _library().get_dataset_config_names(name, revision=commit)
    return (parts[0], "") if parts[0] in known else ("", parts[0])


# ---- reading ----------------------------------------------------------------------------------------------------------


def read_chunks(
    source: Source,
    position: Any,
    rows: int,
    warn: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Chunk]:
    """The dataset from `position` on (None: from the start), so many rows at a time, fewer where they are large.

    A stream that breaks is opened again where it broke; `warn` is told. Raises `DatasetError` when it breaks again and again
    without a row between, or cannot be read for another reason.
    """
    failures = 0
    while True:
        try:
            for chunk in _chunks(source, position, rows):
                yield chunk
                position, failures = chunk.position, 0
            return
        except Exception as error:
            if failures == len(PAUSES) or not _may_pass(error):
                raise _unreadable(source.given, error) from error
            warn(f"{source.given}: {_words(error)}; trying again in {PAUSES[failures]:.0f} s")
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
    for at, path in enumerate(_row_files(Path(source.name))[first:], first):
        for number, (_, row) in enumerate(read_lines(path), 1):
            if at > first or number > done:
                yield row, [at, number]


def _library_rows(source: Source, position: Any) -> Iterator[tuple[bytes, Any]]:
    """`position`: the state of the library's own stream."""
    stream = _open(source)
    if position is not None:
        stream.load_state_dict(position)
    for row in stream:
        yield encode_row(row), stream.state_dict()


def _open(source: Source) -> Any:
    datasets = _library()
    commit = source.version if source.kind == "hub" else None
    loaded = datasets.load_dataset(
        source.name, source.config or None, split=source.split or None, revision=commit, streaming=True
    )
    if not source.split:
        names = list(loaded)
        if "train" not in names and len(names) != 1:
            raise DatasetError(f"{source.given} has the splits {', '.join(names)}: say which, as {source.given}:{names[0]}")
        loaded = loaded["train" if "train" in names else names[0]]
    return loaded.decode(False) if loaded.features else loaded  # images and the like as they are stored


def _library() -> Any:
    try:
        import datasets
    except ImportError:
        raise UsageError("reading datasets of the Hub needs the datasets library: pip install 'kiseki[hf]'") from None
    datasets.disable_progress_bars()
    return datasets


# ---- what goes wrong --------------------------------------------------------------------------------------------------


def _try_again(ask: Callable[[], Any], given: str, pauses: tuple[float, ...], warn: Callable[[str], None]) -> Any:
    for pause in (*pauses, None):
        try:
            return ask()
        except Exception as error:  # the library raises dozens of classes for a name, a split or a network that is not there
            if pause is None or not _may_pass(error):
                raise _unreadable(given, error) from error
            warn(f"{given}: {_words(error)}; trying again in {pause:.0f} s")
            time.sleep(pause)
    raise AssertionError


def _may_pass(error: BaseException) -> bool:
    """Whether it is the network's doing, or a server's that is busy."""
    if type(error).__name__ == "OfflineModeIsEnabled" or "OfflineModeIsEnabled" in str(error):
        return False
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return status in (408, 429) or status >= 500
    libraries = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or not libraries.isdisjoint(_NETWORK_LIBRARIES)


def _unreadable(given: str, error: Exception) -> UsageError:
    return error if isinstance(error, UsageError) else DatasetError(f"cannot read the dataset {given}: {_words(error)}")


def _words(error: BaseException) -> str:
    return printable(" ".join(f"{type(error).__name__}: {error}".split()), ERROR_CHARS)
