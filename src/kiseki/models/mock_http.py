"""The mock server's HTTP side: a hand-written HTTP/1.1 protocol, thin because its CPU shares the machine with what is measured.

Owns connections, counters, and the faults of HTTP and the connection; what is said is `mock_script`'s and `mock_answer`'s.
One request at a time per connection, no tasks: an answer that waits is one timer.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kiseki.models.mock_answer import CHARS_PER_TOKEN, bill, completion, encode, events, model_list
from kiseki.models.mock_script import (
    HTTP_FAULTS,
    Asked,
    Bucket,
    Fault,
    MockConfig,
    Turn,
    draw,
    drawn_fault,
    duration_text,
    situation_of,
    turn_of,
)

REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    402: "Payment Required",
    403: "Forbidden",
    404: "Not Found",
    411: "Length Required",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    529: "Overloaded",
}
HTML_PAGE = (
    b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title><style>body{color:red}</style></head>"
    b"<body><center><h1>502 Bad Gateway</h1></center><hr>mock &amp; proxy</body></html>"
)
NO_LINGER = struct.pack("ii", 1, 0)  # closing sends RST at once
HIDDEN_TAIL = 4  # characters of a key that the log shows

_decode_asked = msgspec.json.Decoder(Asked).decode


class Answer(msgspec.Struct):
    """What goes out."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = {}
    latency: float = 0.0
    fault: str = ""
    key: str = ""
    turn: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class MockState:
    """The counters of one server, and the answer to each request."""

    def __init__(self, config: MockConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds; the rate limits go by it."""
        self.config = config
        self.connections: set[MockConnection] = set()
        self.calls = 0
        self.starts = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cost = 0.0
        self.in_flight = 0
        self.peak_in_flight = 0
        self.by_status: collections.Counter[int] = collections.Counter()
        self.by_fault: collections.Counter[str] = collections.Counter()
        self.log: collections.deque[dict[str, Any]] = collections.deque(maxlen=config.record)
        rates = {"requests": config.requests_per_minute, "tokens": config.tokens_per_minute}
        self._buckets = {what: Bucket(rate, config.burst, clock) for what, rate in rates.items() if rate}
        self._cpu_before = time.thread_time()
        self._asked_before: collections.Counter[str] = collections.Counter()
        self._counts = bool(config.faults or config.jitter or config.record) or any(
            turn.fault is not None for rule in config.script for turn in rule.turns
        )

    def stats(self, *, log: bool, own: MockConnection) -> dict[str, Any]:
        """`starts` are calls without an assistant message yet; tokens and cost are those of the answers that were sent whole.

        `connections` leaves out the one that asks; `cpu_seconds` is the server thread's.
        """
        stats: dict[str, Any] = {
            "calls": self.calls,
            "starts": self.starts,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "by_status": {str(status): count for status, count in sorted(self.by_status.items())},
            "by_fault": dict(self.by_fault),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": self.cost,
            "connections": len(self.connections - {own}),
            "cpu_seconds": time.thread_time() - self._cpu_before,
        }
        if log:
            stats["log"] = list(self.log)
        return stats

    def answer_chat(self, headers: dict[str, str], body: bytes) -> Answer:
        """The answer to one chat request; counts it."""
        self.calls += 1
        try:
            asked = _decode_asked(body)
        except msgspec.DecodeError as error:
            return _error(Fault("bad_request"), 400, "invalid_request_error", str(error))
        config, situation = self.config, situation_of(asked)
        self.starts += situation.turn == 0
        turn = turn_of(config, asked, situation)
        fault = self._refusal(asked, len(body))
        key, nth = "", 0
        if self._counts:
            key = _conversation_key(asked)
            nth = self._asked_before[key]
            if fault is None:  # what is refused before the script is asked takes none of its faults away
                self._asked_before[key] = nth + 1
        if fault is None:
            fault = self._fault(turn, key, nth)
        latency = config.latency if turn.latency is None else turn.latency
        if config.jitter:
            latency += config.jitter * draw(config.seed, f"{key}/{nth}", "jitter")
        answer = self._answer(asked, fault, headers, lambda kind: completion(config, asked, situation, turn, kind, len(body)))
        answer.latency, answer.key, answer.turn = latency, key, situation.turn
        if self._buckets:
            self._charge(answer)
        return answer

    def sent(self, answer: Answer) -> None:
        """Count an answer that was sent whole."""
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self.cost += answer.cost

    def _refusal(self, asked: Asked, prompt_chars: int) -> Fault | None:
        """The fault of an outage or an empty bucket; takes the request out of its bucket where there is none."""
        config = self.config
        if config.fail_after and 0 <= self.calls - config.fail_after < (config.fail_for or self.calls):
            return Fault(config.fail_kind)
        if self._buckets:
            needs = {"requests": 1, "tokens": prompt_chars // CHARS_PER_TOKEN + (asked.most or 0)}
            wait = max(bucket.wait(needs[what]) for what, bucket in self._buckets.items())
            if wait > 0.0:
                return Fault("rate_limit", retry_after=wait)
            if "requests" in self._buckets:
                self._buckets["requests"].take(1)
        return None

    def _charge(self, answer: Answer) -> None:
        """Take an answer's tokens out of their bucket, and tell how the buckets stand."""
        for what, bucket in self._buckets.items():
            if what == "tokens":
                bucket.take(answer.prompt_tokens + answer.completion_tokens)
            answer.headers[f"x-ratelimit-limit-{what}"] = f"{bucket.per_minute:.0f}"
            answer.headers[f"x-ratelimit-remaining-{what}"] = str(max(0, int(bucket.level())))
            answer.headers[f"x-ratelimit-reset-{what}"] = duration_text(bucket.until_full())

    def _fault(self, turn: Turn, key: str, nth: int) -> Fault | None:
        fault = turn.fault
        if fault is not None and (fault.times is None or nth < fault.times):
            return fault
        return self._limit() or drawn_fault(self.config, f"{key}/{nth}")

    def _limit(self) -> Fault | None:
        config = self.config
        if config.max_in_flight and self.in_flight > config.max_in_flight:
            return Fault("rate_limit")
        if config.rate_limit_every and self.calls % config.rate_limit_every == 0:
            return Fault("rate_limit")
        return None

    def _answer(self, asked: Asked, fault: Fault | None, headers: dict[str, str], whole: Any) -> Answer:
        kind = fault.kind if fault is not None else ""
        if fault is not None and kind in HTTP_FAULTS:
            status, code, words = HTTP_FAULTS[kind]
            answer = _error(fault, status, code, words.format(authorization=headers.get("authorization", "none")))
            wait = fault.retry_after
            if wait is None and kind == "rate_limit":
                wait = self.config.retry_after
            if wait is not None:
                answer.headers = {"Retry-After": f"{wait:.10g}"}
            return answer
        if kind == "html":
            return Answer(502, HTML_PAGE, "text/html", fault=kind)
        if kind == "not_json":
            return Answer(200, b"upstream says: all is well", "text/plain", fault=kind)
        if kind == "error_in_200":
            error = {"error": {"code": 502, "message": "Provider returned error", "metadata": {"raw": "mock upstream down"}}}
            if asked.stream:
                return Answer(200, b"data: %b\n\n" % encode(error), "text/event-stream", fault=kind)
            return Answer(200, encode(error), fault=kind)
        answer_json = whole(kind)
        prompt_tokens, completion_tokens, cost = bill(self.config, answer_json, kind)
        body = events(answer_json) if asked.stream else encode(answer_json)
        content_type = "text/event-stream" if asked.stream else "application/json"
        return Answer(
            200, body, content_type, fault=kind, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost=cost
        )

    def note(self, answer: Answer, headers: dict[str, str], body: bytes) -> None:
        """Keep what `/stats` tells of a request."""
        self.by_status[answer.status] += 1
        if answer.fault:
            self.by_fault[answer.fault] += 1
        if self.config.record:
            shown = {name: _hidden(value) if name == "authorization" else value for name, value in headers.items()}
            entry = {"key": answer.key, "turn": answer.turn, "status": answer.status, "fault": answer.fault}
            self.log.append({**entry, "headers": shown, "body": _json_or_text(body)})


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
        if method == "POST" and path.endswith("/chat/completions"):  # under any base path, and as a proxy would get it
            state.in_flight += 1
            state.peak_in_flight = max(state.peak_in_flight, state.in_flight)
            self._busy = True
            answer = state.answer_chat(headers, body)
            state.note(answer, headers, body)
            if answer.fault == "stall":
                return
            if answer.latency > 0.0:
                self._timer = asyncio.get_running_loop().call_later(answer.latency, self._finish, answer)
            else:
                self._finish(answer)
        elif method == "GET" and path == "/stats":
            self._send(Answer(200, encode(state.stats(log="log=1" in query.split("&"), own=self))))
        elif method == "GET" and path.endswith("/v1/models"):
            self._send(Answer(200, encode(model_list(state.config))))
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


def _error(fault: Fault, status: int, code: str, words: str) -> Answer:
    return Answer(status, encode({"error": {"message": words, "type": code, "code": code}}), fault=fault.kind)


def _half(answer: Answer) -> int:
    """Bytes of the first half of a body; of a stream, of its whole events."""
    if answer.content_type != "text/event-stream":
        return len(answer.body) // 2
    pieces = answer.body.split(b"\n\n")
    return sum(len(piece) + 2 for piece in pieces[: len(pieces) // 2])


def _conversation_key(asked: Asked) -> str:
    """Names the conversation so far, and with it the turn."""
    return hashlib.blake2b(encode(asked.messages), digest_size=8).hexdigest()


def _hidden(value: str) -> str:
    return f"...{value[-HIDDEN_TAIL:]}"


def _json_or_text(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode("utf-8", "replace")
