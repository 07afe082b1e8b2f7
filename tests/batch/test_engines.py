"""The engines by themselves: errors end a run, deaths are told apart, and what was bounded stays so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support import children, until

from kiseki.agent.settings import RolloutSettings
from kiseki.batch.engines import Engine, InProcess, Lost, Processes, Result
from kiseki.batch.worker import Worker
from kiseki.models.admission import Admission, Ask
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_server import MockServer
from kiseki.models.rate_limit import RateLimit
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.trajectory.types import Message, Prompt, RolloutSpec

SHOUT = """
import os
from kiseki import tool

@tool(toolset="mine")
def shout(text: str) -> str:
    "Say."
    if "poison" in text:
        os.kill(os.getpid(), 11)
    return text
"""
CALL = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "{{prompt}}"}}]}
SCRIPT = [{"turns": [CALL, {"content": "ok", "reasoning": "r"}]}]


class Counting(Admission):
    """Keeps who has asked."""

    def __init__(self, at_once: int) -> None:
        super().__init__(RateLimit(at_once), Breaker(300), Budget(max_tokens=10_000_000))
        self.asked: list[Hashable] = []

    def ask(self, key: Hashable, ask: Ask, answer: Callable[[Any], None]) -> None:
        super().ask(key, ask, answer)
        self.asked.append(key)


def settings_of(folder: Path, server: MockServer) -> RolloutSettings:
    (folder / "mine.py").write_text(SHOUT)
    return RolloutSettings(
        model=ModelSettings("m", server.base_url),
        sandbox=SandboxSettings(label="test-engines"),
        tool_files=(str(folder / "mine.py"),),
        run_tools=("shout",),
    )


def spec_of(text: str, *, alone: bool = False) -> RolloutSpec:
    prompt = Prompt(index=0, messages=(Message(role="user", content=text),))
    return RolloutSpec(text, prompt, 0, 0, 1, 0, ("mine",), alone=alone)


class Wanted:
    """Specs for an engine, which end when all of them have come back."""

    def __init__(self, *specs: RolloutSpec) -> None:
        self.results: list[Result] = []
        self.most = 0
        """That were with the engine at once."""
        self._specs = specs

    async def specs(self) -> AsyncIterator[RolloutSpec]:
        for taken, spec in enumerate(self._specs, 1):
            self.most = max(self.most, taken - len(self.results))
            yield spec
        await until(lambda: len(self.results) == len(self._specs))

    async def run(self, engine: Engine) -> None:
        try:
            await engine.run(self.specs(), self.results.append)
        finally:
            await engine.close()

    def lost(self) -> Iterable[Lost]:
        return [each for each in self.results if isinstance(each, Lost)]


@pytest.mark.parametrize("where", ["in the rollout", "in giving it back"])
def test_an_error_in_the_same_process_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Whoever waits for the rollout would wait for ever."""

    async def run(self: Worker, spec: RolloutSpec) -> Any:
        if where == "in the rollout":
            raise RuntimeError("can't start new thread")

    def give(result: Result) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario(server: MockServer) -> None:
        engine = InProcess(settings_of(tmp_path, server), Counting(2), 2)
        async with asyncio.timeout(10):
            with pytest.raises(RuntimeError, match="new thread"):
                await engine.run(Wanted(spec_of("a"), spec_of("b"), spec_of("c")).specs(), give)
        await engine.close()

    monkeypatch.setattr(Worker, "run", run)
    with MockServer() as server:
        asyncio.run(scenario(server))


def test_calls_that_waited_when_their_worker_died_cost_nothing(tmp_path: Path) -> None:
    wanted, admission = Wanted(*(spec_of(text) for text in "abcdef")), Counting(2)

    async def scenario(server: MockServer) -> None:
        engine = Processes(settings_of(tmp_path, server), admission, 6, 1)
        running = asyncio.create_task(wanted.run(engine))
        await until(lambda: len(admission.asked) == 6 and server.stats()["calls"] == 2)
        under_way = admission.budget.reserved_tokens
        (worker,) = children(os.getpid())
        os.kill(worker, signal.SIGKILL)
        await running
        assert admission.budget.reserved_tokens == 0
        assert admission.budget.tokens == under_way > 0

    with MockServer(turns=0, latency=60) as server:
        asyncio.run(scenario(server))
    assert [(each.why, each.began) for each in wanted.lost()] == [("died", True)] * 6


def test_workers_that_prompts_kill_do_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many in a row, and whether or not anything has been finished by then: they had come to life."""
    monkeypatch.setattr("kiseki.batch.engines.MAX_RESTARTS", 1)
    wanted = Wanted(spec_of("poison 1"), spec_of("poison 2"), spec_of("good"))
    with MockServer(SCRIPT) as server:
        asyncio.run(wanted.run(Processes(settings_of(tmp_path, server), Counting(9), 1, 1)))
    assert [(each.key, each.began) for each in wanted.lost()] == [(f"poison {number}", True) for number in (1, 2)]
    (good,) = [each for each in wanted.results if not isinstance(each, Lost)]
    assert good.summary.outcome == "completed"


def test_rollouts_that_run_alone_are_among_those_at_once(tmp_path: Path) -> None:
    wanted = Wanted(spec_of("a"), spec_of("b", alone=True), spec_of("c", alone=True))
    with MockServer(SCRIPT, latency=0.05) as server:
        asyncio.run(wanted.run(Processes(settings_of(tmp_path, server), Counting(9), 2, 1)))
        assert server.stats()["peak_in_flight"] <= 2
    assert wanted.most == 2
    assert sorted(each.key for each in wanted.results) == list("abc")
