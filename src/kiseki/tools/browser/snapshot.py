"""What a model is shown of a page: Playwright's accessibility snapshot, made shorter, and cut to what fits.

Playwright gives one line per element, in YAML: `- link "Home" [ref=e3] [cursor=pointer]:`, and below it `- /url: /home`. Here
only what can be acted on keeps a ref (`@e3`), addresses stand with their element, and boxes that only hold others are gone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MAX_RAW = 6_000_000
"""Characters of a page's snapshot that are looked at: 60,000 links. Reading them takes half a second."""
MAX_TEXT = 1_000
"""Characters of one element's own text or name."""
MAX_ADDRESS = 200
INTERACTIVE = frozenset(
    (
        *("button", "checkbox", "combobox", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio", "option"),
        *("radio", "scrollbar", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem"),
    )
)
_LINE = re.compile(
    r"""(?P<indent>\ *)-\ (?P<quote>'?)(?P<role>/?[\w-]+)
    (?P<name>(?:\ "(?:[^"\\]|\\.)*")?)(?P<marks>(?:\ \[[^\]]*\])*)(?P=quote)(?P<rest>:?.*)""",
    re.VERBOSE,
)
_REF = re.compile(r" \[ref=(\w+)\]")
_BOX = re.compile(r" \[box=(-?\d+),(-?\d+),(\d+),(\d+)\]")
_POINTER = " [cursor=pointer]"
_ACTIVE = " [active]"


class Line(NamedTuple):
    """One element."""

    depth: int
    text: str
    ref: str = ""
    """As Playwright knows it; "" for an element that cannot be acted on."""
    bottom: float | None = None
    """Pixels below the upper edge of what is in view; None where that is not known."""

    @property
    def shown(self) -> str:
        return f"{'  ' * self.depth}- {self.text}"


class Cut(NamedTuple):
    """Lines that fit."""

    text: str
    above: int
    """How many were left out because they are scrolled out of view at the top."""
    below: int
    """How many were left out at the end."""


def read(raw: str) -> list[Line]:
    """The lines of a snapshot of Playwright's in its `ai` mode."""
    lines: list[Line] = []
    dropped: list[int] = []  # indents of the open boxes that are gone
    for text in raw[:MAX_RAW].splitlines():
        found = _LINE.fullmatch(text)
        if not found:  # an element's text that goes on
            if lines and text.strip():
                lines[-1] = lines[-1]._replace(text=_shortened(f"{lines[-1].text} {text.strip()}", MAX_TEXT))
            continue
        indent = len(found["indent"])
        while dropped and dropped[-1] >= indent:
            dropped.pop()
        depth = indent // 2 - len(dropped)
        role, marks = found["role"], found["marks"]
        rest = found["rest"].removeprefix(":").strip()
        if role.startswith("/"):
            if lines:
                lines[-1] = lines[-1]._replace(text=f"{lines[-1].text} {role[1:]}={_shortened(rest, MAX_ADDRESS)}")
            continue
        ref, box = _REF.search(marks), _BOX.search(marks)
        acts = role in INTERACTIVE or _POINTER in marks
        marks = _BOX.sub("", _REF.sub("", marks)).replace(_POINTER, "")
        if not acts:
            marks = marks.replace(_ACTIVE, "")  # the page itself, mostly
        if role == "generic" and not (found["name"] or rest or (acts and ref)):
            dropped.append(indent)
            continue
        plain = role == "generic" and not (found["name"] or marks or acts)
        shown = ("text" if plain else role) + _shortened(found["name"], MAX_TEXT) + marks
        if acts and ref:
            shown += f" [@{ref[1]}]"
        if rest:
            shown += f": {_shortened(rest, MAX_TEXT)}"
        bottom = None
        if box and ref and not ref[1].startswith("f") and (box[3], box[4]) != ("0", "0"):  # a frame has a view of its own
            bottom = float(box[2]) + float(box[4])
        lines.append(Line(depth, shown, ref[1] if acts and ref else "", bottom))
    return lines


def fit(lines: Sequence[Line], limit: int) -> Cut:
    """As many as `limit` bytes hold, without those that are known to be above the view."""
    visible = _in_view(lines)
    left = limit
    taken: list[str] = []
    for line in visible:
        left -= len(line.shown.encode("utf-8", "replace")) + 1
        if left < 0:
            break
        taken.append(line.shown)
    return Cut("\n".join(taken), len(lines) - len(visible), len(visible) - len(taken))


def size(lines: Iterable[Line]) -> int:
    """Bytes of them all."""
    return sum(len(line.shown.encode("utf-8", "replace")) + 1 for line in lines)


def changed(before: Iterable[Line], now: Sequence[Line]) -> list[Line] | None:
    """The lines that are new, each below the elements that it is in; None when that is most of the page."""
    known = Counter(_without_focus(line) for line in before)
    keep = [False] * len(now)
    new = 0
    parents: list[int] = []
    for number, line in enumerate(now):
        while parents and now[parents[-1]].depth >= line.depth:
            parents.pop()
        same = _without_focus(line)
        if known[same] > 0:
            known[same] -= 1
        else:
            new += 1
            for each in (*parents, number):
                keep[each] = True
        parents.append(number)
    if new * 2 > len(now):
        return None
    return [line for line, kept in zip(now, keep, strict=True) if kept]


def _without_focus(line: Line) -> tuple[int, str]:
    return line.depth, line.text.replace(_ACTIVE, "")


def _in_view(lines: Sequence[Line]) -> list[Line]:
    """Without the elements that end above the view, but for those that hold one that does not."""
    bottoms: list[float] = []
    parents: list[tuple[int, float]] = []
    for line in lines:
        while parents and parents[-1][0] >= line.depth:
            parents.pop()
        bottom = line.bottom if line.bottom is not None else parents[-1][1] if parents else 1.0
        bottoms.append(bottom)
        parents.append((line.depth, bottom))
    kept: list[Line] = []
    holder = 0  # an element of this depth or more holds what was kept last
    for line, bottom in zip(reversed(lines), reversed(bottoms), strict=True):
        if bottom > 0 or line.depth < holder:
            kept.append(line)
            holder = line.depth
    return kept[::-1]


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"
