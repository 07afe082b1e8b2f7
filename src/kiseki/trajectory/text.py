"""Text that can be stored and shown: every string from a model, a tool or a dataset passes through `clean_text` once."""

from __future__ import annotations


def clean_text(text: str) -> str:
    """`text` without lone surrogates, each replaced by U+FFFD; a surrogate pair becomes the character that it stands for.

    Everything else (NUL, ANSI, U+2028) is kept: JSON can carry it.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def printable(text: str, limit: int) -> str:
    """What a stranger wrote, in one line, with nothing in it that a terminal would obey."""
    text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= limit else f"{text[:limit]}…"


def shorten(text: str, limit: int) -> tuple[str, int]:
    """`text` with its middle replaced as `cut_middle` does it where it has more than `limit` characters, and by how many bytes
    of UTF-8 that made it shorter.

    For text of any size, before anything that costs as much as the text is long is done with it.
    """
    if len(text) <= limit:
        return text, 0
    head, tail = text[: limit // 2], text[-(limit // 2) :]
    total = _utf8_size(text)
    missing = total - _utf8_size(head) - _utf8_size(tail)
    mark = _mark(missing, total)
    return head + mark + tail, missing - len(mark)


def _utf8_size(text: str) -> int:
    """Bytes; without a copy of the whole. A lone surrogate counts as three, as what stands in its place will."""
    if text.isascii():
        return len(text)
    return sum(len(text[at : at + 2**20].encode("utf-8", "surrogatepass")) for at in range(0, len(text), 2**20))


def cut_middle(data: bytes, limit: int, *, total: int | None = None) -> bytes:
    """`data` within `limit` bytes: head and tail kept, the middle replaced by a line that says how much is missing.

    Cuts fall on UTF-8 boundaries. `total` is the full length in bytes where `data` already lost its middle (then its first
    and second halves are taken to be head and tail). Data within the limit and whole comes back as it is.
    """
    total = len(data) if total is None else total
    if total <= limit:
        return data
    half = max(limit // 2, 1)
    head = data[:half].decode("utf-8", "ignore").encode() if _is_utf8_prefix(data[:half]) else data[:half]
    start = len(data) - half
    while start < len(data) and data[start] & 0xC0 == 0x80:
        start += 1
    tail = data[start:]
    return head + _mark(total - len(head) - len(tail), total).encode() + tail


def _mark(missing: int, total: int) -> str:
    return f"\n[... {missing:,} of {total:,} bytes left out here ...]\n"


def _is_utf8_prefix(data: bytes) -> bool:
    """Whether `data` is valid UTF-8 but for a character torn at its end."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.end == len(data) and error.reason == "unexpected end of data"
    return True
