"""Types of columns, with rows that stand before and after the first block of the `datasets` library."""

from __future__ import annotations

from typing import Any

import pytest

from kiseki.doctor.columns import BLOCK_BYTES, Columns

EARLY, LATE = 1, 99


def told(first: dict[str, Any], second: dict[str, Any], *, late: bool) -> list[tuple[int, str, str]]:
    """(row, kind, column) of what is wrong with a file of two rows."""
    columns = Columns()
    columns.see(first, EARLY, 0)
    columns.see(second, LATE, BLOCK_BYTES + 1 if late else 100)
    return [(row, each.kind, each.detail.split(" ")[0]) for row, each in columns.problems()]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("text", ["part"]),
        ("text", {"a": 1}),
        (1, "1"),
        (True, 1),
        ([{"a": 1}], {"a": 1}),
    ],
)
def test_types_that_no_column_holds(before: Any, after: Any) -> None:
    assert told({"a": before}, {"a": after}, late=False) == [(LATE, "mixed types", "a")]
    assert told({"a": before}, {"a": after}, late=True) == [(LATE, "type changes late", "a")]


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "text"), (None, {"b": 1}), ([], [{"b": 1}]), (0, 0.5), ({}, {"b": 1})],
)
def test_types_that_a_column_holds_if_they_are_known_in_time(before: Any, after: Any) -> None:
    assert told({"a": before}, {"a": after}, late=False) == []
    assert (LATE, "type changes late", "a") in told({"a": before}, {"a": after}, late=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [("", "text"), (1, None), ([{"b": 1}], []), ({"b": 1}, {}), (0.5, 1), ("x", None)],
)
def test_types_that_are_known_from_the_start(before: Any, after: Any) -> None:
    assert told({"a": before}, {"a": after}, late=True) == []


def test_keys_that_come_late_are_told_once_with_where_they_are() -> None:
    old, new = {"role": "user"}, {"role": "user", "extra": {"deep": 1}}
    assert told({"turns": [old]}, {"turns": [new]}, late=False) == []
    assert told({"turns": [old]}, {"turns": [new]}, late=True) == [(LATE, "key appears late", "turns[].extra")]
    assert told({"a": 1, "b": 2}, {"a": 1}, late=True) == []


def test_only_the_outermost_of_mixed_columns_is_told() -> None:
    assert told({"a": {"b": {"c": 1}}}, {"a": "x"}, late=False) == [(LATE, "mixed types", "a")]


def test_objects_without_a_field() -> None:
    assert told({"a": {}}, {"a": {}}, late=False) == [(EARLY, "only empty objects", "a")]
