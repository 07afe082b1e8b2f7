"""A rollout for a trainer's process: its toolsets, its reward, and the sandbox that the reward function finds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support import write_dataset

from kiseki.batch.config import BatchConfig
from kiseki.errors import SandboxError
from kiseki.integrations.runner import RewardFailed, Rollout, Runner, prepare
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_model
from kiseki.models.mock_server import MockServer
from kiseki.sandboxes.base import Sandbox
from kiseki.trajectory.types import Message, Prompt, Record

SCRIPT = [
    {"match": "broken", "turns": [{"fault": {"kind": "bad_request"}}]},
    {
        "turns": [
            {"tool_calls": [{"name": "terminal", "arguments": {"command": "cd /tmp; echo 7 > ~/left"}}]},
            {"content": "Seven."},
        ]
    },
]
Answer = tuple[Record, float | None]


def prompt(text: str, index: int = 0) -> Prompt:
    return Prompt(index=index, messages=(Message("user", text),), source='{"answer": 7}')


def run(
    folder: Path,
    reward: Callable[[Rollout], float | Awaitable[float]],
    text: str = "Go on.",
    *,
    seconds: float = 60.0,
) -> Answer:
    async def one(server: MockServer) -> Answer:
        runner = Runner(prepare(config(folder, server.base_url)))
        model = open_model(runner.settings.model)
        try:
            return await runner.run(runner.spec(prompt(text), 0, 0, 1), model, reward, seconds)
        finally:
            await model.close()
            await runner.close()

    with MockServer(SCRIPT) as server:
        return asyncio.run(one(server))


def config(folder: Path, url: str, **more: Any) -> BatchConfig:
    dataset = write_dataset(folder / "p.jsonl", [{"prompt": "x"}])
    model = ModelSettings("mock", url)
    return BatchConfig(str(dataset), 1, "r", model, **{"distribution": "terminal_only", "sandbox": "local", **more})


def test_the_reward_function_finds_the_sandbox_as_the_model_left_it_and_it_is_closed_afterwards(tmp_path: Path) -> None:
    seen: list[Sandbox] = []

    async def reward(rollout: Rollout) -> float:
        seen.append(rollout.sandbox)
        assert (rollout.final_response, rollout.record.outcome) == ("Seven.", "completed")
        assert [message.role for message in rollout.messages] == ["user", "assistant", "tool", "assistant"]
        assert (await rollout.sandbox.exec("pwd", timeout=30)).output == "/tmp\n"
        left = (await rollout.sandbox.exec("cat ~/left", timeout=30)).output
        return float(int(left) == rollout.row["answer"])

    async def closed() -> None:
        with pytest.raises(SandboxError):
            await seen[0].exec("true", timeout=5)

    record, score = run(tmp_path, reward)
    assert (record.outcome, score) == ("completed", 1.0)
    asyncio.run(closed())


def test_a_plain_function_runs_on_a_thread_of_its_own(tmp_path: Path) -> None:
    where: list[threading.Thread] = []

    def reward(rollout: Rollout) -> float:
        where.append(threading.current_thread())
        return len(rollout.messages)

    assert run(tmp_path, reward)[1] == 4.0
    assert where[0] is not threading.main_thread()


def test_what_the_infrastructure_broke_is_not_judged(tmp_path: Path) -> None:
    def reward(rollout: Rollout) -> float:
        raise AssertionError

    record, score = run(tmp_path, reward, "broken")
    assert (record.outcome, record.error_class, score) == ("failed", "BadRequest", None)


@pytest.mark.parametrize("said", [float("nan"), float("inf"), "much", None])
def test_a_reward_that_is_no_finite_number_is_an_error(tmp_path: Path, said: Any) -> None:
    with pytest.raises(RewardFailed, match="number"):
        run(tmp_path, lambda rollout: said)


def test_a_reward_that_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    async def reward(rollout: Rollout) -> float:
        await asyncio.sleep(3600)
        return 1.0

    with pytest.raises(RewardFailed, match=r"took longer than 0\.01 s \(reward_timeout\)"):
        run(tmp_path, reward, seconds=0.01)


def test_what_a_reward_raises_is_told_with_its_place(tmp_path: Path) -> None:
    def bug(rollout: Rollout) -> float:
        raise ValueError("no\nway \x1b[31m")

    async def own_limit(rollout: Rollout) -> float:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(3600)
        return 1.0

    with pytest.raises(RewardFailed, match=r"^the reward raised ValueError: no way .\[31m \(test_runner\.py:\d+\)$") as told:
        run(tmp_path, bug)
    assert isinstance(told.value.__cause__, ValueError)
    with pytest.raises(RewardFailed, match="the reward raised TimeoutError"):
        run(tmp_path, own_limit)


def test_the_samples_of_a_prompt_have_the_same_toolsets_and_each_its_own_seed(tmp_path: Path) -> None:
    mix = tmp_path / "mix.yaml"
    mix.write_text("terminal: 50\nfile: 50\ntodo: 50\n")

    async def specs() -> None:
        runner = Runner(prepare(config(tmp_path, "http://127.0.0.1:1/v1", distribution=str(mix), seed=3)))
        of_prompts = [[runner.spec(prompt("Go", at), 0, sample, 1) for sample in range(4)] for at in range(20)]
        assert all(len({spec.toolsets for spec in group}) == 1 for group in of_prompts)
        assert len({group[0].toolsets for group in of_prompts}) > 1
        assert len({spec.seed for group in of_prompts for spec in group}) == 80
        assert runner.spec(prompt("Go"), 0, 0, 2).seed == of_prompts[0][0].seed
        assert runner.spec(prompt("Go"), 1, 0, 1).key != of_prompts[0][0].key
        await runner.close()

    asyncio.run(specs())
