"""The images of a run: which its prompts need, and having them there before the first model call. Shows how that goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kiseki.batch.progress import DRAW_SECONDS, PLAIN_SECONDS, short
from kiseki.batch.prompts import BadRow
from kiseki.errors import DatasetError
from kiseki.sandboxes.factory import HAS_IMAGES, backend_module
from kiseki.sandboxes.images import Pulls, missing_images, pull_images
from kiseki.sandboxes.settings import Pull, SandboxSettings
from kiseki.trajectory.text import printable
from kiseki.trajectory.types import Prompt
from kiseki.views.bar import counting_bar

NAME_CHARS = 100
"""Of an image's name that are shown; registries allow 255."""
WORDS_CHARS = 300
"""Of an engine's words that are shown in one line."""
LOST_SHOWN = 10
"""Images named on the screen as not to be had; each failed row has the words of its own."""


def refuse_rows(rows: Iterable[Prompt | BadRow], settings: SandboxSettings, *, needs_sandbox: bool) -> Iterator[Prompt | BadRow]:
    """The rows as they are; raises `DatasetError` at one whose image the backend can't give, or that has none where it needs
    one. `settings` with the backend that was chosen; `needs_sandbox`: whether any tool of the run does."""
    backend = settings.backend
    for row in rows:
        if isinstance(row, Prompt) and row.image and backend not in HAS_IMAGES:
            raise DatasetError(
                f"row {row.index} (from 0) asks for image {row.image[:NAME_CHARS]!r}, and sandbox {backend} has no images;"
                f" --sandbox={'|'.join(HAS_IMAGES)} does, or take the column out to run its prompts without"
            )
        if isinstance(row, Prompt) and not (row.image or settings.image) and needs_sandbox and backend in HAS_IMAGES:
            raise DatasetError(
                f"row {row.index} (from 0) names no image, and sandbox {backend} needs one;"
                " --sandbox_image names one for rows without"
            )
        yield row


def with_default(images: Mapping[str, int], default: str) -> dict[str, int]:
    """Image → rows that run in it, where those without one ("") run in `default`, if that is given."""
    counts: dict[str, int] = {}
    for image, rows in images.items():
        counts[image or default] = counts.get(image or default, 0) + rows
    counts.pop("", None)
    return counts


def have_images(settings: SandboxSettings, images: Iterable[str], console: Console) -> dict[str, str]:
    """Have each of these there, pulling what is missing. Image → the engine's words, for those that cannot be had.

    Raises SandboxError when the engine cannot be asked. An interrupt ends it at once; what was pulled stays.
    """
    missing = find_missing(settings, images, console)
    return pull_missing(settings, missing, console) if missing else {}


def find_missing(settings: SandboxSettings, images: Iterable[str], console: Console) -> list[str]:
    """Which of these are not there. Raises SandboxError when the engine cannot be asked."""
    images = list(images)
    bar = counting_bar(console, "looking for images", len(images))
    with closing(backend_module(settings.backend).open_images(settings)) as store, bar as looked:
        return missing_images(store, images, looked)


def pull_missing(settings: SandboxSettings, missing: Iterable[str], console: Console) -> dict[str, str]:
    """Pull each, showing how that goes. Image → the engine's words, for those that cannot be had."""
    with closing(backend_module(settings.backend).open_images(settings)) as store, PullScreen(console) as screen:
        return pull_images(store, missing, screen.show)


def say_lost(console: Console, lost: Mapping[str, str], rows: Mapping[str, int], most: int = LOST_SHOWN) -> None:
    """Name images that cannot be had, `most` of them. `rows`: image → its rows."""
    for image, reason in list(lost.items())[:most]:
        line = f"{printable(reason, WORDS_CHARS)} (rows that need it: {rows.get(image, 0):,})"
        console.print(Text(line, style="yellow"), soft_wrap=True)
    if len(lost) > most:
        line = f"… and {len(lost) - most:,} images more; kiseki images lists them all"
        console.print(Text(line), style="yellow", soft_wrap=True)


class PullScreen:
    """A context: a line per image under way and one for all on a terminal, elsewhere one line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._due = time.monotonic()
        self._state = Pulls(0)

    def __enter__(self) -> PullScreen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
        self._print_notes()
        self._console.print(Text(total_line(self._state)), soft_wrap=True)

    def show(self, state: Pulls) -> None:
        """Draw, unless that was done just now."""
        self._state = state
        self._print_notes()
        if time.monotonic() < self._due:
            return
        running = list(state.running.items())
        if self._live:
            lines = [f"  {pull_line(image, pull)}" for image, pull in running]
            self._live.update(Text("\n".join([*lines, total_line(state)]), no_wrap=True, overflow="ellipsis"), refresh=True)
            self._due = time.monotonic() + DRAW_SECONDS
        elif running:
            under_way = "; ".join(pull_line(image, pull) for image, pull in running)
            self._console.print(Text(f"{total_line(state)}: {under_way}"), soft_wrap=True)
            self._due = time.monotonic() + PLAIN_SECONDS

    def _print_notes(self) -> None:
        while self._state.notes:
            line = printable(self._state.notes.popleft(), WORDS_CHARS)
            self._console.print(Text(line, style="yellow"), soft_wrap=True)


def total_line(state: Pulls) -> str:
    parts = [f"images pulled {state.done:,}/{state.total:,}", f"not to be had {len(state.lost):,}" if state.lost else ""]
    return " · ".join(part for part in parts if part)


def pull_line(image: str, pull: Pull) -> str:
    size = f"{short(pull.done)}B of {short(pull.total)}B" if pull.total else ""
    return " ".join(part for part in (printable(image, NAME_CHARS), size, printable(pull.words, NAME_CHARS)) if part)
