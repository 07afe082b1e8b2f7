"""The kinds of hosts that models are asked at, and what each documents: one row each. Pure, no I/O.

DeepSeek, Moonshot, Z.ai and MiniMax offer Anthropic's Messages API too, under a base URL that ends in `/anthropic`; their rows
say what their own API takes. docs/models.md holds this table for people to read.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kiseki.errors import UsageError

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")
Extras = dict[str, Any]

DETAILS = "reasoning_details"
"""In `Host.echo`: the list of that name in the model's own message, as it came (OpenRouter's form; it holds signatures)."""
PARTS = "content"
"""In `Host.echo`: as a thinking part before the text, in the message's content (Mistral's form)."""


class Host(msgspec.Struct, frozen=True):
    """What one kind of host documents, in the words of the chat API; the other dialects have their own. What depends on the model
    (which efforts, whether reasoning can be off) is what any of its models takes: the host says no to the rest."""

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
    """Fields of an assistant message in which the host wants the model's reasoning back on the next turn. Where a message has
    `DETAILS`, they go back alone. What is not named here does not go back: many hosts refuse fields that they do not know."""
    echo_blank: bool = False
    """It refuses a conversation where such a field is missing: a turn that another model wrote, or that had none, has a space."""
    token_ids: Extras | None = None
    """The body fields that ask for token ids and logprobs; None where we know of none."""
    api_mode: str = "chat"
    """The API that it is asked by: `chat`, `responses` or `anthropic`."""
    json_schema: str = "json_schema"
    """What `response_format` can ask of a reply in the chat API: `json_schema`, only `json_object`, or "" for neither."""
    call_id: Callable[[str], str] = str
    """A tool call's id as the host takes it. Default: any."""
    unsigned_call: Extras | None = None
    """What its tool calls carry as `extra_content` where another model wrote them. Default: nothing."""
    always: Extras = {}
    """Body fields of every request in the chat API. Default: none."""


def _nine_characters(call_id: str) -> str:
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=8).hexdigest()[:9]


def _effort_field(effort: str) -> Extras:
    return {"reasoning_effort": effort}


def _reasoning_object(effort: str) -> Extras:
    return {"reasoning": {"enabled": True, "effort": effort}}


def _thinking_effort(effort: str) -> Extras:
    return {"thinking": {"type": "enabled"}, "reasoning_effort": effort}


_NO_EFFORT: Extras = {"reasoning_effort": "none"}
_THINKING_OFF: Extras = {"thinking": {"type": "disabled"}}
_OPENAI_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_LOW_TO_HIGH = ("low", "medium", "high")
# Of vLLM and, where the reply is not streamed, SGLang (`ChatCompletionRequest` in the `protocol.py` of each), and of Fireworks.
# Other servers ignore them, or answer with logprobs alone.
_TOKEN_IDS: Extras = {"logprobs": True, "return_token_ids": True}
# llama.cpp gives ids only where it is asked for everything, and 20 alternatives a token where it is not asked for one.
_TOKEN_IDS_LOCAL: Extras = {**_TOKEN_IDS, "top_logprobs": 1, "return_tokens": True, "verbose": True}

