"""Answers of hosts that the tests can't reach, in the shapes that their documentation shows (`recorded/chat/`, by page), and
what goes back to each on the next turn. Over real HTTP: a remote host is asked through a proxy, the test's own server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from kiseki import errors
from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.trajectory.types import Message, ToolCall, Usage

RECORDED = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in Path(__file__).parent.glob("recorded/chat/*.json")
}
PROMPT = Message("user", "What will the weather be in Oslo and in Bergen?")
TOOLS = (ToolSchema("get_forecast", "The forecast for a city.", msgspec.Raw(b'{"type":"object","properties":{}}')),)
ARGUMENTS = ('{"city": "Oslo"}', '{"city": "Bergen", "days": 2}')
OLLAMA_ADDRESS = "127.83.77.65"  # of loopback, but not the one at which an Ollama of one's own has the port
OLLAMA_PORT = 11434
ENDING = {"role": "tool", "content": "rain"}


class Recorded:
    """Answers every request with one recorded answer, and keeps what it was asked."""

    def __init__(self, recorded: dict[str, Any], part: str) -> None:
        self._recorded, self._part = recorded, part
        self.bodies: list[dict[str, Any]] = []
        self.base_url = ""
        self.proxy = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Recorded]:
        runner = web.ServerRunner(web.Server(self._answer))
        await runner.setup()
        ollama = self._recorded["base_url"] == "ollama"
        site = web.TCPSite(runner, OLLAMA_ADDRESS, OLLAMA_PORT) if ollama else web.TCPSite(runner, "127.0.0.1", 0)
        try:
            await site.start()
            host, port = runner.addresses[0][:2]
            self.proxy = f"http://{host}:{port}"
            local = self._recorded["base_url"] in ("ollama", "local")
            self.base_url = f"{self.proxy}/v1" if local else self._recorded["base_url"]
            yield self
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.bodies.append(await request.json())
        if self._part == "error":
            error = self._recorded["error"]
            return web.json_response(error["body"], status=error["status"])
        if self._part == "whole":
            return web.json_response(self._recorded["whole"])
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in self._recorded["stream"])
        return web.Response(text=f"{events}data: [DONE]\n\n", content_type="text/event-stream")


Ask = Callable[[dict[str, Any], str], tuple[list[ChatReply], list[dict[str, Any]]]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Two turns with a host whose every answer is the same: the replies, and the bodies that it was sent."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    async def two_turns(recorded: dict[str, Any], part: str) -> tuple[list[ChatReply], list[dict[str, Any]]]:
        async with Recorded(recorded, part).running() as host:
            monkeypatch.setenv("http_proxy", host.proxy)
            client = open_client(
                ModelSettings("m", host.base_url, "sk-test", api_mode=recorded["api_mode"], stream=part == "stream")
            )
            try:
                messages: tuple[Message, ...] = (PROMPT,)
                replies = []
                for _ in range(2):
                    body, _ = client.encode(ChatRequest(messages, TOOLS))
                    reply, _ = await client.send(body)
                    replies.append(reply)
                    results = [Message("tool", "rain", tool_call_id=call.id) for call in reply.message.tool_calls]
                    messages = (*messages, reply.message, *results)
            finally:
                await client.close()
            return replies, host.bodies

    return lambda recorded, part: asyncio.run(two_turns(recorded, part))


@pytest.mark.parametrize("part", ["whole", "stream"])
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_what_a_host_says_and_what_it_gets_back(name: str, part: str, ask: Ask) -> None:
    recorded = RECORDED[name]
    expected = recorded["expected"]
    replies, bodies = ask(recorded, part)
    message, call = replies[0].message, replies[0].call
    calls = tuple(ToolCall(each, "get_forecast", arguments) for each, arguments in zip(expected["ids"], ARGUMENTS, strict=True))
    assert message.tool_calls == calls
    assert (message.content, message.reasoning) == (expected["content"], expected["reasoning"])
    assert msgspec.structs.replace(call.usage, cost=0.0) == Usage(*expected["usage"])
    assert call.usage.cost == recorded["whole"]["usage"].get("cost", 0.0)
    assert (call.finish_reason, call.model, call.response_id) == (expected["finish"], "m-1", "chatcmpl-1")
    results = [{**ENDING, "tool_call_id": each} for each in expected["ids"]]
    assert bodies[1]["messages"][1:] == [recorded["back"], *results]
    assert replies[1].message == message


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_what_a_host_refuses(name: str, ask: Ask) -> None:
    error = RECORDED[name]["error"]
    with pytest.raises(errors.ProviderError) as caught:
        ask(RECORDED[name], "error")
    assert type(caught.value).__name__ == error["kind"]
    assert caught.value.status == error["status"]
    said = error["body"][0] if isinstance(error["body"], list) else error["body"]
    said = said.get("error", said)
    assert (said["message"] if isinstance(said, dict) else said) in str(caught.value)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_each_names_the_page_that_it_is_shaped_after(name: str) -> None:
    assert RECORDED[name]["source"].startswith("https://")
