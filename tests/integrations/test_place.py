"""A place in a dataset: what is given out, in which order, and what comes again after a restart."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support import write_dataset

from kiseki.batch.prompts import BadRow
from kiseki.errors import DatasetError
from kiseki.integrations.place import Item, Place, Prompts


def prompts(dataset: Path, place: Place | None = None, *, epochs: int = 2) -> Prompts:
    return Prompts(str(dataset), epochs, place or Place(), lambda row: None)


def names(given: list[Item]) -> list[tuple[int, str]]:
    return [(item.epoch, item.prompt.text) for item in given]


def rest(stream: Prompts) -> list[Item]:
    return list(iter(stream.next, None))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}, "{broken", {"prompt": "b"}, {"prompt": "c"}])


def test_every_usable_row_comes_once_per_epoch_and_a_bad_one_is_told_once(dataset: Path) -> None:
    bad: list[BadRow] = []
    given = rest(Prompts(str(dataset), 2, Place(), bad.append))
    assert names(given) == [(0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "b"), (1, "c")]
    assert [row.line for row in bad] == [2]


@pytest.mark.parametrize("finished", [set(), {"a"}, {"b"}, {"a", "b"}])
def test_after_a_restart_nothing_finished_comes_again_and_nothing_is_left_out(dataset: Path, finished: set[str]) -> None:
    before = prompts(dataset)
    first, second = before.next(), before.next()
    assert first and second
    for item in (second, first):
        if item.prompt.text in finished:
            before.finish(item)
    saved = json.dumps(msgspec.to_builtins(before.place()))
    again = prompts(dataset, msgspec.convert(json.loads(saved), Place))
    open_ones = [(0, name) for name in ("a", "b") if name not in finished]
    given = rest(again)
    assert names(given) == [*open_ones, (0, "c"), (1, "a"), (1, "b"), (1, "c")]
    for item in given:
        again.finish(item)
    assert rest(prompts(dataset, again.place())) == []


def test_an_open_prompt_of_an_earlier_epoch_comes_again_in_that_epoch(dataset: Path) -> None:
    before = prompts(dataset)
    given = [before.next() for _ in range(4)]
    for item in given[:2]:
        assert item
        before.finish(item)
    assert names(rest(prompts(dataset, before.place()))) == [(0, "c"), (1, "a"), (1, "b"), (1, "c")]


def test_without_an_end_it_begins_again(dataset: Path) -> None:
    stream = prompts(dataset, epochs=0)
    assert names([item for item in (stream.next() for _ in range(301)) if item])[-1] == (100, "a")


def test_a_dataset_without_a_usable_row_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no usable row"):
        prompts(write_dataset(tmp_path / "p.jsonl", ["{broken"]), epochs=0).next()
