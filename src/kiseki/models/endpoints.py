"""Where a model is asked: settings, API keys, and how each kind of host spells what the settings say. Pure, no I/O.

Everything that can be wrong with a flag is said here, before any work starts (`check_settings`): a flag that a host has no
documented field for is refused, never silently dropped. What each host documents is one row of `HOSTS`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kiseki.errors import UsageError
from kiseki.models.prices import Price

OPENROUTER_URL = "https://openrouter.ai/api/v1"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
PROVIDER_SORTS = ("price", "throughput", "latency")

Extras = dict[str, Any]


class ModelSettings(msgspec.Struct, frozen=True):
    """How a model is asked; the same for every call of a run."""

    model: str
    """Model id, as the endpoint names it."""
    base_url: str = OPENROUTER_URL
    """API base; `/chat/completions` is appended. Default: OpenRouter."""
    api_key: str = ""
    """Sent as bearer token; "" (default) sends none. See `resolve_api_key`."""
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


class Host(msgspec.Struct, frozen=True):
    """What one kind of host documents."""

    name: str
    domains: tuple[str, ...] = ()
    """Host names, subdomains included."""
    keys: tuple[str, ...] = ()
    """Environment variables that hold its key, first wins."""
    effort: Callable[[str], Extras] | None = None
    """The body fields that set a reasoning effort; None where we know of none."""
    efforts: tuple[str, ...] = EFFORTS
    """The efforts that `effort` takes."""
    no_reasoning: Extras | None = None
    """The body fields that switch reasoning off; None where we know of none."""
    max_tokens: str = "max_tokens"
    """Name of the field that limits output tokens."""
    seed: str = "seed"
    """Name of the sampling seed's field; "" where the host refuses one."""
    stream_usage: bool = True
    """Takes `stream_options`; where not, the last chunk carries the usage unasked."""
    echo: tuple[str, ...] = ()
    """Fields of an assistant message in which the host wants the model's reasoning back on the next turn."""
    token_ids: Extras | None = None
    """The body fields that ask for token ids and logprobs; None where we know of none."""


def _effort_field(effort: str) -> Extras:
    return {"reasoning_effort": effort}


def _openrouter_effort(effort: str) -> Extras:
    return {"reasoning": {"enabled": True, "effort": effort}}


def _thinking_effort(effort: str) -> Extras:
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort}


_THINKING_OFF: Extras = {"thinking": {"type": "disabled"}}
# Of vLLM and, where the reply is not streamed, SGLang (`ChatCompletionRequest` in the `protocol.py` of each). Other servers
# ignore them, or answer with logprobs alone.
_TOKEN_IDS: Extras = {"logprobs": True, "return_token_ids": True}

