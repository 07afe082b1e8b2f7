"""Globs as ripgrep's `-g` takes them, as regular expressions. Pure, no I/O.

Without a slash a glob is about the file's name in any folder, with one it is about the whole path below the folder searched.
`*` and `?` stop at slashes, `**` crosses them; `[a-z]`, `[!a-z]` and `{one,other}` are known; a leading `!` turns it round.
"""

from __future__ import annotations

import re

from kiseki.errors import ToolError


def glob_regex(glob: str) -> str:
    """A Python regular expression that fully matches the paths (relative, no leading `./`). Raises `ToolError`."""
    pattern = glob.removeprefix("!")
    anchored = "/" in pattern.rstrip("/")
    pattern = pattern.removeprefix("./").removeprefix("/")
    regex = _translate(pattern, glob)
    if not anchored:
        regex = f"(?:.*/)?{regex}"
    return f"(?!(?:{regex})(?:/.*)?\\Z).+" if glob.startswith("!") else regex


def _translate(pattern: str, glob: str) -> str:
    parts: list[str] = []
    at, depth = 0, 0
    while at < len(pattern):
        char = pattern[at]
        if pattern.startswith("**/", at) and (at == 0 or pattern[at - 1] == "/"):
            parts.append("(?:.*/)?")
            at += 3
            continue
        if pattern[at:] == "**" and (at == 0 or pattern[at - 1] == "/"):
            parts.append(".+")
            at += 2
            continue
        if char == "*":
            parts.append("[^/]*")
        elif char == "?":
            parts.append("[^/]")
        elif char == "[":
            end = pattern.find("]", at + (3 if pattern[at + 1 : at + 2] in ("!", "^") else 2))
            if end < 0:
                raise ToolError(f"the glob {glob!r} has a [ without its ]")
            body = pattern[at + 1 : end]
            negated = body[:1] in ("!", "^")
            inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", body[1:] if negated else body)
            parts.append(f"(?!/)[{'^' if negated else ''}{inside}]")
            at = end
        elif char == "{":
            depth += 1
            parts.append("(?:")
        elif char == "}" and depth:
            depth -= 1
            parts.append(")")
        elif char == "," and depth:
            parts.append("|")
        elif char == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append(re.escape(char))
        at += 1
    if depth:
        raise ToolError(f"the glob {glob!r} has a {{ without its }}")
    regex = "".join(parts)
    try:
        re.compile(regex)
    except re.error as error:
        raise ToolError(f"the glob {glob!r} is not valid: {error}") from error
    return regex
