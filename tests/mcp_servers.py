"""MCP servers for the tests: the real ones from the registries, and one of our own that does what none should.

`mcp-server-git` is a Python package; those of npm are looked for in `node/node_modules` of the virtual environment. A test that
finds none is skipped, or fails where KISEKI_REQUIRE_ENGINES is set, as `.ci/run` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NODE_MODULES = Path(sys.prefix) / "node" / "node_modules"
ODD_SERVER = Path(__file__).parent / "tools" / "mcp" / "odd_server.py"
START_SECONDS = 30.0


def odd(log: Path | str = "", **more: Any) -> dict[str, Any]:
    """The entry of a server that does what its calls say; each start appends a line to `log`. `more`: other keys."""
    return {"command": sys.executable, "args": ["-S", str(ODD_SERVER), str(log)], **more}


def git(repository: Path) -> dict[str, Any]:
    """The entry of `mcp-server-git` on a new repository with one commit."""
    _need(_has_module("mcp_server_git") and shutil.which("git"), "mcp-server-git and git")
    repository.mkdir()
    (repository / "a.txt").write_text("one\n")
    for command in (["init", "-q", "-b", "main"], ["add", "a.txt"], ["commit", "-q", "-m", "first words"]):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *identity, *command], cwd=repository, check=True)
    return {"command": sys.executable, "args": ["-m", "mcp_server_git", "--repository", str(repository)]}


def npm(name: str, *arguments: str) -> dict[str, Any]:
    """The entry of `@modelcontextprotocol/server-<name>`."""
    return {"command": "node", "args": [_script(name), *arguments]}


@contextlib.contextmanager
def everything_over_http() -> Iterator[str]:
    """`server-everything` as a streamable HTTP endpoint on loopback: its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["node", _script("everything"), "streamableHttp"],
        env={**os.environ, "PORT": str(port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


def config(folder: Path, **servers: Any) -> str:
    """A file with these servers; its path."""
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return str(file)


def _script(name: str) -> str:
    file = NODE_MODULES / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
    _need(file.exists() and shutil.which("node"), f"node and @modelcontextprotocol/server-{name} in {NODE_MODULES}")
    return str(file)


def _has_module(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _need(there: object, what: str) -> None:
    if there:
        return
    if os.environ.get("KISEKI_REQUIRE_ENGINES"):
        pytest.fail(f"needs {what}, and KISEKI_REQUIRE_ENGINES is set")
    pytest.skip(f"needs {what}")
