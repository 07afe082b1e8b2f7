"""What the mock model server says: scripts, faults, limits, and which turn of which script a request gets.

A script is a list of rules; the first whose `match` is found in the last user text wins, and the turn is counted by the
assistant messages after that text, so the server keeps no conversation and any number of them can run at once. A request
beyond the last turn gets the last turn again. Where no rule matches, the default script answers: some tool turns, then "Done";
to images at once, with what they are.
Pure but for `load_script` and the clock of a `Bucket`.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kiseki.errors import UsageError
from kiseki.models.mock_images import describe, shown_images
from kiseki.trajectory.reasoning import text_of

# kind: (status, error type, message)
HTTP_FAULTS = {
    "rate_limit": (429, "rate_limit_exceeded", "Rate limit reached for this model."),
    "error_500": (500, "server_error", "The server had an error while processing your request."),
    "error_502": (502, "server_error", "Bad gateway: the upstream model is down."),
    "error_503": (503, "unavailable_error", "No provider is available right now."),
    "error_529": (529, "overloaded_error", "The model is overloaded."),
    "auth": (401, "invalid_api_key", "Incorrect API key provided: {authorization}."),
    "no_credit": (402, "insufficient_quota", "Insufficient credits."),
    "forbidden": (403, "permission_error", "This key may not use this model."),
    "bad_request": (400, "invalid_request_error", "Invalid value for 'messages'."),
    "no_model": (404, "model_not_found", "The model does not exist, or you have no access to it."),
    "no_tools": (400, "invalid_request_error", "This model does not support tools."),
    "no_vision": (404, "not_found_error", "No endpoints found that support image input."),
    "context_length": (
        400,
        "context_length_exceeded",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
    ),
}
TRANSPORT_FAULTS = ("stall", "stream_stall", "reset", "torn")
BODY_FAULTS = ("html", "error_in_200", "not_json")
REPLY_FAULTS = (
    "malformed_arguments",
    "unknown_tool",
    "duplicate_ids",
    "missing_ids",
    "length",
    "content_filter",
    "no_usage",
    "empty",
)
FAULT_KINDS = (*HTTP_FAULTS, *TRANSPORT_FAULTS, *BODY_FAULTS, *REPLY_FAULTS)

ROUNDING = 1e-6  # of a unit in a bucket: floats that were added up are not exact

_TEXT_FIELDS = ("reasoning", "reasoning_content", "reasoning_details", "thinking")
REASONING_FIELDS = (*_TEXT_FIELDS, "parts", "think", "think_unopened", "scratchpad")
IDS_AS = ("vllm", "sglang", "none")


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    """One of `FAULT_KINDS`."""
    times: int | None = None
    """Only the first so many requests for this conversation and turn, so that retries succeed. Default: always."""
    retry_after: float | None = None
    """Seconds, on `rate_limit` and the 5xx. Default: the server's `retry_after` on `rate_limit`, else none."""
    words: str = ""
    """What an error of HTTP says. Default: by its kind."""

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise ValueError(f"fault kind {self.kind!r} is none of: {', '.join(FAULT_KINDS)}")


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str | None
    arguments: Any = {}
    """An object, or raw text that is sent as it is."""
    id: str | None = None
    """Default: made from the position in the conversation, so unique there and the same on every retry."""


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reply. `{{prompt}}`, `{{last_tool_result}}`, `{{turn}}` and `{{model}}` are filled into its texts."""

    content: Any = ""
    """Text, null or a list of parts."""
    reasoning: str = ""
    reasoning_field: str = ""
    """Where the reasoning stands: one of `REASONING_FIELDS`. Default: the server's."""
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str = ""
    """Default: `tool_calls` or `stop`."""
    usage: dict[str, Any] | None = None
    """Default: counted from the texts, four characters a token."""
    message: dict[str, Any] = {}
    """Fields put on the message as they are, over the others."""
    latency: float | None = None
    """Seconds, instead of the server's."""
    fault: Fault | None = None


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    turns: tuple[Turn, ...]
    match: str = ""
    """Regular expression searched in the last user text. Default: matches everything."""

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError("a rule needs at least one turn")
        try:
            re.compile(self.match)
        except re.error as error:
            raise ValueError(f"match {self.match!r} is no regular expression: {error}") from None


Script = tuple[Rule, ...]


class MockConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a mock server does."""

    script: Script = ()
    turns: int = 1
    """Tool turns of the default script before its answer. Default: 1."""
    tool: str = "terminal"
    """Tool that the default script calls; where it isn't offered, the first that is. Default: `terminal`."""
    reasoning_field: str = "reasoning_content"
    """Where reasoning stands in a reply: one of `REASONING_FIELDS`."""
    latency: float = 0.0
    """Seconds from request to answer. Default: 0."""
    jitter: float = 0.0
    """Seconds, drawn uniformly and added to the latency. Default: 0."""
    faults: dict[str, float] = {}
    """Probability of each kind of fault, per request; together at most 1."""
    rate_limit_every: int = 0
    """Every so many-th request gets a 429. Default 0: none."""
    max_in_flight: int = 0
    """Requests beyond this many at once get a 429. Default 0: no limit."""
    retry_after: float = 1.0
    """Seconds, told with every 429 but those of the two rates below, which tell what is true. Default: 1."""
    requests_per_minute: float = 0.0
    """A token bucket of requests, as hosted APIs have; beyond it a 429. Default 0: no limit."""
    tokens_per_minute: float = 0.0
    """The same for tokens: a request needs its prompt and its `max_tokens`, and costs what it used. Default 0: no limit."""
    burst: float = 60.0
    """Seconds of refill that these buckets hold, and have at first. Default: 60."""
    fail_after: int = 0
    """From the so many-th request on, every request gets `fail_kind`. Default 0: none does."""
    fail_kind: str = "error_503"
    """One of `FAULT_KINDS`. Default: `error_503`."""
    fail_for: int = 0
    """Requests until that ends. Default 0: it does not end."""
    price: tuple[float, float] = (1.0, 1.0)
    """US dollars per million tokens of prompt and reply. Default: 1 and 1."""
    report_cost: bool = True
    """Replies carry their cost, as OpenRouter's do. Default: True."""
    list_prices: bool = False
    """GET /v1/models lists the price, as OpenRouter's does. Default: False."""
    models: tuple[str, ...] = ()
    """What GET /v1/models lists besides `mock`."""
    seed: int = 0
    """Of faults and jitter; what a request gets depends on it, the conversation, and how often this turn was asked."""
    takes_tools: bool = True
    """Whether requests with tools are answered; where not, they get `no_tools`. Default: True."""
    ids_as: str = "vllm"
    """Where token ids stand in a reply to `return_token_ids`: one of `IDS_AS`. Default: where vLLM has them."""
    strip_reasoning: bool = False
    """Prompts are rendered without the reasoning of earlier turns, as many templates do it, so that none begins with the ids of
    the call before. Default: False."""
    tokenizer: str = ""
    """Folder with the `tokenizer.json` that POST /generate reads and writes ids with. Default: there is no such endpoint."""
    record: int = 0
    """Requests of which the server keeps headers and body for `/stats?log=1`. Default: 0."""

    def __post_init__(self) -> None:
        for kind in (*self.faults, self.fail_kind):
            Fault(kind)
        if self.ids_as not in IDS_AS:
            raise ValueError(f"ids_as {self.ids_as!r} is none of: {', '.join(IDS_AS)}")
        if sum(self.faults.values()) > 1.0 or any(rate < 0.0 for rate in self.faults.values()):
            raise ValueError("the probabilities of all faults must be at least 0 and at most 1 together")
        for name in ("requests_per_minute", "tokens_per_minute", "burst", "fail_after", "fail_for"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0")
        if not all(0.0 <= dollars < math.inf for dollars in self.price):
            raise ValueError("price must be at least 0")
        if self.fail_for and not self.fail_after:
            raise ValueError("fail_for needs fail_after, the request at which it begins")
        fields = {self.reasoning_field, *(turn.reasoning_field for rule in self.script for turn in rule.turns)} - {""}
        if unknown := fields - set(REASONING_FIELDS):
            raise ValueError(f"reasoning_field {min(unknown)!r} is none of: {', '.join(REASONING_FIELDS)}")


class AskedMessage(msgspec.Struct):
    role: str
    content: Any = None


class AskedFunction(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")


class AskedTool(msgspec.Struct):
    function: AskedFunction


class Asked(msgspec.Struct):
    """What the server reads of a request."""

    messages: list[AskedMessage]
    model: str = ""
    stream: bool = False
    tools: list[AskedTool] = []
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    modalities: list[str] | None = None
    image_config: dict[str, Any] = {}
    return_token_ids: bool = False
    logprobs: bool | None = False

    @property
    def most(self) -> int | None:
        """Tokens that the reply may have; None where the request sets no limit."""
        return self.max_completion_tokens or self.max_tokens


class Situation(msgspec.Struct):
    """Where a conversation stands."""

    prompt: str
    """The last user text."""
    turn: int
    """Assistant messages since."""
    last_tool_result: str
    images: list[str] = []
    """Addresses of those shown with the last user text."""


def load_script(path: Path) -> Script:
    """The rules of a JSON or YAML file (a list, or an object with `rules`). Raises UsageError where it holds none."""
    decode = msgspec.yaml.decode if path.suffix in (".yaml", ".yml") else msgspec.json.decode
    try:
        return script_of(decode(path.read_bytes()))
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"--script {path}: {error}") from None


def script_of(rules: Any) -> Script:
    """The rules in decoded JSON. Raises msgspec.ValidationError where they are none."""
    return msgspec.convert(rules["rules"] if isinstance(rules, dict) and "rules" in rules else rules, Script)


def situation_of(asked: Asked) -> Situation:
    """Where the conversation of a request stands."""
    prompt, turn, result, images = "", 0, "", list[str]()
    for message in reversed(asked.messages):
        if message.role == "user":
            prompt, images = text_of(message.content), shown_images(message.content)
            break
        if message.role == "assistant":
            turn += 1
        elif message.role == "tool" and not result:
            result = text_of(message.content)
    return Situation(prompt, turn, result, images)


def turn_of(config: MockConfig, asked: Asked, situation: Situation) -> Turn:
    """The reply that the script has for a request, templates not yet filled in."""
    for rule in config.script:
        if not rule.match or re.search(rule.match, situation.prompt):
            return rule.turns[min(situation.turn, len(rule.turns) - 1)]
    return _default_turn(config, asked, situation)


def _default_turn(config: MockConfig, asked: Asked, situation: Situation) -> Turn:
    if situation.images and not situation.turn:
        return Turn(describe(situation.images))
    if situation.turn < config.turns and asked.tools:
        functions = {tool.function.name: tool.function for tool in asked.tools}
        function = functions.get(config.tool) or asked.tools[0].function
        arguments = {"command": "echo hello"} if function.name == "terminal" else sample_arguments(bytes(function.parameters))
        return Turn(reasoning=f"I call {function.name}.", tool_calls=(ScriptedCall(function.name, arguments),))
    return Turn("Done. {{last_tool_result}}" if situation.last_tool_result else "Done.", reasoning="I have what I need.")


@functools.lru_cache(maxsize=256)
def sample_arguments(schema: bytes) -> dict[str, Any]:
    """The simplest arguments that a JSON schema takes: its required properties only."""
    decoded = msgspec.json.decode(schema)
    properties = decoded.get("properties", {})
    return {name: _sample(properties.get(name, {})) for name in decoded.get("required", ())}


def _sample(schema: dict[str, Any]) -> Any:
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    samples = {
        "integer": schema.get("minimum", 1),
        "number": schema.get("minimum", 1),
        "boolean": False,
        "array": [],
        "object": {},
    }
    return samples.get(kind, "hello")


def fill(value: Any, variables: Mapping[str, str]) -> Any:
    """`value` with every `{{name}}` in its strings replaced."""
    if isinstance(value, str):
        if "{{" not in value:
            return value
        return re.sub(r"\{\{(\w+)\}\}", lambda match: variables.get(match[1], match[0]), value)
    if isinstance(value, list):
        return [fill(item, variables) for item in value]
    if isinstance(value, dict):
        return {key: fill(item, variables) for key, item in value.items()}
    return value


def draw(seed: int, key: str, what: str) -> float:
    """A number in [0, 1) that depends on nothing but its arguments: the order of concurrent requests doesn't matter."""
    digest = hashlib.blake2b(f"{seed}/{key}/{what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2.0**64


def drawn_fault(config: MockConfig, key: str) -> Fault | None:
    """The fault that chance has for the request named `key`."""
    if not config.faults:
        return None
    chance = draw(config.seed, key, "fault")
    for kind, rate in config.faults.items():
        chance -= rate
        if chance < 0.0:
            return Fault(kind)
    return None


class Bucket:
    """A token bucket: full at first, refilled continuously, and in debt where more was taken than there was."""

    def __init__(self, per_minute: float, burst: float, clock: Callable[[], float]) -> None:
        """It holds `burst` seconds of refill, at least one unit. `clock` gives seconds."""
        self.per_minute = per_minute
        self._per_second = per_minute / 60.0
        self._capacity = max(1.0, self._per_second * burst)
        self._level = self._capacity
        self._clock = clock
        self._filled_at = clock()

    def level(self) -> float:
        now = self._clock()
        self._level = min(self._capacity, self._level + max(0.0, now - self._filled_at) * self._per_second)
        self._filled_at = now
        return self._level

    def wait(self, amount: float) -> float:
        """Seconds until `amount` is there (what is more than the bucket holds asks for a full one); 0 where it is."""
        return self._seconds(min(amount, self._capacity) - self.level())

    def until_full(self) -> float:
        """Seconds."""
        return self._seconds(self._capacity - self.level())

    def take(self, amount: float) -> None:
        self._level = self.level() - amount

    def _seconds(self, missing: float) -> float:
        """Rounded up to a millisecond, so that who waits as told gets what was promised."""
        return math.ceil(missing / self._per_second * 1000.0) / 1000.0 if missing > ROUNDING else 0.0


def duration_text(seconds: float) -> str:
    """As hosted APIs write it in their headers: `20ms`, `1.2s`, `6m0s`, `1h0m0s`."""
    if 0.0 < seconds < 1.0:
        return f"{seconds * 1000.0:.0f}ms"
    minutes, rest = divmod(seconds, 60.0)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}h" * (hours > 0) + f"{minutes}m" * (hours > 0 or minutes > 0) + f"{round(rest, 3):g}s"
