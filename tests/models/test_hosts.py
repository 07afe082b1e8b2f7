"""The table of hosts, and that docs/models.md says the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support import REPOSITORY

from kiseki.errors import UsageError
from kiseki.models.base import ChatRequest
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings
from kiseki.models.hosts import DETAILS, EFFORTS, HOSTS, LOCAL, OLLAMA, OPENAI, PARTS, UNKNOWN, Host, host_of
from kiseki.trajectory.types import Message

ROWS = (*HOSTS, OLLAMA, LOCAL, UNKNOWN)
HEAD = "| Host | Key | API | Effort | Off | Sent back on the next turn | Seed | Output limit | Constrained output |"
PAGE = REPOSITORY / "docs" / "models.md"
NAMES = {LOCAL.name: "A server of one's own", UNKNOWN.name: "Any other"}
ADDRESSES = {OLLAMA.name: "http://127.0.0.1:11434", LOCAL.name: "http://127.0.0.1:8000", UNKNOWN.name: "https://llm.example.com"}
MODELS = {"Anthropic": "claude-opus-4-8"}  # what it takes depends on the model
BACK = {DETAILS: "`reasoning_details` as they came", PARTS: "a thinking part in `content`"}
BACK_OF_API = {"responses": "its reasoning items, encrypted", "anthropic": "its thinking blocks, signed"}
BACK_OF_CALLS = {"Gemini": "`extra_content` of its tool calls"}  # goes back to whichever host sent it
SCHEMA = msgspec.Raw(b'{"type":"object"}')
NO_SCHEMA = msgspec.Raw(b"")


def asked(host: Host, *, seed: int | None = None, schema: msgspec.Raw = NO_SCHEMA, **settings: Any) -> dict[str, Any]:
    """The body of a request to `host`, without the prompt."""
    address = ADDRESSES.get(host.name) or f"https://{host.domains[0]}"
    dialect = open_dialect(ModelSettings(MODELS.get(host.name, "m"), f"{address}/v1", **settings))
    body, _ = dialect.encode(ChatRequest((Message("user", "hello"),), seed=seed, json_schema=schema))
    return dict(json.loads(body))


def added(host: Host, **more: Any) -> str:
    """The fields that `more` puts into a request to `host`, or changes; "none" where it refuses it or leaves it out."""
    plain = asked(host)
    try:
        fields = {name: value for name, value in asked(host, **more).items() if plain.get(name) != value}
    except UsageError:
        return "none"
    return f"`{json.dumps(fields)}`" if fields else "none"


def row(host: Host) -> str:
    """The line of the page's table that says what is sent to `host`; the effort that it shows is `high`."""
    efforts = [effort for effort in EFFORTS[1:] if added(host, reasoning_effort=effort) != "none"]
    shape = added(host, schema=SCHEMA)
    back = BACK_OF_API.get(host.api_mode) or BACK_OF_CALLS.get(host.name)
    cells = (
        NAMES.get(host.name, host.name),
        " or ".join(f"`{each}`" for each in host.keys) or "none",
        host.api_mode,
        f"{added(host, reasoning_effort='high')} of {', '.join(efforts)}" if efforts else "none",
        added(host, reasoning_disabled=True),
        back or ", ".join(BACK.get(each, f"`{each}`") for each in host.echo) or "nothing",
        added(host, seed=7),
        added(host, max_tokens=99),
        "schema" if "json_schema" in shape else "JSON only" if "json_object" in shape else "none",
    )
    return f"| {' | '.join(cells)} |"


def test_the_page_says_what_the_table_says() -> None:
    if not PAGE.exists():
        pytest.skip("docs/models.md is not written yet")
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = lines.index(HEAD) + 2
    said = lines[start : next((at for at in range(start, len(lines)) if not lines[at].startswith("|")), len(lines))]
    assert said == [row(host) for host in ROWS]


def test_every_host_is_found_by_its_domains_and_no_other() -> None:
    domains = [domain for host in HOSTS for domain in host.domains]
    assert len(set(domains)) == len(domains)
    for host in HOSTS:
        assert host.keys and host.domains
        for domain in host.domains:
            assert host_of(f"https://{domain}/v1") is host
            assert host_of(f"https://eu.{domain}/v1") is host
            assert host_of(f"https://not{domain}/v1") is not host


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://api.deepseek.com/anthropic", "DeepSeek"),
        ("https://api.moonshot.ai/anthropic", "Moonshot"),
        ("https://api.z.ai/api/anthropic", "Z.ai"),
        ("https://open.bigmodel.cn/api/paas/v4", "Z.ai"),
        ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DashScope"),
        ("https://api.tokenfactory.nebius.com/v1", "Nebius"),
        ("https://models.github.ai/inference", "GitHub Models"),
        ("https://api.cohere.ai/compatibility/v1", "Cohere"),
        ("https://ark.cn-beijing.volces.com/api/v3", "Volcengine Ark"),
        ("https://mine.services.ai.azure.com/openai/v1", "Azure OpenAI"),
        ("https://ai.azure.com/v1", ""),
    ],
)
def test_hosts_by_their_documented_addresses(base_url: str, name: str) -> None:
    assert host_of(base_url).name == name


@pytest.mark.parametrize("host", ROWS, ids=lambda host: host.name or "unknown")
def test_a_row_is_of_one_piece(host: Host) -> None:
    assert set(host.efforts) <= set(EFFORTS)
    assert host.api_mode in ("chat", "responses", "anthropic")
    assert host.json_schema in ("json_schema", "json_object", "")
    if host.effort is not None and "none" in host.efforts:
        assert host.no_reasoning is not None  # `none` is spelled as off is
    if host.effort is not None:
        for effort in host.efforts:
            assert effort in json.dumps(host.effort(effort))


def test_openai_is_asked_by_the_api_that_takes_tools_and_reasoning_together() -> None:
    assert OPENAI.api_mode == "responses"
    assert host_of("https://api.anthropic.com/v1").api_mode == "anthropic"


@pytest.mark.parametrize(("address", "sent"), [("https://api.deepseek.com", " "), ("https://api.groq.com/openai/v1", None)])
def test_a_turn_without_reasoning_has_a_blank_where_the_host_insists(address: str, sent: str | None) -> None:
    dialect = open_dialect(ModelSettings("m", address))
    turns = (Message("user", "hello"), Message("assistant", "hi"), Message("user", "again"))
    body, _ = dialect.encode(ChatRequest(turns))
    assert json.loads(body)["messages"][1].get("reasoning_content") == sent
