"""An MCP server of the standard library alone that does what its calls say: dies, hangs, answers anything. Started as
`python odd_server.py [LOG]`; each start appends a line to LOG, each cancelled call another. With STUBBORN in the environment it
takes no notice of signals, nor of the end of its stdin."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

LOG = sys.argv[1] if len(sys.argv) > 1 else ""
OBJECT = {"type": "object", "properties": {}}
LISTING = [
    {"name": name, "description": f"{name} it", "inputSchema": OBJECT}
    for name in ("answer", "raw", "count", "die", "leave", "hang", "slow", "fail", "ask", "big", "look", "spawn")
]
ASKED: dict[str, int] = {}
count = 0


def log(line: str) -> None:
    if LOG:
        with open(LOG, "a") as file:
            file.write(line + "\n")


def send(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


def later(number: int, seconds: float) -> None:
    time.sleep(seconds)
    send({"id": number, "result": text("late")})


def spawn() -> int:
    """A program that leaves the server's process group, as a browser does."""
    return subprocess.Popen(["sleep", "600"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL).pid


def call(number: int, name: str, given: dict[str, Any]) -> None:
    global count
    if name == "die":
        print("dying", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "hang":
        time.sleep(3600)
    if name == "fail":
        send({"id": number, "error": {"code": -32603, "message": given["message"]}})
    elif name == "raw":
        sys.stdout.buffer.write(base64.b64decode(given["line"]).replace(b"ID", str(number).encode()) + b"\n")
        sys.stdout.buffer.flush()
    elif name == "slow":
        threading.Thread(target=later, args=(number, given["seconds"]), daemon=True).start()
    elif name == "ask":
        ASKED["ask"] = number
        send({"id": "ask", "method": given["method"], "params": given["params"]})
    elif name == "big":
        send({"id": number, "result": text("x" * given["size"])})
    else:
        count += name == "count"
        results = {
            "spawn": text(str(spawn()) if name == "spawn" else ""),
            "count": text(str(count)),
            "look": text(json.dumps([os.getpid(), str(Path.cwd()), dict(os.environ)])),
            "leave": text("bye"),
        }
        send({"id": number, "result": given["result"] if name == "answer" else results[name]})
    if name == "leave":
        os._exit(0)


def serve(message: dict[str, Any]) -> None:
    number: Any = message.get("id")
    method, given = message.get("method"), message.get("params") or {}
    if method is None:
        send(
            {
                "id": ASKED[number],
                "result": text(json.dumps(message["result"] if "result" in message else message["error"]["message"])),
            }
        )
    elif method == "initialize":
        about = {"protocolVersion": given["protocolVersion"], "capabilities": {"tools": {}}}
        send({"id": number, "result": {**about, "serverInfo": {"name": "odd", "version": "1"}}})
    elif method == "tools/list":
        listing = json.loads(os.environ.get("LISTING", "null")) or LISTING
        start = int(given.get("cursor") or 0)
        page = {"tools": listing[start : start + 5]}
        more = {"nextCursor": str(start + 5)} if start + 5 < len(listing) else {}
        send({"id": number, "result": {**page, **more}})
    elif method == "tools/call":
        call(number, given["name"], given.get("arguments") or {})
    elif method == "notifications/cancelled":
        log(f"cancelled {given['requestId'] is not None}")
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": "Method not found"}})


log("start")
stubborn = bool(os.environ.get("STUBBORN"))
if stubborn:
    for each in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
if os.environ.get("FAIL"):
    sys.exit(f"no luck with {os.environ['FAIL']}")
print("a line that is no message", flush=True)
for line in sys.stdin.buffer:
    serve(json.loads(line))
while stubborn:
    time.sleep(60)
