"""A `ChatClient` for models that have no tool calls of their own: in front of a dialect's, which then sees text alone."""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.models.base import ChatClient, ChatReply, ChatRequest, RateInfo
from kiseki.models.dialects.base import PerTools
from kiseki.models.text_tools.hermes_mode import HERMES
from kiseki.models.text_tools.json_mode import JSON
from kiseki.models.text_tools.rescue import with_reading
from kiseki.models.text_tools.rewriting import rewrite, with_said

MODES = {"hermes": HERMES, "json": JSON}


class TextTools:
    """Owns no connection: `close` closes the client behind it."""

    def __init__(self, client: ChatClient, mode: str) -> None:
        """`mode`: one of `MODES`."""
        self._client = client
        self._mode = MODES[mode]
        self._told = PerTools(lambda tools: (self._mode.prompt(tools), self._mode.schema(tools)))

    def encode(self, request: ChatRequest) -> tuple[Any, int]:
        tools = request.tools
        if tools:
            prompt, schema = self._told.of(tools)
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
