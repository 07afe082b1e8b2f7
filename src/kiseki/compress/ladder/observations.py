"""What tools print that nobody reads, taken out of one text: terminal codes, progress bars, encoded data, repeated lines.

Ordinary text (code, tables, JSON, listings) comes back as it is, up to blanks at line ends and runs of blank lines. Linear in the
length of any text: patterns have no nested quantifiers, and those that look around are only tried on lines of bounded length.
"""

from __future__ import annotations

import re
from operator import eq

_escape = re.compile(
    r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]"  # CSI: colours, cursor
    r"|\][^\x07\x1b]*+(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|[PX^_][^\x1b]*+\x1b\\"
    r"|[ -/]*+[0-~])?"
)
_data_uri = re.compile(r"data:([\w.+-]{1,60}/[\w.+-]{1,60})(?:;[\w.+=-]{1,60}+){0,4},[A-Za-z0-9+/=%._~!$&*-]{100,}+", re.ASCII)
LEAST_BLOB = 200
"""Characters; a SHA-512 in hexadecimal has 128."""
_blob = re.compile(rf"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{{{LEAST_BLOB},}}+={{0,2}}")
_hex = re.compile(r"[0-9a-fA-F]+")
_base64_line = re.compile(r"[A-Za-z0-9+/]{60,80}")
_base64_end = re.compile(r"[A-Za-z0-9+/]{1,80}={1,2}")
_has_each = tuple(re.compile(each) for each in ("[A-Z]", "[a-z]", "[0-9]"))
LEAST_BASE64_LINES = 4
"""Fewer lines that look like it may be a list of keys."""

_progress = re.compile(
    r"\d%\|[\s█▉▊▋▌▍▎▏#=>.-]*\|"  # tqdm
    r"|[━╸╺]{8,}\s+\d"  # pip, rich
    r"|\[[=#>. -]{8,}\]\s*\d"  # docker, cargo
    r"|\d%\s*\[[=#>+. -]{5,}\]"  # wget
    r"|^[0-9a-f]{12}: (?:Pulling|Waiting|Downloading|Verifying|Download complete|Extracting|Pull complete)"
    r"|^(?:remote: )?[A-Z][a-z]+ [a-z]+: +\d{1,3}% \(\d+/\d+\)"  # git
    r"|^ *\d+K[ .]{20,80} +\d{1,3}%"  # wget without a terminal
    r"|(?<![\w/.-])(?:progress|(?:down|up)?load|extract|unpack|install|fetch|process|copy|convert)(?:ing|ed)?(?![\w/-]|\.\w)"
    r"[^\d%]{0,40}\d{1,3}(?:\.\d{1,3})?% ?$",
    re.IGNORECASE,
)
_progress_hints = tuple(map(re.compile, ("%", "━", "╸", r"\[[=#>]", ": (?:Pull|Wait|Down|Veri|Extr)")))
"""Each begins with a fixed character, which is looked for much faster than several at once."""
LONGEST_PROGRESS = 300
"""Characters of a line."""

_repeats = re.compile(rb"\x01{2,}+")
"""Three equal lines or more. Two blank ones stay: code has so many between functions."""
_SAME = "[same line "

LEAST_CLEANED = 1_000
"""Characters that cleaning takes out of a text at least, or a tenth of it, to be worth an edit."""
VISIBLE = 10
"""What a character counts there that is no blank: blanks and line ends are hardly any tokens."""


def clean(text: str) -> str:
    """`text` without what nobody reads; never longer, and the same again for text that was cleaned before."""
    if "\x1b" in text:
        text = _escape.sub("", text)
    lines = text.split("\n")
    if "\r" in text:
        lines = [_last_state(line) if "\r" in line else line for line in lines]
    lines = [line.rstrip(" \t") for line in lines]
    return "\n".join(_without_repeats(_without_progress(_without_data(lines))))


