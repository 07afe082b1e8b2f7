"""What the mock server does with each request: the answer, with its faults, and the counters of one server.

What is said is `mock_script`'s, `mock_answer`'s and `mock_images`'; connections and their faults are `mock_http`'s.
"""

from __future__ import annotations

import collections
import hashlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kiseki.models.mock_answer import CHARS_PER_TOKEN, bill, completion, encode
from kiseki.models.mock_dialects import CHAT, Memory, MockDialect, Refused
from kiseki.models.mock_images import IMAGE_CHARS, AskedImage, image_answer
from kiseki.models.mock_script import (
    HTTP_FAULTS,
    Asked,
    Bucket,
    Fault,
    MockConfig,
    Turn,
    draw,
    drawn_fault,
    situation_of,
    turn_of,
)
from kiseki.models.mock_tokens import NOT_STREAMED, add_tokens

HTML_PAGE = (
    b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title><style>body{color:red}</style></head>"
    b"<body><center><h1>502 Bad Gateway</h1></center><hr>mock &amp; proxy</body></html>"
)
HIDDEN_TAIL = 4  # characters of a key that the log shows
KEY_HEADERS = ("authorization", "x-api-key")
EVENT_STREAM = "text/event-stream"
Made = dict[str, Any]

_decode_asked_image = msgspec.json.Decoder(AskedImage).decode
_REFUSED_IMAGE = "Your request was rejected by the safety system."


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
        self.connections: set[Any] = set()
        self.calls = 0
        self.starts = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.cost = 0.0
        self.in_flight = 0
        self.peak_in_flight = 0
        self.images_made = 0
        self.images_shown = 0
        self.by_status: collections.Counter[int] = collections.Counter()
        self.by_fault: collections.Counter[str] = collections.Counter()
        self.log: collections.deque[dict[str, Any]] = collections.deque(maxlen=config.record)
        rates = {"requests": config.requests_per_minute, "tokens": config.tokens_per_minute}
        self._buckets = {what: Bucket(rate, config.burst, clock) for what, rate in rates.items() if rate}
        self._cpu_before = time.thread_time()
        self._asked_before: collections.Counter[str] = collections.Counter()
        self._memory: Memory = {}
        self._counts = bool(config.faults or config.jitter or config.record) or any(
            turn.fault is not None for rule in config.script for turn in rule.turns
        )

    def stats(self, *, log: bool, own: object) -> dict[str, Any]:
        """`starts` are chat calls without an assistant message yet; tokens and cost are those of answers that were sent whole.

        `connections` leaves out the one that asks; `cpu_seconds` is the server thread's.
        """
        stats: dict[str, Any] = {
            "calls": self.calls,
            "starts": self.starts,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "images_made": self.images_made,
            "images_shown": self.images_shown,
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

    def answer_chat(self, headers: dict[str, str], body: bytes, dialect: MockDialect = CHAT) -> Answer:
        """The answer to one chat request, in whatever API; counts it."""
        self.calls += 1
        try:
            asked, request = dialect.read(body)
        except msgspec.DecodeError as error:
            return error_answer(Fault("bad_request"), 400, "invalid_request_error", str(error), dialect)
        except Refused as refused:
            return error_answer(Fault("bad_request"), refused.status, refused.code, refused.words, dialect)
        config, situation = self.config, situation_of(asked)
        self.starts += situation.turn == 0
        self.images_shown += len(situation.images)
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
        chars = len(body) + sum(IMAGE_CHARS - len(url) for url in situation.images)

        def whole(kind: str) -> dict[str, Any]:
            made = completion(config, asked, situation, turn, kind, chars)
            if asked.return_token_ids and config.ids_as != "none":
                add_tokens(made, body, config, logprobs=bool(asked.logprobs))
            return made

        def written(made: dict[str, Any]) -> dict[str, Any]:
            return dialect.answer(made, request, self._memory)

        if asked.return_token_ids and asked.stream and config.ids_as == "sglang":
            return error_answer(Fault("bad_request"), 400, "BadRequestError", NOT_STREAMED)
        answer = self._failing(fault, headers, dialect, stream=asked.stream) or self._answer(
            asked, fault, whole, written, dialect
        )
        self.images_made += answer.status == 200 and "image" in (asked.modalities or ())
        answer.latency, answer.key, answer.turn = latency, key, situation.turn
        if self._buckets:
            self._charge(answer, dialect)
        return answer

    def answer_image(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """The answer to one request for an image, whatever API it is; counts it. Faults of a chat reply that make no sense here
        leave it whole."""
        self.calls += 1
        try:
            asked = _decode_asked_image(body)
        except msgspec.DecodeError as error:
            return error_answer(Fault("bad_request"), 400, "invalid_request_error", str(error))
        key = hashlib.blake2b(body, digest_size=8).hexdigest()
        nth = self._asked_before[key]
        self._asked_before[key] += 1
        fault = self._refusal(Asked([]), len(body)) or self._limit() or drawn_fault(self.config, f"{key}/{nth}")
        kind = fault.kind if fault is not None else ""
        answer = self._failing(fault, headers, CHAT, stream=False)
        if kind == "content_filter":
            answer = error_answer(Fault(kind), 400, "moderation_blocked", _REFUSED_IMAGE)
        if answer is None:
            report = self.config.report_cost
            found, cost = image_answer(asked, path, headers.get("host", ""), report_cost=report, empty=kind == "empty")
            self.images_made += 1
            answer = Answer(200, encode(found), fault=kind, cost=cost)
        answer.latency, answer.key = self.config.latency, key
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
        if asked.tools and not config.takes_tools:
            return Fault("no_tools")
        if self._buckets:
            needs = {"requests": 1, "tokens": prompt_chars // CHARS_PER_TOKEN + (asked.most or 0)}
            wait = max(bucket.wait(needs[what]) for what, bucket in self._buckets.items())
            if wait > 0.0:
                return Fault("rate_limit", retry_after=wait)
            if "requests" in self._buckets:
                self._buckets["requests"].take(1)
        return None

    def _charge(self, answer: Answer, dialect: MockDialect) -> None:
        """Take an answer's tokens out of their bucket, and tell how the buckets stand."""
        for what, bucket in self._buckets.items():
            if what == "tokens":
                bucket.take(answer.prompt_tokens + answer.completion_tokens)
            left = max(0, int(bucket.level()))
            answer.headers |= dialect.rate_headers(what, bucket.per_minute, left, bucket.until_full())

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

    def _failing(self, fault: Fault | None, headers: dict[str, str], dialect: MockDialect, *, stream: bool) -> Answer | None:
        """The answer that is nothing but its fault; None where there is another."""
        kind = fault.kind if fault is not None else ""
        if fault is not None and kind in HTTP_FAULTS:
            status, code, words = HTTP_FAULTS[kind]
            key = next((headers[name] for name in KEY_HEADERS if name in headers), "none")
            answer = error_answer(fault, status, code, (fault.words or words).format(authorization=key), dialect)
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
            content_type = EVENT_STREAM if stream else "application/json"
            return Answer(200, dialect.error_inside("mock upstream down", stream), content_type, fault=kind)
        return None

    def _answer(
        self,
        asked: Asked,
        fault: Fault | None,
        whole: Callable[[str], Made],
        written: Callable[[Made], Made],
        dialect: MockDialect,
    ) -> Answer:
        kind = fault.kind if fault is not None else ""
        made = whole(kind)
        prompt_tokens, completion_tokens, cost = bill(self.config, made, kind)
        answer_json = written(made)
        body = dialect.events(answer_json) if asked.stream else encode(answer_json)
        content_type = EVENT_STREAM if asked.stream else "application/json"
        return Answer(
            200, body, content_type, fault=kind, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, cost=cost
        )

    def note(self, answer: Answer, headers: dict[str, str], body: bytes) -> None:
        """Keep what `/stats` tells of a request."""
        self.by_status[answer.status] += 1
        if answer.fault:
            self.by_fault[answer.fault] += 1
        if self.config.record:
            shown = {name: _hidden(value) if name in KEY_HEADERS else value for name, value in headers.items()}
            entry = {"key": answer.key, "turn": answer.turn, "status": answer.status, "fault": answer.fault}
            self.log.append({**entry, "headers": shown, "body": _json_or_text(body)})


def error_answer(fault: Fault, status: int, code: str, words: str, dialect: MockDialect = CHAT) -> Answer:
    return Answer(status, encode(dialect.error(status, code, words)), fault=fault.kind)


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
