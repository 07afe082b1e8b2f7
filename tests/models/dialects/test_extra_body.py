"""`extra_body` is over whatever Kiseki puts into a body, in every dialect: each field stands there once."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kiseki.models.base import ChatRequest
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings
from kiseki.trajectory.types import Message

LOCAL, OPENAI, ANTHROPIC = "http://127.0.0.1:8000/v1", "https://api.openai.com/v1", "https://api.anthropic.com"
MISTRAL = "https://api.mistral.ai/v1"
SCHEMA = msgspec.Raw(b'{"type":"object"}')
FORM = {"type": "json_schema", "name": "mine", "schema": {"type": "object", "title": "mine"}}


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), [name for name, _ in pairs]
    return dict(pairs)


@pytest.mark.parametrize(
    ("base_url", "mode", "extra"),
    [
        (LOCAL, "chat", {"seed": 5, "response_format": {"type": "text"}, "temperature": 0.5, "max_tokens": 9}),
        (MISTRAL, "chat", {"random_seed": 5}),
        (LOCAL, "chat", {"seed": None, "response_format": None}),
        (OPENAI, "responses", {"text": {"format": FORM}, "prompt_cache_key": "mine", "store": True, "temperature": 0.5}),
        (OPENAI, "responses", {"text": {"format": FORM, "verbosity": "low"}, "include": [], "max_output_tokens": 99}),
        (ANTHROPIC, "anthropic", {"output_config": {"format": FORM}, "max_tokens": 9, "thinking": {"type": "disabled"}}),
        (OPENAI, "responses", {"text": None}),
        (ANTHROPIC, "anthropic", {"output_config": {"format": FORM, "effort": "low"}}),
        (ANTHROPIC, "anthropic", {"output_config": None}),
    ],
)
def test_it_wins(base_url: str, mode: str, extra: dict[str, Any]) -> None:
    model = {"anthropic": "claude-opus-4-8", "responses": "gpt-5.4"}.get(mode, "m")
    made = open_dialect(ModelSettings(model, base_url, api_key="k", api_mode=mode, max_tokens=4096, extra_body=extra))
    request = ChatRequest((Message("user", "Hi."),), seed=7, json_schema=SCHEMA)
    body = json.loads(made.encode(request)[0], object_pairs_hook=once)
    assert {name: body[name] for name in extra} == extra
