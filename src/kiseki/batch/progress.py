"""What the screen shows while a run goes: one live line on a terminal, plain lines every few seconds elsewhere.

Drawn by a thread of its own at most once a second, from a `Tally` that the driver keeps and lines that it leaves: however slow
the screen, it never holds up a rollout, and it takes well under 1 % of a core.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from kiseki.batch.driver import Tally

DRAW_SECONDS = 1.0
PLAIN_SECONDS = 5.0
"""Between two lines where stdout is no terminal: enough to see life in a log without filling it."""
RATE_WINDOW = 60.0
"""Seconds over which rollouts per minute are counted: short enough to show a change, long enough to be steady."""
SAME_SHOWN = 5
"""Messages of one kind that are shown before they are only counted."""


class Progress:
    """A context: draws while it is open, and once more at the end."""

    def __init__(self, console: Console, tally: Tally, slowdown: Callable[[], str], *, verbose: bool) -> None:
        """`slowdown`: what holds the run up at the moment, "" for nothing."""
        self._console = console
        self._tally = tally
        self._slowdown = slowdown
        self._verbose = verbose
        self._window: deque[tuple[float, int]] = deque([(time.monotonic(), tally.done + tally.failed)])
        self._kinds: Counter[str] = Counter()
        self._lines: deque[tuple[str, str]] = deque()  # (text, style), to be printed by the thread
        self._end = threading.Event()
        self._live = (
            Live(console=console, auto_refresh=False, transient=True, get_renderable=lambda: Text(self.line()))
            if console.is_terminal
            else None
        )
        self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        if self._live:
            self._live.stop()
        self._print_lines()
        self._console.print(Text(self.line()), soft_wrap=True)

    def _draw(self) -> None:
        plain_due = time.monotonic() + PLAIN_SECONDS
        while not self._end.wait(DRAW_SECONDS):
            self._print_lines()
            if self._live:
                self._live.refresh()
            elif time.monotonic() >= plain_due:
                plain_due += PLAIN_SECONDS
                self._console.print(Text(self.line()), soft_wrap=True)

    def _print_lines(self) -> None:
        while self._lines:
            text, style = self._lines.popleft()
            self._console.print(Text(text), style=style, soft_wrap=True)

    def log(self, message: str) -> None:
        """A line above the progress; of many alike only the first few, unless verbose."""
        kind = message.split(":", 2)[1] if message.startswith("prompt ") else message.split(" ", 3)[0]
        self._kinds[kind] += 1
        seen = self._kinds[kind]
        if self._verbose or seen <= SAME_SHOWN:
            self._lines.append((message, "yellow"))
            if seen == SAME_SHOWN and not self._verbose:
                self._lines.append(("… more like this are counted, not shown (--verbose shows all)", "yellow"))

    def detail(self, message: str) -> None:
        """A line that only `--verbose` shows."""
        if self._verbose:
            self._lines.append((message, ""))

    def line(self) -> str:
        """The state in one line, counted in rollouts."""
        tally, now = self._tally, time.monotonic()
        ended = tally.done + tally.failed
        self._window.append((now, ended))
        while len(self._window) > 2 and now - self._window[0][0] > RATE_WINDOW:
            self._window.popleft()
        began, before = self._window[0]
        per_minute = 60 * (ended - before) / max(now - began, 0.001)
        left = tally.total - ended
        parts = [
            f"{ended:,}/{tally.total:,} ({100 * ended / max(tally.total, 1):.0f} %)",
            f"done {tally.done:,}",
            f"running {tally.running:,}",
            f"failed {tally.failed:,}",
            f"discarded {tally.discarded:,}",
            f"{per_minute:,.0f} rollouts/min",
            f"tokens in {short(tally.prompt_tokens)} out {short(tally.completion_tokens)}",
            f"${tally.cost:,.2f}",
            f"ETA {clock(60 * left / per_minute)}" if per_minute and left else "",
            self._slowdown(),
        ]
        return " · ".join(part for part in parts if part)


def short(number: float) -> str:
    """1,234,567 as 1.23M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """Seconds as 1h02m, 3m20s or 15s."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
