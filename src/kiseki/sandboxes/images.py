"""Has images there before anything runs in them: each missing one is pulled once, a few at a time, and tried again where that may
help. Blocks; draws nothing: the caller is told how it stands, on its own thread.

Threads do the waiting, and never hold up an end: an interrupt leaves at once, and what they were at ends with `ImageStore.close`.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import TypeVar

import msgspec

from kiseki.errors import SandboxError
from kiseki.sandboxes.settings import ImageStore, Pull

CHECKS_AT_ONCE = 8
"""A check is one small request to the engine, answered in milliseconds."""
PULLS_AT_ONCE = 4
"""Engines fetch the layers of one image side by side (Docker three), which fills most lines; registries count requests."""
TRIES = 3
"""Per image: engines try the layers again by themselves, so what still fails is a registry that does for longer."""
BACKOFF_SECONDS = 3.0
BACKOFF_GROWTH = 3.0
"""The wait before a further try, and how it grows: 3 s, then 9 s, each shortened by up to half, so that runs that failed
together do not come back together."""
TICK_SECONDS = 0.25
"""Between two looks at how it stands."""
REASON_CHARS = 1000
"""Of an engine's words that are kept, for each image that can't be had."""

T = TypeVar("T")


class Pulls(msgspec.Struct):
    """How the pulls stand. Written by their threads, read by whoever draws."""

    total: int
    done: int = 0
    lost: dict[str, str] = {}
    """Image → why it can't be had, in the engine's words."""
    running: dict[str, Pull] = {}
    """Oldest first."""
    notes: deque[str] = msgspec.field(default_factory=deque[str])
    """Lines to be shown once: tries that failed."""


def missing_images(store: ImageStore, images: Iterable[str], tick: Callable[[int], None]) -> list[str]:
    """Those that are not there, in the order given. `tick` gets how many have been looked for. Raises SandboxError."""
    images = list(images)
    there: dict[str, bool] = {}
    for image, found in _side_by_side(store.has, images, CHECKS_AT_ONCE, threading.Event(), lambda: tick(len(there))):
        there[image] = found
    return [image for image in images if not there[image]]


def pull_images(store: ImageStore, images: Iterable[str], tick: Callable[[Pulls], None]) -> dict[str, str]:
    """Pull each. Returns why, for those that cannot be had. `tick` is called several times a second, and at the end."""
    images = list(images)
    state = Pulls(total=len(images))
    over = threading.Event()
    for image, reason in _side_by_side(
        lambda image: _pull(store, image, state, over.wait), images, PULLS_AT_ONCE, over, lambda: tick(state)
    ):
        state.running.pop(image, None)
        state.done += not reason
        if reason:
            state.lost[image] = reason
    tick(state)
    return state.lost


def _pull(store: ImageStore, image: str, state: Pulls, wait: Callable[[float], object]) -> str:
    """Why it cannot be had; "" when it is there."""

    def tell(pull: Pull) -> None:
        state.running[image] = pull

    tell(Pull())
    for number in range(1, TRIES + 1):
        try:
            store.pull(image, tell)
            return ""
        except SandboxError as error:
            reason = _reason(image, error)
            if not error.retryable or number == TRIES:
                break
        seconds = BACKOFF_SECONDS * BACKOFF_GROWTH ** (number - 1) * random.uniform(0.5, 1.0)
        state.notes.append(f"{reason}; try {number + 1} of {TRIES} in {seconds:.0f} s")
        tell(Pull(words="waits for the next try"))
        wait(seconds)
    return reason


def _reason(image: str, error: SandboxError) -> str:
    """In the engine's words, with the image's name."""
    words = str(error) or type(error).__name__
    return (words if image in words else f"image {image!r}: {words}")[:REASON_CHARS]


def _side_by_side(
    work: Callable[[str], T], items: list[str], threads: int, over: threading.Event, tick: Callable[[], None]
) -> Iterator[tuple[str, T]]:
    """(item, what `work` gives for it) as they come; what it raises is raised here.

    `tick` is called while there is nothing. Left before the end, also by an interrupt, `over` is set and nothing more is begun;
    nobody waits for what runs.
    """
    waiting = iter(items)
    lock = threading.Lock()
    results: SimpleQueue[tuple[str, T | BaseException]] = SimpleQueue()

    def run() -> None:
        while True:
            with lock:
                item = next(waiting, None)
            if item is None or over.is_set():
                return
            try:
                results.put((item, work(item)))
            except BaseException as error:
                results.put((item, error))

    # daemons: the interpreter waits for any other thread at its end
    for number in range(min(threads, len(items))):
        threading.Thread(target=run, name=f"images-{number}", daemon=True).start()
    try:
        for _ in items:
            while True:
                try:
                    item, result = results.get(timeout=TICK_SECONDS)
                    break
                except Empty:
                    tick()
            if isinstance(result, BaseException):
                raise result
            yield item, result
    finally:
        over.set()