def clean_where_it_pays(text: str) -> str:
    """`clean(text)` where that is worth an edit and another count."""
    made = clean(text)
    return made if made != text and _weight(text) - _weight(made) >= min(len(text) / 10, LEAST_CLEANED) else text


def _weight(text: str) -> int:
    blanks = sum(map(text.count, " \t\r\n"))
    return VISIBLE * (len(text) - blanks) + blanks


def _last_state(line: str) -> str:
    """What a terminal shows in the end of a line that was written over."""
    return next((state for state in reversed(line.split("\r")) if state.strip(" \t")), "")


def _without_data(lines: list[str]) -> list[str]:
    longest = max(map(len, lines))
    if longest > 100:
        lines = [_without_blobs(line) if len(line) > 100 else line for line in lines]
    # most texts have no such line: what finds that out is cheap
    if longest < 60 or not any(_is_base64_line(line) for line in lines if " " not in line):
        return lines
    kept: list[str] = []
    at = 0
    while at < len(lines):
        end = at
        while end < len(lines) and _is_base64_line(lines[end]):
            end += 1
        if end - at < LEAST_BASE64_LINES:
            end = max(end, at + 1)
            kept += lines[at:end]
        else:
            if end < len(lines) and _base64_end.fullmatch(lines[end]):
                end += 1
            kept.append(_note("base64 data", sum(map(len, lines[at:end]))))
        at = end
    return kept


def _without_blobs(line: str) -> str:
    if "data:" in line:
        line = _data_uri.sub(lambda match: _note(f"data URI {match[1]}", len(match[0])), line)
    return _blob.sub(_blob_note, line) if len(line) >= LEAST_BLOB else line


def _blob_note(match: re.Match[str]) -> str:
    text = match[0]
    if _hex.fullmatch(text):
        mixed = _has_each[2].search(text) and (_has_each[0].search(text) or _has_each[1].search(text))
        return _note("hexadecimal data", len(text)) if mixed else text
    return _note("base64 data", len(text)) if _is_mixed(text) else text


def _is_base64_line(line: str) -> bool:
    return 60 <= len(line) <= 80 and " " not in line and _base64_line.fullmatch(line) is not None and _is_mixed(line)


def _is_mixed(text: str) -> bool:
    """Whether it has letters and digits as encoded bytes have them; words, paths and sequences of bases have not."""
    return all(each.search(text) for each in _has_each) and text.count("/") * 12 <= len(text)


def _note(kind: str, length: int) -> str:
    return f"[{kind}: {length:,} characters]"


def _without_progress(lines: list[str]) -> list[str]:
    """Of each run of progress lines the last one."""
    hinted = _hinted("\n".join(lines))
    beside = [at for at in hinted if at - 1 in hinted or at + 1 in hinted]
    shows = {at for at in beside if len(lines[at]) <= LONGEST_PROGRESS and _progress.search(lines[at])}
    runs = {at for at in shows if at + 1 in shows}
    return [line for at, line in enumerate(lines) if at not in runs] if runs else lines


def _hinted(text: str) -> set[int]:
    """The numbers of the lines that have a hint at progress."""
    found: set[int] = set()
    for hint in _progress_hints:
        at = number = 0
        while match := hint.search(text, at):
            number += text.count("\n", at, match.start())
            found.add(number)
            at = text.find("\n", match.start())
            if at < 0:
                break
    return found


def _without_repeats(lines: list[str]) -> list[str]:
    again = bytes(map(eq, lines[1:], lines))  # 1 for each line that is as the one before
    kept: list[str] = []
    at = 0
    for run in _repeats.finditer(again):
        first, count = run.start(), len(run[0]) + 1
        note = f"{_SAME}{count - 1:,} more times]"
        line = lines[first]
        kept += lines[at:first]
        at = first + count
        if not line:
            kept.append("")
        elif (count - 1) * (len(line) + 1) > len(note) + 1 and not line.startswith(_SAME):
            kept += [line, note]
        else:
            kept += [line] * count
    return kept + lines[at:] if kept else lines
