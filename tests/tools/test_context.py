"""What the tools of a rollout leave open is closed at its end, whatever it does; what the worker shares is made once."""

from __future__ import annotations

import asyncio

import pytest

from kiseki.tools import context as of_context
from kiseki.tools import services as of_services
from kiseki.tools.context import ToolContext
from kiseki.tools.running import end_others
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings


def test_closers_run_last_first_and_a_failing_one_holds_up_nobody() -> None:
    closed: list[str] = []

    async def main() -> None:
        context = ToolContext(None)

        async def close(name: str) -> None:
            if name == "bad":
                raise RuntimeError("no")
            closed.append(name)

        for name in ("first", "bad", "last"):
            context.for_call("c").on_close(lambda name=name: close(name))  # type: ignore[misc]
        await context.close()
        await context.close()

    asyncio.run(main())
    assert closed == ["last", "first"]


def test_a_closer_that_hangs_is_left_and_the_others_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_context, "CLOSE_SECONDS", 0.05)

    closed = asyncio.Event()

    async def hang() -> None:
        await asyncio.Event().wait()

    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    async def close() -> None:
        closed.set()

    async def main() -> None:
        context = ToolContext(None)
        for closer in (close, cancel_itself, hang):
            context.on_close(closer)
        await context.close()
        await asyncio.wait_for(closed.wait(), 5)
        await end_others()

    asyncio.run(main())


def test_a_service_is_made_once_and_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_services, "CLOSE_SECONDS", 0.05)
    made: list[str] = []

    class Shared:
        def __init__(self, services: Services) -> None:
            made.append(services.settings.corpus)

        async def close(self) -> None:
            made.append("closed")

    class Stubborn(Shared):
        async def close(self) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        services = Services(ToolSettings(corpus="docs"))
        assert services.get(Shared) is services.get(Shared)
        services.get(Stubborn)
        await services.close()

    asyncio.run(main())
    assert made == ["docs", "docs", "closed"]
