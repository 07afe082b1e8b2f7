"""Processes that read pages (`page_text.py`): what a page does to its parser ends there, and the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.services import Services
from kiseki.tools.web.page_text import Answer, Page

READERS = 2
"""Per worker process: one that a bad page holds up leaves another."""
READ_SECONDS = 25
"""Whole ones, for one page: ten times what the largest usual one takes."""
PAGES_EACH = 300
"""Then a new one is started, which costs 0.4 s: the libraries keep some of what they read in memory."""

_START = "import sys; sys.path.extend(sys.argv[2:]); from kiseki.tools.web.page_text import main; main()"


class _Child:
    """One such process. Its methods block."""

    def __init__(self) -> None:
        # nothing of the environment; our own places come last, so that none of their modules takes the name of a standard one
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(READ_SECONDS), *(each for each in sys.path if each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"LC_ALL": "C.UTF-8"},
            process_group=0,
        )
        self.pages = 0

    def read(self, message: bytes) -> bytes | None:
        """Its answer, None where it ended before it gave one."""
        self.pages += 1
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.write(len(message).to_bytes(4, "big") + message)
            self._process.stdin.flush()
            head = self._process.stdout.read(4)
            answer = self._process.stdout.read(int.from_bytes(head, "big"))
            if head and len(answer) == int.from_bytes(head, "big"):
                return answer
        return None

    def kill(self) -> None:
        """At once; it holds nothing."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._process.wait()


class Reader:
    """A worker's."""

    def __init__(self, services: Services) -> None:
        self._threads = ThreadPoolExecutor(READERS, "kiseki-page-reader")
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._closed = False

    async def read(self, body: bytes, content_type: str, url: str) -> Page:
        """As `page_text.readable`, and within its limits. Raises `ToolError`."""
        message = msgspec.msgpack.encode((body, content_type, url))
        data = await asyncio.get_running_loop().run_in_executor(self._threads, self._read, message)
        if data is None:
            raise ToolError(f"it cannot be read within {READ_SECONDS} seconds, or its reader broke on it")
        answer = msgspec.msgpack.decode(data, type=Answer)
        if answer.page is None:
            raise ToolError(answer.error)
        return answer.page

    async def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in list(self._children):
            child.kill()

    def _read(self, message: bytes) -> bytes | None:
        """In one of the threads, so that there are no more children than those."""
        child = self._idle.pop() if self._idle else _Child()
        self._children.add(child)
        answer = None
        try:
            answer = child.read(message)
        finally:
            if answer is None or self._closed or child.pages >= PAGES_EACH:
                child.kill()
                self._children.discard(child)
            else:
                self._idle.append(child)
        return answer
