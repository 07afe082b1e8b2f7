"""The `terminal` toolset: commands in the rollout's shell session, and processes beside it.

Output goes to the model as the command wrote it, escape sequences and carriage returns included: programs see no terminal and
seldom write them, and taking them out would falsify the output of those that show what a file holds. Only bytes that are no
UTF-8 are replaced (U+FFFD), and output above `MAX_OUTPUT` loses its middle, with a line in it that says how much.
"""

from __future__ import annotations

import posixpath
from typing import Any, Literal

from kiseki.errors import ToolError
from kiseki.sandboxes.base import KILLED
from kiseki.tools import processes
from kiseki.tools.context import ToolContext
from kiseki.tools.paths import RESTARTED, absolute, check_path, session_place
from kiseki.tools.registry import tool

MAX_OUTPUT = 30_000
"""Bytes: about 8,000 tokens, so that a few noisy commands do not fill a context window."""
MAX_SECONDS = 600.0
"""Longest foreground command or wait."""
MIN_SECONDS = 1.0
MAX_LINES = 2_000
"""Of one page of a log."""
CALL_SECONDS = 3 * MAX_SECONDS
"""Only a net: the sandbox keeps the command's own limit, and a call may first wait for others in the same session."""

Action = Literal["list", "poll", "log", "wait", "kill", "write"]


class _Processes:
    """The background processes of one rollout."""

    def __init__(self) -> None:
        self.known: dict[str, processes.Process] = {}
        self.count = 0


def _processes(context: ToolContext) -> _Processes:
    found = context.state.setdefault("terminal", _Processes())
    assert isinstance(found, _Processes)
    return found


def _seconds(timeout: float, least: float = MIN_SECONDS) -> tuple[float, str]:
    """The time limit that counts, and what to tell the model when it is another than it asked for."""
    allowed = min(max(timeout, least), MAX_SECONDS)
    if allowed == timeout:
        return allowed, ""
    return allowed, f"timeout was set to {allowed:g} s (allowed: {least:g} to {MAX_SECONDS:g})"


@tool(toolset="terminal", timeout=CALL_SECONDS)
async def terminal(
    context: ToolContext, command: str, timeout: float = 180, workdir: str = "", background: bool = False
) -> dict[str, Any]:
    """Run a shell command in a persistent session: the current folder, exported variables and shell functions are still
    there in the next call. Gives its output (stdout and stderr together) and exit code. Its stdin is empty, so use
    non-interactive flags. For servers, watchers and anything that runs long, set background to true and follow it with the
    process tool.

    Args:
        command: The command line, any shell syntax.
        timeout: Seconds until the command is killed, 600 at most. Not for background commands.
        workdir: Folder to change to first; empty stays in the session's current folder.
        background: Start the command detached and return at once with a session_id for the process tool.
    """
    if not command.strip():
        raise ToolError("command is empty")
    if "\0" in command:
        raise ToolError("command contains a NUL character, which no shell can take")
    if workdir:
        check_path(workdir, "workdir")
        workdir = await absolute(context, workdir) if workdir.startswith("~") else workdir
    if background:
        return await _start(context, command, workdir)
    limit, note = _seconds(timeout)
    notes = [note] if note else []
    result = await context.sandbox.exec(command, timeout=limit, workdir=workdir or None, max_output=MAX_OUTPUT)
    answer: dict[str, Any] = {"output": result.output, "exit_code": result.exit_code}
    if result.truncated:
        answer["truncated"] = True
    if result.timed_out:
        goes_on = "a new session stands" if result.session_restarted else "the session goes on"
        answer["timed_out"] = True
        answer["error"] = f"the command was killed after {limit:g} s; {goes_on}"
    elif result.exit_code == KILLED and (memory := context.sandbox.describe().get("memory", "")).endswith(" MB"):
        notes.append(f"a program was killed (SIGKILL); the memory limit here is {memory}")
    if context.state.pop(RESTARTED, False) or result.session_restarted:
        notes.append("the shell was restarted, in the folder of before this command; variables and functions are reset")
    if notes:
        answer["note"] = "; ".join(notes)
    return answer


