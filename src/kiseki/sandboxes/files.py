"""Reading and writing a sandbox's files through a program inside it.

A path is resolved by the sandbox, never by the host: a link to /etc/passwd in there leads to the sandbox's own.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable

from kiseki.errors import ToolError

FILE_TIMEOUT = 60.0
"""Seconds for one file: 50 MB takes a tenth of one; more means that the sandbox is stuck."""

RunScript = Callable[[str, bytes, int, float], Awaitable[tuple[int, bytes, bool]]]
"""(script, stdin, most bytes, seconds) → (status, stdout, whether there was more)."""

_NO_FOLDER, _MISSING, _FOLDER, _SPECIAL, _DENIED, _FAILED = range(41, 47)
_REASONS = {
    _NO_FOLDER: "the working folder {folder} is gone",
    _MISSING: "no such file: {path}",
    _FOLDER: "{path} is a folder",
    _SPECIAL: "{path} is not a regular file",
    _DENIED: "permission denied: {path}",
}
_READ = f"""
cd -- {{folder}} || exit {_NO_FOLDER}
f={{path}}
[ -e "$f" ] || exit {_MISSING}
[ ! -d "$f" ] || exit {_FOLDER}
[ -f "$f" ] || exit {_SPECIAL}
[ -r "$f" ] || exit {_DENIED}
exec cat -- "$f" 2>&1"""
_WRITE = f"""
cd -- {{folder}} || exit {_NO_FOLDER}
f={{path}}
d=${{{{f%/*}}}}
exec 2>&1
[ ! -d "$f" ] || exit {_FOLDER}
[ -f "$f" ] || [ ! -e "$f" ] || exit {_SPECIAL}
[ -d "$d/" ] || mkdir -p -- "$d/" || exit {_FAILED}
cat >"$f" || exit {_FAILED}"""


async def read(run: RunScript, path: str, folder: str, max_bytes: int) -> bytes:
    script = _script(_READ, path, folder)
    status, data, more = await run(script, b"", max_bytes, FILE_TIMEOUT)
    if more:
        raise ToolError(f"{path} is larger than {max_bytes:,} bytes")
    if status:
        raise _error("read", path, folder, status, data)
    return data


async def write(run: RunScript, path: str, folder: str, data: bytes) -> None:
    script = _script(_WRITE, path, folder)
    status, said, _ = await run(script, data, 4096, FILE_TIMEOUT)
    if status:
        raise _error("write", path, folder, status, said)


def _script(template: str, path: str, folder: str) -> str:
    """With the path as a word that no program takes for an option or for stdin; only a relative one needs the folder."""
    if not path or "\0" in path:
        raise ToolError("a path must not be empty or hold a NUL character")
    absolute = path.startswith("/")
    return template.format(path=shlex.quote(path if absolute else f"./{path}"), folder="/" if absolute else shlex.quote(folder))


def _error(verb: str, path: str, folder: str, status: int, said: bytes) -> ToolError:
    if status in _REASONS:
        return ToolError(_REASONS[status].format(path=path, folder=folder))
    return ToolError(f"cannot {verb} {path}: {reason(said) or f'status {status}'}")


def reason(said: bytes) -> str:
    """Why a program failed, of its words; "" when it said none."""
    # "sh: 7: cannot create /x: Permission denied", "mkdir: cannot create directory '/x': Not a directory": the reason is last.
    words = said.decode(errors="replace").strip().splitlines()
    return words[-1].rpartition(": ")[2] if words else ""
