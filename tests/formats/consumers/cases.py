"""Conversations that exports have to get through each consumer, and what has to come out.

Every text in them has a word that stands nowhere else (`w07x`), so that what is lost or doubled shows by counting.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from support import write_dataset

from kiseki.exports.export import export
from kiseki.exports.job import ExportJob
from kiseki.formats.format import Options
from kiseki.formats.table import find_format
from kiseki.trajectory.example import Example, trained, without_tail
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.row_writers import open_writer
from kiseki.trajectory.types import Message, ToolCall

WORD = re.compile(r"w\d\d[a-z]*x")
_CALL = "<tool_call>\n"


def system(text: str) -> Message:
    return Message(role="system", content=text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str = "", *calls: ToolCall, thought: str = "") -> Message:
    return Message(role="assistant", content=text, reasoning=thought, tool_calls=calls)


def call(number: int, name: str, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(f"call_{number}", name, text)


def result(number: int, name: str, text: str) -> Message:
    return Message(role="tool", content=text, tool_call_id=f"call_{number}", name=name)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


SEARCH = tool("search", query={"type": "string"}, limit={"type": "integer"})
RUN = tool("run", code={"type": "string"}, files={"type": "array", "items": {"type": "object"}})
SET = tool("set", value={"type": ["string", "number", "null"]}, options={"type": "object"})

PARALLEL = (
    system("w00ax Be brief."),
    user("w00bx What are the two?"),
    said(
        "w00cx I look both up.",
        call(1, "search", {"query": "w00dx one"}),
        call(2, "run", {"code": "print('w00ex')\n", "files": []}),
        thought="w00fx Both at once.",
    ),
    result(2, "run", "w00gx second"),
    result(1, "search", "w00hx first"),
    said("w00ix These are they.", thought="w00jx Now I know."),
)
REASONING = (
    user("w01ax Find it."),
    said("", call(1, "search", {"query": "w01bx", "limit": 3}), thought="w01cx First a search.\n\nThen a look."),
    result(1, "search", '{"hits": ["w01dx", "w01ex"]}'),
    said("w01fx There is one.", call(2, "search", {"query": "w01gx again"}), thought="w01hx Not enough."),
    result(2, "search", "w01ix nothing"),
    said("w01jx Found.", thought="w01kx It is the first."),
)
LITERAL_TAGS = (
    user("w02ax What does <tool_call> mean, and </think>?"),
    said(
        "", call(1, "run", {"code": "grep '</tool_call>' w02bx <think>"}), thought="w02cx They ask of </think> and <tool_call>."
    ),
    result(1, "run", "w02dx <tool_response>\n</tool_response> <tool_call>"),
    said("w02ex Between <tool_call> and </tool_call> stands JSON.", thought="w02fx Easy."),
)
NO_TOOLS = (system("w03ax You answer."), user("w03bx Why?"), said("w03cx Therefore.\n\n    indented\n"))
SEVERAL_PROMPTS = (
    user("w04ax Hello."),
    said("w04bx Hello, how can I help?"),
    user("w04cx Set it."),
    said("", call(1, "set", {"value": "w04dx"}), thought="w04ex Simple."),
    result(1, "set", "w04fx ok"),
    said("w04gx It is set."),
)
ENDS_ON_RESULT = (
    user("w05ax Go on."),
    said("w05bx I start.", call(1, "run", {"code": "w05cx"}), thought="w05dx Start."),
    result(1, "run", "w05ex started"),
    said("", call(2, "run", {"code": "w05fx"}), thought="w05gx More."),
    result(2, "run", "w05htailx cut off"),
)
UNICODE = (
    user("w06ax Ünïcode 🧪 مرحبا e\u0301 \u200b\u2028 次"),
    said("w06bx 書きます 🏯", call(1, "run", {"code": "w06cx = '軌跡'\n\t\"quoted\" \\ back"}), thought="w06dx Überlegung 💭"),
    result(1, "run", "w06ex ✓ \u2028 \x1b[31mred\x1b[0m \\n"),
    said('w06fx Fertig: "ok" — done\u2026'),
)
NESTED = (
    system("w07ax"),
    user("w07bx Set all."),
    said(
        "",
        call(
            1, "set", {"options": {"name": "w07cx", "arguments": {"deep": [{"a": 1, "b": None}, {"c": "w07dx"}]}}, "value": 1.5}
        ),
    ),
    result(1, "set", '{"name": "w07ex", "arguments": {}}'),
    said("", call(2, "set", {"value": 12, "options": {}})),
    result(2, "set", "w07fx true"),
    said("", call(3, "set", {"value": None, "w07gx key": [True, False]})),
    result(3, "set", ""),
    said("w07hx Done."),
)
MASKED = (
    user("w08ax Try."),
    said("w08bx A wrong try.", call(1, "run", {"code": "w08cx"}), thought="w08dx Wrong."),
    result(1, "run", "w08ex error"),
    said("w08fx Right.", call(2, "run", {}), thought="w08gx Better."),
    result(2, "run", "w08hx 42"),
    said("w08ix It is 42.", thought="w08jx Good."),
)
JSON_LIKE = (
    user("42 w09ax"),
    said("", call(1, "search", {"query": '{"w09bx": 1}'}), thought="[w09cx]"),
    result(1, "search", '["w09dx"]'),
    said('{"w09ex": null}'),
)


def example(number: int, messages: Sequence[Message], tools: Iterable[dict[str, Any]] = (), **more: Any) -> Example:
    prompt = next(at for at, each in enumerate(messages) if each.role == "assistant")
    facts: dict[str, Any] = {
        "key": f"k{number:02}",
        "prompt_index": number,
        "prompt_messages": prompt,
        "model": "m/1",
        "source": '{"answer": "4"}',
    }
    return Example(messages=tuple(messages), tools=tuple(tools), **(facts | more))


EXAMPLES = (
    example(0, PARALLEL, [SEARCH, RUN], reward=1.0),
    example(1, REASONING, [SEARCH]),
    example(2, LITERAL_TAGS, [RUN]),
    example(3, NO_TOOLS, reward=0.25),
    example(4, SEVERAL_PROMPTS, [SET], prompt_messages=3),
    example(5, ENDS_ON_RESULT, [RUN], completed=False, partial=True, stop_reason="max_turns"),
    example(6, UNICODE, [RUN, SEARCH]),
    example(7, NESTED, [SET]),
    example(8, MASKED, [RUN, SET], masked=frozenset({1}), failed=frozenset({2})),
    example(9, JSON_LIKE, [SEARCH]),
)


def exported(folder: Path, name: str, *, out: str = "", **options: Any) -> Path:
    """The folder (or, with `out`, the file) that an export of the examples has written. Nothing is left out."""
    source = write_dataset(folder / "source.jsonl", (row for each in EXAMPLES for row in rows_as("messages", [each])))
    job = ExportJob(source=source, to=name, out=folder / (out or name), **options)
    report = export(job)
    assert (report.total_written, report.left_out) == (len(EXAMPLES), {})
    return folder / (out or name)


def rows_as(name: str, examples: Iterable[Example]) -> list[dict[str, Any]]:
    """Rows of a format, as an export makes them."""
    format = find_format(name)
    cut = [without_tail(each) if format.ends_on_assistant else each for each in examples]
    return [row for each in cut for row in format.write(each, Options())]


def write_as(name: str, path: Path, examples: Iterable[Example]) -> Path:
    """A file of a format, of examples as they are: through an export of a file they lose what only a run knows."""
    format = find_format(name)
    schema = format.schema() if format.schema and path.suffix == ".parquet" else None
    writer = open_writer(path, path, schema=schema)
    for row in rows_as(name, examples):
        writer.write(encode_row(row))
    writer.close()
    return path


def words(text: str) -> Counter[str]:
    return Counter(WORD.findall(text))


def words_of(messages: Iterable[Message], *, reasoning: bool = True, tails: bool = False) -> Counter[str]:
    """Every word of the messages. tails: That of the result which exports for some consumers cut off, too."""
    found: Counter[str] = Counter()
    for each in messages:
        calls = "".join(one.arguments for one in each.tool_calls)
        found += words(f"{each.content} {calls} {each.reasoning if reasoning else ''}")
    return found if tails else Counter({word: count for word, count in found.items() if "tail" not in word})


def calls_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    """(name, arguments) of each call between Qwen's tags, wherever it stands."""
    found, at, decoder = [], 0, json.JSONDecoder()
    while (at := text.find(_CALL, at)) >= 0:
        at += len(_CALL)
        try:
            made, end = decoder.raw_decode(text, at)
        except ValueError:
            continue
        if isinstance(made, dict) and "name" in made:
            found.append((made["name"], made["arguments"]))
            at = end
    return found