async def _start(context: ToolContext, command: str, workdir: str) -> dict[str, Any]:
    ours = _processes(context)
    ours.count += 1
    session_id = f"proc_{ours.count}"
    folder, variables = await session_place(context)
    folder = posixpath.join(folder, workdir)
    ours.known[session_id] = await processes.start(context.sandbox, session_id, command, folder, variables)
    return {"session_id": session_id, "status": "running"}


@tool(toolset="terminal", timeout=CALL_SECONDS)
async def process(
    context: ToolContext,
    action: Action,
    session_id: str = "",
    data: str = "",
    timeout: float = 30,
    offset: int = 0,
    limit: int = 200,
) -> dict[str, Any]:
    """Follow and control the background processes that terminal started. Actions: list (all of them), poll (status and the
    output since the last poll or wait), log (lines of the whole output), wait (until it ends or timeout; then as poll),
    kill (the process and all that it started), write (send data to its stdin).

    Args:
        action: What to do.
        session_id: Which process, as terminal returned it. Needed for every action but list.
        data: For write: sent exactly as it is, so end a line with a line break. A Ctrl-D (U+0004) at its end closes stdin.
        timeout: For wait: seconds, 600 at most.
        offset: For log: first line, counted from 1; 0 shows the last lines.
        limit: For log: how many lines, 2000 at most.
    """
    ours = _processes(context)
    if action == "list":
        known = list(ours.known.values())
        found = await processes.states(context.sandbox, known)
        return {
            "processes": [
                {"session_id": each.session_id, "command": each.command, "status": now.status, "exit_code": now.exit_code}
                for each, now in zip(known, found, strict=True)
            ]
        }
    chosen = ours.known.get(session_id)
    if chosen is None:
        known_ids = ", ".join(ours.known) or "none: terminal with background true starts one"
        raise ToolError(f"there is no process with session_id {session_id!r}; there are: {known_ids}")
    if action == "write":
        return await _write(context, chosen, data)
    if action == "log":
        return await _log(context, chosen, offset, limit)
    notes = []
    if action == "kill":
        _, ended = await processes.kill(context.sandbox, chosen)
        notes += ["it had ended before"] if ended else []
    seconds, note = _seconds(timeout, 0) if action == "wait" else (0.0, "")
    notes += [note] if note else []
    now, output, cut = await processes.poll(context.sandbox, chosen, seconds, MAX_OUTPUT)
    answer: dict[str, Any] = {"session_id": session_id, "status": now.status, "exit_code": now.exit_code, "output": output}
    if cut:
        answer["truncated"] = True
    if action == "wait" and now.status == "running":
        notes.append(f"still running after {seconds:g} s")
    if now.status == "lost":
        notes.append("it was killed from outside, so its exit code is not known")
    if notes:
        answer["note"] = "; ".join(notes)
    return answer


async def _log(context: ToolContext, chosen: processes.Process, offset: int, limit: int) -> dict[str, Any]:
    lines = min(max(limit, 1), MAX_LINES)
    now, output, first, total, cut = await processes.log(context.sandbox, chosen, max(offset, 0), lines, MAX_OUTPUT)
    if first > max(total, 1):
        raise ToolError(f"offset {offset} is past the end: the log has {total} lines")
    answer: dict[str, Any] = {
        "session_id": chosen.session_id,
        "status": now.status,
        "exit_code": now.exit_code,
        "output": output,
        "first_line": first,
        "total_lines": total,
    }
    if first + lines <= total:
        answer["next_offset"] = first + lines
    if cut:
        answer["truncated"] = True
    return answer


async def _write(context: ToolContext, chosen: processes.Process, data: str) -> dict[str, Any]:
    if not data:
        raise ToolError("data is empty: nothing to write")
    if chosen.closed:
        raise ToolError(f"the stdin of {chosen.session_id} is closed")
    now = await processes.write(context.sandbox, chosen, data)
    if now.status != "running":
        code = "" if now.exit_code is None else f" (exit code {now.exit_code})"
        raise ToolError(f"{chosen.session_id} has ended{code}: it takes no input")
    written = len(data.removesuffix(processes.END_OF_INPUT).encode())
    return {"session_id": chosen.session_id, "status": now.status, "bytes_written": written} | (
        {"stdin": "closed"} if chosen.closed else {}
    )
