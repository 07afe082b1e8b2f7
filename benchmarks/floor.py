"""The floor of a model call: a bare aiohttp loop that sends the same requests as the engine and does nothing else.

No retries, no validation, no record, no ledger, no deadline: one task per rollout, msgspec for JSON. Runs in a child process.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from benchmarks import tool_async
from benchmarks.child import cpu_seconds
from benchmarks.engine import MODEL, PROMPT
from kiseki.agent.settings import tools_json
from kiseki.tools.registry import tools_in


def run(*, base_url: str, rollouts: int, concurrency: int) -> dict[str, float]:
    """Run `rollouts` conversations to their answers. Returns seconds."""
    cpu, began = cpu_seconds(), time.perf_counter()
    asyncio.run(_run(base_url, rollouts, concurrency))
    return {"drive_cpu": cpu_seconds() - cpu, "drive_wall": time.perf_counter() - began}


async def _run(base_url: str, rollouts: int, concurrency: int) -> None:
    import aiohttp

    tools = msgspec.Raw(tools_json(tools_in(vars(tool_async))))
    numbers = iter(range(rollouts))
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), headers=headers
    ) as session:

        async def work() -> None:
            for number in numbers:
                await _converse(session, f"{base_url}/chat/completions", tools, PROMPT.format(number))

        await asyncio.gather(*(work() for _ in range(concurrency)))


async def _converse(session: Any, url: str, tools: msgspec.Raw, prompt: str) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    while True:
        body = msgspec.json.encode({"model": MODEL, "messages": messages, "tools": tools})
        async with session.post(url, data=body) as response:
            message = msgspec.json.decode(await response.read())["choices"][0]["message"]
        calls = message.get("tool_calls")
        if not calls:
            return
        reasoning = message["reasoning_content"]
        messages.append(
            {
                "role": "assistant",
                "content": message["content"],
                "reasoning": reasoning,
                "reasoning_content": reasoning,
                "tool_calls": calls,
            }
        )
        for call in calls:
            result = await tool_async.look_up(**msgspec.json.decode(call["function"]["arguments"]))
            content = msgspec.json.encode(result).decode()
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
