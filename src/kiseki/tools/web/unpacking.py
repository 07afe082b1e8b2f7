"""Undoes a Content-Encoding piece by piece and never beyond a bound: a few kilobytes can unpack to gigabytes."""

from __future__ import annotations

import zlib

from kiseki.errors import ToolError

_GZIP_OR_ZLIB = 47
_BARE = -15
"""What some servers send as "deflate"."""


class Unpacked:
    """A body as it comes in."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        """Raises `ToolError` for an encoding that was not asked for."""
        encoding = encoding.strip().lower()
        if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise ToolError(f"the server sent content-encoding {encoding[:50]!r}, which was not asked for")
        self._data = bytearray()
        self._left = max_bytes
        self._packed_left = max_bytes
        """What unpacks to nothing may go on for ever."""
        self._packed = encoding not in ("", "identity")
        self._bare_is_possible = encoding == "deflate"
        self._unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)

    def add(self, chunk: bytes) -> bool:
        """Whether there is room for more. Raises `ToolError` for what cannot be unpacked."""
        if not self._packed:
            return self._keep(chunk)
        self._packed_left -= len(chunk)
        if self._packed_left < 0:
            return False
        while chunk:
            if self._unpacker.eof:  # gzip may have several members one after the other
                if chunk[:2] != b"\x1f\x8b":
                    return True  # padding
                self._unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
            try:
                data = self._unpacker.decompress(chunk, self._left + 1)
            except zlib.error as error:
                if self._bare_is_possible and not self._data:
                    self._bare_is_possible = False
                    self._unpacker = zlib.decompressobj(_BARE)
                    continue
                raise ToolError("what the server sent as compressed is not, or damaged") from error
            self._bare_is_possible = False
            if not self._keep(data):
                return False
            chunk = self._unpacker.unused_data or self._unpacker.unconsumed_tail
        return True

    def data(self) -> bytes:
        return bytes(self._data)

    def _keep(self, data: bytes) -> bool:
        self._data += data[: self._left]
        fits = len(data) <= self._left
        self._left -= min(len(data), self._left)
        return fits
