"""The `code_execution` toolset: a Python program in the sandbox that can call the rollout's other tools."""

from __future__ import annotations

from typing import Any

from kiseki.errors import ToolError
from kiseki.sandboxes.base import KILLED
from kiseki.tools.code.conversation import MAX_OUTPUT, MAX_SECONDS, Conversation, NoPython, NotRun, runner_argv
from kiseki.tools.context import ToolContext
from kiseki.tools.paths import session_place
from kiseki.tools.registry import tool
from kiseki.trajectory.text import cut_middle

MAX_CODE = 500_000
"""Bytes of a program."""
CALL_SECONDS = 6 * MAX_SECONDS
"""Only a net: the program has its own limit, whose clock stands still while its calls wait."""


@tool(toolset="code_execution", timeout=CALL_SECONDS)
async def execute_code(context: ToolContext, code: str) -> dict[str, Any]:
    """Run a Python 3 program that can call your other tools: for loops over many calls, for filtering large results, for
    anything with logic between calls. Each other tool is a function of the same name with the same parameters, there
    without an import (module kiseki_tools); it returns the tool's result, a dict where that is JSON and text otherwise, and
    raises ToolFailed when the call fails. Only what the program prints comes back to you: its output (stdout and stderr)
    and its exit code. It starts in the terminal's current folder with the terminal's environment variables; its stdin is
    empty, and what it starts ends with it. Limits: 300 seconds, 50,000 bytes of output, 50 tool calls.

    Args:
        code: The program. Nothing is kept for the next one but files.
    """
    if not code.strip():
        raise ToolError("code is empty")
    if len(code.encode(errors="replace")) > MAX_CODE:
        raise ToolError(f"the program is larger than {MAX_CODE:,} bytes; write it to a file and run it in the terminal")
    folder, variables = await session_place(context)
    channel = await context.sandbox.open_channel(runner_argv())
    try:
        conversation = Conversation(channel, context)
        end = await conversation.run(code, folder, variables)
    finally:
        await channel.close()
    if isinstance(end, NoPython):
        raise ToolError("there is no python3 in this sandbox, so no program can be run; use other tools")
    if isinstance(end, NotRun):
        raise ToolError(f"the program could not be started: {end.why[:500]}")
    if end is None and not conversation.timed_out:
        raise ToolError("the program, or something it started, ended what ran it: its output and its tool calls were cut off")
    answer: dict[str, Any] = {"output": "", "exit_code": KILLED, "tool_calls": conversation.calls}
    if end is not None:
        answer["output"] = cut_middle(end.output, MAX_OUTPUT, total=end.total).decode("utf-8", "replace")
        answer["exit_code"] = end.exit_code
        if end.total > MAX_OUTPUT:
            answer["truncated"] = True
    if conversation.timed_out:
        answer["timed_out"] = True
        answer["error"] = f"the program was killed after {MAX_SECONDS:g} s"
    elif answer["exit_code"] == KILLED and (memory := context.sandbox.describe().get("memory", "")).endswith(" MB"):
        answer["note"] = f"the program was killed (SIGKILL); the memory limit here is {memory}"
    return answer
