"""Having images there: each pulled once, few at a time, tried again where that may help, left at once on an interrupt."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes import images
from kiseki.sandboxes.images import PULLS_AT_ONCE, TRIES, Pulls, missing_images, pull_images
from kiseki.sandboxes.settings import Pull


class Refused(ImageError):
    retryable = True


class Store:
    """An `ImageStore` whose pulls do what `pulling` does."""

    def __init__(self, there: set[str], pulling: Callable[[str, int], object] = lambda image, number: None) -> None:
        self.there = there
        self.pulls: Counter[str] = Counter()
        self.at_once = self.most = 0
        self._pulling = pulling
        self._lock = threading.Lock()

    def has(self, image: str) -> bool:
        return image in self.there

    def pull(self, image: str, tell: Callable[[Pull], None]) -> None:
        with self._lock:
            self.pulls[image] += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        tell(Pull(1, 2, "half"))
        try:
            self._pulling(image, self.pulls[image])
        finally:
            with self._lock:
                self.at_once -= 1

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "BACKOFF_SECONDS", 0.0)


def test_what_is_missing_in_the_order_given() -> None:
    names = [f"i{number}" for number in range(100)]
    looked: list[int] = []
    assert missing_images(Store(set(names[::2])), names, looked.append) == names[1::2]


def test_each_is_pulled_once_and_few_at_a_time() -> None:
    full = threading.Barrier(PULLS_AT_ONCE, timeout=60)
    store = Store(set(), lambda image, number: full.wait())
    names = [f"i{number}" for number in range(5 * PULLS_AT_ONCE)]
    shown: list[tuple[int, int]] = []
    assert pull_images(store, names, lambda state: shown.append((state.done, state.total))) == {}
    assert store.pulls == Counter(names)
    assert store.most == PULLS_AT_ONCE
    assert shown[-1] == (len(names), len(names))


def test_only_what_may_pass_is_tried_again() -> None:
    def pulling(image: str, number: int) -> None:
        if image == "gone":
            raise ImageError("manifest unknown")
        if image == "down" or (image == "shaky" and number < TRIES):
            raise Refused(f"503 the {number}.")

    store = Store(set(), pulling)
    notes: list[str] = []

    def take_notes(state: Pulls) -> None:
        while state.notes:
            notes.append(state.notes.popleft())

    lost = pull_images(store, ["gone", "down", "shaky", "fine"], take_notes)
    assert lost == {"gone": "image 'gone': manifest unknown", "down": f"image 'down': 503 the {TRIES}."}
    assert store.pulls == {"gone": 1, "down": TRIES, "shaky": TRIES, "fine": 1}
    assert sorted(note.split(";")[0] for note in notes) == [
        f"image {name!r}: 503 the {n}." for name in ("down", "shaky") for n in (1, 2)
    ]


def test_words_without_end_are_cut_and_none_has_the_class() -> None:
    words = {"long": "x" * 10_000_000, "silent": ""}

    def pulling(image: str, number: int) -> None:
        raise ImageError(words[image])

    lost = pull_images(Store(set(), pulling), words, lambda state: None)
    assert lost["silent"] == "image 'silent': ImageError"
    assert lost["long"].startswith("image 'long': xxx")
    assert len(lost["long"]) == images.REASON_CHARS


def test_an_engine_that_cannot_be_asked_ends_it() -> None:
    class Down(Store):
        def has(self, image: str) -> bool:
            raise SandboxError("is the docker daemon running?")

    with pytest.raises(SandboxError, match="docker daemon"):
        missing_images(Down(set()), ["a", "b"], lambda looked: None)


def test_a_bug_in_a_store_is_no_missing_image() -> None:
    def pulling(image: str, number: int) -> None:
        raise KeyError(image)

    with pytest.raises(KeyError):
        pull_images(Store(set(), pulling), ["a"], lambda state: None)


def test_an_interrupt_leaves_at_once_and_begins_nothing_more() -> None:
    release = threading.Event()
    store = Store(set(), lambda image, number: release.wait(60))

    def interrupt(state: Pulls) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_images(store, [f"i{number}" for number in range(20)], interrupt)
    assert not release.is_set(), "none of the pulls had ended"
    release.set()
    while any(thread.name.startswith("images-") for thread in threading.enumerate()):
        time.sleep(0.001)
    assert store.pulls.total() == PULLS_AT_ONCE
