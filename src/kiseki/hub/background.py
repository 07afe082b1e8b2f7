"""Checkpoints of a run while it goes: `kiseki push --checkpoint` in a process of its own, so that nothing of it holds up a
rollout or fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kiseki.trajectory.text import printable

GRACE = 10.0
"""Seconds that a push gets to end when it is told to. What it has sent by then is not sent again."""
LINE_CHARS = 1000


class Checkpoints:
    """Pushes after every so many finished rollouts, one push at a time. A push that fails is a line of the log, no more."""

    def __init__(
        self, folder: Path, repository: str, every: int, log: Callable[[str], None], *, finished: int, api_key: str
    ) -> None:
        """finished: Rollouts that had ended before the session. log: May be called from another thread. api_key: The model's,
        which must not leave with the data either."""
        self._folder = folder
        self._repository = repository
        self._every = every
        self._log = log
        self._api_key = api_key
        self._next = finished + every
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def finished(self, count: int) -> None:
        """So many rollouts of the run have ended. Never waits. A mark that is passed while a push goes on counts after it."""
        if count < self._next or (self._thread and self._thread.is_alive()) or self._closed:
            return
        if next(self._folder.glob("batch_*.jsonl"), None) is None:  # batches are large: none is finished yet
            return
        self._next = count + self._every
        self._thread = threading.Thread(target=self._push, name="checkpoint push", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End a push that goes on."""
        with self._lock:
            self._closed = True
            process = self._process
        if process:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._thread:
            self._thread.join()

    def _push(self) -> None:
        # in a variable, since any process can read a flag
        environ = {**os.environ, **({"KISEKI_RUN_API_KEY": self._api_key} if self._api_key else {})}
        command = [sys.executable, "-m", "kiseki", "push", self._repository, f"--run={self._folder}", "--checkpoint"]
        try:
            with self._lock:
                if self._closed:
                    return
                self._process = subprocess.Popen(
                    command,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    start_new_session=True,  # Ctrl-C is the run's: it decides what becomes of this one
                )
            said, complained = self._process.communicate()
            failed = self._process.returncode != 0
        except OSError as error:
            said, complained, failed = "", f"it cannot be started: {error.strerror}", True
        with self._lock:
            self._process = None
            if self._closed:
                return
        with suppress(Exception):  # the display may be gone by now
            if failed:
                words = _last_line(complained).removeprefix("kiseki: ")
                self._log(f"checkpoint not pushed: {words}; the next is tried after {self._every:,} more rollouts")
            else:
                self._log(f"checkpoint {_last_line(said)}")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return printable(lines[-1], LINE_CHARS)
