"""Views of files that a later view or a rewriting of the same file makes stale, told by the calls alone.

Only what is certain counts: the same path, and the same part of the file or all of it. A relative path is only the same as long
as no command changes the folder.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kiseki.compress.ladder.calls import Observation, arguments_of, outcome
from kiseki.compress.turns import Call

PATHS = ("path", "file_path", "filepath", "filename", "file_name", "file", "target_file")
READERS = {"read_file", "read", "view_file", "view", "file_read", "cat", "open_file", "open"}
WRITERS = {"write_file", "write", "file_write", "create_file"}
EDITORS = {"str_replace_editor", "str_replace_based_edit_tool", "text_editor", "file_editor", "editor"}
SHELLS = {"terminal", "bash", "shell", "execute_bash", "run_command", "execute_command", "run_shell_command", "run", "command"}
CONTENTS = ("content", "contents", "text", "file_text")
_SHOWS = ("cat ", "nl ", "sed ", "head ", "tail ", "open ")
_quoting = re.compile(r"""['"\\]""")
_moves = re.compile(r"\b(?:cd|pushd|popd)\b")
_PARTIAL = ('"truncated":true', '"truncated": true', '"next_offset":', "left out", "more lines", "<response clipped>")
"""How outputs say that they are not whole."""


class View(msgspec.Struct, frozen=True):
    path: str
    part: str
    """Which part of the file, in the call's own words; "" where it names none."""
    whole: bool = False
    """It shows all of the file."""


class Stale(msgspec.Struct, frozen=True):
    """What is known of a view that a later observation makes stale."""

    path: str
    by: int
    """That observation's place in the sequence."""


def superseded(observations: Sequence[Observation], is_note: Iterable[bool]) -> dict[int, Stale]:
    """Observations, by their place in the sequence, that show what is shown again or written anew later. `is_note`: of each,
    whether its output is no longer there: it may be stale, but makes no other one stale."""
    calls = [_read_call(each.call) if each.call else ("", {}) for each in observations]
    keys = _keys(calls)
    parts: dict[tuple[str, str], int] = {}
    wholes: dict[str, int] = {}
    found: dict[int, Stale] = {}
    for place, (each, gone, key) in reversed(list(enumerate(zip(observations, is_note, keys, strict=True)))):
        written, view = _written_path(*calls[place]), _view(*calls[place])
        if not (written or view) or outcome(each.output.text)[0] != "ok":
            continue
        if view:
            path = _from(key, view.path)
            by = wholes.get(path, parts.get((path, view.part)))
            if by is not None:
                found[place] = Stale(view.path, by)
            elif not gone:
                parts[path, view.part] = place
                if view.whole and not any(sign in each.output.text for sign in _PARTIAL):
                    wholes[path] = place
        elif not gone:
            wholes.setdefault(_from(key, written), place)
    return found


def _from(key: str, path: str) -> str:
    return path if path.startswith("/") else key + path


def _keys(calls: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """What a relative path stands for depends on: how often the folder was changed before."""
    keys = []
    moved = 0
    for name, arguments in calls:
        command = _command(name, arguments)
        moved += bool(command and _moves.search(command))
        keys.append(f"{moved}:")
    return keys


def _read_call(call: Call) -> tuple[str, dict[str, Any]]:
    """The tool's name, in one spelling, and the arguments."""
    return call.name.lower().replace("-", "_"), arguments_of(call)


def _view(name: str, arguments: dict[str, Any]) -> View | None:
    """What of which file a call shows; None for a call that is no plain view."""
    if name in SHELLS:
        return _shell_view(_command(name, arguments))
    if name in EDITORS and arguments.get("command") != "view":
        return None
    path = _path(arguments)
    if not path or name not in READERS | EDITORS:
        return None
    part = {key: value for key, value in arguments.items() if key not in (*PATHS, "command") and value is not None}
    text = msgspec.json.encode(part, order="sorted").decode() if part else ""
    return View(path, text, whole=name in EDITORS and not part)


def _written_path(name: str, arguments: dict[str, Any]) -> str:
    """The file that a call writes all of; "" for any other call."""
    if name in WRITERS or (name in EDITORS and arguments.get("command") == "create"):
        return _path(arguments) if any(isinstance(arguments.get(key), str) for key in CONTENTS) else ""
    return ""


def _command(name: str, arguments: dict[str, Any]) -> str:
    """The command line that a call runs; "" where it runs none."""
    if name not in SHELLS:
        return ""
    return next((arguments[key] for key in ("command", "cmd", "code") if isinstance(arguments.get(key), str)), "")


def _shell_view(command: str) -> View | None:
    folder = ""
    if not any(each in command for each in _SHOWS):
        return None
    if moved := re.fullmatch(r"cd (/[\w./-]*) && (.*)", command.strip(), re.DOTALL):
        folder, command = moved[1], moved[2]
    if len(command) > 300 or not command.lstrip().startswith(_SHOWS) or re.search(r"[|;&<>$`*?\n(){}]", command):
        return None
    try:  # shlex is slow
        words = shlex.split(command) if _quoting.search(command) else command.split()
    except ValueError:
        return None
    view: View | None = None
    match words:
        case ["cat" | "nl", *options, path] if all(each.startswith("-") for each in options):
            view = View(path, "", whole=True)
        case ["sed", "-n", part, path] if re.fullmatch(r"\d+,(?:\d+)p", part):
            view = View(path, part)
        case ["head" | "tail" as tool, *options, path] if all(re.fullmatch(r"-n|-?\d+", each) for each in options):
            view = View(path, " ".join([tool, *options]))
        case ["open", path, *line] if all(each.isdigit() for each in line):
            view = View(path, " ".join(["open", *line]))
    if view is None or view.path.startswith("-"):
        return None
    return msgspec.structs.replace(view, path=posixpath.normpath(posixpath.join(folder, view.path)))


def _path(arguments: dict[str, Any]) -> str:
    path = next((arguments[key] for key in PATHS if isinstance(arguments.get(key), str)), "")
    return posixpath.normpath(path) if path else ""
