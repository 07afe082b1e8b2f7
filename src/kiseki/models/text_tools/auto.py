"""What `--tool_call_mode=auto` means: tools by the API, and what stands in for that where the endpoint has none.

Calls that stand in the text of a reply are read: the server has no parser for its model's format, or it is not switched on. Where
the endpoint refuses requests with tools, the model is told of them in the text from there on, as `hermes` does it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kiseki.errors import BadRequest
from kiseki.models.base import ChatClient, ChatReply, ChatRequest, Encoded, RateInfo
from kiseki.models.text_tools.client import TextTools
from kiseki.models.text_tools.rescue import rescue

# As Ollama, vLLM, llama.cpp, OpenRouter and Groq word it.
_NO_TOOLS = re.compile(
    r"(?:does not|doesn't|do not|not) support [^.]{0,40}\b(?:tool|function)|support tool use"
    r"|\btools?\b[^.]{0,60}(?:not supported|unsupported|requires? -)|enable-auto-tool-choice|unsupported param: tools"
    r"|function calling is not (?:enabled|supported)",
    re.IGNORECASE,
)


class AutoTools:
    """A `ChatClient` in front of a dialect's."""

    def __init__(self, client: ChatClient, *, reads_text: bool = True) -> None:
        """`reads_text`: the endpoint may be a server that knows nothing of its model's format for calls."""
        self._native = client
        self._reads_text = reads_text
        self._in_text: TextTools | None = None
        """Once the endpoint has refused tools."""
        self._takes_tools = False
        """It has answered a request with some: then one that it refuses is that request's own fault."""

    def encode(self, request: ChatRequest) -> tuple[Any, int]:
        client: ChatClient = self._native
        if self._in_text and request.tools:
            client = self._in_text
            _begin_anew_in_text(request.encoded)
        encoded, size = client.encode(request)
        return (request, client, encoded), size

    async def send(self, encoded: Any) -> tuple[ChatReply, RateInfo | None]:
        request, client, body = encoded
        if client is not self._native or not request.tools:
            answer: tuple[ChatReply, RateInfo | None] = await client.send(body)
            return answer
        try:
            reply, rate = await client.send(body)
        except BadRequest as error:
            if self._takes_tools or not refuses_tools(error):
                raise
            notice = f"the endpoint takes no tools ({error}); they are told in the text, as by --tool_call_mode=hermes"
        else:
            self._takes_tools = True
            return rescue(reply, request.tools) if self._reads_text else reply, rate
        self._in_text = self._in_text or TextTools(self._native, "hermes")
        _begin_anew_in_text(request.encoded)
        reply, rate = await self._in_text.send(self._in_text.encode(request)[0])
        return msgspec.structs.replace(reply, notice=notice), rate

    async def close(self) -> None:
        await self._native.close()


def _begin_anew_in_text(encoded: Encoded) -> None:
    """What was encoded for the API's own tools has no word of them."""
    if not encoded.in_text:
        encoded.clear()
        encoded.in_text = True


def refuses_tools(error: BadRequest) -> bool:
    """Whether the endpoint says that the model, or the server as it was started, takes no tools."""
    return _NO_TOOLS.search(str(error)) is not None
