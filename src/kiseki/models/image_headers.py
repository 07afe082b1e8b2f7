"""What kind of image some bytes are, and its size in pixels, from their first bytes. Decodes nothing."""

from __future__ import annotations

import struct

_STARTS = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
}
# of a JPEG: the frame headers, which hold its size (C4, C8 and CC are tables), and the markers that have no length
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE = frozenset((0x01, *range(0xD0, 0xDA)))


def image_kind(data: bytes) -> str:
    """`png`, `jpeg`, `gif`, `webp`, `bmp` or `tiff`; "" for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for start, kind in _STARTS.items() if data.startswith(start)), "")


def image_size(data: bytes) -> tuple[int, int]:
    """Width and height of a PNG, JPEG, GIF or WebP; (0, 0) where the bytes do not say."""
    read = {"png": _png, "jpeg": _jpeg, "gif": _gif, "webp": _webp}.get(image_kind(data))
    try:
        return read(data) if read else (0, 0)
    except (struct.error, IndexError):
        return 0, 0


def _png(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def _gif(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return width, height


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        # 0xFF before a marker may be repeated to fill up
        at += 1 if marker == 0xFF else 2 if marker in _BARE else 2 + struct.unpack_from(">H", data, at + 2)[0]
    return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF
