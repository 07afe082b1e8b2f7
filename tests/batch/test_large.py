"""Huge tool results, replies and conversations: cut or kept as promised, within bounded memory, the other rollouts unharmed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support import FAST, kiseki, light_tools, read_rows, write_dataset

from kiseki.errors import BadResponse
from kiseki.models.base import ChatRequest
from kiseki.models.dialects.base import MAX_ANSWER
from kiseki.models.dialects.chat_stream import StreamedChat
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.models.mock_server import MockServer
from kiseki.tools.redact import secrets_of
from kiseki.tools.registry import make_tool
from kiseki.tools.results import MAX_RESULT_BYTES
from kiseki.tools.toolbox import Toolbox
from kiseki.trajectory.types import Message, ToolCall

RESULT = 50_000_000
MOST_KB = 220_000
"""Of a process that makes such results: about 60 MB itself, the text, and once more for an exception's message. Whatever is done
with a whole result takes three times its size and more."""
REPLY = 20_000_000
TURNS = 1_100
"""More than Python's recursion limit. 5,000 take minutes, since the server has to read the whole conversation on every turn."""

HUGE_TOOL = f'''
from functools import cache
from pathlib import Path
from kiseki import ToolError, tool

@cache
def text():
    return "0123456789abcde\\n" * {RESULT // 16}

@tool(toolset="mine")
async def give(kind: str) -> object:
    """Give something.

    Args:
        kind: Of what kind.
    """
    if kind == "error":
        raise ToolError(text())
    if kind == "exception":
        raise ValueError(text())
    if kind == "odd":
        return {{"output": "\\udcff" + text()[:{RESULT // 8}] + "\\u20ac\\u00e9"}}
    if kind == "peak":
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return {{"text": text(), "object": {{"output": text(), "exit_code": 3}}}}.get(kind, kind)
'''


def calling(kind: str) -> list[dict[str, Any]]:
    return [
        {"reasoning": "r", "tool_calls": [{"name": "give", "arguments": {"kind": kind}}]},
        {"content": "ok", "reasoning": "r"},
    ]


def run(folder: Path, server: MockServer, *more: str, status: int = 0) -> None:
    flags = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=4", f"--base_url={server.base_url}", "--model=m")
    kiseki(*flags, "--tools=mine.py", "--distribution=mine.yaml", *FAST, *more, cwd=folder, status=status)


def results(row: dict[str, Any]) -> list[str]:
    return [turn["value"] for turn in row["conversations"] if turn["from"] == "tool"]


def test_huge_results_are_cut_and_take_no_memory(tmp_path: Path) -> None:
    kinds = ("text", "object", "odd", "error", "exception", "small")
    prompts = [f"{kind} {number}" for number in range(4) for kind in kinds] + ["peak"]
    write_dataset(tmp_path / "p.jsonl", [{"prompt": prompt} for prompt in prompts])
    light_tools(tmp_path)
    (tmp_path / "mine.py").write_text(HUGE_TOOL)
    script = [{"match": f"^{kind}", "turns": calling(kind)} for kind in (*kinds, "peak")]
    with MockServer(script) as server:
        run(tmp_path, server, "--concurrency=1")
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert [row["prompt"] for row in rows] == prompts
    for row in rows[:-1]:
        kind = row["prompt"].split()[0]
        (result,) = results(row)
        assert row["completed"]
        if kind == "small":
            assert "small" in result
            continue
        assert "bytes left out here" in result and result.count("left out") == 1
        assert MAX_RESULT_BYTES * 0.9 < len(result.encode()) < MAX_RESULT_BYTES * 1.3, "JSON's escapes included"
        assert row["tool_error_counts"] == {"give": int(kind in ("error", "exception"))}
    peak = int("".join(filter(str.isdigit, results(rows[-1])[0].partition('"content": ')[2])))
    assert RESULT // 1024 < peak < MOST_KB


