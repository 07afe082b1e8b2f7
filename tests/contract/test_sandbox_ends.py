"""How sandboxes end: closed, killed, reaped, at their limits. Whatever happens, nothing of them stays."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
import pytest
from contract.backends import Place
from contract.opening import LABEL, QUICK, alive_with, out, sandbox, sandboxes, settings, sh, until, within

from kiseki.errors import SandboxError, SandboxTimeout
from kiseki.sandboxes import reaper
from kiseki.sandboxes.base import Limits, Sandbox

# Closing


def test_closing_ends_what_is_pending(place: Place) -> None:
    """In every order in which the loop may come to it: many at once, so that a race shows."""
    troubles: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
        async with sandboxes(settings(place)) as opener:

            async def one() -> None:
                box = await opener.open()
                pending = [sh(box, "sleep 1000"), sh(box, "sleep 1000"), box.run(["sleep", "1000"], timeout=60)]
                tasks = [asyncio.create_task(each) for each in pending]
                await asyncio.sleep(0.02)
                await box.close()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                troubles.extend(each for each in ended if not isinstance(each, SandboxError))

            for _ in range(4):
                await asyncio.gather(*(one() for _ in range(place.many)))

    asyncio.run(main())
    assert troubles == []
    assert place.traces(LABEL) == []


def open_files() -> set[str]:
    return {entry.name for entry in os.scandir("/proc/self/fd")}


def test_close_leaves_nothing(place: Place) -> None:
    async def main() -> None:
        mark = f"8{os.getpid() % 10_000:04}"
        async with sandbox(place) as box:
            daemons = f"sleep {mark}.1 & (setsid nohup sleep {mark}.2 >/dev/null 2>&1 &)"
            await sh(box, f"{daemons}; mkdir -p a/b; touch a/b/c; chmod 0 a")
            pending = asyncio.create_task(sh(box, f"sleep {mark}.3"))
            assert await until(lambda: len(alive_with(f"sleep\0{mark}.")) == 3)
            await box.close()
            await box.close()
            with pytest.raises(SandboxError):
                await pending
            assert await until(lambda: not alive_with(f"sleep\0{mark}.")), "a cloud ends them by itself, a moment later"
            assert place.traces(LABEL) == []
            assert not await box.healthy()
            with pytest.raises(SandboxError):
                await sh(box, "echo x")
            with pytest.raises(SandboxError):
                await box.read_file("x")

    asyncio.run(main())  # What a process keeps for good is there after the first.
    before = open_files()
    asyncio.run(main())
    end = time.monotonic() + QUICK  # a cloud's library closes connections in a thread of its own
    while not open_files() <= before and time.monotonic() < end:
        time.sleep(0.01)
    assert open_files() <= before


def test_folders_of_any_depth_are_removed(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, f"mkdir -p {'d/' * 1900} && chmod 0 d && echo made") == "made\n"

    within(place, body)
    assert place.traces(LABEL) == []


def test_closing_while_it_opens_leaves_nothing(place: Place) -> None:
    async def main() -> None:
        async with sandboxes(settings(place)) as opener:
            begin = time.monotonic()
            await (await opener.open()).close()
            usual = time.monotonic() - begin
            for part in (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8):
                task = asyncio.create_task(opener.open())
                await asyncio.sleep(part * usual)
                if task.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await task
                else:
                    await (await task).close()
            assert place.traces(LABEL) == []

    asyncio.run(main())


def test_closing_while_it_cleans_up_leaves_nothing(place: Place) -> None:
    """Whoever is cancelled again, or while a start that failed is taken down, leaves when all of it is gone."""

    async def main() -> None:
        async with sandboxes(settings(place)) as opener:
            begin = time.monotonic()
            await (await opener.open()).close()
            usual = time.monotonic() - begin
            for part in (0, 0.05, 0.2, 0.4):
                task = asyncio.create_task(opener.open())
                await asyncio.sleep(part * usual)
                if task.done():  # the first one took longer: it logged in, or tried what doesn't work here
                    await (await task).close()
                else:
                    for _ in range(5):
                        task.cancel()
                        await asyncio.sleep(0)
                    with pytest.raises(asyncio.CancelledError):
                        await task
                assert place.traces(LABEL) == []

    asyncio.run(main())


def test_a_late_start_is_an_error_and_leaves_nothing(place: Place) -> None:
    async def main() -> None:
        async with sandboxes(msgspec.structs.replace(settings(place), start_timeout=0.0001)) as opener:
            with pytest.raises(SandboxTimeout, match="did not start within"):
                await opener.open()
            assert place.traces(LABEL) == []

    asyncio.run(main())


# Death


def test_a_dead_sandbox_is_an_infrastructure_failure(place: Place) -> None:
    async def main() -> None:
        async with sandbox(place) as box:
            assert await box.healthy()
            tasks = [asyncio.create_task(sh(box, "sleep 100")), asyncio.create_task(box.run(["sleep", "100"], timeout=60))]
            await asyncio.sleep(0.1)
            await asyncio.to_thread(place.kill, LABEL)
            for task in tasks:
                with pytest.raises(SandboxError) as caught:
                    await task
                assert str(caught.value)
                assert "\n" not in str(caught.value)
            with pytest.raises(SandboxError):
                await sh(box, "echo x")
            with pytest.raises(SandboxError):
                await box.read_file("x")
            assert not await box.healthy()
        assert place.traces(LABEL) == []

    asyncio.run(main())


def test_an_idle_sandbox_that_dies_is_noticed(place: Place) -> None:
    async def main() -> None:
        async with sandbox(place) as box:
            await sh(box, "echo x >~/x")
            await asyncio.to_thread(place.kill, LABEL)
            with pytest.raises(SandboxError):
                # What was sent before the death was known may still be lost with it, but is no command's result.
                await sh(box, "sleep 100")
            assert not await box.healthy()
        assert place.traces(LABEL) == []

    asyncio.run(main())


def test_reaping_removes_a_label_and_what_is_below_it_alone(place: Place) -> None:
    label = f"{LABEL}r"
    mark = f"9{os.getpid() % 10_000:04}"

    async def main() -> None:
        async with (
            sandbox(place, label=label) as first,
            sandbox(place, label=f"{label}.1") as second,
            sandbox(place, label=f"{label}x") as other,
        ):
            for number, box in enumerate((first, second, other)):
                await sh(box, f"sleep {mark}.{number} & X=kept; mkdir -p a; touch a/b; chmod 0 a")
            assert place.traces(label)
            assert await asyncio.to_thread(reaper.reap, settings(place, label=label)) == 2
            assert place.traces(label) == []
            assert len(alive_with(f"sleep\0{mark}.")) == len(alive_with(f"sleep\0{mark}.2")) == 1
            assert await out(other, "echo $X") == "kept\n"
            assert place.traces(f"{label}x")
            assert await asyncio.to_thread(reaper.reap, settings(place, label=label)) == 0
        assert place.traces(label) == place.traces(f"{label}x") == []

    asyncio.run(main())


# Many


def test_many_at_once(place: Place) -> None:
    async def main() -> None:
        async with sandboxes(settings(place)) as opener:
            boxes = await asyncio.gather(*(opener.open() for _ in range(10)))
            try:
                for number, box in enumerate(boxes):
                    await box.write_file("mine", b"%d" % number)
                results = await asyncio.gather(*(sh(box, "X=$(cat ~/mine); sleep 0.1; echo $X") for box in boxes))
                assert [result.output for result in results] == [f"{number}\n" for number in range(10)]
                assert [await box.read_file("~/mine") for box in boxes] == [b"%d" % number for number in range(10)]
            finally:
                await asyncio.gather(*(box.close() for box in boxes))
            assert place.traces(LABEL) == []

    asyncio.run(main())


# Limits


def test_limits_end_as_results(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        said = box.describe()
        assert {"backend", "isolation", "network", "disk", "memory", "cpus", "processes"} <= said.keys()
        big = await sh(box, "head -c 60000000 /dev/zero >big; echo $?")
        assert big.output.split()[-1] != "0"
        await sh(box, "rm -f big")
        if "per file" not in said["disk"]:
            fill = "i=0; while head -c 30000000 /dev/zero >f$i; do i=$((i+1)); [ $i -lt 8 ] || sleep 60; done; echo full"
            filled = await sh(box, fill)
            assert "full" in filled.output
            assert not filled.timed_out
            await sh(box, "rm -f f*")
        if place.enforced and said["memory"] != "not limited":
            hog = await sh(box, "head -c 300000000 /dev/zero | tail -c 300000000 >big")
            assert hog.exit_code == 137
            assert await out(box, "echo alive") == "alive\n"
        if place.enforced and said["processes"] != "not limited":
            bomb = await sh(box, "bomb() { bomb | bomb & }; bomb; while :; do :; done", timeout=1)
            assert (bomb.exit_code, bomb.timed_out) == (124, True)
            # The bomb's own words may come first.
            assert (await out(box, "/bin/true && echo alive")).endswith("alive\n")
        await box.write_file("x", b"1")
        assert await box.read_file("x") == b"1"
        assert (await sh(box, "echo end", timeout=QUICK)).output.endswith("end\n")

    within(place, body, limits=Limits(memory_mb=128, processes=40, disk_mb=50))
