"""One program of the model's, run in the sandbox by `inside/runner.py`, which is spoken to in JSON lines: this is the host's end.

Whatever comes from in there may be forged. It can ask for tool calls, as many as a program may make, and say how the program
ended: nothing else.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any

import msgspec

from kiseki.models.deadline import Deadline
from kiseki.sandboxes.base import Channel
from kiseki.tools.context import CallNotes, ToolContext
from kiseki.trajectory.text import shorten
from kiseki.trajectory.types import InnerCall, ToolCall, ToolRun

MAX_SECONDS = 300.0
"""Of one program; while one of its calls waits for others, the clock stands still."""
MAX_OUTPUT = 50_000
"""Bytes of output that are kept."""
MAX_CALLS = 50
"""Tool calls of one program."""
MAX_FRAME = 1_000_000
"""Bytes of one line, and of all that makes no sense, before the line is given up."""
MAX_REQUEST = 900_000
"""Bytes of one call, so that its line has room for more."""
MAX_RECORDED = 100_000
"""Characters of an inner call's arguments that are kept: no model wrote them, a program can make them as long as it likes."""
STOP_SECONDS = 10.0
"""From the end of its time to word of what the program had written; it takes milliseconds."""
EXCLUDED = frozenset({"execute_code", "delegate_task"})
"""Tools that no program can call: each starts something that has limits of its own."""

_INSIDE = files("kiseki.tools.code.inside")
_FIND = 'command -v python3 >/dev/null 2>&1 || { printf \'{"type":"no_python"}\\n\'; exit; }; exec python3 -I -S -c "$1"'
_OWN_VARIABLES = ("KISEKI_RUN", "KISEKI_SANDBOX")
"""By which what the program starts is found when it has to end, whatever the session exports."""


class _Call(msgspec.Struct, tag="call", tag_field="type"):
    call: int
    name: str
    arguments: msgspec.Raw


class End(msgspec.Struct, tag="end", tag_field="type"):
    """How the program ended. `output`: its first and last half where `total` bytes are more than `MAX_OUTPUT`."""

    exit_code: int
    output: bytes
    total: int


class NotRun(msgspec.Struct, tag="failed", tag_field="type"):
    """The program could not be run."""

    why: str


class NoPython(msgspec.Struct, tag="no_python", tag_field="type"):
    """There is no python3 in the sandbox."""


_decoder: msgspec.json.Decoder[_Call | End | NotRun | NoPython] = msgspec.json.Decoder(_Call | End | NotRun | NoPython)


def runner_argv() -> list[str]:
    """The program to open a channel to."""
    return ["sh", "-c", _FIND, "sh", _INSIDE.joinpath("runner.py").read_text()]


class Conversation:
    """One program's."""

    def __init__(self, channel: Channel, context: ToolContext) -> None:
        self.calls = 0
        """Tool calls that it has made."""
        self.timed_out = False
        self._channel = channel
        self._context = context
        self._notes: CallNotes = context.note()
        self._deadline = Deadline(MAX_SECONDS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, code: str, folder: str, variables: dict[str, str]) -> End | NotRun | NoPython | None:
        """How it ended; None when the runner went without a word. Raises what a tool call raises that is no result."""
        reading = asyncio.ensure_future(self._read())
        try:
            try:
                async with self._deadline.running():
                    await self._channel.write(self._setup(code, folder, variables))
                    ends: list[asyncio.Future[Any]] = [reading, self._broken]
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            except TimeoutError:
                self.timed_out = True
                await self._cancel_calls()
                stopping = asyncio.ensure_future(self._channel.write(b'{"stop":true}\n'))
                await asyncio.wait([reading], timeout=STOP_SECONDS)
                stopping.cancel()
            if self._broken.done():
                self._broken.result()
            return reading.result() if reading.done() else None
        finally:
            reading.cancel()
            await self._cancel_calls()

    def _setup(self, code: str, folder: str, variables: dict[str, str]) -> bytes:
        tools = [each for each in self._context.tool_schemas if each.name not in EXCLUDED]
        return (
            msgspec.json.encode(
                {
                    "program.py": code,
                    "kiseki_tools.py": _INSIDE.joinpath("client.py").read_text(),
                    "tools.json": msgspec.json.encode(tools).decode(),
                    "folder": folder,
                    "variables": variables,
                    "own_variables": _OWN_VARIABLES,
                    "max_output": MAX_OUTPUT,
                    "max_request": MAX_REQUEST,
                    "max_calls": MAX_CALLS,
                }
            )
            + b"\n"
        )

    async def _read(self) -> End | NotRun | NoPython | None:
        buffer = bytearray()
        nonsense = 0
        while data := await self._channel.read():
            buffer += data
            *lines, rest = buffer.split(b"\n") if b"\n" in data else [buffer]
            buffer = rest
            for line in lines:
                try:
                    frame = _decoder.decode(line)
                except (msgspec.DecodeError, RecursionError):
                    nonsense += len(line) + 1
                    continue
                if not isinstance(frame, _Call):
                    return frame
                if self.calls < MAX_CALLS:
                    self.calls += 1
                    task = asyncio.ensure_future(self._call(frame, f"{self._context.call_id}/{self.calls}"))
                    self._tasks.add(task)
                    task.add_done_callback(self._called)
                else:
                    nonsense += len(line) + 1  # The runner refuses these itself.
            if len(buffer) + nonsense > MAX_FRAME:
                return None
        return None

    async def _call(self, frame: _Call, call_id: str) -> None:
        names = [name for name in self._context.tool_names if name not in EXCLUDED]
        if frame.name not in names:
            why = f"a program cannot call {frame.name[:100]!r}; it can call: {', '.join(names) or 'no tools here'}"
            await self._answer(frame.call, False, msgspec.json.encode({"error": why}).decode())
            return
        call = ToolCall(call_id, frame.name, bytes(frame.arguments).decode("utf-8", "replace"))
        context = self._context.for_call(call_id)
        context.on_hold = _Both(self._deadline, self._context.on_hold)
        assert context.call_tool
        content = msgspec.json.encode({"error": "cut off: the program ended, or its time was over"}).decode()
        run = ToolRun(call_id=call_id, name=frame.name, ok=False, timed_out=True)
        try:
            message, run = await context.call_tool(context, call)
            content = message.content
        finally:
            if left := self._context.notes.pop(call_id, None):  # of a call that was cut off
                run = left.add_to(run)
            recorded = msgspec.structs.replace(call, arguments=shorten(call.arguments, MAX_RECORDED)[0])
            self._notes.inner.append(InnerCall(recorded, content, run))
        await self._answer(frame.call, run.ok, content)

    async def _answer(self, number: int, ok: bool, content: str) -> None:
        await self._channel.write(msgspec.json.encode({"call": number, "ok": ok, "content": content}) + b"\n")

    def _called(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and not self._broken.done():
            self._broken.set_exception(error)

    async def _cancel_calls(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._broken.done():
            self._broken.exception()  # Whoever runs this may be cancelled, and nobody asks for it.


class _Both(AbstractContextManager[None]):
    """Enters both; any number of times at once."""

    def __init__(self, first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> None:
        self._first = first
        self._second = second

    def __enter__(self) -> None:
        self._first.__enter__()
        self._second.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._second.__exit__(*error)
        self._first.__exit__(*error)
