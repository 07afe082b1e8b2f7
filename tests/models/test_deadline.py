"""The deadline: its clock, and that it ends its block whoever swallows its cancellation."""

from __future__ import annotations

import asyncio

import pytest

from kiseki.models.deadline import Deadline


def test_the_clock_stands_still_while_one_waits() -> None:
    async def run() -> None:
        deadline = Deadline(0.05)
        async with deadline.running():
            with deadline:
                await asyncio.sleep(0.1)
            assert not deadline.expired()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(10)
            raise asyncio.CancelledError

    with pytest.raises(TimeoutError):
        asyncio.run(run())


def test_a_swallowed_cancellation_does_not_lose_the_deadline() -> None:
    async def run() -> bool:
        deadline, task = Deadline(0.01), asyncio.current_task()
        assert task is not None
        try:
            async with deadline.running():
                for _ in range(5):
                    try:
                        await asyncio.sleep(0.1)
                    except asyncio.CancelledError:  # as an HTTP client whose own limit passed at the same time
                        task.uncancel()
                    with deadline:
                        await asyncio.sleep(0)
                return False
        except TimeoutError:
            return deadline.expired()

    assert asyncio.run(run())


def test_a_block_that_is_being_left_may_still_wait() -> None:
    async def run() -> str:
        deadline, said = Deadline(0.01), ""
        try:
            async with deadline.running():
                try:
                    await asyncio.sleep(10)
                finally:
                    with deadline:
                        said = "cleaned up"
        except TimeoutError:
            with deadline:
                return said
        return "never"

    assert asyncio.run(run()) == "cleaned up"


def test_the_clock_stands_still_until_the_last_of_several_has_its_turn() -> None:
    async def run() -> bool:
        deadline = Deadline(0.05)

        async def wait(seconds: float) -> None:
            with deadline:
                await asyncio.sleep(seconds)

        async with deadline.running():
            await asyncio.gather(wait(0.01), wait(0.2))
            return deadline.expired()

    assert asyncio.run(run()) is False
