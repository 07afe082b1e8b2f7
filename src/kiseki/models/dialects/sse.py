"""Server-sent events (html.spec.whatwg.org, "Server-sent events") from bytes in any split. Pure.

Comments (keep-alives) are skipped. Only `data` is read: what kind of event it is stands in the payloads of every API here. A
stream of more bytes than any that ends is left; what is kept of its events is counted by who keeps it.
"""

from __future__ import annotations

from kiseki.errors import BadResponse
from kiseki.models.dialects.base import MAX_ANSWER, TOO_LARGE

MOST_FED = 4 * MAX_ANSWER
"""Bytes of a stream: most of them are not the reply's, but of the events around its pieces."""
PART_SIZE = 1_000
"""What a block, an item or a call counts beside its texts, about what it takes: a server could begin new ones forever."""
_LINE_SIZE = 50
"""What a line of an event of several counts beside its bytes, about what it takes."""


class EventReader:
    """Server-sent events from bytes in any split. Only `data` matters in this API."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._held = 0
        """Bytes, about, of what is no whole event yet."""
        self._fed = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the events that `chunk` completes. Raises BadResponse where one, or the whole, is too much."""
        self._held += len(chunk)
        self._fed += len(chunk)
        if self._held > MAX_ANSWER or self._fed > MOST_FED:
            raise BadResponse(TOO_LARGE)
        self._rest.append(chunk)
        if b"\n" not in chunk:  # a line of megabytes is put together once, when it ends
            return []
        lines = b"".join(self._rest).split(b"\n")
        self._rest = [lines.pop()]
        return [payload for line in lines if (payload := self._line(line)) is not None]

    def close(self) -> list[bytes]:
        """The payload that the end of the stream completes: some servers leave the last blank line out."""
        last = [self._line(b"".join(self._rest)), self._line(b"")]
        self._rest = []
        return [payload for payload in last if payload is not None]

    def _line(self, line: bytes) -> bytes | None:
        line = line.rstrip(b"\r")
        if line.startswith(b"data:"):
            if self._data:
                self._held += _LINE_SIZE
            self._data.append(line[5:].removeprefix(b" "))
        elif not line:
            self._held = 0
            if self._data:
                payload = b"\n".join(self._data)
                self._data.clear()
                return payload
        return None
