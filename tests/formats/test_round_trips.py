"""Example → rows → bytes of a file → example, for every format, by what it says that it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from formats.examples import drawn, json_value, through_file

from kiseki.formats.format import Format, Holds, Options, Row, Unfit
from kiseki.formats.reading import read_row
from kiseki.formats.table import FORMATS, find_format, reader_for
from kiseki.trajectory.example import Example, trained, without_tail
from kiseki.trajectory.types import Message, ToolCall

OF_TOKENS = ("rl", "atropos")
"""Formats of token ids have tests of their own."""
READ_BACK = [
    (name, suffix)
    for name in FORMATS
    if name not in OF_TOKENS
    for suffix in find_format(name).suffixes
    if find_format(name).holds
]
MAY_REFUSE = {
    "arguments that are no JSON object",
    "a whole number of more than 64 bits",
    "an image of unknown kind",
    "images",
    "literal <image> beside images",
    "literal result tags in one of several results",
    "no turn to train on",
}


@pytest.fixture(scope="module")
def corpus() -> list[Example]:
    return drawn(60)


def written(made: Format, example: Example, options: Options | None = None) -> list[Row]:
    """No rows where the format refuses the example, for a reason that it may have."""
    try:
        return list(made.write(example, options or Options()))
    except Unfit as unfit:
        assert unfit.reason in MAY_REFUSE, unfit
        return []


def _reasoning(text: str, name: str) -> str:
    return text.strip("\n") if name == "sharegpt" else text


def parts(example: Example, name: str) -> dict[Holds, Any]:
    """What an example has of each thing that a format may hold, in a form that can be compared."""
    messages = [each for each in example.messages if each.role != "system"]
    assistants = [each for each in messages if each.role == "assistant"]
    calls = [each.tool_calls for each in assistants]
    results = [each for each in messages if each.role == "tool"]
    return {
        "system": "\n\n".join(each.content for each in example.messages if each.role == "system"),
        "tools": [*example.tools] if name != "llamafactory" else [_flat(each) for each in example.tools],
        "text": [(each.role, each.content) for each in messages if each.role != "tool"],
        "reasoning": [_reasoning(each.reasoning, name) for each in assistants],
        "calls": [(call.name, json_value(call.arguments or "{}")) for turn in calls for call in turn],
        "parallel_calls": [len(turn) for turn in calls],
        "ids": [[call.id for call in turn] for turn in calls] + [[each.tool_call_id] for each in results],
        "results": [json_value(each.content) for each in results],
        "images": [(at, image) for at, each in enumerate(messages) for image in each.images],
        "masks": _trained(example),
    }


def _flat(tool: dict[str, Any]) -> Any:
    return tool["function"]


def _trained(example: Example) -> list[int]:
    """Numbers among the assistant's turns: system messages may be put together, so that positions change."""
    turns = [at for at, each in enumerate(example.messages) if each.role == "assistant"]
    return [turns.index(at) for at in trained(example)]


@pytest.mark.parametrize(("name", "suffix"), READ_BACK)
def test_what_a_format_holds_comes_back(name: str, suffix: str, corpus: list[Example], tmp_path: Path) -> None:
    made = find_format(name)
    rows = {at: row for at, example in enumerate(corpus) for row in written(made, example)}
    assert len(rows) > len(corpus) / 3
    for at, row in zip(rows, through_file(made, list(rows.values()), suffix, tmp_path), strict=True):
        read = (made.read or read_row)(row)
        was, now = parts(corpus[at], name), parts(read, name)
        assert {each: now[each] for each in made.holds} == {each: was[each] for each in made.holds}, corpus[at]
        if name not in NO_FACTS:
            assert said_of(read) == said_of(corpus[at])
        if name not in NOT_EXPORTED_AGAIN:  # an export takes it for what it is, by its columns
            assert parts((reader_for(row) or read_row)(row), name) == now, corpus[at]


NO_FACTS = ("openai", "sts", "verl-rl")
"""The API takes no other columns; a viewer's lines; prompts."""
NOT_EXPORTED_AGAIN = ("openai", "sts", "verl-rl")
"""Where literal tags in a text would be taken for more in a file of anybody's; files of another kind; prompts."""


def said_of(example: Example) -> tuple[Any, ...]:
    return (example.key, example.prompt_index, example.sample_index, example.completed, example.reward, example.model)


def test_an_end_on_failed_results_is_cut_off() -> None:
    example = Example(
        messages=(
            Message(role="user", content="q"),
            Message(role="assistant", tool_calls=(ToolCall("c", "f", "{}"),)),
            Message(role="tool", content="error: no", tool_call_id="c", name="f"),
        ),
        failed=frozenset({2}),
        prompt_messages=1,
    )
    for name in FORMATS:
        made = find_format(name)
        if made.ends_on_assistant:
            assert len(written(made, without_tail(example))) == 1
    asked = without_tail(Example(messages=example.messages, masked=frozenset({1, 2}), prompt_messages=3))
    assert (asked.masked, asked.failed, asked.prompt_messages, len(asked.messages)) == (frozenset({1}), frozenset(), 2, 2)


@pytest.mark.parametrize("keep", ["keep", "drop"])
@pytest.mark.parametrize("name", ["sharegpt", "llamafactory", "swift"])
def test_empty_thinking_is_no_reasoning(name: str, keep: Any, corpus: list[Example]) -> None:
    made = find_format(name)
    for example in corpus:
        for row in written(made, example, Options(empty_think=keep)):
            assert parts((made.read or read_row)(row), name)["reasoning"] == parts(example, name)["reasoning"], example


def test_parquet_holds_all_of_an_example(corpus: list[Example], tmp_path: Path) -> None:
    made = find_format("parquet")
    assert made.read
    rows = through_file(made, [row for example in corpus for row in written(made, example)], ".parquet", tmp_path)
    assert [made.read(row) for row in rows] == corpus


# ---- one type per column ------------------------------------------------------------------------------------------------

NOT_COLUMNS = {
    "openai": "the API refuses empty lists and nulls",
    "atif": "which fields a step may have depends on its source",
    "sts": "lines of a viewer",
}
TABULAR = [name for name in FORMATS if name not in OF_TOKENS and name not in NOT_COLUMNS]


@pytest.mark.parametrize("name", TABULAR)
def test_rows_have_the_same_keys_and_types_whatever_the_example(name: str, corpus: list[Example]) -> None:
    made = find_format(name)
    assert made.schema
    schema = made.schema()
    for row in [row for example in corpus for row in written(made, example)]:
        assert list(row) == schema.names
        for field in schema:
            _check(row[field.name], field.type, f"{name}.{field.name}")


def _check(value: Any, kind: Any, where: str) -> None:
    import pyarrow

    types = pyarrow.types
    if isinstance(kind, pyarrow.JsonType):
        return
    if value is None:
        assert where == "parquet.reward"
    elif types.is_struct(kind):
        assert list(value) == [kind.field(at).name for at in range(kind.num_fields)], where
        for name, each in value.items():
            _check(each, kind.field(name).type, f"{where}.{name}")
    elif types.is_list(kind):
        assert type(value) is list, where
        for each in value:
            _check(each, kind.value_type, f"{where}[]")
    else:
        named = {pyarrow.string(): str, pyarrow.int64(): int, pyarrow.float64(): float, pyarrow.bool_(): bool}
        assert type(value) is named[kind], where


def test_every_format_is_as_its_table_entry_says() -> None:
    for name in FORMATS:
        made = find_format(name)
        assert made.name == name
        assert made.schema or ".parquet" not in made.suffixes
