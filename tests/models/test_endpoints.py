"""Keys by host, request fields by host, and every refusal before any work starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from kiseki.errors import UsageError
from kiseki.models.dialects.chat import request_fields
from kiseki.models.endpoints import ModelSettings, api_mode_of, resolve_api_key, with_fallback
from kiseki.models.factory import check_settings
from kiseki.models.hosts import EFFORTS, LOCAL, OLLAMA, OPENROUTER, UNKNOWN, host_of

OPENAI = "https://api.openai.com/v1"
DEEPSEEK = "https://api.deepseek.com"
VLLM = "http://127.0.0.1:8000/v1"
ELSEWHERE = "https://llm.example.com/v1"


def extras(base_url: str, **fields: Any) -> dict[str, Any]:
    return request_fields(ModelSettings("m", base_url, **fields))


@pytest.mark.parametrize(
    ("base_url", "environ", "key"),
    [
        ("https://openrouter.ai/api/v1", {"OPENROUTER_API_KEY": "or", "OPENAI_API_KEY": "oa"}, "or"),
        (OPENAI, {"OPENROUTER_API_KEY": "or", "OPENAI_API_KEY": "oa"}, "oa"),
        (DEEPSEEK, {"DEEPSEEK_API_KEY": " ds\n"}, "ds"),
        ("https://api.groq.com/openai/v1", {"GROQ_API_KEY": "g"}, "g"),
        ("https://api.moonshot.cn/v1", {"MOONSHOT_API_KEY": "k"}, "k"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", {"GOOGLE_API_KEY": "g"}, "g"),
        (ELSEWHERE, {"OPENAI_API_KEY": "oa"}, "oa"),
        (VLLM, {"OPENAI_API_KEY": "oa"}, ""),
        ("http://10.1.2.3:8000/v1", {}, ""),
        ("http://[::1]:8000/v1", {}, ""),
        ("http://100.101.102.103:8000/v1", {}, ""),
        ("http://gpu-box:8000/v1", {}, ""),
        ("http://vllm.internal:8000/v1", {}, ""),
        ("http://localhost:11434/v1", {}, ""),
    ],
)
def test_key_by_host(base_url: str, environ: dict[str, str], key: str) -> None:
    assert resolve_api_key(base_url, "", environ) == key
    assert resolve_api_key(base_url, "given", environ) == "given"


@pytest.mark.parametrize(
    ("base_url", "named"),
    [
        ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("https://notopenrouter.ai/api/v1", "OPENAI_API_KEY"),
        ("https://openrouter.ai.example.com/v1", "OPENAI_API_KEY"),
        (DEEPSEEK, "DEEPSEEK_API_KEY"),
        (ELSEWHERE, "OPENAI_API_KEY"),
    ],
)
def test_a_missing_key_is_named(base_url: str, named: str) -> None:
    other = {"OPENROUTER_API_KEY": "secret"} if named != "OPENROUTER_API_KEY" else {"OPENAI_API_KEY": "secret"}
    with pytest.raises(UsageError, match=f"set {named}.*--api_key"):
        resolve_api_key(base_url, "", other)


def test_hosts() -> None:
    assert host_of("https://openrouter.ai/api/v1") is OPENROUTER
    assert host_of(VLLM) is LOCAL
    assert host_of("http://localhost:11434/v1") is OLLAMA
    assert host_of(ELSEWHERE) is UNKNOWN
    for bad in ("openrouter.ai/api/v1", "ftp://x/v1", "", "http://", "http://x:port/v1"):
        with pytest.raises(UsageError, match="base_url"):
            host_of(bad)


def test_openrouter_fields() -> None:
    fields = extras(
        "https://openrouter.ai/api/v1",
        providers_allowed=("anthropic", "google-vertex"),
        providers_ignored=("azure",),
        providers_order=("anthropic",),
        provider_sort="throughput",
        reasoning_effort="ultra",
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
    )
    assert fields == {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "provider": {
            "only": ("anthropic", "google-vertex"),
            "ignore": ("azure",),
            "order": ("anthropic",),
            "sort": "throughput",
        },
        "reasoning": {"enabled": True, "effort": "ultra"},
        "usage": {"include": True},
    }
    assert extras("https://openrouter.ai/api/v1") == {"usage": {"include": True}}


@pytest.mark.parametrize(
    ("base_url", "fields", "sent"),
    [
        (
            "https://openrouter.ai/api/v1",
            {"reasoning_disabled": True, "reasoning_effort": "high"},
            {"reasoning": {"effort": "none"}},
        ),
        ("https://openrouter.ai/api/v1", {"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}}),
        (OPENAI, {"reasoning_effort": "xhigh"}, {"reasoning_effort": "xhigh"}),
        (OPENAI, {"reasoning_disabled": True}, {"reasoning_effort": "none"}),
        (OPENAI, {"max_tokens": 5}, {"max_completion_tokens": 5}),
        (VLLM, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        (VLLM, {"reasoning_disabled": True}, {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        ("http://localhost:11434/v1", {"reasoning_disabled": True}, {"reasoning_effort": "none"}),
        (DEEPSEEK, {"reasoning_effort": "max"}, {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
        (DEEPSEEK, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}),
        (DEEPSEEK, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ("https://api.mistral.ai/v1", {"stream": True, "reasoning_effort": "high"}, {"stream": True, "reasoning_effort": "high"}),
        (ELSEWHERE, {"max_tokens": 5}, {"max_tokens": 5}),
    ],
)
def test_fields_by_host(base_url: str, fields: dict[str, Any], sent: dict[str, Any]) -> None:
    got = extras(base_url, **fields)
    got.pop("usage", None)
    assert got == sent


@pytest.mark.parametrize(
    ("base_url", "fields", "said"),
    [
        (OPENAI, {"reasoning_effort": "ultra"}, "documents only none, minimal"),
        (OPENAI, {"reasoning_effort": "huge"}, ", ".join(EFFORTS)),
        (OPENAI, {"providers_allowed": ("x",)}, "OpenRouter's"),
        (VLLM, {"provider_sort": "price"}, "OpenRouter's"),
        ("https://openrouter.ai/api/v1", {"provider_sort": "speed"}, "price, throughput, latency"),
        (ELSEWHERE, {"reasoning_effort": "low"}, "llm.example.com"),
        (ELSEWHERE, {"reasoning_disabled": True}, "llm.example.com"),
        ("https://api.stepfun.com/v1", {"reasoning_disabled": True}, "StepFun"),
        (VLLM, {"max_tokens": 0}, "max_tokens"),
        (VLLM, {"temperature": 3.0}, "temperature"),
        (VLLM, {"top_p": 0.0}, "top_p"),
        (VLLM, {"call_timeout": 0.0}, "timeout"),
        (VLLM, {"max_retries": -1}, "retries"),
        (VLLM, {"api_key": "sk-x\n"}, "API key"),
        (VLLM, {"api_key": "sk-\u00e9"}, "API key"),
    ],
)
def test_refusals(base_url: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace(".", r"\.")) as caught:
        check_settings(ModelSettings("m", base_url, **fields))
    assert "sk-" not in str(caught.value)


def test_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="model"):
        check_settings(ModelSettings("", VLLM))


def test_the_flags_can_be_checked_without_aiohttp() -> None:
    code = "import sys, kiseki.models.endpoints, kiseki.commands.mock_server; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("", ("http://127.0.0.1:1/v1", "key", "chat")),
        ("http://127.0.0.1:1/v1/", ("http://127.0.0.1:1/v1", "key", "chat")),
        ("http://127.0.0.1:1/anthropic", ("http://127.0.0.1:1/anthropic", "key", "anthropic")),
        ("https://api.anthropic.com/v1", ("https://api.anthropic.com/v1", "", "anthropic")),
        ("https://api.openai.com/v1", ("https://api.openai.com/v1", "", "responses")),
    ],
)
def test_a_fallback_elsewhere_is_asked_as_its_host_wants_it(base_url: str, expected: tuple[str, str, str]) -> None:
    own = ModelSettings("m", "http://127.0.0.1:1/v1", api_key="key", api_mode="chat", context_length=9, temperature=0.5)
    (other,) = with_fallback(own, ["other"], base_url).fallback
    assert (other.base_url, other.api_key, api_mode_of(other)) == expected
    assert (other.model, other.context_length, other.temperature) == ("other", None, 0.5)