# From each API's reference (openrouter.ai/docs, platform.openai.com/docs/api-reference/chat, api-docs.deepseek.com
# "Thinking Mode", platform.kimi.ai, docs.z.ai, console.groq.com/docs/reasoning, docs.mistral.ai "Adjustable",
# docs.fireworks.ai/guides/reasoning, ai.google.dev/gemini-api/docs/openai, docs.x.ai, inference-docs.cerebras.ai).
OPENROUTER = Host(
    "OpenRouter",
    ("openrouter.ai",),
    ("OPENROUTER_API_KEY",),
    effort=_openrouter_effort,
    no_reasoning={"reasoning": {"effort": "none"}},
    echo=("reasoning",),
)
HOSTS = (
    OPENROUTER,
    Host(
        "OpenAI",
        ("api.openai.com",),
        ("OPENAI_API_KEY",),
        effort=_effort_field,
        efforts=("none", "minimal", "low", "medium", "high", "xhigh"),
        no_reasoning={"reasoning_effort": "none"},
        max_tokens="max_completion_tokens",
    ),
    Host(
        "DeepSeek",
        ("deepseek.com",),
        ("DEEPSEEK_API_KEY",),
        effort=_thinking_effort,
        efforts=("minimal", "low", "medium", "high", "xhigh", "max", "ultra"),
        no_reasoning=_THINKING_OFF,
        echo=("reasoning_content",),
    ),
    Host(
        "Moonshot",
        ("moonshot.ai", "moonshot.cn"),
        ("MOONSHOT_API_KEY",),
        effort=_effort_field,
        efforts=("low", "high", "max"),
        no_reasoning=_THINKING_OFF,
        echo=("reasoning_content",),
    ),
    Host(
        "Z.ai",
        ("z.ai", "bigmodel.cn"),
        ("ZAI_API_KEY", "ZHIPUAI_API_KEY"),
        no_reasoning=_THINKING_OFF,
        echo=("reasoning_content",),
    ),
    Host(
        "Groq",
        ("groq.com",),
        ("GROQ_API_KEY",),
        effort=_effort_field,
        efforts=("none", "low", "medium", "high"),
        no_reasoning={"reasoning_effort": "none"},
    ),
    Host(
        "Mistral",
        ("mistral.ai",),
        ("MISTRAL_API_KEY",),
        effort=_effort_field,
        efforts=("none", "high"),
        no_reasoning={"reasoning_effort": "none"},
        seed="random_seed",
        stream_usage=False,  # it refuses fields that it does not know, and reports usage anyway
    ),
    Host(
        "Fireworks",
        ("fireworks.ai",),
        ("FIREWORKS_API_KEY",),
        effort=_effort_field,
        efforts=("none", "low", "medium", "high", "xhigh", "max"),
        no_reasoning={"reasoning_effort": "none"},
        echo=("reasoning_content",),
    ),
    Host(
        "Gemini",
        ("generativelanguage.googleapis.com",),
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        effort=_effort_field,
        efforts=("none", "minimal", "low", "medium", "high"),
        no_reasoning={"reasoning_effort": "none"},
        seed="",
    ),
    Host("xAI", ("x.ai",), ("XAI_API_KEY",), effort=_effort_field, efforts=("low", "medium", "high")),
    Host("Cerebras", ("cerebras.ai",), ("CEREBRAS_API_KEY",), effort=_effort_field, efforts=("low", "medium", "high")),
    Host("Together", ("together.xyz", "together.ai"), ("TOGETHER_API_KEY",)),
    Host("Anthropic", ("anthropic.com",), ("ANTHROPIC_API_KEY",)),
    Host("DashScope", ("aliyuncs.com",), ("DASHSCOPE_API_KEY",), no_reasoning={"enable_thinking": False}),
    Host("NVIDIA", ("integrate.api.nvidia.com",), ("NVIDIA_API_KEY",)),
    Host("Hugging Face", ("huggingface.co", "huggingface.cloud"), ("HF_TOKEN",)),
    Host("DeepInfra", ("deepinfra.com",), ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN")),
    Host("Novita", ("novita.ai",), ("NOVITA_API_KEY",)),
    Host("SiliconFlow", ("siliconflow.com", "siliconflow.cn"), ("SILICONFLOW_API_KEY",), no_reasoning={"enable_thinking": False}),
    Host("MiniMax", ("minimax.io", "minimaxi.com"), ("MINIMAX_API_KEY",)),
    Host("Ollama Cloud", ("ollama.com",), ("OLLAMA_API_KEY",), effort=_effort_field, no_reasoning={"reasoning_effort": "none"}),
    Host("Vercel AI Gateway", ("ai-gateway.vercel.sh",), ("AI_GATEWAY_API_KEY",)),
    Host("Azure OpenAI", ("openai.azure.com",), ("AZURE_OPENAI_API_KEY",), max_tokens="max_completion_tokens"),
)
# vLLM, SGLang and llama.cpp all take `reasoning_effort`, and `chat_template_kwargs` for templates that can switch thinking
# off; Ollama ignores the latter and documents `reasoning_effort: none`. Newer vLLM reads reasoning back as `reasoning`,
# SGLang and llama.cpp as `reasoning_content`; each ignores the other.
LOCAL = Host(
    "a local server",
    effort=_effort_field,
    no_reasoning={"chat_template_kwargs": {"enable_thinking": False}},
    echo=("reasoning", "reasoning_content"),
    token_ids=_TOKEN_IDS,
)
OLLAMA_PORT = 11434  # its documented default
OLLAMA = Host("Ollama", effort=_effort_field, no_reasoning={"reasoning_effort": "none"}, echo=("reasoning",))
UNKNOWN = Host("", keys=("OPENAI_API_KEY",), token_ids=_TOKEN_IDS)


def host_of(base_url: str) -> Host:
    """The row of `HOSTS` that `base_url` belongs to; `LOCAL`/`OLLAMA` on loopback or private addresses, else `UNKNOWN`.

    Raises UsageError where it is no http(s) URL.
    """
    try:
        parts = urlsplit(base_url)
        name, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        name, port = "", None
    if not name or parts.scheme not in ("http", "https"):
        raise UsageError(f"--base_url {base_url!r} is not an http:// or https:// URL.")
    if is_local(name):
        return OLLAMA if port == OLLAMA_PORT else LOCAL
    for host in HOSTS:
        if any(name == domain or name.endswith("." + domain) for domain in host.domains):
            return host
    return UNKNOWN


def is_local(hostname: str) -> bool:
    """Whether a host name is this machine or its private network: there a key is optional and the server is one's own."""
    try:
        address = ipaddress.ip_address(hostname)
    except ValueError:
        # A bare name ("vllm", "gpu-3") can only be a hosts-file, container or search-domain name; the suffixes are set aside
        # for private use (RFC 6761, RFC 6762, RFC 8375, ICANN's `.internal`) or, as `.lan`, used so by many routers.
        return "." not in hostname or hostname.endswith((".localhost", ".local", ".home.arpa", ".internal", ".lan"))
    return not address.is_global  # loopback, private, link-local, and the shared range that overlay networks use


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


def request_extras(settings: ModelSettings) -> Extras:
    """The body fields beyond model, messages and tools that say what `settings` say, as this host spells them.

    Raises UsageError for values that are not valid and for flags that the host has no documented field for.
    """
    host = host_of(settings.base_url)
    extras: Extras = {}
    if settings.max_tokens is not None:
        extras[host.max_tokens] = settings.max_tokens
    if settings.temperature is not None:
        extras["temperature"] = settings.temperature
    if settings.top_p is not None:
        extras["top_p"] = settings.top_p
    if settings.stream:
        extras["stream"] = True
        if host.stream_usage:
            extras["stream_options"] = {"include_usage": True}
    extras.update(_provider_fields(host, settings))
    extras.update(_reasoning_fields(host, settings))
    if settings.capture_tokens:
        if host.token_ids is None:
            raise UsageError(
                f"--capture_tokens: no documented field gives token ids at {_name(host, settings)}; a server of one's own does, "
                "vLLM or SGLang."
            )
        extras.update(host.token_ids)
    if host is OPENROUTER:
        extras["usage"] = {"include": True}
    return extras


def _provider_fields(host: Host, settings: ModelSettings) -> Extras:
    if settings.provider_sort and settings.provider_sort not in PROVIDER_SORTS:
        raise UsageError(f"--provider_sort {settings.provider_sort!r} is none of: {', '.join(PROVIDER_SORTS)}.")
    routing = {
        "only": settings.providers_allowed,
        "ignore": settings.providers_ignored,
        "order": settings.providers_order,
        "sort": settings.provider_sort,
    }
    routing = {field: value for field, value in routing.items() if value}
    if routing and host is not OPENROUTER:
        raise UsageError(
            "--providers_allowed, --providers_ignored, --providers_order and --provider_sort are OpenRouter's; "
            f"{_name(host, settings)} has no provider routing."
        )
    return {"provider": routing} if routing else {}


def _reasoning_fields(host: Host, settings: ModelSettings) -> Extras:
    effort = settings.reasoning_effort
    if effort and effort not in EFFORTS:
        raise UsageError(f"--reasoning_effort {effort!r} is none of: {', '.join(EFFORTS)}.")
    if settings.reasoning_disabled or (effort == "none" and host.no_reasoning is not None):
        if host.no_reasoning is None:
            raise UsageError(f"--reasoning_disabled: no documented field switches reasoning off at {_name(host, settings)}.")
        return host.no_reasoning
    if not effort:
        return {}
    if host.effort is None:
        raise UsageError(f"--reasoning_effort: no documented field sets it at {_name(host, settings)}.")
    if effort not in host.efforts:
        raise UsageError(f"--reasoning_effort {effort!r}: {host.name} documents only {', '.join(host.efforts)}.")
    return host.effort(effort)


def _name(host: Host, settings: ModelSettings) -> str:
    return host.name or f"{urlsplit(settings.base_url).hostname} (a host that Kiseki does not know)"


def check_settings(settings: ModelSettings) -> None:
    """Raise UsageError for whatever in `settings` cannot be used; call before any work starts."""
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
        "--call_timeout": settings.call_timeout,
        "stream_timeout": settings.stream_timeout,
    }
    for name, value in positive.items():
        if value is not None and value <= 0:
            raise UsageError(f"{name} must be above 0, not {value}.")
    if settings.max_retries < 0:
        raise UsageError(f"The number of retries must not be below 0, not {settings.max_retries}.")
    if settings.temperature is not None and not 0 <= settings.temperature <= 2:
        raise UsageError(f"--temperature must be between 0 and 2, not {settings.temperature}.")
    if settings.top_p is not None and not 0 < settings.top_p <= 1:
        raise UsageError(f"--top_p must be above 0 and at most 1, not {settings.top_p}.")
    request_extras(settings)
