"""What the client makes of bytes that a server answers with, over a real connection."""

from __future__ import annotations

import asyncio

from kiseki.models.base import ChatReply, ChatRequest
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.trajectory.types import Message

PROMPT = (Message("user", "hi"),)


def answered(mode: str, body: bytes, *, streamed: bool, status: int = 200) -> ChatReply:
    """The reply to `PROMPT` in one dialect; of a streamed one `body` is an event. Raises as the client does."""
    kind = b"text/event-stream" if streamed else b"application/json"
    body = b"data: " + body + b"\n\n" if streamed else body

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
        writer.write(b"HTTP/1.1 %d X\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (status, kind, len(body), body))
        await writer.drain()
        writer.close()

    async def run() -> ChatReply:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = open_client(ModelSettings("m", f"http://127.0.0.1:{port}/v1", api_mode=mode))
        try:
            return (await client.send(client.encode(ChatRequest(PROMPT))[0]))[0]
        finally:
            await client.close()
            server.close()

    return asyncio.run(run())
