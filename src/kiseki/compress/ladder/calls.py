"""Calls and what came of them, in brief: which output answers which call, how a call is named in one line, how it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from kiseki.compress.ladder.observations import clean
from kiseki.compress.regions import Unit
from kiseki.compress.turns import Call, Layout, Output, Turn
from kiseki.trajectory.text import printable

MAIN = ("command", "cmd", "action", "path", "file_path", "filename", "file", "pattern", "query", "url", "code", "name")
"""Arguments that say what a call is about, in the order in which they are shown."""
BRIEF = 80
"""Characters of a call's arguments."""
LINE = 100
"""Characters of a result's first line."""
LOOKED_AT = 4_000
"""Characters in which the first line is looked for."""
_exit_text = re.compile(r"(?:exit(?:ed)?(?: with)?[ _](?:code|status)|returncode)[:=> ]{1,3}(\d{1,3})\b", re.IGNORECASE)
_heading = re.compile(r"\w+:|</?\w+>")


class Observation(msgspec.Struct, frozen=True):
    """One output and the call that it answers."""

    at: int
    """Its turn."""
    number: int
    """Of the output in that turn."""
    output: Output
    call: Call | None
    """None where it can't be told."""


class _Result(msgspec.Struct):
    """Fields by which tools say how it went, and where they have their text."""

    error: Any = None
    success: Any = None
    exit_code: Any = None
    returncode: Any = None
    exit_status: Any = None
    output: Any = None
    stdout: Any = None
    content: Any = None
    result: Any = None
    message: Any = None
    stderr: Any = None


_decode_result = msgspec.json.Decoder(_Result).decode


def observations_of(turns: Sequence[Turn], layout: Layout, unit: Unit) -> list[Observation]:
    """A unit's outputs, in order, each with its call: the one that has its id, else the one in its place."""
    calls = layout.calls(turns[unit.start]) if turns[unit.start].role == "gpt" else []
    by_id = {call.id: call for call in calls if call.id}
    found: list[Observation] = []
    for at in range(unit.start, unit.end):
        if turns[at].role != "tool":
            continue
        for number, output in enumerate(layout.outputs(turns[at])):
            call = by_id.get(output.id)
            if call is None and not by_id and len(found) < len(calls):
                call = calls[len(found)]
                call = call if output.name in ("", call.name) else None
            found.append(Observation(at, number, output, call))
    return found


def arguments_of(call: Call) -> dict[str, Any]:
    """Decoded; empty where they are no JSON object."""
    try:
        value = msgspec.json.decode(call.arguments)
        if isinstance(value, str):
            value = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return {}
    return value if isinstance(value, dict) else {}


def brief(call: Call | None, name: str = "") -> str:
    """`terminal: pytest -x`, in one line; `name` is the tool's where there is no call."""
    if call is None:
        return one_line(name, BRIEF) or "tool"
    arguments = arguments_of(call)
    main = [arguments[key] for key in MAIN if isinstance(arguments.get(key), str)]
    values = main or [value for value in arguments.values() if isinstance(value, str | int | float)]
    if not arguments and call.arguments.strip() not in ("", "{}"):
        values = [call.arguments]
    shown = " ".join(one_line(str(value), BRIEF) for value in values[:2])
    tool = one_line(call.name, BRIEF) or "tool"
    return f"{tool}: {one_line(shown, BRIEF)}" if shown.strip() else tool


def outcome(text: str) -> tuple[str, str]:
    """How a result says that it went (`ok`, `error`, `exit code 1`), and its first line."""
    stripped = text.strip()
    if stripped.startswith("{"):
        try:
            return _of_fields(_decode_result(stripped), stripped)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            pass
    line = first_line(stripped)
    if (code := _exit_text.search(stripped[-300:])) and int(code[1]):
        return f"exit code {int(code[1])}", line
    failed = line.lower().startswith(("error", "traceback"))
    return "error" if failed else "ok", line


def _of_fields(result: _Result, text: str) -> tuple[str, str]:
    status = "ok"
    code = next((each for each in (result.exit_code, result.returncode, result.exit_status) if isinstance(each, int)), 0)
    if code:
        status = f"exit code {int(code)}"
    elif result.error not in (None, "", False) or result.success is False:
        status = "error"
    named = (result.output, result.stdout, result.content, result.result, result.message, result.stderr)
    for value in (result.error, *named) if status == "error" else (*named, result.error):
        if isinstance(value, str) and (line := first_line(value)):
            return status, line
    told = any(value is not None for value in named)
    return status, "" if told else one_line(text, LINE)


def first_line(text: str) -> str:
    """The first line that says something, in brief; a mere heading (`OUTPUT:`, `<output>`) only where nothing else does."""
    heading = ""
    start = text.lstrip()[:LOOKED_AT]
    for line in (clean(start) if "\x1b" in start or "\r" in start else start).split("\n"):
        shown = one_line(line, LINE)
        if shown and not _heading.fullmatch(shown):
            return shown
        heading = heading or shown
    return heading


def one_line(text: str, limit: int) -> str:
    """`text` with blanks for line ends and all that is not printable, at most `limit` characters and an ellipsis."""
    shown = " ".join(text[: 4 * limit].split())
    if not shown.isprintable():
        shown = " ".join(printable(shown, len(shown)).split())
    return shown if len(shown) <= limit else f"{shown[:limit]}…"
