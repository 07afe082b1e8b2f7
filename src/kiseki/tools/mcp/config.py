"""Reads `--mcp_config`: the JSON file with `mcpServers` that desktop clients use, and a few keys of our own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kiseki.errors import UsageError
from kiseki.tools.settings import McpServer

MAX_FILE_BYTES = 1_000_000
"""Of the file; real ones have a few hundred."""
MAX_SECONDS = 3600.0
"""Of `timeout`: more is a mistake, as milliseconds are, which some clients count in."""
SCOPES = ("worker", "rollout", "sandbox")
HTTP_TYPES = ("http", "streamable-http", "streamableHttp", "streamable_http")
IGNORED = ("alwaysAllow", "autoApprove", "description", "disabled", "type")
"""Keys that change nothing here, or are dealt with by themselves."""
SHARED = ("scope", "timeout")
STDIO_KEYS = ("command", "args", "env", "cwd")
HTTP_KEYS = ("url", "headers")
EXAMPLE = '{"mcpServers": {"git": {"command": "mcp-server-git", "args": ["--repository", "…"]}}}'
_NAME = re.compile(r"[^\s,][^,\x00-\x1f\x7f]{0,63}")
_SHELL_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}", re.ASCII)


def read_config(path: str, environ: Mapping[str, str]) -> tuple[McpServer, ...]:
    """The servers of the file that are not `disabled`, in its order. `${NAME}` in `args`, `env`, `url` and `headers` is what
    `environ` has for it; `${NAME:-text}` is `text` where it has nothing.

    Raises `UsageError`: no such file, invalid JSON, an unknown key, a missing variable.
    """
    content = _load(path)
    servers = content.get("mcpServers")
    if not isinstance(servers, dict):
        hint = '; its "servers" is the form of another program: rename it' if "servers" in content else ""
        raise UsageError(f'{path} has no object "mcpServers"{hint}; expected is {EXAMPLE}')
    if not servers:
        raise UsageError(f"{path} names no server; expected is {EXAMPLE}")
    found = [_Entry(path, name, entry, environ) for name, entry in servers.items()]
    return tuple(each.server() for each in found if not each.disabled)


def _load(path: str) -> dict[str, Any]:
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"--mcp_config {path}: there is no such file")
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"{path} has more than {MAX_FILE_BYTES:,} bytes: it is no list of servers")
        content = json.loads(data.decode("utf-8-sig"), object_pairs_hook=partial(_object, path))
    except OSError as error:
        raise UsageError(f"--mcp_config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}") from error
    except RecursionError as error:
        raise UsageError(f"{path} is nested too deeply") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no JSON object; expected is {EXAMPLE}")
    return content


def _object(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises `UsageError` for a key that is there twice, as when an entry was copied: only one of them would count."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{path} has {twice!r} twice in one object; rename one, or take it out")
    return found


class _Entry:
    """One entry of `mcpServers` while it is read."""

    def __init__(self, path: str, name: str, entry: Any, environ: Mapping[str, str]) -> None:
        self._where = f"{path}, server {name!r}"
        if not _NAME.fullmatch(name):
            raise UsageError(f"{self._where}: a name has 1 to 64 characters, none of them a comma or a control character")
        if not isinstance(entry, dict):
            raise UsageError(f"{self._where} must be an object with command or url")
        self._name = name
        self._entry = entry
        self._environ = environ
        self._secrets: list[str] = []
        self.disabled = self._get("disabled", bool, False)

    def server(self) -> McpServer:
        entry = self._entry
        if ("command" in entry) == ("url" in entry):
            raise UsageError(f"{self._where} must have either command (a program) or url (an HTTP endpoint)")
        kind = self._get("type", str, "")
        allowed = ("stdio",) if "command" in entry else HTTP_TYPES
        if kind == "sse":
            raise UsageError(
                f'{self._where}: type "sse" is the old transport, which is not spoken here; most such servers offer '
                'streamable HTTP (type "http") too, often at /mcp'
            )
        if kind and kind not in allowed:
            raise UsageError(f"{self._where}: type must be {' or '.join(allowed)} here, not {kind!r}")
        keys = STDIO_KEYS if "command" in entry else HTTP_KEYS
        for key in entry:
            if key not in (*keys, *SHARED, *IGNORED):
                raise UsageError(f"{self._where}: unknown key {key!r}; the keys here are {', '.join((*keys, *SHARED))}")
        scope = self._get("scope", str, "worker")
        if scope not in SCOPES:
            raise UsageError(f"{self._where}: scope must be {', '.join(SCOPES[:-1])} or {SCOPES[-1]}, not {scope!r}")
        if scope == "sandbox" and "url" in entry:
            raise UsageError(f"{self._where}: scope sandbox is for servers with a command; an endpoint runs where it runs")
        timeout = float(self._get("timeout", (int, float), 60.0))
        if not 0 < timeout <= MAX_SECONDS:
            raise UsageError(f"{self._where}: timeout is in seconds, above 0 and up to {MAX_SECONDS:g}, not {timeout:g}")
        shared: dict[str, Any] = {"name": self._name, "scope": scope, "timeout": timeout}
        own = self._stdio(scope) if "command" in entry else self._http()
        return McpServer(**shared, **own, secrets=tuple(dict.fromkeys(self._secrets)))

    def _stdio(self, scope: str) -> dict[str, Any]:
        command = self._get("command", str, "")
        if not command.strip():
            raise UsageError(f"{self._where}: command is empty")
        args = self._get("args", list, [])
        if not all(isinstance(each, str) for each in args):
            raise UsageError(f"{self._where}: args must be a list of strings")
        env = self._strings("env")
        cwd = self._get("cwd", str, "")
        if cwd and scope != "sandbox":
            cwd = str(Path(cwd).expanduser().absolute())
            if not Path(cwd).is_dir():
                raise UsageError(f"{self._where}: cwd {cwd} is no folder")
        texts = (command, cwd, *args, *env, *env.values())
        if any("\0" in each for each in texts) or any(not key or "=" in key for key in env):
            raise UsageError(f"{self._where}: no text may hold a NUL character, and no name in env be empty or hold =")
        if scope == "sandbox" and any("\n" in each for each in env.values()):
            raise UsageError(f"{self._where}: in scope sandbox, env cannot hold line breaks")
        if scope == "sandbox" and (odd := [each for each in env if not _SHELL_NAME.fullmatch(each)]):
            raise UsageError(f"{self._where}: in scope sandbox, names in env are letters, digits and _, not {odd[0]!r}")
        return {"command": command, "args": tuple(self._expand(each) for each in args), "env": env, "cwd": cwd}

    def _http(self) -> dict[str, Any]:
        url = self._expand(self._get("url", str, ""))
        if not re.match(r"https?://[^/?#]", url):
            raise UsageError(f"{self._where}: url must begin with http:// or https:// and a host")
        headers = self._strings("headers")
        for name, value in headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[\t\x20-\x7e]*", value):
                raise UsageError(f"{self._where}: header {name!r} has a name or a value that HTTP cannot carry")
        return {"url": url, "headers": headers}

    def _get(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = self._entry.get(key, default)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kinds):
            names = {str: "a string", list: "a list", dict: "an object", bool: "true or false", int: "a number"}
            raise UsageError(f"{self._where}: {key} must be {names[kinds[0]]}")
        return value

    def _strings(self, key: str) -> dict[str, str]:
        values = self._get(key, dict, {})
        if not all(isinstance(each, str) for each in values.values()):
            raise UsageError(f"{self._where}: the values of {key} must be strings")
        return {name: self._expand(value) for name, value in values.items()}

    def _expand(self, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            value = self._environ.get(name, "")
            if not value and default is None:
                raise UsageError(f"{self._where}: ${{{name}}} is not in the environment; set {name}, or set disabled to true")
            if value:
                self._secrets.append(value)
            return value or default

        return _VARIABLE.sub(value, text)
