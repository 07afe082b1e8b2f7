"""Streams of messages between the SDK's session and a server, with bounds that the SDK's own transports lack: a message that is
too long is answered with an error in its place, and never held. Everything from the server passes `mending.mend`."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kiseki.sandboxes.base import Channel
from kiseki.tools.mcp.mending import mend
from kiseki.tools.mcp.programs import TAIL_BYTES
from kiseki.tools.settings import McpServer
from kiseki.trajectory.text import clean_text

if TYPE_CHECKING:
    from asyncio import Event

    import httpx2
    from mcp.shared.message import SessionMessage

    Streams = tuple[Any, Any]

MAX_MESSAGE_BYTES = 40_000_000
"""Of one message: a file of 30 MB in base64. What a model gets of a text is far less."""
TOO_LONG = f"the server's answer has more than {MAX_MESSAGE_BYTES:,} bytes"
CONNECT_SECONDS = 30.0
_ENDS = 300
"""Bytes at either end of a message in which its id stands."""
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15})\s*[,}]')


@asynccontextmanager
async def over_channel(channel: Channel, ended: Event, others: bytearray) -> AsyncIterator[Streams]:
    """JSON-RPC, one message a line. `ended` is set when the program has ended. The last lines that are no messages, such as
    what a program prints before it gives up, are put into `others`. Raises `SandboxError` in an exception group."""
    import anyio
    from mcp.shared.message import SessionMessage

    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        async with to_session:
            async for line, is_whole in _lines(channel):
                if (message := _message(line) if is_whole else _too_long(line)) is not None:
                    await to_session.send(SessionMessage(message))
                elif line.strip():
                    others.extend(line[-TAIL_BYTES:] + b"\n")
                    del others[:-TAIL_BYTES]

    async def write() -> None:
        async with from_session:
            async for item in from_session:
                text: str = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await channel.write(f"{text}\n".encode())

    async with from_server, to_server, anyio.create_task_group() as group:
        group.start_soon(read)
        group.start_soon(write)
        try:
            yield Mended(from_server, ended), to_server
        finally:
            group.cancel_scope.cancel()


@asynccontextmanager
async def over_http(server: McpServer, ended: Event, refused: list[int]) -> AsyncIterator[Streams]:
    """Streamable HTTP. Statuses of refused requests go into `refused`, since the SDK does not say them. Raises what httpx2
    raises, in an exception group."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def look(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            refused[:] = [response.status_code]
        if response.headers.get("content-encoding", "identity") != "identity":  # which could unfold to any size
            raise httpx2.DecodingError("the server compresses its answers though it was asked not to")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _bounded(response.stream)

    client = httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **server.headers},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=server.timeout + CONNECT_SECONDS),
        event_hooks={"response": [look]},
    )
    async with (
        client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as (reading, writing),
    ):
        yield Mended(reading, ended), writing


def _bounded(stream: Any) -> Any:
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in stream:
                size += len(chunk)
                if size > MAX_MESSAGE_BYTES:
                    raise httpx2.StreamError(TOO_LONG)
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return Bounded()


class Mended:
    """A stream of messages from a server, each mended; `ended` is set at its end."""

    def __init__(self, stream: Any, ended: Event) -> None:
        self._stream = stream
        self._ended = ended

    async def receive(self) -> SessionMessage | Exception:
        import anyio

        try:
            item: SessionMessage | Exception = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended.set()
            raise
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict):
            try:
                mend(result)
            except RecursionError:
                result.clear()  # so that only this answer is none
        return item

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Mended:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Mended:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        await self.aclose()
        return None


async def _lines(channel: Channel) -> AsyncIterator[tuple[bytes, bool]]:
    """What a program writes, line by line, and whether that is the whole line: of one that is too long it is the two ends."""
    parts: list[bytes] = []
    size = 0
    while data := await channel.read():
        *whole, rest = data.split(b"\n")
        for line in whole:
            yield b"".join((*parts, line)), size <= MAX_MESSAGE_BYTES
            parts, size = [], 0
        parts.append(rest)
        size += len(rest)
        if size > MAX_MESSAGE_BYTES:
            joined = b"".join(parts)
            parts = [joined[:_ENDS], joined[-_ENDS:]]


def _message(line: bytes) -> Any:
    """The message in a line; None for one that is none, such as what a server prints."""
    import mcp_types
    import pydantic

    adapter = mcp_types.jsonrpc_message_adapter
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return adapter.validate_json(line, by_name=False)
    except pydantic.ValidationError:
        pass
    try:  # once more, with what is no UTF-8 replaced, and lone surrogates, which JSON.stringify writes
        return adapter.validate_python(_clean(json.loads(line.decode("utf-8", "replace"))), by_name=False)
    except (ValueError, RecursionError):
        return None


def _too_long(line: bytes) -> Any:
    """An error as the answer to the request whose answer it was, None where that cannot be seen."""
    import mcp_types

    found = _ID.search(line[:_ENDS]) or _ID.search(line[-_ENDS:])
    if found is None:
        return None
    error = mcp_types.ErrorData(code=mcp_types.INTERNAL_ERROR, message=TOO_LONG)
    return mcp_types.JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error)


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list) else value
