"""The mock server's HTTP side: a hand-written HTTP/1.1 protocol, thin because its CPU shares the machine with what is measured.

Owns connections and their faults; the answers are `mock_state`'s. One request at a time per connection, no tasks: an answer that
waits is one timer.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from kiseki.models.mock_answer import encode, model_list
from kiseki.models.mock_anthropic import ANTHROPIC
from kiseki.models.mock_completions import answer_generate
from kiseki.models.mock_dialects import CHAT
from kiseki.models.mock_images import picture_at, wants_image
from kiseki.models.mock_responses import RESPONSES
from kiseki.models.mock_state import Answer, MockState

DIALECTS = (
    CHAT,
    ANTHROPIC,
    RESPONSES,
)
"""By the end of the path that is posted to."""
REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    411: "Length Required",
    413: "Payload Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    529: "Overloaded",
}
NO_LINGER = struct.pack("ii", 1, 0)  # closing sends RST at once


class MockConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, state: MockState) -> None:
        self._state = state
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._state.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._busy:
            self._done()
        self._transport = None

    def abort(self) -> None:
        """Close without a word."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        """Serve the next whole request in the buffer, if there is one."""
        while not self._busy and self._transport is not None:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            lines = self._buffer[:end].decode("latin-1").split("\r\n")
            headers = {}
            for line in lines[1:]:
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            if "transfer-encoding" in headers:
                self._send(Answer(411, b'{"error":{"message":"This server wants a Content-Length."}}'))
                self._transport.close()
                return
            total = end + 4 + int(headers.get("content-length", 0))
            if len(self._buffer) < total:
                if headers.get("expect", "").lower() == "100-continue" and len(self._buffer) == end + 4:
                    self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._buffer[end + 4 : total])
            del self._buffer[:total]
            method, _, target = lines[0].partition(" ")
            self._serve(method, target.partition(" ")[0], headers, body)

    def _serve(self, method: str, target: str, headers: dict[str, str], body: bytes) -> None:
        state = self._state
        path, _, query = target.partition("?")
        # under any base path, and as a proxy would get it
        dialect = next((each for each in DIALECTS if path.endswith(each.path)), None)
        generate = path == "/generate" and bool(state.config.tokenizer)
        if method == "POST" and (dialect or generate or wants_image(path)):
            state.in_flight += 1
            state.peak_in_flight = max(state.peak_in_flight, state.in_flight)
            self._busy = True
            if generate:
                answer = answer_generate(state, headers, body)
            elif dialect:
                answer = state.answer_chat(headers, body, dialect)
            else:
                answer = state.answer_image(path, headers, body)
            state.note(answer, headers, body)
            if answer.fault == "stall":
                return
            if answer.latency > 0.0:
                self._timer = asyncio.get_running_loop().call_later(answer.latency, self._finish, answer)
            else:
                self._finish(answer)
        elif method == "GET" and path == "/stats":
            self._send(Answer(200, encode(state.stats(log="log=1" in query.split("&"), own=self))))
        elif method == "GET" and path == "/health":
            self._send(Answer(200, b"{}"))
        elif method == "GET" and path.endswith("/v1/models"):
            self._send(Answer(200, encode(model_list(state.config))))
        elif method == "GET" and (picture := picture_at(path)) is not None:
            self._send(Answer(200, picture, "image/png"))
        else:
            self._send(Answer(404, encode({"error": {"message": f"No such endpoint: {method} {path}", "code": 404}})))

    def _finish(self, answer: Answer) -> None:
        """Send the answer that a chat request waited for, and serve what came meanwhile."""
        self._timer = None
        transport = self._transport
        if answer.fault == "stream_stall" and transport is not None:
            self._send(answer, keep=_half(answer), ends=False)
            return  # in flight until the client leaves
        self._done()
        if transport is None:
            return
        if answer.fault == "reset":
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
            transport.abort()
        elif answer.fault == "torn":
            self._send(answer, keep=len(answer.body) // 2)
            # A stream ends as if it were whole, as from a proxy that lost its upstream; a body with a length can only be cut.
            if answer.content_type != "text/event-stream":
                transport.close()
        else:
            self._send(answer)
            self._state.sent(answer)
            if self._buffer:
                self._next()

    def _done(self) -> None:
        self._busy = False
        self._state.in_flight -= 1

    def _send(self, answer: Answer, keep: int | None = None, *, ends: bool = True) -> None:
        """Write an answer, of its body only `keep` bytes where that is given, a stream without its end where not `ends`."""
        assert self._transport is not None
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        head = f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\nContent-Type: {answer.content_type}\r\n{extra}"
        body = answer.body if keep is None else answer.body[:keep]
        if answer.content_type == "text/event-stream":
            head += "Transfer-Encoding: chunked\r\n\r\n"
            body = b"%x\r\n%b\r\n%b" % (len(body), body, b"0\r\n\r\n" if ends else b"")
        else:
            head += f"Content-Length: {len(answer.body)}\r\n\r\n"
        self._transport.write(head.encode("latin-1") + body)


def _half(answer: Answer) -> int:
    """Bytes of the first half of a body; of a stream, of its whole events."""
    if answer.content_type != "text/event-stream":
        return len(answer.body) // 2
    pieces = answer.body.split(b"\n\n")
    return sum(len(piece) + 2 for piece in pieces[: len(pieces) // 2])
