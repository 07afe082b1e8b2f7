"""What a corpus holds, read document by document: a folder of texts, or files of rows."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from kiseki.errors import DatasetError, ToolError, UsageError
from kiseki.tools.needs import missing_packages
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.row_files import SUFFIXES, check_file, is_row_file, read_lines
from kiseki.trajectory.text import clean_text

TEXT_COLUMNS = ("text", "content", "body", "document")
URL_COLUMNS = ("url", "link", "id")
TITLE_COLUMNS = ("title", "name")
CONTENT_TYPES = {
    ".txt": "text/plain",
    ".md": "text/markdown",
    ".rst": "text/x-rst",
    ".json": "application/json",
    ".html": "text/html",
    ".htm": "text/html",
    ".pdf": "application/pdf",
}
"""Of the files of a folder that are documents."""
PLAIN = (".txt", ".md", ".rst", ".json")
MAX_FILE_BYTES = 50_000_000
"""Of one document; a larger one is skipped: it would have to be held as a whole."""
TITLE_CHARS = 120
"""Of a first line that can be a title."""
COLUMNS_SHOWN = 12


class Found(NamedTuple):
    """One document."""

    url: str
    title: str
    text: str


class Source:
    """The documents of one corpus, in an order that only their names decide."""

    def __init__(self, path: Path) -> None:
        """Raises `UsageError` for what is neither a folder nor a file of rows."""
        self.path = path.expanduser().resolve()
        self._name = path
        self.skipped = 0
        self._columns: dict[str, None] = {}
        if not self.path.is_dir():
            if not self.path.exists():
                raise UsageError(f"--corpus: there is no file or folder {path}")
            if not is_row_file(self.path):
                raise UsageError(f"--corpus takes a folder, or a file that ends in {', '.join(SUFFIXES)}; {path} is neither")
            try:
                check_file(self.path)
            except DatasetError as error:
                raise UsageError(f"--corpus: {error}") from error

    def state(self) -> Iterator[str]:
        """What changes whenever the corpus does."""
        for file in self._files():
            with contextlib.suppress(FileNotFoundError):  # a moment ago it was there
                status = file.stat()
                yield f"{file.relative_to(self.path)} {status.st_size} {status.st_mtime_ns}"

    def documents(self) -> Iterator[Found]:
        """All that have text. Raises `UsageError` where nothing could read a file's kind, or a file of rows is broken."""
        for file in self._files():
            if is_row_file(file):
                yield from self._rows(file)
            elif (found := self._file(file)) is not None:
                yield found
            else:
                self.skipped += 1

    def why_nothing(self) -> str:
        """What to say of a corpus in which there was no document."""
        if self._columns:
            columns = list(self._columns)
            shown = ", ".join(columns[:COLUMNS_SHOWN]) + ", …" * (len(columns) > COLUMNS_SHOWN)
            return (
                f"{self._name} has no row with a text: one is looked for in the columns {', '.join(TEXT_COLUMNS)}, "
                f"and it has {shown}"
            )
        if self.skipped:
            return f"{self._name} holds no text: of its {self.skipped} {_of(self.path)} none could be read as one"
        kinds = ", ".join((*CONTENT_TYPES, *SUFFIXES))
        return f"{self._name} is empty" if self.path.is_file() else f"{self._name} has no file that ends in {kinds}"

    def _files(self) -> Iterator[Path]:
        """Regular files of the known kinds; links that lead out of the folder, and hidden files, are not of the corpus."""
        if not self.path.is_dir():
            yield self.path
            return
        for place, folders, names in os.walk(self.path):
            folders[:] = sorted(each for each in folders if not each.startswith("."))
            for name in sorted(names):
                file = Path(place, name)
                known = is_row_file(file) or file.suffix.lower() in CONTENT_TYPES
                if known and not name.startswith(".") and self._is_inside(file):
                    yield file

    def _is_inside(self, file: Path) -> bool:
        try:
            inside = not file.is_symlink() or file.resolve(strict=True).is_relative_to(self.path)
            return inside and stat.S_ISREG(file.stat().st_mode)
        except (OSError, RuntimeError):  # a link to nothing, or to itself
            return False

    def _file(self, file: Path) -> Found | None:
        """None for one that holds no text."""
        url = self._url(file)
        try:
            if file.stat().st_size > MAX_FILE_BYTES:
                return None
            body = file.read_bytes()
        except OSError:
            return None
        title, text = _read(body, file.suffix.lower(), url)
        text = text.replace("\0", "")  # where SQLite would take it to end
        if not text.strip():
            return None
        return Found(url, title.strip() or title_of(text) or file.stem.encode("utf-8", "replace").decode(), text)

    def _rows(self, file: Path) -> Iterator[Found]:
        place = f"{self._url(file)}/" if self.path.is_dir() else "corpus://"
        try:
            for number, line in read_lines(file):
                row = _row(line)
                text = _first(row, TEXT_COLUMNS)
                if not text.strip():
                    self.skipped += 1
                    if len(self._columns) <= COLUMNS_SHOWN:
                        self._columns |= dict.fromkeys(row)
                    continue
                name = _first(row, URL_COLUMNS) or f"row-{number}"
                url = name if "://" in name else place + quote(name)
                yield Found(url, _first(row, TITLE_COLUMNS) or title_of(text) or name, text)
        except DatasetError as error:
            raise UsageError(f"--corpus: {error}") from error

    def _url(self, file: Path) -> str:
        return f"corpus://{quote(os.fsencode(file.relative_to(self.path)))}"


def _read(body: bytes, suffix: str, url: str) -> tuple[str, str]:
    """Title, "" where it has none of its own, and text of a file; no text where it holds none."""
    if suffix in PLAIN and not (b"\x1b$" in body and body.isascii()):
        try:
            return "", body.decode("utf-8-sig")
        except UnicodeDecodeError:
            pass
    # in another encoding, or no plain text
    from kiseki.tools.web.page_text import readable

    try:
        page = readable(body, CONTENT_TYPES[suffix], url)
    except ToolError:
        return "", ""
    except ImportError:
        raise UsageError(f"the corpus has {suffix} files, such as {url}: {missing_packages('trafilatura', 'pypdf')}") from None
    return page.title, page.text


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = decode_row(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _first(row: dict[str, Any], names: tuple[str, ...]) -> str:
    """The first of the columns that holds a text or a number, "" where none does."""
    for name in names:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            return clean_text(value).replace("\0", "")
        if type(value) is int:
            return str(value)
    return ""


def title_of(text: str) -> str:
    """The first line, where it can be a title."""
    line = next((line for line in text[: 4 * TITLE_CHARS].splitlines() if any(each.isalnum() for each in line)), "")
    line = line.strip().lstrip("#=* ").strip()
    return line if len(line) <= TITLE_CHARS else ""


def _of(path: Path) -> str:
    return "files" if path.is_dir() else "rows"
