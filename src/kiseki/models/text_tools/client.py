"""A `ChatClient` for models that have no tool calls of their own: in front of a dialect's, which then sees text alone."""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.models.base import ChatClient, ChatReply, ChatRequest, RateInfo, ToolSchema
from kiseki.models.text_tools.hermes_mode import HERMES
from kiseki.models.text_tools.json_mode import JSON
from kiseki.models.text_tools.rescue import with_reading
from kiseki.models.text_tools.rewriting import rewrite, with_said

MODES = {"hermes": HERMES, "json": JSON}
TOOLSETS_KEPT = 64
"""Prompts and schemas kept; a run has a handful of toolset combinations."""


class TextTools:
    """Owns no connection: `close` closes the client behind it."""

    def __init__(self, client: ChatClient, mode: str) -> None:
        """`mode`: one of `MODES`."""
        self._client = client
        self._mode = MODES[mode]
        self._known: dict[int, tuple[tuple[ToolSchema, ...], str, msgspec.Raw]] = {}

    def encode(self, request: ChatRequest) -> tuple[Any, int]:
        tools = request.tools
        if tools:
            prompt, schema = self._told(tools)
            schema = schema or request.json_schema
        else:
            prompt, schema = "", request.json_schema
        messages = rewrite(request.messages, self._mode, prompt)
        encoded, size = self._client.encode(msgspec.structs.replace(request, messages=messages, tools=(), json_schema=schema))
        return (encoded, tools), size

    async def send(self, encoded: Any) -> tuple[ChatReply, RateInfo | None]:
        """As the client behind it; the calls in the reply's text are calls."""
        body, tools = encoded
        reply, rate = await self._client.send(body)
        said = reply.message
        if tools and not said.tool_calls:
            reply = with_reading(reply, self._mode.read(said.content, tools))
            reply = msgspec.structs.replace(reply, message=with_said(reply.message, said, self._mode))
        return reply, rate

    async def close(self) -> None:
        await self._client.close()

    def _told(self, tools: tuple[ToolSchema, ...]) -> tuple[str, msgspec.Raw]:
        """By identity: the same tuple is sent on every turn of many rollouts. The entry keeps it alive, so ids stay unique."""
        known = self._known.get(id(tools))
        if known is None:
            if len(self._known) >= TOOLSETS_KEPT:
                self._known.clear()
            known = self._known[id(tools)] = (tools, self._mode.prompt(tools), self._mode.schema(tools))
        return known[1], known[2]
