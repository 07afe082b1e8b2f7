"""Every format's files, loaded by the datasets library as their consumers load them: of today, and of an older major.

The files are larger than what the library looks at to guess types, and what could drift comes last: reasoning, calls, tools,
rewards and images where all rows before had none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from consumer_python import ask
from formats.consumers.cases import EXAMPLES, call, example, rows_as, said, user, write_as
from formats.consumers.conftest import PROGRAMS, Asked
from formats.consumers.programs.rows import without_nulls

from kiseki.trajectory.example import Example
from kiseki.trajectory.types import CallTokens, ImageAt, Message, ModelCall

FILES = {
    **dict.fromkeys(("sharegpt", "messages", "axolotl", "llamafactory", "swift", "rl"), ".jsonl"),
    **dict.fromkeys(("sharegpt.parquet", "messages.parquet", "axolotl.parquet", "llamafactory.parquet"), ".parquet"),
    **dict.fromkeys(("swift.parquet", "rl.parquet", "verl", "verl-rl", "parquet", "trl"), ".parquet"),
}
"""Those that are for this library, with the kind of file. `openai` and `atif` leave out keys, as their readers want it, and `sts`
is for the Hub."""
JSON_TYPE = ("trl",)
"""Need the type Json, which the library has since 4.7."""
FILLER = [example(at, [user("a " * 500_000), said("b")], key=f"f{at}", source="{}", model="") for at in range(27)]
FILLER_WITH_A_CALL = [example(0, [user("w"), said("", call(1, "f", {"x": 1}))], key="f", source="{}", model=""), *FILLER]
NEEDS_A_CALL = ("messages",)
"""A list that is empty for the first megabytes has no type: where calls are lists of objects, as chat APIs write them, one of
them has to be among the first rows."""
MEGABYTES = 24
PICTURE = Message(role="user", content="w10ax See: and there.", images=(ImageAt(11, "https://host/a.png"),))
WITH_PICTURE = example(10, [PICTURE, said("w10bx")])
HAVE_PICTURES = {*FILES} - {"sharegpt", "messages", "axolotl", "axolotl.parquet", "llamafactory", "swift", "rl", "rl.parquet"}
"""Where a column of images has a type before the first one comes."""


def with_tokens(each: Example) -> Example:
    """With ids as a server gives them, for each reply two more than before."""
    replies = sum(one.role == "assistant" for one in each.messages[each.prompt_messages :])
    calls = [ModelCall(0.0, 0.0, tokens=CallTokens(tuple(range(3 * at + 2)), (3 * at + 2,), (-0.5,))) for at in range(replies)]
    return Example(**{name: getattr(each, name) for name in Example.__struct_fields__} | {"calls": tuple(calls)})


def examples_of(name: str) -> tuple[list[Example], list[Example]]:
    """What a file of a format begins with, and the examples at its end."""
    if name.startswith("rl"):
        return [with_tokens(each) for each in FILLER], [with_tokens(each) for each in EXAMPLES]
    first = FILLER_WITH_A_CALL if name in NEEDS_A_CALL else FILLER
    return first, [*EXAMPLES, *([WITH_PICTURE] if name in HAVE_PICTURES else [])]


def write(folder: Path, name: str, kind: str) -> Path:
    first, last = examples_of(name)
    return write_as(name.partition(".")[0], folder / f"{name.replace('.', '_')}{kind}", [*first, *last])


@pytest.fixture(params=["this", "datasets3"])
def loaded(request: pytest.FixtureRequest, asked: Asked) -> dict[str, dict[str, Any]]:
    """What the library says of each file."""

    def make(folder: Path) -> dict[str, Any]:
        paths = [write(folder, name, kind) for name, kind in FILES.items()]
        large = [path.name for path in paths if path.suffix == ".jsonl" and not path.name.startswith("rl")]
        assert all((folder / name).stat().st_size > MEGABYTES << 20 for name in large)
        program, count = PROGRAMS / "rows.py", len(EXAMPLES)
        environment = request.param
        answers = ask(environment, program, count, *paths, scratch=folder / "cache")
        for path in paths:
            path.unlink()
        return dict(zip(FILES, answers, strict=True))

    made: dict[str, dict[str, Any]] = asked(f"datasets_{request.param}", make)
    return {name: each for name, each in made.items() if request.param == "this" or name not in JSON_TYPE}


def test_rows_come_back_as_they_were_written(loaded: dict[str, dict[str, Any]]) -> None:
    for name, found in loaded.items():
        assert "error" not in found, (name, found)
        first, last = (rows_as(name.partition(".")[0], each) for each in examples_of(name))
        wanted = [without_nulls(row) for row in last]
        assert found["rows"] == len(wanted) + len(first), name
        assert found["last"] == wanted[-len(EXAMPLES) :], name
