"""Huge tool results, replies and conversations: cut or kept as promised, within bounded memory, the other rollouts unharmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import FAST, kiseki, light_tools, read_rows, write_dataset

from kiseki.batch.driver import MAX_UNCOMMITTED_BYTES, Driver, Tally
from kiseki.batch.engines import Give
from kiseki.batch.plan import make_plan, read_into_ledger
from kiseki.errors import BadResponse
from kiseki.ledger.ledger import Ledger, open_ledger
from kiseki.ledger.types import Attempt, SessionState
from kiseki.models.admission import Admission
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.mock_server import MockServer
from kiseki.models.rate_limit import RateLimit
from kiseki.models.stream import StreamedReply
from kiseki.models.wire import MAX_ANSWER
from kiseki.tools.registry import MAX_RESULT_BYTES
from kiseki.trajectory.record import encode_record, summarize
from kiseki.trajectory.types import Message, Prompt, Record, RolloutSpec
from kiseki.views.build import Views, ViewSettings

RESULT = 50_000_000
MOST_KB = 230_000
"""Of a process that holds one result: about 60 MB itself and 50 to 100 MB the text. What is done with a whole one takes three times
its size and more."""
REPLY = 20_000_000
TURNS = 1_100
"""More than Python's recursion limit; 5,000 are one of the benchmarks (`large`), since the mock server reads all of each request."""

HUGE_TOOL = f'''
from pathlib import Path
from kiseki import ToolError, tool

TEXT = "0123456789abcde\\n" * {RESULT // 16}
ODD = "".join(("\\udcff", TEXT[:{RESULT // 4}], "\\u20ac\\u00e9"))

@tool(toolset="mine")
async def give(kind: str) -> object:
    """Give something.

    Args:
        kind: Of what kind.
    """
    if kind == "error":
        raise ToolError(TEXT)
    if kind == "exception":
        raise ValueError(TEXT)
    if kind == "peak":
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return {{"text": TEXT, "object": {{"output": TEXT, "exit_code": 3}}, "odd": {{"output": ODD}}, "small": "small"}}[kind]
'''


def calling(kind: str) -> list[dict[str, Any]]:
    return [{"reasoning": "r", "tool_calls": [{"name": "give", "arguments": {"kind": kind}}]}, {"content": "ok", "reasoning": "r"}]


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


@pytest.mark.parametrize("what", ["content", "reasoning", "arguments"])
def test_a_huge_reply_arrives_whole(tmp_path: Path, what: str) -> None:
    light_tools(tmp_path)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "huge"}, {"prompt": "small"}])
    words = "words, " * (REPLY // 7)
    answer = {"content": "ok", "reasoning": "r"}
    call = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": words}}]}
    turns = [call, answer] if what == "arguments" else [answer | {what: words}]
    with MockServer([{"match": "huge", "turns": turns}, {"turns": [answer]}]) as server:
        run(tmp_path, server)
    huge, small = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert small["completed"] and huge["completed"]
    assert words.strip() in next(turn["value"] for turn in huge["conversations"] if turn["from"] == "gpt")
    if what == "arguments":
        assert "bytes left out here" in results(huge)[0]


def test_a_long_streamed_call_arrives_whole(tmp_path: Path) -> None:
    light_tools(tmp_path)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "huge"}])
    words = "words, " * 100_000
    call = {"reasoning": words, "tool_calls": [{"name": "shout", "arguments": {"text": words}}]}
    with MockServer([{"turns": [call, {"content": "ok"}]}], reasoning_field="reasoning_details") as server:
        run(tmp_path, server, "--stream")
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    said = row["conversations"][2]["value"]
    assert row["completed"] and said.count(words.strip()) == 2, "in the reasoning and in the call"


def test_an_answer_without_end_is_a_bad_response(tmp_path: Path) -> None:
    light_tools(tmp_path)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "huge"}, {"prompt": "small"}])
    script = [{"match": "huge", "turns": [{"content": "x" * MAX_ANSWER}]}, {"turns": [{"content": "ok", "reasoning": "r"}]}]
    with MockServer(script) as server:
        run(tmp_path, server, "--max_attempts=1", status=3)
    assert json.loads((tmp_path / "data/r/statistics.json").read_text())["failed"] == {"BadResponse": 1}
    assert [row["prompt"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")] == ["small"]


@pytest.mark.parametrize("event", [b"", b'data: {"choices": [{"delta": {"content": "%b"}}]}\n\n'], ids=["one line", "deltas"])
def test_a_stream_without_end_is_a_bad_response(event: bytes) -> None:
    text = b"x" * 1_000_000
    reply = StreamedReply()
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


class Heavy:
    """An engine whose rollouts end at once with records of 20 MB. Keeps how many were given back."""

    def __init__(self) -> None:
        self.given = 0
        self._record = bytes(20_000_000)

    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        async for spec in specs:
            give(msgspec.structs.replace(attempt(spec), record=self._record))
            self.given += 1
            await asyncio.sleep(0)

    def kill(self) -> None:
        pass

    async def close(self) -> None:
        pass


def attempt(spec: RolloutSpec) -> Attempt:
    record = Record(
        key=spec.key,
        sample_index=0,
        attempt=1,
        seed=0,
        messages=(*spec.prompt.messages, Message(role="assistant", content="ok", reasoning="r")),
        prompt_messages=1,
        outcome="completed",
        reason="answered",
        model="m",
        toolsets=("mine",),
        tools_hash="h",
    )
    return Attempt(spec.key, summarize(record), encode_record(record), "h", "[]")


def test_few_large_records_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 40
    ledger = open_ledger(tmp_path, create=True)
    ledger.start_session("{}")
    rows = [Prompt(index=n, messages=(Message(role="user", content=f"p{n}"),)) for n in range(count)]
    read_into_ledger(ledger, rows, num_samples=1, bad_row=lambda row: None, planned=lambda rows: None)
    plan = make_plan(ledger, num_samples=1, batch_size=2 * count, first_batch=0)
    engine, groups = Heavy(), []

    def commit(self: Ledger, attempts: Sequence[tuple[int, Attempt]], session: SessionState) -> None:
        groups.append(len(attempts))

    monkeypatch.setattr(Ledger, "commit", commit)
    monkeypatch.setattr(Views, "write_batch", lambda self, batch: None)
    monkeypatch.setattr(Views, "write_checkpoint", lambda self: None)
    driver = Driver(
        ledger,
        engine,
        Admission(RateLimit(10), Breaker(300), Budget()),
        Views(ledger, ViewSettings(False, ("shout",))),
        batches=plan.batches,
        tally=Tally(total=count),
        draw=lambda key: ("mine",),
        run_seed=0,
        num_samples=1,
        max_attempts=1,
        reasoning_filter=False,
        preview_chars=10,
        log=lambda line: None,
        detail=lambda line: None,
    )
    asyncio.run(driver.run())
    ledger.close()
    assert sum(groups) == engine.given == count
    assert max(groups) <= MAX_UNCOMMITTED_BYTES // 20_000_000 + 1
