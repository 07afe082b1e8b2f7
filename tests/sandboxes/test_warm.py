"""How a worker opens its sandboxes: a few at a time, and of often used images some ahead of need. Through `Sandboxes`, with
bubblewrap, and with a backend made for orders of events that no real one would play."""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
import types
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar, cast

import pytest
from support import until

from kiseki.agent.rollout import run_rollout
from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
from kiseki.errors import ImageError, SandboxError, SandboxTimeout, UsageError
from kiseki.models.base import NOT_HELD, ChatReply, ChatRequest
from kiseki.models.endpoints import ModelSettings
from kiseki.sandboxes import factory, folders, reaper, warm
from kiseki.sandboxes.base import Limits, Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.sandboxes.slots import Slots
from kiseki.sandboxes.starting import FIRST
from kiseki.tools.services import Services
from kiseki.trajectory.types import Message, ModelCall, Prompt, Record, RolloutSpec

T = TypeVar("T")


class Leaping(selectors.SelectSelector):
    """Where the loop would wait for a timer, its time leaps to it."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen again"
            self.now += timeout
        return ready


def play(main: Coroutine[Any, Any, T]) -> T:
    """Run it in a time of its own, in which waiting takes none of ours."""
    selector = Leaping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)


class Made:
    """A backend whose sandboxes are nothing but names."""

    def __init__(self) -> None:
        self.settings = SandboxSettings()
        self.seconds = 1.0
        """That a start takes."""
        self.opened: list[MadeSandbox] = []
        self.asked: list[str] = []
        """Images of all starts, the failed ones too."""
        self.alive = 0
        self.starting = 0
        self.most_starting = 0
        self.closed = False
        self.closing_seconds = 0.0
        self.stubborn = False
        """A start goes on though it is cancelled."""
        self.fail: Callable[[str], BaseException | None] = lambda image: None

    async def open(self, image: str) -> MadeSandbox:
        self.asked.append(image)
        self.alive += 1
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            try:
                await asyncio.sleep(self.seconds)
            except asyncio.CancelledError:
                if not self.stubborn:
                    raise
            if (error := self.fail(image)) is not None:
                raise error
            sandbox = MadeSandbox(self, image)
            await asyncio.sleep(0)
        except BaseException:
            self.alive -= 1
            raise
        finally:
            self.starting -= 1
        self.opened.append(sandbox)
        return sandbox

    async def close(self) -> None:
        await asyncio.sleep(0)
        assert self.alive == 0, "the backend is closed after its sandboxes"
        self.closed = True


class MadeSandbox:
    def __init__(self, backend: Made, image: str) -> None:
        self.image = image
        self.is_healthy: Callable[[], bool] = lambda: True
        self.check_seconds = 0.0
        self.cwd = ""
        self.closings = 0
        self._backend = backend

    async def enter(self, cwd: str) -> None:
        await asyncio.sleep(0)
        if cwd == "bad":
            raise UsageError("the working folder cannot be made")
        self.cwd = cwd

    def describe(self) -> dict[str, str]:
        return {"image": self.image}

    async def healthy(self) -> bool:
        await asyncio.sleep(self.check_seconds)
        return self.is_healthy()

    async def close(self) -> None:
        self.closings += 1
        if self.closings == 1:  # goes on by itself, as that of the real ones
            closing = asyncio.get_running_loop().create_task(self._close())
            await asyncio.shield(closing)

    async def _close(self) -> None:
        await asyncio.sleep(self._backend.closing_seconds)
        self._backend.alive -= 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    backend = Made()
    module = types.ModuleType("kiseki.sandboxes.made")

    def open_backend(settings: SandboxSettings) -> Made:
        backend.settings = settings
        return backend

    module.open_backend = open_backend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(factory.MODULES, "made", "made")
    monkeypatch.setattr(factory, "HAS_IMAGES", (*factory.HAS_IMAGES, "made"))
    return backend


def settings(size: int = 0, *, start_timeout: float = 60.0) -> SandboxSettings:
    return SandboxSettings(backend="made", warm=size, start_timeout=start_timeout)


def is_made(sandbox: Sandbox) -> MadeSandbox:
    return cast(MadeSandbox, sandbox)


class Held:
    """Counts who is on hold."""

    def __init__(self) -> None:
        self.now = 0
        self.ever = 0

    def __enter__(self) -> None:
        self.now += 1
        self.ever += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.now -= 1


# How many start at once


def test_only_so_many_start_at_once_and_the_others_are_on_hold(made: Made) -> None:
    async def main() -> None:
        sandboxes, held = Sandboxes(settings()), Held()
        opening = [asyncio.create_task(sandboxes.open(image="a", on_hold=held)) for _ in range(20)]
        await asyncio.sleep(0.5)
        assert (made.starting, held.now) == (FIRST, 20 - FIRST)
        opened = await asyncio.gather(*opening)
        assert (held.now, held.ever) == (0, 20 - FIRST)
        assert made.most_starting > FIRST  # they take no longer side by side
        assert len(made.opened) == 20
        for sandbox in opened:
            await sandbox.close()
        await sandboxes.close()
        assert (made.alive, made.closed) == (0, True)

    play(main())


class Answering:
    """A model that answers at once."""

    async def complete(self, request: ChatRequest, on_hold: AbstractContextManager[Any] = NOT_HELD) -> ChatReply:
        return ChatReply(Message(role="assistant", content="done"), ModelCall(started=0.0, seconds=0.0, finish_reason="stop"))

    async def close(self) -> None:
        pass


def test_waiting_for_a_turn_takes_nobodys_time(made: Made) -> None:
    """A hundred that start one after the other, each in less than its time: of the sandbox, and of the rollout."""

    async def main() -> None:
        own = RolloutSettings(ModelSettings("m"), settings(start_timeout=2.0), prompt_timeout=3.0)
        sandboxes, tools = Sandboxes(own.sandbox), ToolsOfRollout(("terminal",), (), own)
        line, one = asyncio.Lock(), made.open

        async def in_line(image: str) -> MadeSandbox:
            async with line:
                return await one(image)

        async def rollout(number: int) -> Record:
            prompt = Prompt(number, (Message(role="user", content="go"),), image="a")
            spec = RolloutSpec(f"{number}", prompt, 0, 0, 1, 0, ("terminal",))
            return await run_rollout(spec, own, Answering(), tools, sandboxes, Services(own.tools))

        made.seconds = 0.2
        made.open = in_line  # type: ignore[method-assign]
        records = await asyncio.gather(*map(rollout, range(100)))
        assert {(record.outcome, record.error) for record in records} == {("completed", "")}
        await sandboxes.close()

    play(main())


def test_a_start_that_takes_too_long_says_so_and_gives_its_turn_back(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(start_timeout=2.0))
        made.seconds = 3.0
        results = await asyncio.gather(*(sandboxes.open(image="a") for _ in range(10)), return_exceptions=True)
        assert {type(result) for result in results} == {SandboxTimeout}
        assert "within 2 s; sandbox_timeout (--sandbox_timeout) allows more" in str(results[0])
        made.seconds = 1.0
        opened = await asyncio.gather(*(sandboxes.open(image="a") for _ in range(10)))
        for sandbox in opened:
            await sandbox.close()
        await sandboxes.close()

    play(main())


@pytest.mark.parametrize(
    ("error", "at_once"),
    [(SandboxError("the engine is overloaded"), 1), (ImageError("there is no such image"), FIRST)],
    ids=["sandbox", "image"],
)
def test_failures_let_fewer_start_but_not_a_missing_image(made: Made, error: SandboxError, at_once: int) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings())
        made.fail = lambda image: error
        results = await asyncio.gather(*(sandboxes.open(image="a") for _ in range(40)), return_exceptions=True)
        assert set(results) == {error}
        made.most_starting = 0
        await asyncio.gather(*(sandboxes.open(image="a") for _ in range(5)), return_exceptions=True)
        assert made.most_starting == at_once
        await sandboxes.close()

    play(main())


def test_a_folder_that_cannot_be_had_closes_the_sandbox(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(1))
        for _ in range(4):  # of them two from the pool
            with pytest.raises(UsageError, match="cannot be made"):
                await sandboxes.open(image="a", cwd="bad")
            await asyncio.sleep(5)
        await sandboxes.close()
        assert made.alive == 0

    play(main())


def test_a_turn_that_comes_as_its_start_is_cancelled_goes_to_the_next() -> None:
    async def main(steps: int) -> bool:
        slots, go = Slots(), asyncio.Event()
        starting = [asyncio.create_task(slots.start(go.wait)) for _ in range(10)]
        await asyncio.sleep(1)
        go.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        over = starting[4].done()
        starting[4].cancel()
        await asyncio.wait(starting)
        assert [task.cancelled() for task in starting] == [number == 4 and not over for number in range(10)]
        assert slots.limit.in_flight == 0
        return over

    steps = 0
    while not play(main(steps)):
        steps += 1
    assert steps > 1


# Ahead of need


async def open_and_close(sandboxes: Sandboxes, image: str, cwd: str = "") -> MadeSandbox:
    sandbox = await sandboxes.open(image=image, cwd=cwd)
    await sandbox.close()
    return is_made(sandbox)


def test_an_image_asked_for_again_is_kept_warm(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(2))
        await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        assert made.alive == 0
        await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        assert made.alive == 2
        loop, seen = asyncio.get_running_loop(), list[MadeSandbox]()
        for _ in range(5):
            began = loop.time()
            seen.append(await open_and_close(sandboxes, "a", cwd="work"))
            assert loop.time() == began  # it was there
            await asyncio.sleep(5)
            assert made.alive == 2  # and another one is
        assert len(set(map(id, seen))) == 5
        assert {(sandbox.cwd, sandbox.closings) for sandbox in seen} == {("work", 1)}
        await sandboxes.close()
        assert (made.alive, made.closed) == (0, True)

    play(main())


def test_without_it_nothing_starts_ahead_of_need(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings())
        for _ in range(5):
            await open_and_close(sandboxes, "a")
            await asyncio.sleep(5)
        assert len(made.opened) == 5
        await sandboxes.close()

    play(main())


def test_a_sandbox_that_is_no_longer_healthy_is_not_given_out(made: Made) -> None:
    async def main() -> None:
        def broken() -> bool:
            raise SandboxError("the engine is gone")

        sandboxes = Sandboxes(settings(4))
        for _ in range(2):
            await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        dead, failing, good, rest = made.opened[2:]
        dead.is_healthy = lambda: False
        failing.is_healthy = broken
        assert await open_and_close(sandboxes, "a") is good
        await asyncio.sleep(5)
        assert (dead.closings, failing.closings, rest.closings) == (1, 1, 0)
        for sandbox in made.opened[6:]:
            sandbox.is_healthy = lambda: False
        assert await open_and_close(sandboxes, "a") is rest
        for sandbox in made.opened:
            sandbox.is_healthy = lambda: False
        starts = len(made.opened)
        assert await open_and_close(sandboxes, "a") in made.opened[starts:]  # a fresh one
        await sandboxes.close()

    play(main())


def test_a_health_check_that_hangs_is_not_waited_for(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(2))
        for _ in range(2):
            await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        for sandbox in made.opened:
            sandbox.check_seconds = 1e6
        assert (await open_and_close(sandboxes, "a")).check_seconds == 0.0
        assert made.opened[2].closings == 1
        await sandboxes.close()
        assert made.alive == 0

    play(main())


def test_whoever_waits_goes_before_what_is_ahead_of_need(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(20))
        for _ in range(2):
            await open_and_close(sandboxes, "a")
        await asyncio.sleep(0)
        started = len(made.asked)
        assert started < 22 - 5  # the others wait, and all turns are taken
        assert made.starting >= FIRST
        await asyncio.gather(*(open_and_close(sandboxes, image) for image in "bcdef"))
        assert sorted(made.asked[started : started + 5]) == [*"bcdef"]
        await asyncio.sleep(30)
        assert Counter(made.asked)["a"] == 22
        await sandboxes.close()

    play(main())


def test_an_image_that_does_not_start_is_left_alone_for_a_while(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(1))
        for _ in range(2):
            await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        made.fail = lambda image: SandboxError("no space left")
        failures = 0
        for _ in range(20):  # the first of them is there
            try:
                await open_and_close(sandboxes, "a")
            except SandboxError as error:
                assert str(error) == "no space left"
                failures += 1
            await asyncio.sleep(5)
        assert failures == 19
        assert len(made.asked) == 3 + 19 + warm.FAILURES
        made.fail = lambda image: None
        for _ in range(warm.RESTING_ASKS):
            await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        assert made.alive == 1
        await sandboxes.close()

    play(main())


def test_failures_now_and_then_do_not_matter(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(1))
        await open_and_close(sandboxes, "a")
        for _ in range(2 * warm.FAILURES):
            made.fail = lambda image: None
            await open_and_close(sandboxes, "a")
            await asyncio.sleep(5)
            made.fail = lambda image: SandboxError("no space left")
            await open_and_close(sandboxes, "a")  # which was there; the one in its place fails
            await asyncio.sleep(5)
            assert made.alive == 0
        made.fail = lambda image: None
        await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        assert made.alive == 1
        await sandboxes.close()

    play(main())


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_end_does_not_wait_for_what_is_being_started(made: Made, stubborn: bool) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(1))
        for _ in range(2):
            await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        made.seconds, made.stubborn = 1e6, stubborn
        await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        assert (made.starting, made.alive) == (1, 1)
        made.closing_seconds = 1.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        await sandboxes.close()
        assert (made.alive, made.closed) == (0, True)
        assert loop.time() - began == (1.0 if stubborn else 0.0)

    play(main())


def test_one_image_per_prompt_starts_nothing_in_vain(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(2))
        for number in range(2 * warm.REMEMBERED):
            await open_and_close(sandboxes, f"image-{number}")
        await open_and_close(sandboxes, "image-0")  # forgotten long ago
        await asyncio.sleep(5)
        assert len(made.asked) == 2 * warm.REMEMBERED + 1
        await sandboxes.close()

    play(main())


def test_few_images_are_kept_warm_and_an_idle_one_makes_room(made: Made) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(2))
        images = "abcdef"
        for _ in range(2):
            for image in images:
                await open_and_close(sandboxes, image)
        await asyncio.sleep(5)
        standing = Counter(sandbox.image for sandbox in made.opened if not sandbox.closings)
        assert standing == dict.fromkeys(images[: warm.MOST_IMAGES], 2)
        starts = len(made.asked)
        for _ in range(5):
            for image in images:
                await open_and_close(sandboxes, image)
                await asyncio.sleep(5)
        assert len(made.asked) == starts + 5 * len(images)  # none pushes another out
        for _ in range(warm.IDLE_ASKS + 1):
            await open_and_close(sandboxes, "f")
        await asyncio.sleep(5)
        standing = Counter(sandbox.image for sandbox in made.opened if not sandbox.closings)
        assert standing["f"] == 2
        assert len(standing) == warm.MOST_IMAGES
        await sandboxes.close()
        assert made.alive == 0

    play(main())


def test_an_image_that_makes_room_while_one_of_it_is_checked_starts_no_more(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "MOST_IMAGES", 1)

    async def main() -> None:
        sandboxes = Sandboxes(settings(1))
        for _ in range(2):
            await open_and_close(sandboxes, "a")
        await asyncio.sleep(5)
        made.opened[-1].check_seconds = 5.0
        made.seconds = 0.0
        taking = asyncio.create_task(open_and_close(sandboxes, "a"))
        await asyncio.sleep(1)
        for _ in range(warm.IDLE_ASKS + 1):
            await open_and_close(sandboxes, "b")
        await taking
        await asyncio.sleep(5)
        assert [sandbox.image for sandbox in made.opened if not sandbox.closings] == ["b"]
        assert Counter(made.asked)["a"] == 3
        await sandboxes.close()
        assert made.alive == 0

    play(main())


# Cancellation


@pytest.mark.parametrize("which", [slice(None), slice(1, None, 2)], ids=["all", "some"])
@pytest.mark.parametrize("size", [0, 2])
def test_wherever_it_is_cancelled_nothing_is_left(made: Made, size: int, which: slice) -> None:
    """Of eight that open, all or some are cancelled after so many steps of the loop, from the first one to their end."""

    async def main(steps: int) -> bool:
        made.__init__()  # type: ignore[misc]
        made.seconds = 0.0
        sandboxes = Sandboxes(settings(size))
        for _ in range(2):
            await open_and_close(sandboxes, "a")
        opening = [asyncio.create_task(sandboxes.open(image="a", cwd="work")) for _ in range(8)]
        for _ in range(steps):
            await asyncio.sleep(0)
        over = all(task.done() for task in opening)
        for task in opening[which]:
            task.cancel()
        for result in await asyncio.gather(*opening, return_exceptions=True):
            if not isinstance(result, BaseException):
                await result.close()
        late = await asyncio.gather(*(sandboxes.open(image="a") for _ in range(8)))  # all turns are there
        for sandbox in late:
            await sandbox.close()
        await sandboxes.close()
        assert (made.alive, made.starting, made.closed) == (0, 0, True), steps
        assert all(sandbox.closings for sandbox in made.opened)
        return over

    steps = 0
    while not play(main(steps)):
        steps += 1
    assert steps > 5


def test_wherever_its_end_is_cancelled_it_goes_on(made: Made) -> None:
    async def main(steps: int) -> bool:
        made.__init__()  # type: ignore[misc]
        made.seconds = 0.0
        sandboxes = Sandboxes(settings(6))
        for _ in range(2):
            await open_and_close(sandboxes, "a")
        for _ in range(steps % 7):  # from none that is there up to all
            await asyncio.sleep(0)
        closing = asyncio.create_task(sandboxes.close())
        for _ in range(steps // 7):
            await asyncio.sleep(0)
        over = closing.done()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await sandboxes.close()
        assert (made.alive, made.starting, made.closed) == (0, 0, True), steps
        return over

    steps = 0
    while not play(main(steps)):
        steps += 1
    assert steps > 14


# The real one


def test_bubblewrap_sandboxes_stand_ready_and_are_all_gone_at_the_end() -> None:
    label = f"warm-{os.getpid()}"

    def count() -> int:
        return len(folders.left_over(label))

    async def main() -> None:
        sandboxes = Sandboxes(SandboxSettings(backend="bubblewrap", label=label, limits=Limits(), warm=2))
        try:
            for _ in range(2):
                await (await sandboxes.open()).close()
            await until(lambda: count() == 2)
            names = set()
            for number in range(4):
                sandbox = await sandboxes.open(cwd=f"work{number}")
                result = await sandbox.exec("pwd; ls -A; touch mine", timeout=20)
                assert result.output == f"/home/user/work{number}\n"
                assert not result.session_restarted
                names.add(id(sandbox))
                await sandbox.close()
            assert len(names) == 4
            opened = await asyncio.gather(*(sandboxes.open() for _ in range(12)))
            for sandbox in opened:
                assert (await sandbox.exec("echo on", timeout=20)).output == "on\n"
            await asyncio.gather(*(sandbox.close() for sandbox in opened))
        finally:
            await sandboxes.close()
        assert count() == 0

    asyncio.run(main())


def test_a_bubblewrap_sandbox_that_was_killed_while_it_stood_is_not_given_out() -> None:
    label = f"stood-{os.getpid()}"

    async def main() -> None:
        sandboxes = Sandboxes(SandboxSettings(backend="bubblewrap", label=label, warm=2))
        try:
            for _ in range(2):
                await (await sandboxes.open()).close()
            await until(lambda: len(folders.left_over(label)) == 2)
            await asyncio.to_thread(reaper.reap, SandboxSettings(backend="bubblewrap", label=label))
            sandbox = await sandboxes.open()
            assert (await sandbox.exec("echo on", timeout=20)).output == "on\n"
            await sandbox.close()
        finally:
            await sandboxes.close()
        assert not folders.left_over(label)

    asyncio.run(main())