@pytest.mark.parametrize("what", ["text", "arguments"])
def test_a_huge_reply_arrives_whole(tmp_path: Path, what: str) -> None:
    light_tools(tmp_path)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "huge"}, {"prompt": "small"}])
    words = "words, " * (REPLY // 7 // (2 if what == "text" else 1))
    answer = {"content": "ok", "reasoning": "r"}
    call = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": words}}]}
    turns = [call, answer] if what == "arguments" else [{"content": words, "reasoning": words}]
    with MockServer([{"match": "huge", "turns": turns}, {"turns": [answer]}]) as server:
        run(tmp_path, server)
    huge, small = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert small["completed"] and huge["completed"]
    said = next(turn["value"] for turn in huge["conversations"] if turn["from"] == "gpt")
    assert said.count(words.strip()) == (2 if what == "text" else 1)
    if what == "arguments":
        assert "bytes left out here" in results(huge)[0]


@pytest.mark.parametrize("edge", [MAX_RESULT_BYTES // 2, MAX_RESULT_BYTES], ids=["what is shown", "what is looked at"])
@pytest.mark.parametrize("at_end", [False, True])
def test_a_cut_leaves_no_part_of_a_secret(edge: int, at_end: bool) -> None:
    key = "Zx9-qLm4_Tw7Rk2Pd8"
    text = "word " * (RESULT // 50)

    async def give() -> dict[str, str]:
        """Give."""
        return {"output": text[:at] + key + text[at:]}

    box = Toolbox([make_tool(give, "mine", "give", 30.0)], secrets_of(key, {}))
    for shift in range(0, 40, 3):
        at = len(text) - edge + shift if at_end else edge - shift
        message, tool_run = asyncio.run(box.call(None, ToolCall("c", "give", "{}")))
        assert tool_run.truncated and "bytes left out here" in message.content
        assert not any(key[start : start + 8] in message.content for start in range(len(key) - 7))


def test_a_long_streamed_call_arrives_whole(tmp_path: Path) -> None:
    light_tools(tmp_path)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "huge"}])
    words = "words, " * 50_000
    call = {"reasoning": words, "tool_calls": [{"name": "shout", "arguments": {"text": words}}]}
    with MockServer([{"turns": [call, {"content": "ok"}]}], reasoning_field="reasoning_details") as server:
        run(tmp_path, server, "--stream")
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    said = row["conversations"][2]["value"]
    assert row["completed"] and said.count(words.strip()) == 2, "in the reasoning and in the call"


def test_an_answer_without_end_is_a_bad_response() -> None:
    async def ask(server: MockServer) -> None:
        client = open_client(ModelSettings("m", base_url=server.base_url))
        try:
            encoded, _ = client.encode(ChatRequest((Message(role="user", content="huge"),)))
            with pytest.raises(BadResponse, match="more than 64 MB"):
                await client.send(encoded)
        finally:
            await client.close()

    with MockServer([{"turns": [{"content": "x" * MAX_ANSWER}]}]) as server:
        asyncio.run(ask(server))


@pytest.mark.parametrize("event", [b"", b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n'], ids=["one line", "deltas"])
def test_a_stream_without_end_is_a_bad_response(event: bytes) -> None:
    text = b"x" * 1_000_000
    reply = StreamedChat()
    with pytest.raises(BadResponse, match="more than 64 MB"):
        for _ in range(MAX_ANSWER // len(text) + 1):
            reply.feed(event % text if event else text)


def test_a_long_conversation_is_kept_whole(tmp_path: Path) -> None:
    light_tools(tmp_path)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "long"}, {"prompt": "short"}])
    call = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "turn {{turn}}"}}]}
    done = {"content": "ok", "reasoning": "r"}
    with MockServer([{"match": "long", "turns": [*[call] * TURNS, done]}, {"turns": [done]}]) as server:
        run(tmp_path, server, f"--max_turns={TURNS + 1}")
    long, short = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert long["completed"] and short["completed"]
    assert long["api_calls"] == TURNS + 1
    for number, result in enumerate(results(long)):
        assert f'"TURN {number}"' in result
    assert len(long["conversations"]) == 2 + 2 * TURNS + 1
    kiseki("verify", "data/r", cwd=tmp_path)
