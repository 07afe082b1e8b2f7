"""Examples as nasty as conversations get, for Hypothesis; and rows to a file's bytes and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kiseki.formats.format import Format, Row
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.parquet_rows import RowGroups, read_batches
from kiseki.trajectory.types import CallTokens, ImageAt, Message, ModelCall, ToolCall, Usage

_TAGS = ("think", "tool_call", "tool_response", "tools", "REASONING_SCRATCHPAD")
_NASTY = (
    *(f"<{tag}>" for tag in _TAGS),
    *(f"</{tag}>" for tag in _TAGS),
    "<think>\nno\n</think>\n\n",
    "\n</tool_response>\n<tool_response>\n",
    '<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>',
    "<\\think>",
    "\\u003cthink>",
    "\x00",
    "\u2028",
    "\u0085",
    "\r\n",
    "\n\n",
    "<|im_end|>",
    "軌跡",
    "👩\u200d🚀",
    '{"a": [1, {"b": null}]}',
    "42",
    "null",
    '"',
    "\\",
)
_WORDS = st.sampled_from(_NASTY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
TEXTS = st.lists(_WORDS, max_size=4).map("".join)
SAID = TEXTS.filter(bool)
_LITERAL_IMAGES = st.sampled_from(["<image>", "see <image> and <image>"])

_NUMBERS = st.integers(-(2**70), 2**70) | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
_OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=3)
ARGUMENTS = _OBJECTS.map(json.dumps) | _OBJECTS.map(lambda value: encode_row(value).decode()) | st.just("{}")
BAD_ARGUMENTS = st.sampled_from(["", '{"a": ', "[1, 2]", '"text"', "not json", '{"a": NaN}', "{'a': 1}"])
NAMES = st.sampled_from(["terminal", "read_file", "mcp__a-b_c", "f"])
RESULTS = TEXTS | VALUES.map(json.dumps)
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Calls </tools> a <tool_call>.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer", "default": 1}}, "required": ["x"]},
    },
}
_OTHER = {"type": "function", "function": {"name": "g", "description": "", "parameters": {"type": "object", "properties": {}}}}
URLS = st.sampled_from(["https://host/a.png", "data:image/png;base64,iVBORw0KGgo=", "pictures/b.jpeg"])


@st.composite
def messages_of(draw: st.DrawFn, images: bool, bad: bool) -> tuple[list[Message], int]:
    """(messages, how many are the prompt's) of a conversation in which turns alternate and every call is answered."""
    made = [Message(role="system", content=draw(SAID)) for _ in range(draw(st.integers(0, 2)))]
    made.append(_shown(draw, Message(role="user", content=draw(TEXTS)), images))
    if draw(st.booleans()):
        made += [Message(role="assistant", content=draw(SAID)), _shown(draw, Message(role="user", content=draw(TEXTS)), images)]
    prompt = len(made)
    for turn in range(draw(st.integers(0, 3))):
        number = draw(st.integers(1, 3))
        calls = tuple(
            ToolCall(f"call_{turn}_{each}", draw(NAMES), draw(BAD_ARGUMENTS if bad and each == 0 else ARGUMENTS))
            for each in range(number)
        )
        made.append(Message(role="assistant", content=draw(TEXTS), reasoning=draw(TEXTS), tool_calls=calls))
        made += [Message(role="tool", content=draw(RESULTS), tool_call_id=call.id, name=call.name) for call in calls]
    made.append(Message(role="assistant", content=draw(SAID), reasoning=draw(TEXTS)))
    return made, prompt


def _shown(draw: st.DrawFn, message: Message, images: bool) -> Message:
    if not images:
        return message
    places = sorted(draw(st.lists(st.integers(0, len(message.content)), max_size=2)))
    return Message(role="user", content=message.content, images=tuple(ImageAt(at, draw(URLS)) for at in places))


USAGES = st.builds(Usage, *[st.integers(0, 10**6)] * 4, cost=st.floats(0, 10))
TOKENS = st.builds(
    CallTokens,
    st.lists(st.integers(0, 200_000), max_size=3).map(tuple),
    st.lists(st.integers(0, 200_000), max_size=3).map(tuple),
    st.lists(st.floats(-20, 0), max_size=3).map(tuple),
    st.integers(0, 9),
)
CALLS = st.builds(
    ModelCall,
    st.floats(1e9, 2e9),
    st.floats(0, 99),
    st.sampled_from(["", "stop", "length"]),
    USAGES,
    st.booleans(),
    st.booleans(),
    TEXTS,
    TEXTS,
    TEXTS,
    st.integers(0, 3),
    st.floats(0, 9),
    st.none() | TOKENS,
)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """One in eight has arguments that are no JSON object, one in four images."""
    images = draw(st.integers(0, 3)) == 0
    messages, prompt = draw(messages_of(images, draw(st.integers(0, 7)) == 0))
    own = [at for at, each in enumerate(messages) if each.role == "assistant" and at >= prompt]
    results = [at for at, each in enumerate(messages) if each.role == "tool"]
    if not images and draw(st.booleans()):
        messages[prompt - 1] = Message(role="user", content=draw(_LITERAL_IMAGES))
    return Example(
        messages=tuple(messages),
        tools=draw(st.sampled_from([(), (TOOL,), (TOOL, _OTHER)])),
        key=draw(st.sampled_from(["", "0f3a"])),
        prompt_index=draw(st.integers(0, 10**6)),
        sample_index=draw(st.integers(0, 9)),
        prompt_messages=prompt,
        masked=frozenset(own[:-1]) & draw(st.frozensets(st.sampled_from(own))),
        failed=draw(st.frozensets(st.sampled_from(results))) if results else frozenset(),
        completed=draw(st.booleans()),
        partial=draw(st.booleans()),
        stop_reason=draw(st.sampled_from(["", "answered", "timeout"])),
        finish_reason=draw(st.sampled_from(["", "stop"])),
        model=draw(TEXTS),
        reward=draw(st.none() | st.sampled_from([0.0, 1.0, 0.5, -2.25])),
        started=draw(st.sampled_from([0.0, 1.7e9])),
        seconds=draw(st.floats(0, 99)),
        usage=draw(USAGES),
        calls=tuple(draw(CALLS) for _ in own) if draw(st.booleans()) else (),
        toolsets=draw(st.sampled_from([(), ("terminal", "web")])),
        source=draw(st.sampled_from(["{}", '{"answer": 42, "task": "a"}'])),
    )


def drawn(count: int) -> list[Example]:
    """So many examples, other ones each time. Drawn once for all formats: it takes longer than to write and read them."""
    made: list[Example] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(examples())
    def draw(example: Example) -> None:
        made.append(example)

    draw()
    return made


def through_file(made: Format, rows: list[Row], suffix: str, folder: Path) -> list[Row]:
    """The rows as they come out of a file of that kind."""
    if suffix == ".jsonl":
        return [decode_row(encode_row(row)) for row in rows]
    assert made.schema is not None
    path = folder / "rows.parquet"
    with path.open("wb") as file:
        groups = RowGroups(file, made.schema())
        groups.write(rows)
        groups.close()
    return [row for batch, _ in read_batches(path) for row in batch]


def json_value(text: str) -> Any:
    """What a text is as JSON; itself where it is none."""
    try:
        return json.loads(text, parse_constant=lambda name: text)
    except ValueError:
        return text