# From each API's reference, as of November 2026, and the request types of the official Python clients: openrouter.ai/docs
# (reasoning tokens), developers.openai.com/api/docs/guides/reasoning, api-docs.deepseek.com/guides/thinking_mode,
# platform.kimi.ai/docs/guide/use-thinking-effort, docs.z.ai/guides/capabilities/thinking-mode, console.groq.com/docs/reasoning,
# docs.mistral.ai/capabilities/reasoning, docs.fireworks.ai/guides/reasoning, ai.google.dev/gemini-api/docs/openai,
# docs.x.ai/docs/guides/reasoning, inference-docs.cerebras.ai/capabilities/reasoning, docs.together.ai/docs/reasoning-overview,
# platform.claude.com/docs/en/build-with-claude/thinking, platform.minimax.io/docs/api-reference/text-openai-api.
OPENROUTER = Host(
    "OpenRouter",
    ("openrouter.ai",),
    ("OPENROUTER_API_KEY",),
    effort=_reasoning_object,
    no_reasoning={"reasoning": {"effort": "none"}},
    echo=(DETAILS, "reasoning"),
    always={"usage": {"include": True}},
)
OPENAI = Host(
    "OpenAI",
    ("api.openai.com",),
    ("OPENAI_API_KEY",),
    effort=_effort_field,
    efforts=_OPENAI_EFFORTS,
    no_reasoning=_NO_EFFORT,
    max_tokens="max_completion_tokens",
    # From gpt-5.4 on, its chat API refuses tools together with reasoning, and never shows any.
    api_mode="responses",
)
HOSTS = (
    OPENROUTER,
    OPENAI,
    Host(
        "DeepSeek",
        ("deepseek.com",),
        ("DEEPSEEK_API_KEY",),
        effort=_thinking_effort,
        efforts=("minimal", "low", "medium", "high", "xhigh", "max", "ultra"),
        no_reasoning=_THINKING_OFF,
        echo=("reasoning_content",),
        echo_blank=True,
        json_schema="json_object",
    ),
    Host(
        "Moonshot",
        ("moonshot.ai", "moonshot.cn", "kimi.ai"),
        ("MOONSHOT_API_KEY",),
        effort=_effort_field,
        efforts=("low", "high", "max"),  # kimi-k3's; older ones have no levels, k3 and k2.7-code can't be switched off
        no_reasoning=_THINKING_OFF,
        echo=("reasoning_content",),
        echo_blank=True,
        json_schema="json_object",
    ),
    Host(
        "Z.ai",
        ("z.ai", "bigmodel.cn"),
        ("ZAI_API_KEY", "ZHIPUAI_API_KEY"),
        effort=_effort_field,
        efforts=_OPENAI_EFFORTS,  # from glm-5.2 on
        no_reasoning=_THINKING_OFF,
        echo=("reasoning_content",),
        json_schema="json_object",
    ),
    Host(
        "Groq",
        ("groq.com",),
        ("GROQ_API_KEY",),
        effort=_effort_field,
        efforts=("none", *_LOW_TO_HIGH),
        no_reasoning=_NO_EFFORT,
        max_tokens="max_completion_tokens",
        echo=("reasoning",),
    ),
    Host(
        "Mistral",
        ("mistral.ai",),
        ("MISTRAL_API_KEY",),
        effort=_effort_field,
        efforts=_OPENAI_EFFORTS,
        no_reasoning=_NO_EFFORT,
        call_id=_nine_characters,  # it refuses any other ("Tool call id must be a-z, A-Z, 0-9, with a length of 9")
        seed="random_seed",
        stream_usage=False,  # it refuses fields that it does not know, and reports usage anyway
        echo=(PARTS,),
    ),
    Host(
        "Fireworks",
        ("fireworks.ai",),
        ("FIREWORKS_API_KEY",),
        effort=_effort_field,
        efforts=("none", "low", "medium", "high", "xhigh", "max"),
        no_reasoning=_NO_EFFORT,
        echo=("reasoning_content",),
        token_ids=_TOKEN_IDS,
    ),
    Host(
        "Gemini",
        ("generativelanguage.googleapis.com",),
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        effort=_effort_field,
        efforts=("none", "minimal", "low", "medium", "high"),
        no_reasoning=_NO_EFFORT,
        seed="",
        # of calls without a signature of its own, which it refuses otherwise (ai.google.dev/gemini-api/docs/thought-signatures)
        unsigned_call={"google": {"thought_signature": "skip_thought_signature_validator"}},
    ),
    Host(
        "xAI",
        ("x.ai",),
        ("XAI_API_KEY",),
        effort=_effort_field,
        efforts=("none", "low", "medium", "high", "xhigh"),
        no_reasoning=_NO_EFFORT,
    ),
    Host(
        "Cerebras",
        ("cerebras.ai",),
        ("CEREBRAS_API_KEY",),
        effort=_effort_field,
        efforts=("none", *_LOW_TO_HIGH),
        no_reasoning=_NO_EFFORT,
        max_tokens="max_completion_tokens",
        echo=("reasoning",),
    ),
    Host(
        "Together",
        ("together.xyz", "together.ai"),
        ("TOGETHER_API_KEY",),
        effort=_effort_field,
        efforts=_LOW_TO_HIGH,
        no_reasoning={"reasoning": {"enabled": False}},
        echo=("reasoning_content",),
    ),
    Host(
        "Anthropic",
        ("anthropic.com",),
        ("ANTHROPIC_API_KEY",),
        seed="",
        api_mode="anthropic",
    ),
    Host(
        "MiniMax",
        ("minimax.io", "minimaxi.com"),
        ("MINIMAX_API_KEY",),
        no_reasoning=_THINKING_OFF,
        max_tokens="max_completion_tokens",
        echo=(DETAILS,),
        json_schema="",
        always={"reasoning_split": True},  # else its reasoning stands in the content, and must stay there
    ),
    Host(
        "DashScope",
        ("aliyuncs.com",),
        ("DASHSCOPE_API_KEY",),
        no_reasoning={"enable_thinking": False},
        json_schema="json_object",
    ),
    Host(
        "SiliconFlow",
        ("siliconflow.com", "siliconflow.cn"),
        ("SILICONFLOW_API_KEY",),
        no_reasoning={"enable_thinking": False},
        json_schema="json_object",
    ),
    Host("Novita", ("novita.ai",), ("NOVITA_API_KEY",)),
    Host(
        "DeepInfra",
        ("deepinfra.com",),
        ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
        effort=_effort_field,
        efforts=("none", *_LOW_TO_HIGH),
        no_reasoning=_NO_EFFORT,
    ),
    Host(
        "SambaNova",
        ("sambanova.ai",),
        ("SAMBANOVA_API_KEY",),
        effort=_effort_field,
        efforts=_LOW_TO_HIGH,
        no_reasoning={"chat_template_kwargs": {"enable_thinking": False}},
        echo=("reasoning",),
    ),
    Host("Volcengine Ark", ("volces.com", "bytepluses.com"), ("ARK_API_KEY",), no_reasoning=_THINKING_OFF),
    Host("StepFun", ("stepfun.com", "stepfun.ai"), ("STEP_API_KEY", "STEPFUN_API_KEY")),
    Host("Nebius", ("nebius.com", "nebius.ai"), ("NEBIUS_API_KEY",)),
    Host("Hyperbolic", ("hyperbolic.xyz",), ("HYPERBOLIC_API_KEY",)),
    Host("Baseten", ("baseten.co",), ("BASETEN_API_KEY",), effort=_effort_field, efforts=_LOW_TO_HIGH),
    Host("Parasail", ("parasail.io",), ("PARASAIL_API_KEY",)),
    Host(
        "Perplexity",
        ("perplexity.ai",),
        ("PERPLEXITY_API_KEY",),
        effort=_effort_field,
        efforts=("minimal", *_LOW_TO_HIGH),
        seed="",
    ),
    Host("Cohere", ("cohere.ai", "cohere.com"), ("COHERE_API_KEY", "CO_API_KEY")),
    Host("NVIDIA", ("integrate.api.nvidia.com",), ("NVIDIA_API_KEY",)),
    Host("Hugging Face", ("huggingface.co", "huggingface.cloud"), ("HF_TOKEN",)),
    Host("GitHub Models", ("models.github.ai",), ("GITHUB_TOKEN",)),
    Host(
        "Ollama Cloud",
        ("ollama.com",),
        ("OLLAMA_API_KEY",),
        effort=_effort_field,
        no_reasoning=_NO_EFFORT,
        echo=("reasoning",),
    ),
    Host(
        "Vercel AI Gateway",
        ("ai-gateway.vercel.sh",),
        ("AI_GATEWAY_API_KEY",),
        effort=_reasoning_object,
        efforts=("none", "minimal", "low", "medium", "high", "xhigh"),
        no_reasoning={"reasoning": {"enabled": False}},
        echo=(DETAILS, "reasoning"),
    ),
    Host(
        "Azure OpenAI",
        ("openai.azure.com", "services.ai.azure.com", "cognitiveservices.azure.com"),
        ("AZURE_OPENAI_API_KEY",),
        effort=_effort_field,
        efforts=_OPENAI_EFFORTS,
        no_reasoning=_NO_EFFORT,
        max_tokens="max_completion_tokens",
        api_mode="responses",
    ),
)
# vLLM, SGLang, llama.cpp and LM Studio all take `reasoning_effort` and `response_format` with a schema, and all but the last
# `chat_template_kwargs` for templates that can switch thinking off: `enable_thinking` of Qwen, GLM and most, `thinking` of
# DeepSeek and Kimi; a template takes no notice of a name that it does not use. Ollama ignores those and documents
# `reasoning_effort: none`. vLLM and Ollama read reasoning back as `reasoning`, SGLang, llama.cpp and LM Studio as
# `reasoning_content`; each ignores the other.
LOCAL = Host(
    "a local server",
    effort=_effort_field,
    no_reasoning={"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
    echo=(DETAILS, "reasoning", "reasoning_content"),
    token_ids=_TOKEN_IDS_LOCAL,
)
OLLAMA_PORT = 11434  # its documented default
OLLAMA = Host("Ollama", effort=_effort_field, no_reasoning=_NO_EFFORT, echo=("reasoning",))
UNKNOWN = Host("", keys=("OPENAI_API_KEY",), echo=(DETAILS,), token_ids=_TOKEN_IDS)


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
