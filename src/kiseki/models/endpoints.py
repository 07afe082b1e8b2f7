"""Where a model is asked, and how: the settings of a run's model, and API keys. Pure, no I/O.

How each kind of host spells what the settings say is its dialect's (`models/dialects/`), by what the host documents
(`models/hosts.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kiseki.errors import UsageError
from kiseki.models.hosts import LOCAL, OLLAMA, Host, host_of
from kiseki.models.prices import Price

OPENROUTER_URL = "https://openrouter.ai/api/v1"
PROVIDER_SORTS = ("price", "throughput", "latency")
API_MODES = ("auto", "chat", "responses", "anthropic")
TOOL_CALL_MODES = ("auto", "native", "json", "hermes")
OWN_FIELDS = ("messages", "input", "system", "tools", "stream", "model")
"""Of a request's body, that `extra_body` must not set: the call itself is made of them."""


class ModelSettings(msgspec.Struct, frozen=True):
    """How a model is asked; the same for every call of a run."""

    model: str
    """Model id, as the endpoint names it."""
    base_url: str = OPENROUTER_URL
    """API base; the path of the API is appended, as in `/chat/completions`. Default: OpenRouter."""
    api_key: str = ""
    """Sent as bearer token, or as the API wants it; "" (default) sends none. See `resolve_api_key`."""
    api_mode: str = "auto"
    """Which API is spoken, one of `API_MODES`. Default: what the host documents, see `api_mode_of`."""
    tool_call_mode: str = "auto"
    """One of `TOOL_CALL_MODES`: how the model is told of its tools and calls them. `native`: by the API. `json`: its output is
    constrained to JSON. `hermes`: in the text. Default: native, and calls that stand in the text of a reply are read."""
    extra_body: dict[str, Any] = {}
    """Put into the body of every request, over what Kiseki puts there. Default: nothing."""
    context_length: int | None = None
    """Tokens of a prompt and its reply together. Default: what the endpoint lists, or not known."""
    fallback: tuple[ModelSettings, ...] = ()
    """Asked one after the other where the model is gone or refuses. Default: none."""
    max_tokens: int | None = None
    """Output tokens per reply at most. Default: the model's own limit."""
    temperature: float | None = None
    """Sampling temperature. Default: the endpoint's."""
    top_p: float | None = None
    """Nucleus sampling, 0 to 1. Default: the endpoint's."""
    providers_allowed: tuple[str, ...] = ()
    """OpenRouter: only these upstream providers. Default: any."""
    providers_ignored: tuple[str, ...] = ()
    """OpenRouter: never these upstream providers. Default: none."""
    providers_order: tuple[str, ...] = ()
    """OpenRouter: try these upstream providers first, in this order. Default: its own choice."""
    provider_sort: str = ""
    """OpenRouter: `price`, `throughput` or `latency`. Default: its own balance."""
    reasoning_effort: str = ""
    """One of `EFFORTS`. Default: the model's own."""
    reasoning_disabled: bool = False
    """No reasoning tokens at all; wins over `reasoning_effort`. Default: False."""
    stream: bool = False
    """Ask for server-sent events; the reply is the same, only long ones are less likely to be cut by a proxy. Default: False."""
    call_timeout: float = 1800.0
    """Seconds that one request may take, connection and whole body included. Default: 1800."""
    stream_timeout: float = 300.0
    """Seconds in which something more of a streamed reply must come, once it has begun. Default: 300."""
    provider_patience: float = 300.0
    """Seconds for which the endpoint may turn a call away (429, 503), or fail every call, before that counts. Default: 300."""
    max_retries: int = 5
    """Requests after the first one that a retryable failure may cost. Default: 5."""
    price: Price | None = None
    """What a token costs, where that is known. Default: not known."""
    capture_tokens: bool = False
    """Ask for the ids of prompt and reply and the reply's logprobs, and keep them (`ModelCall.tokens`). Default: False."""