def check_row(
    example: Example,
    row: dict[str, Any],
    *,
    masks: bool,
    reasoning: bool = True,
    calls: bool = True,
    whole: Callable[[str], str] = lambda text: text,
    cut: bool = True,
) -> None:
    """A consumer's text and trained text of an example: every word once, calls with their arguments, contents whole.

    masks: It knows which turns a loss falls on; else it falls on all of the assistant's. reasoning: It is in the text at all.
    calls: They stand between Qwen's tags. whole: What the assistant's content looks like in the text. cut: Results at the end
    are not in it.
    """
    assert "error" not in row, (example.key, row)
    text, on = row["text"], row["trained"]
    example = without_tail(example) if cut else example
    assistant = [at for at, each in enumerate(example.messages) if each.role == "assistant"]
    loss = trained(example) if masks else assistant
    kept = [example.messages[at] for at in loss]
    assert words(text) == words_of(example.messages, reasoning=reasoning, tails=not cut), example.key
    assert words(on) == words_of(kept, reasoning=reasoning), example.key
    for at, each in enumerate(example.messages):
        content = whole(each.content) if each.role == "assistant" else each.content
        assert content.strip() in text, (example.key, at, content, text)
        assert at not in loss or content.strip() in on, (example.key, at, content, on)
        assert not reasoning or whole(each.reasoning) in text, (example.key, at, each.reasoning)
    if calls:
        wanted = [(one.name, msgspec.json.decode(one.arguments)) for each in kept for one in each.tool_calls]
        assert calls_in(on) == wanted, example.key


def check_all(rows: Sequence[dict[str, Any]], **how: Any) -> None:
    """One row for each example, in order, and every one as it should be."""
    assert len(rows) == len(EXAMPLES)
    for each, row in zip(EXAMPLES, rows, strict=True):
        check_row(each, row, **how)
