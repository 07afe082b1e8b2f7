"""The `mcpServers` file: what desktop clients write is taken, and what cannot be meant is refused with file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp_servers import config

from kiseki.errors import UsageError
from kiseki.tools.mcp.config import read_config
from kiseki.tools.settings import McpServer

ENVIRON = {"TOKEN": "t0ken-of-mine", "EMPTY": ""}


def read(folder: Path, **servers: Any) -> tuple[McpServer, ...]:
    return read_config(config(folder, **servers), ENVIRON)


def test_what_desktop_clients_write(tmp_path: Path) -> None:
    one, two, three = read(
        tmp_path,
        git={"command": "uvx", "args": ["mcp-server-git", "--token=${TOKEN}"], "env": {"A": "${env:TOKEN}", "B": "${EMPTY:-b}"}},
        off={"command": "x", "disabled": True, "args": ["${MISSING}"]},
        far={"type": "streamable-http", "url": "https://h/${TOKEN}", "headers": {"X": "Bearer ${TOKEN}"}, "alwaysAllow": []},
        own={"type": "stdio", "command": "x", "cwd": str(tmp_path), "scope": "rollout", "timeout": 5, "description": "mine"},
    )
    assert one.args == ("mcp-server-git", "--token=t0ken-of-mine") and one.env == {"A": "t0ken-of-mine", "B": "b"}
    assert one.secrets == ("t0ken-of-mine",) and (one.scope, one.timeout) == ("worker", 60.0)
    assert two.url == "https://h/t0ken-of-mine" and two.headers == {"X": "Bearer t0ken-of-mine"}
    assert (three.scope, three.timeout, three.cwd) == ("rollout", 5.0, str(tmp_path))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"command": "x", "sope": "worker"}, "unknown key 'sope'; the keys here are command, args, env, cwd, scope, timeout"),
        ({"url": "http://h", "args": []}, "unknown key 'args'; the keys here are url, headers, scope, timeout"),
        ({}, "must have either command (a program) or url (an HTTP endpoint)"),
        ({"command": "x", "url": "http://h"}, "must have either command (a program) or url (an HTTP endpoint)"),
        ("x", "must be an object with command or url"),
        ({"command": " "}, "command is empty"),
        ({"command": "x", "args": "a b"}, "args must be a list"),
        ({"command": "x", "args": [1]}, "args must be a list of strings"),
        ({"command": "x", "env": {"A": 1}}, "the values of env must be strings"),
        ({"command": "x", "env": {"A=B": "1"}}, "no name in env be empty or hold ="),
        ({"command": "x", "args": ["a\0"]}, "no text may hold a NUL character"),
        ({"command": "x", "env": {"A": "a\nb"}, "scope": "sandbox"}, "in scope sandbox, env cannot hold line breaks"),
        ({"command": "x", "env": {"a.b": "a"}, "scope": "sandbox"}, "names in env are letters, digits and _, not 'a.b'"),
        ({"command": "x", "cwd": "/no/such/folder"}, "cwd /no/such/folder is no folder"),
        ({"command": "x", "scope": "run"}, "scope must be worker, rollout or sandbox, not 'run'"),
        ({"url": "http://h", "scope": "sandbox"}, "scope sandbox is for servers with a command"),
        ({"command": "x", "timeout": 30000}, "timeout is in seconds, above 0 and up to 3600, not 30000"),
        ({"command": "x", "timeout": "30"}, "timeout must be a number"),
        ({"command": "x", "timeout": True}, "timeout must be a number"),
        ({"command": "x", "disabled": "no"}, "disabled must be true or false"),
        ({"url": "h/mcp"}, "url must begin with http:// or https:// and a host"),
        ({"url": "http://h", "type": "sse"}, 'type "sse" is the old transport'),
        ({"command": "x", "type": "http"}, "type must be stdio here, not 'http'"),
        ({"url": "http://h", "headers": {"A b": "1"}}, "header 'A b' has a name or a value that HTTP cannot carry"),
        ({"url": "http://h", "headers": {"A": "1\r\nB: 2"}}, "header 'A' has a name or a value that HTTP cannot carry"),
        ({"command": "x", "args": ["${NOT_THERE}"]}, "${NOT_THERE} is not in the environment; set NOT_THERE"),
        ({"command": "x", "env": {"A": "${EMPTY}"}}, "${EMPTY} is not in the environment"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, entry: Any, message: str) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, some=entry)
    assert message in str(error.value) and str(error.value).startswith(f"{tmp_path / 'mcp.json'}, server 'some'")
    assert "t0ken" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"mcpServers": {\n  "a": {"command": "x",}\n}}', "line 2, column 24: not valid JSON"),
        ("[]", "holds no JSON object"),
        ("{}", 'has no object "mcpServers"'),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "has 'a' twice in one object"),
        ('{"servers": {}}', 'its "servers" is the form of another program'),
        ('{"mcpServers": {}}', "names no server"),
        ('{"mcpServers": {"a,b": {}}}', "a name has 1 to 64 characters, none of them a comma"),
        ("[" * 100_000, "is nested too deeply"),
        ("\xff", "is not UTF-8 text"),
        (json.dumps("x" * 1_000_001), "it is no list of servers"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError) as error:
        read_config(str(file), {})
    assert message in str(error.value) and str(file) in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        read_config(str(tmp_path / "none.json"), {})
