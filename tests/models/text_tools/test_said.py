"""What a model said in a text mode goes back letter by letter: the server's prefix cache and the token trace go on with it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from kiseki import AgentResult, AIAgent, tool
from kiseki.formats.format import Options
from kiseki.formats.table import FORMATS, find_format
from kiseki.models.base import ChatClient, ChatRequest, Encoded, ToolSchema
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.models.mock_server import MockServer
from kiseki.models.text_tools.client import MODES
from kiseki.models.text_tools.rewriting import SAID, rewrite
from kiseki.trajectory.example import Example
from kiseki.trajectory.token_trace import segments
from kiseki.trajectory.types import Message, ToolCall

Mode = Literal["hermes", "json"]
ODD_JSON = '{"thought":"So.","tool_calls":[{"name":"shout", "arguments":{"text":"hi"}}]}'
QWEN = "I shout.\n\n\n<tool_call>\n<function=shout>\n<parameter=text>\nhi\n</parameter>\n</function>\n</tool_call>"
OURS = 'I shout.\n<tool_call>\n{"name": "shout", "arguments": {"text": "hi"}}\n</tool_call>'
CASES: list[tuple[Mode, str]] = [
    ("json", ODD_JSON),
    ("json", f"```json\n{ODD_JSON}\n```"),
    ("json", QWEN),
    ("hermes", QWEN),
    ("hermes", OURS),
    ("hermes", OURS.replace("I shout.\n", "")),
]


@tool(toolset="mine")
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


def run(first: dict[str, Any], mode: str) -> tuple[AgentResult, list[dict[str, Any]]]:
    """A rollout of two turns with token ids, and the bodies that were sent."""
    script: list[dict[str, Any]] = [{"match": "HI", "turns": [{"content": "HI"}]}, {"turns": [first]}]
    with MockServer(script, record=9) as server:
        asked: dict[str, Any] = {"base_url": server.base_url, "tool_call_mode": mode, "capture_tokens": True}
        agent = AIAgent("m", enabled_toolsets=[], tools=[shout], **asked)
        result = agent.run_conversation("Be loud.")
        return result, [each["body"] for each in server.stats(log=True)["log"]]


@pytest.mark.parametrize("reasoning", ["", "Louder."])
@pytest.mark.parametrize(("mode", "text"), CASES)
def test_a_turn_goes_back_as_it_was_sampled(mode: Mode, text: str, reasoning: str) -> None:
    result, bodies = run({"content": text, "reasoning": reasoning}, mode)
    (back,) = (each for each in bodies[1]["messages"] if each["role"] == "assistant")
    assert (back["content"], back.get("reasoning", "")) == (text, reasoning)
    calls = result.record.calls
    assert len(calls) == 2 and len(segments(calls)) == 1


def test_reasoning_that_only_the_calls_ended_goes_back_once() -> None:
    text = f"<think>\nI must shout.\n{OURS}"
    result, bodies = run({"content": text}, "hermes")
    assert "I must shout." in result.record.messages[1].reasoning
    (back,) = (each for each in bodies[1]["messages"] if each["role"] == "assistant")
    assert back["content"] == text and "reasoning" not in back


@pytest.mark.parametrize(("mode", "text"), CASES)
def test_where_it_was_not_kept_it_is_written_anew(mode: Mode, text: str) -> None:
    """A fallback's turns are without it."""
    said = run({"content": text}, mode)[0].record.messages[1]
    (back,) = rewrite((msgspec.structs.replace(said, provider_fields={}),), MODES[mode], "")
    assert "shout" in back.content and not back.tool_calls
    assert (SAID in said.provider_fields) == (back.content != text)  # kept only where it must be


@pytest.mark.parametrize("name", [each for each in FORMATS if each not in ("parquet", "rl", "atropos")])
def test_no_training_row_has_the_form_of_a_mode(name: str) -> None:
    """`parquet` alone has all that a record has."""
    record = run({"content": ODD_JSON}, "json")[0].record
    assert record.messages[1].provider_fields[SAID] == ODD_JSON
    plain = tuple(msgspec.structs.replace(each, provider_fields={}) for each in record.messages)
    rows, expected = (
        list(find_format(name).write(Example(messages=each, completed=True), Options())) for each in (record.messages, plain)
    )
    assert rows and rows == expected


@pytest.mark.parametrize("mode", MODES)
def test_results_told_as_the_users_words_leave_the_cache_key(mode: Mode) -> None:
    """Of OpenAI's Responses API: it is the prompt's."""
    client: ChatClient = open_client(ModelSettings("gpt-5.4", "https://api.openai.com/v1", api_key="k", tool_call_mode=mode))
    turn = (
        Message("assistant", tool_calls=(ToolCall("c", "shout", '{"text":"hi"}'),)),
        Message("tool", "HI", tool_call_id="c", name="shout"),
    )
    prompt, encoded = (Message("system", "Be brief."), Message("user", "Go.")), Encoded()
    tools = (ToolSchema("shout", "", msgspec.Raw(b'{"type":"object"}')),)
    keys = [
        msgspec.json.decode(client.encode(ChatRequest(each, tools, encoded=encoded))[0][0])["prompt_cache_key"]
        for each in (prompt, (*prompt, *turn))
    ]
    assert keys[0] == keys[1]
