"""Paths as the model writes them, seen from inside the sandbox. Never touches the host's files."""

from __future__ import annotations

import posixpath
from difflib import get_close_matches

from kiseki.errors import SandboxError, ToolError
from kiseki.tools.context import ToolContext

PROBE_SECONDS = 20.0
"""For the small programs that look something up: a slow machine's answer still counts, a hung one's does not."""
MAX_SUGGESTED = 5

RESTARTED = "session_restarted"
"""Of the rollout's state: a look into the session found a new shell, and the model does not know yet."""
_MARK = "\036"
"""Record separator: parts our own answer from whatever else the session prints (traces, job notices)."""
_WHERE = (
    r"""( { set +x; } 2>/dev/null; command printf '\036%s\036' "$PWD"; command env -0 2>/dev/null || :; command printf '\036' )"""
)
_PROBE = r"""
if [ -d "$1" ]; then echo folder
elif [ -e "$1" ]; then echo file
elif cd "${1%/*}/" 2>/dev/null; then echo missing; ls -A | head -n 2000
else echo unreachable
fi"""


class MissingFile(ToolError):
    """There is no such file; the message says what is there instead."""


def check_path(path: str, name: str = "path") -> str:
    """`path`, or `ToolError` for one that no file can have."""
    if not path.strip():
        raise ToolError(f"{name} is empty")
    if "\0" in path:
        raise ToolError(f"{name} contains a NUL character")
    return path


async def session_place(context: ToolContext) -> tuple[str, dict[str, str]]:
    """The session's current folder and its exported variables (none where the sandbox's `env` cannot list them safely)."""
    result = await context.sandbox.exec(_WHERE, timeout=PROBE_SECONDS, max_output=4_000_000)
    if result.session_restarted:
        context.state[RESTARTED] = True
    parts = result.output.split(_MARK)
    if len(parts) < 3 or not parts[1].startswith("/"):
        raise SandboxError(f"the session did not tell its folder: {result.output[:200]!r}")
    pairs = (pair.partition("=") for pair in _MARK.join(parts[2:-1]).split("\0"))
    return parts[1], {name: value for name, found, value in pairs if found and name}


async def absolute(context: ToolContext, path: str) -> str:
    """`path` from the root of the sandbox; a relative one starts at the session's folder, `~` is the home folder."""
    check_path(path)
    if path.startswith("/"):
        return path
    if path == "~" or path.startswith("~/"):
        _, home = await context.sandbox.run(["sh", "-c", 'printf %s "$HOME"'], timeout=PROBE_SECONDS)
        return posixpath.join(home.decode("utf-8", "replace"), path[2:])
    folder, _ = await session_place(context)
    return posixpath.join(folder, path)


async def explain_unreadable(context: ToolContext, path: str, error: ToolError) -> ToolError:
    """What to tell the model when `path` could not be read: a folder, no such file but similar names, or the error itself."""
    place = await absolute(context, path)
    _, answer = await context.sandbox.run(["sh", "-c", _PROBE, "sh", place], timeout=PROBE_SECONDS)
    kind, *names = answer.decode("utf-8", "replace").splitlines() or [""]
    if kind == "folder":
        return ToolError(f'{path} is a folder; search_files(pattern="*", target="files", path={path!r}) lists its files')
    if kind == "unreachable":
        return MissingFile(f"no such file: {path} (there is no folder {posixpath.dirname(path)})")
    if kind != "missing":
        return error
    wanted = posixpath.basename(path)
    of_folded = {name.lower(): name for name in names}
    close = [of_folded[each] for each in get_close_matches(wanted.lower(), of_folded, MAX_SUGGESTED, 0.6)]
    close += [name for name in names if wanted and wanted.lower() in name.lower() and name not in close]
    folder = posixpath.dirname(path)
    shown = ", ".join(posixpath.join(folder, name) for name in close[:MAX_SUGGESTED])
    return MissingFile(f"no such file: {path}" + (f"; similar names there: {shown}" if shown else ""))
