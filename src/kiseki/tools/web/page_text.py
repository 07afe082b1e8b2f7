"""What a server answered → text that a model can read.

Pages are hostile and their parsers large: run as a program, this reads pages for a worker (`reader.py`) under limits of time and
memory that the kernel keeps.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
import time
from http import HTTPStatus
from typing import Any

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.web.decoding import decode

MAX_TEXT = 1_000_000
"""Characters that are kept of one page; a result shows fewer."""
MAX_HTML = 2_000_000
"""Characters of a page that are parsed: 4 seconds."""
MAX_TITLE = 300
PDF_PAGES = 500
PDF_SECONDS = 15.0
MEMORY_BYTES = 2_000_000_000
"""Address space: the libraries alone have 0.5 GB of it."""

_TEXT = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml)|application/"
    r"(json5|ndjson|jsonlines|x-ndjson|javascript|ecmascript|x-javascript|x-yaml|toml|sql|x-sh|x-python|x-tex|rtf|graphql)"
)
_HTML = ("text/html", "application/xhtml+xml")
_LOOKS_LIKE_HTML = re.compile(
    rb"^\s*(<!--((?!-->).){0,500}-->\s*)*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL
)
_CONTROLS = {code: None for code in (*range(0x20), 0x7F) if chr(code) not in "\n\t"}


class Page(msgspec.Struct, frozen=True):
    """What it says."""

    title: str
    """"" where it has none."""
    text: str
    """Markdown for HTML. At most `MAX_TEXT` characters."""


class Answer(msgspec.Struct, frozen=True):
    """What the program says of one page."""

    page: Page | None = None
    error: str = ""


def readable(body: bytes, content_type: str, url: str = "") -> Page:
    """The text of a page: HTML as markdown without its navigation, PDF, and what is text already.

    `content_type`: as the server said it; "" finds it out from the bytes. `url`: where it comes from. May take seconds.
    Raises `ToolError` for what has no text.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if body.lstrip()[:5] == b"%PDF-":
        title, text = _read_pdf(body)
    elif kind in _HTML or (kind in ("", "application/octet-stream", "text/plain") and _LOOKS_LIKE_HTML.match(body[:2000])):
        title, text = _read_html(decode(body, content_type)[:MAX_HTML], url)
    elif _TEXT.fullmatch(kind) or _is_text(body):
        title, text = "", decode(body, content_type)
    else:
        raise ToolError(f"it has no text to read: {kind or 'unknown type'}, {len(body):,} bytes")
    text = text[:MAX_TEXT].replace("\r\n", "\n").translate(_CONTROLS).strip()
    return Page(" ".join(title.translate(_CONTROLS).split())[:MAX_TITLE], text)


def status_words(status: int) -> str:
    """As in "HTTP 404 Not Found"."""
    with contextlib.suppress(ValueError):
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    return f"HTTP {status}"


def _is_text(body: bytes) -> bool:
    if b"\0" in body:
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _read_html(html: str, url: str) -> tuple[str, str]:
    import trafilatura

    if not html.strip():
        return "", ""
    title, text = "", ""
    # what it raises on broken pages is of many kinds; then there still is the plain text
    with contextlib.suppress(Exception):
        title = trafilatura.extract_metadata(html).title or ""
    with contextlib.suppress(Exception):
        text = trafilatura.extract(html, url=url or None, output_format="markdown") or ""
    if not text.strip():
        with contextlib.suppress(Exception):
            text = trafilatura.html2txt(html)
    if not text.strip():
        raise ToolError("the page has no text of its own; scripts may write it, which only a browser runs")
    return title, text


def _read_pdf(body: bytes) -> tuple[str, str]:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # one line per oddity of a file
    title = ""
    parts: list[str] = []
    try:
        reader = PdfReader(io.BytesIO(body))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ToolError("the PDF is encrypted")
        with contextlib.suppress(Exception):
            title = str((reader.metadata and reader.metadata.title) or "")
        size, end = 0, time.monotonic() + PDF_SECONDS
        for page in reader.pages[:PDF_PAGES]:
            with contextlib.suppress(Exception):  # a page that is damaged does not take the others with it
                parts.append(page.extract_text())
                size += len(parts[-1])
            if size > MAX_TEXT or time.monotonic() > end:
                break
    except ToolError:
        raise
    except Exception as error:
        raise ToolError("the PDF is damaged or encrypted") from error
    text = "\n\n".join(part.strip() for part in parts if part.strip())
    if not text:
        raise ToolError("the PDF has no text in it; its pages may be pictures")
    return title, text


def _answer(body: bytes, content_type: str, url: str) -> Answer:
    try:
        return Answer(readable(body, content_type, url))
    except ToolError as error:
        return Answer(error=str(error))
    except MemoryError:
        return Answer(error="it takes too much memory to read")
    except Exception as error:
        return Answer(error=f"it cannot be read ({type(error).__name__})")


def main() -> None:
    """Read one page after the other: a length (4 bytes) and msgpack `[body, content type, URL]` on stdin, the same with an
    `Answer` on stdout. Its argument: seconds for one page. It ends with stdin; a page that takes longer ends it, too."""
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(sys.argv[1])
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(4):
        asked: Any = msgspec.msgpack.decode(source.read(int.from_bytes(head, "big")))
        signal.alarm(seconds)
        answer = msgspec.msgpack.encode(_answer(*asked))
        signal.alarm(0)
        sink.write(len(answer).to_bytes(4, "big") + answer)
        sink.flush()
