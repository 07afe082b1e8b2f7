"""Runs a tool's function for no longer than its limit, also one that takes no notice of it: a coroutine that swallows its
cancellation, a thread that never returns.

What does not end is left behind: it may go on, but no rollout waits for it, and neither does the end of the event loop. Whose
results they are, and what the model is told, is `toolbox.py`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

GRACE_SECONDS = 2.0
"""What a cancelled task gets to clear up before it is left behind."""


class OutOfTime(Exception):
    """The function did not end within its limit."""


async def run_within(seconds: float, work: Callable[[], Any], *, is_async: bool) -> Any:
    """What `work` returns or raises; with `is_async` it gives an awaitable, else it runs in a thread.

    Raises OutOfTime at its limit. Then, and when the caller is cancelled, a coroutine is cancelled and given
    `GRACE_SECONDS`, a thread is left at once.
    """
    until = asyncio.get_running_loop().time() + seconds
    result = await _run_until(until, work, is_async=is_async)
    if not is_async and inspect.isawaitable(result):  # of an async function in a decorator that is not
        return await _run_until(until, lambda: result, is_async=True)
    return result


async def _run_until(until: float, work: Callable[[], Any], *, is_async: bool) -> Any:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    task: asyncio.Task[None] | None = None
    if is_async:  # in a task of its own: one awaited directly could not be left when it swallows its cancellation
        task = loop.create_task(_in_task(work, answer))
    else:
        _in_thread(work, answer)
    clock = loop.call_at(until, _settle, answer, None, OutOfTime())
    try:
        return await answer
    finally:
        clock.cancel()
        if task is not None and not task.done():
            await give_up(task)
        del answer  # an error that it holds refers to this frame, and would stay with all of its message until the next gc


async def give_up(task: asyncio.Task[Any]) -> None:
    """Cancel `task` and wait `GRACE_SECONDS` at most for its end; when the caller is cancelled, no longer."""
    task.cancel()
    try:
        await asyncio.wait([task], timeout=GRACE_SECONDS)
    finally:
        if not task.done():
            leave(task)


def leave(task: asyncio.Task[Any]) -> None:
    """Let `task` go on by itself: nothing waits for it any more, `asyncio.run` at its end included."""
    import ctypes

    asyncio._unregister_task(task)
    # never dropped, not even as the process ends: that would raise GeneratorExit in it, which it may swallow in a loop for ever
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


async def end_others() -> None:
    """End every other task of this event loop, which is about to end: what tools have started and left, too.

    What takes no notice is left behind.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        _, stubborn = await asyncio.wait(others, timeout=GRACE_SECONDS)
        for task in stubborn:
            leave(task)


async def _in_task(work: Callable[[], Awaitable[Any]], answer: asyncio.Future[Any]) -> None:
    try:
        _settle(answer, await work(), None)
    except BaseException as error:  # sys.exit too, which would go from a task right to the event loop's caller
        _settle(answer, None, error)


def _in_thread(work: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
    """Run `work` in a thread of its own.

    Not of a pool: there a few functions that never return would hold up every other rollout, and the process's end.
    """
    loop = answer.get_loop()

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = work()
        except StopIteration as stop:  # a future cannot hold that one
            error = RuntimeError(f"StopIteration: {stop}")
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(_settle, answer, result, error)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True).start()


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():  # too late, or nobody waits any more
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