def resolve_api_key(base_url: str, api_key: str, environ: Mapping[str, str]) -> str:
    """The key for `base_url`: the one given, else the host's documented variable, else OPENAI_API_KEY for an unknown host.

    "" for loopback and private hosts. Raises UsageError naming what to set where a remote host has none.
    """
    if api_key:
        return api_key
    host = host_of(base_url)
    if host in (LOCAL, OLLAMA):
        return ""
    for variable in host.keys:
        if value := environ.get(variable, "").strip():
            return value
    names = " or ".join(host.keys)
    raise UsageError(f"No API key for {urlsplit(base_url).hostname}: set {names}, or pass --api_key.")


def with_fallback(settings: ModelSettings, models: Sequence[str], base_url: str) -> ModelSettings:
    """The settings with models that are asked, by the same settings, where the model is gone or refuses. `base_url`: where, ""
    for the same place. Raises UsageError for a place without models."""
    if base_url and not models:
        raise UsageError("--fallback_base_url needs --fallback_model, the models that are asked there")
    own = msgspec.structs.replace(settings, context_length=None)
    if base_url and base_url.rstrip("/") != settings.base_url.rstrip("/"):
        same_host = urlsplit(base_url).netloc == urlsplit(settings.base_url).netloc
        own = msgspec.structs.replace(own, base_url=base_url, api_key=settings.api_key if same_host else "", api_mode="auto")
    fallback = [msgspec.structs.replace(own, model=name) for name in models]
    return msgspec.structs.replace(settings, fallback=tuple(fallback))


def api_mode_of(settings: ModelSettings) -> str:
    """Which API is spoken: the one that was asked for, else the host's, else Anthropic's where the path says so (`…/anthropic`,
    as several hosts offer it beside their own), else chat completions."""
    if settings.api_mode != "auto":
        return settings.api_mode
    if urlsplit(settings.base_url).path.rstrip("/").removesuffix("/v1").endswith("/anthropic"):
        return "anthropic"
    return host_of(settings.base_url).api_mode


def check_values(settings: ModelSettings) -> None:
    """Raise UsageError for values that nothing takes. What the host has no field for is said by its dialect."""
    if not settings.model:
        raise UsageError("--model is empty.")
    if "@" in urlsplit(settings.base_url).netloc:  # a URL is shown and kept in places where a secret must not be
        raise UsageError("--base_url must not hold a user name or password; give the key with --api_key or the environment.")
    if urlsplit(settings.base_url).query or urlsplit(settings.base_url).fragment:
        raise UsageError("--base_url must not hold a query (?…) or a fragment (#…): the paths of the API are put behind it.")
    if not settings.api_key.isprintable() or not settings.api_key.isascii() or settings.api_key != settings.api_key.strip():
        raise UsageError("The API key has characters that no HTTP header can carry (a line break, a space at an end?).")
    positive = {
        "--max_tokens": settings.max_tokens,
        "--context_length": settings.context_length,
        "--call_timeout": settings.call_timeout,
        "stream_timeout": settings.stream_timeout,
    }
    for name, value in positive.items():
        if value is not None and value <= 0:
            raise UsageError(f"{name} must be above 0, not {value}.")
    if settings.api_mode not in API_MODES:
        raise UsageError(f"--api_mode {settings.api_mode!r} is none of: {', '.join(API_MODES)}.")
    if settings.tool_call_mode not in TOOL_CALL_MODES:
        raise UsageError(f"--tool_call_mode {settings.tool_call_mode!r} is none of: {', '.join(TOOL_CALL_MODES)}.")
    if wrong := [name for name in OWN_FIELDS if name in settings.extra_body]:
        raise UsageError(f"--extra_body must not set {', '.join(wrong)}: the call itself is made of that.")
    if settings.max_retries < 0:
        raise UsageError(f"The number of retries must not be below 0, not {settings.max_retries}.")
    if settings.temperature is not None and not 0 <= settings.temperature <= 2:
        raise UsageError(f"--temperature must be between 0 and 2, not {settings.temperature}.")
    if settings.top_p is not None and not 0 < settings.top_p <= 1:
        raise UsageError(f"--top_p must be above 0 and at most 1, not {settings.top_p}.")


def name_of(host: Host, settings: ModelSettings) -> str:
    return host.name or f"{urlsplit(settings.base_url).hostname} (a host that Kiseki does not know)"
