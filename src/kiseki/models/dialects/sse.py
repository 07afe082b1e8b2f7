"""Server-sent events (html.spec.whatwg.org, "Server-sent events") from bytes in any split. Pure.

Comments (keep-alives) are skipped. Only `data` is read: what kind of event it is stands in the payloads of every API here.
"""

from __future__ import annotations


class EventReader:
    """Server-sent events from bytes in any split. Only `data` matters in this API."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self.held = 0
        """Bytes, about, of what is no whole event yet."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the events that `chunk` completes."""
        self.held += len(chunk)
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
            self._data.append(line[5:].removeprefix(b" "))
        elif not line:
            self.held = 0
            if self._data:
                payload = b"\n".join(self._data)
                self._data.clear()
                return payload
        return None
