"""The datasets library: what a dataset has, and its rows as a stream. It prints nothing; what it logs last is kept."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kiseki.errors import DatasetError, UsageError
from kiseki.trajectory.text import printable

T = TypeVar("T")

ASK_SECONDS = 10.0
"""For the Hub's first answer; its library asks twice."""
ERROR_CHARS = 600
CANNOT_READ = "cannot read the dataset"

_NETWORK_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "aiohttp", "requests", "urllib3")
_FILE = re.compile(r"file '([^']+)'")


class _Last(logging.Handler):
    """Keeps what was logged last, since the library names the file that it could not read only there."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = record.getMessage()


_last = _Last()


def library() -> Any:
    """The module. Raises `UsageError` where it is not installed."""
    try:
        import datasets
    except ImportError:
        raise UsageError("reading datasets of the Hub needs the datasets library: pip install 'kiseki[hf]'") from None
    datasets.disable_progress_bars()
    for name in ("datasets", "huggingface_hub", "fsspec"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [_last], False
        logger.setLevel(logging.ERROR)
    return datasets


def failed_file() -> str:
    """The name of the file that the library last said it could not read; "" where it did not."""
    found = _FILE.search(_last.message)
    _last.message = ""
    return found[1].rpartition("/")[2] if found else ""


def commit_of(name: str, revision: str) -> str:
    """The commit of a dataset on the Hub."""
    library()
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(name, revision=revision or None, timeout=ASK_SECONDS).sha)


def find_parts(name: str, parts: list[str], commit: str | None) -> tuple[str, str]:
    """(configuration, split) that `[CONFIG][:SPLIT]` says; "" for what it leaves open. A single part is a configuration if there
    is one of that name. Raises `DatasetError` for one that is not there."""
    if not parts:
        return "", ""
    datasets = library()
    configs = datasets.get_dataset_config_names(name, revision=commit)
    listed = ", ".join(configs)
    if parts[0] in configs and len(parts) == 1:
        return parts[0], ""
    if parts[0] not in configs and len(parts) == 2:
        raise DatasetError(f"{name} has no configuration {parts[0]!r}, only {listed}")
    config, split = parts if len(parts) == 2 else ("", parts[0])
    default = config or datasets.get_dataset_default_config_name(name, revision=commit)
    splits = datasets.get_dataset_split_names(name, default or configs[0], revision=commit)
    if split not in splits:
        what = f"no split of {config}" if config else f"neither a configuration ({listed}) nor a split"
        raise DatasetError(f"{name}: {split!r} is {what} ({', '.join(splits)})")
    if not default:
        raise DatasetError(f"{name} has the configurations {listed}: say which, as {name}:{configs[0]}:{split}")
    return config, split


def open_stream(name: str, config: str, split: str, commit: str | None) -> Any:
    """The rows, from the first: an `IterableDataset` of `split`, or of `train` or the only one. Images and the like, and JSON,
    are left as they are stored. Raises `DatasetError` where it is not clear what is meant, and what the library raises."""
    datasets = library()
    try:
        loaded = datasets.load_dataset(name, config or None, split=split or None, revision=commit, streaming=True)
    except ValueError as error:
        if "Config name is missing" not in str(error):
            raise
        configs = datasets.get_dataset_config_names(name, revision=commit)
        listed = ", ".join(configs)
        raise DatasetError(f"{name} has the configurations {listed}: say which, as {name}:{configs[0]}") from None
    if not split:
        names = list(loaded)
        if "train" not in names and len(names) != 1:
            given = f"{name}:{config}" if config else name
            raise DatasetError(f"{given} has the splits {', '.join(names)}: say which, as {given}:{names[0]}")
        loaded = loaded["train" if "train" in names else names[0]]
    return loaded.decode(False) if loaded.features else loaded


# ---- what goes wrong --------------------------------------------------------------------------------------------------


def within(seconds: float, ask: Callable[[], T], given: str) -> T:
    """What `ask` gives. Raises `DatasetError` when it takes longer: the libraries' own limits are for each of their requests."""
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(ask())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise DatasetError(f"{CANNOT_READ} {given}: no answer in {seconds:g} s")
    return done[0]


def may_pass(error: BaseException) -> bool:
    """Whether it is the network's doing, or a server's that is busy."""
    if type(error).__name__ == "OfflineModeIsEnabled" or "OfflineModeIsEnabled" in str(error):
        return False
    status = _status(error)
    return status in (408, 429) or status >= 500 if status else from_network(error)


def from_network(error: BaseException) -> bool:
    """Whether it says something of the network or a server, and not of what came from there."""
    libraries = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    known = isinstance(error, ConnectionError | TimeoutError) or not libraries.isdisjoint(_NETWORK_LIBRARIES)
    return known or _status(error) > 0


def _status(error: BaseException) -> int:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else 0


def words(error: BaseException) -> str:
    """An error in one line."""
    return printable(" ".join(f"{type(error).__name__}: {error}".split()), ERROR_CHARS)
