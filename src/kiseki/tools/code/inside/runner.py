"""Runs one program inside the sandbox, and passes on its tool calls.

Speaks with the host in JSON lines on stdin and stdout (`conversation.py` is the other end). The program is a child with an empty
stdin; each of its tool calls is a connection to a Unix socket, so that threads, forks and subprocesses can call, too. Its source
is sent as an argument of `python3 -c`; Python 3.6 and its standard library are all that it needs.
"""

import base64
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MAX_CONNECTIONS = 64
READ_SIZE = 65536
START = "__import__('sys').path.insert(1, %r); __import__('kiseki_tools')._run(%r)"


def send(frame: "dict[str, Any]") -> None:
    data = json.dumps(frame, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


class Kept:
    """The first and the last of what the program writes."""

    def __init__(self, limit: int) -> None:
        self.total = 0
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 4 * self._limit:
            del self._tail[: -self._limit]

    def data(self) -> bytes:
        if self.total <= self._limit:
            return bytes(self._head)
        half = self._limit // 2
        return bytes(self._head[:half] + (self._head[half:] + self._tail)[-half:])


class Caller:
    """One connection: one tool call."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.request = bytearray()
        self.size = 0
        self.asked = False
        self.answer = b""


class Runner:
    def __init__(self, setup: "dict[str, Any]", folder: str, early: bytes) -> None:
        self.setup = setup
        self.folder = folder
        self.frames = bytearray(early)
        self.kept = Kept(setup["max_output"])
        self.selector = selectors.DefaultSelector()
        self.callers = {}  # type: dict[int, Caller]
        self.calls = 0
        self.host_is_there = True
        self.started = False

    def run(self) -> "dict[str, Any]":
        """How the program ended."""
        listener = self.listen()
        child, output = self.start()
        try:
            self.selector.register(0, selectors.EVENT_READ, self.hear)
            self.selector.register(output, selectors.EVENT_READ, self.keep)
            self.selector.register(listener, selectors.EVENT_READ, self.accept)
            self.child = child
            self.hear_frames()
            while child.poll() is None and self.host_is_there:
                for key, events in self.selector.select():
                    key.data(key.fileobj, events)
        finally:
            self.kill()
        self.rest_of(output)
        code = child.wait()
        data = base64.b64encode(self.kept.data()).decode()
        return {"type": "end", "exit_code": code if code >= 0 else 128 - code, "output": data, "total": self.kept.total}

    def listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(self.folder, os.O_RDONLY)  # a socket's path may have 107 bytes
        listener.bind(f"/proc/self/fd/{folder}/line")
        os.close(folder)
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
        return listener

    def start(self) -> "tuple[subprocess.Popen[bytes], int]":
        for name in ("kiseki_tools.py", "tools.json", "program.py"):
            Path(self.folder, name).write_bytes(self.setup[name].encode("utf-8", "surrogatepass"))
        environment = dict(os.environ, **self.setup["variables"])
        environment.update((name, os.environ[name]) for name in self.setup["own_variables"] if name in os.environ)
        python = shutil.which("python3", path=environment.get("PATH")) or sys.executable
        # A signal that wakes `select`: the end of the child.
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake.fileno())
        self.wake = wake
        self.selector.register(woken, selectors.EVENT_READ, lambda line, events: line.recv(READ_SIZE))
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        start = START % (self.folder, str(Path(self.folder, "program.py")))
        child = subprocess.Popen(
            [python, "-u", "-c", start],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.STDOUT,
            cwd=self.setup["folder"],
            env=environment,
            start_new_session=True,
        )
        os.close(writing)
        self.started = True
        return child, reading

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.child.pid, signal.SIGKILL)

    # From the host

    def hear(self, descriptor: int, events: int) -> None:
        data = os.read(0, READ_SIZE)
        if not data:
            self.host_is_there = False
        self.frames += data
        self.hear_frames()

    def hear_frames(self) -> None:
        while b"\n" in self.frames:
            line, _, self.frames = self.frames.partition(b"\n")
            frame = json.loads(line.decode())
            if frame.get("stop"):
                self.kill()
            else:
                caller = self.callers.pop(frame["call"], None)
                if caller:
                    self.answer(caller, frame["ok"], frame["content"])

    # From the program

    def keep(self, output: int, events: int) -> None:
        try:
            data = os.read(output, READ_SIZE)
        except BlockingIOError:
            return
        self.kept.add(data)
        if not data:
            self.selector.unregister(output)

    def rest_of(self, output: int) -> None:
        """What lies in the pipe; something in the background may go on and on."""
        for _ in range(64):
            try:
                data = os.read(output, READ_SIZE)
            except BlockingIOError:
                return
            self.kept.add(data)
            if not data:
                return

    def accept(self, listener: socket.socket, events: int) -> None:
        try:
            line, _ = listener.accept()
        except OSError:
            return
        line.setblocking(False)
        caller = Caller(line)
        self.selector.register(line, selectors.EVENT_READ, lambda line, events: self.serve(caller, events))

    def serve(self, caller: Caller, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                caller.answer = caller.answer[caller.line.send(caller.answer) :]
                if not caller.answer:
                    self.drop(caller)
                return
            data = caller.line.recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(caller)
        elif not caller.asked:
            caller.size += len(data)
            if caller.size <= self.setup["max_request"]:
                caller.request += data
            if b"\n" in data:  # Not before: whoever is still sending does not listen.
                caller.asked = True
                self.ask(caller)

    def ask(self, caller: Caller) -> None:
        if self.calls >= self.setup["max_calls"]:
            self.refuse(caller, f"a program may make {self.calls} tool calls; more need another program")
            return
        if caller.size > self.setup["max_request"]:
            self.refuse(caller, f"the arguments are larger than {self.setup['max_request']} bytes")
            return
        self.calls += 1
        try:
            request = json.loads(bytes(caller.request).decode())
            name, arguments = request["name"], request["arguments"]
            if not isinstance(name, str) or not isinstance(arguments, dict):
                raise ValueError("a tool has a name, which is text, and arguments, which are a dict")
            self.callers[self.calls] = caller
            send({"type": "call", "call": self.calls, "name": name, "arguments": arguments})
        except BrokenPipeError:
            self.host_is_there = False
        except Exception as error:
            self.callers.pop(self.calls, None)
            self.refuse(caller, f"no such call can be made: {error}")

    def refuse(self, caller: Caller, why: str) -> None:
        self.answer(caller, False, json.dumps({"error": why}))

    def answer(self, caller: Caller, ok: bool, content: str) -> None:
        if caller.line.fileno() >= 0:
            caller.answer = json.dumps({"ok": ok, "content": content}).encode()
            self.selector.modify(caller.line, selectors.EVENT_WRITE, self.selector.get_key(caller.line).data)

    def drop(self, caller: Caller) -> None:
        self.selector.unregister(caller.line)
        caller.line.close()


def main() -> None:
    data = bytearray()
    while b"\n" not in data:
        more = os.read(0, READ_SIZE)
        if not more:
            return
        data += more
    setup, _, early = bytes(data).partition(b"\n")
    folder = tempfile.mkdtemp(prefix=".code.")
    runner = Runner(json.loads(setup.decode()), folder, early)
    try:
        end = runner.run()
    except Exception:
        if runner.started:  # The program has broken something here, and the host finds that there is no word of an end.
            return
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    send(end)  # The last thing: the host kills what is left.


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # the disk is full, no process is to be had, the folder is gone
        send({"type": "failed", "why": f"{type(error).__name__}: {error}"})
