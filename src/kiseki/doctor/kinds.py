"""Every kind of problem that the doctor knows: what a trainer makes of it, how bad that is, and what to do. No I/O."""

from __future__ import annotations

from typing import Literal

import msgspec

from kiseki.formats.table import EXAMINED

Severity = Literal["lost", "harm", "note"]
"""`lost`: rows or whole files do not reach the trainer, or reach it empty. `harm`: they reach it without something that they say,
or with something that nobody said. `note`: nothing is lost, but worth knowing."""

LAYOUTS = ("sharegpt", "messages")
TARGETS = EXAMINED
"""What `--for` takes: consumers, and the two layouts that several of them read."""


class Kind(msgspec.Struct, frozen=True):
    """One kind of problem."""

    severity: Severity
    """Where no consumer is named."""
    effect: str
    """What happens to such rows."""
    fix: str
    """What to do; `{file}`, `{to}`, `{trainer}` and `{limit}` stand for the input, formats to export it to, and the limit."""
    among: dict[str, Severity] = {}
    """Other severities, by consumer."""
    only: tuple[str, ...] = ()
    """Consumers that it concerns; empty for all."""


_EXPORT = "kiseki export {file} --to {to}"
_TRAIN = "kiseki export {file} --to {trainer}"
"""{trainer}: as {to}, but a trainer's format where no consumer is named."""
_INCOMPLETE = "add what is missing, or take the row out; exports to openai and llamafactory leave it out and report it"
_OTHER = "choose another template; where it is about roles, arguments or parts: " + _TRAIN
_TAGS = "take the tags out of the text; of ShareGPT turns " + _TRAIN + " does it"
_AGAIN = "write the line again, or take it out; kiseki export {file} --to {to} leaves it out and reports it"

KINDS: dict[str, Kind] = {
    # ---- bytes and lines
    "torn last line": Kind("lost", "the whole file fails to load", _AGAIN),
    "NUL bytes": Kind("lost", "the whole file fails to load; a crash of the machine leaves such lines", _AGAIN),
    "invalid UTF-8": Kind("lost", "the whole file fails to load", _AGAIN),
    "not JSON": Kind("lost", "the whole file fails to load", _AGAIN),
    "not an object": Kind("lost", "the whole file fails to load", _AGAIN),
    "nested too deep": Kind(
        "lost",
        "Arrow refuses the file; the row was not looked at any further",
        _EXPORT + ", where no call's arguments are that deep",
    ),
    "lone surrogate": Kind(
        "lost",
        "Arrow refuses the file; newer datasets take the character out of the text",
        _EXPORT + " writes U+FFFD in its place",
    ),
    "duplicate keys": Kind("lost", "Arrow refuses the file; other readers keep one of the values", _EXPORT),
    "NaN": Kind("note", "Arrow reads it, strict JSON parsers do not", _EXPORT + " writes null or text"),
    "line separators in text": Kind(
        "note", "readers that use str.splitlines() cut the row apart (U+2028, U+2029, U+0085)", "read the file line by line"
    ),
    "file cannot be read": Kind(
        "lost",
        "the whole file fails to load",
        "write it again; what there is of a packed one, gzip -dc or zstd -dc puts into a new .jsonl file",
    ),
    "empty file": Kind("lost", "there is nothing in it to load", "take it out"),
    # ---- columns
    "mixed types": Kind(
        "note",
        "datasets before 4.7 and plain pyarrow refuse the file; newer ones make a JSON column of it",
        _EXPORT + " writes one type a column",
        {"llamafactory": "lost"},
    ),
    "type changes late": Kind(
        "lost", "the datasets library has settled the type by its first 10 MB, and fails at that row", _EXPORT
    ),
    "key appears late": Kind(
        "lost", "the datasets library has settled the keys by its first 10 MB, and fails at that row", _EXPORT
    ),
    "only empty objects": Kind(
        "note", "parquet has no objects without a field, so to_parquet() fails", "leave the column out, or give it a field"
    ),
    "columns differ between files": Kind("lost", "the datasets library loads no file set of different columns", _EXPORT),
    "files of two kinds": Kind(
        "lost", "the datasets library loads JSON lines or parquet from a folder, not both", _EXPORT + " writes one kind"
    ),
    "datasets does not load it": Kind("lost", "the trainer stops before it starts", _EXPORT),
    "pyarrow does not load it": Kind("note", "what is built on pyarrow alone does not load it either", _EXPORT),
    "parquet does not load": Kind("lost", "the trainer stops before it starts", _EXPORT),
    "text becomes a timestamp": Kind("note", "all its values look like times, so Arrow makes times of them", _EXPORT),
    # ---- conversations
    "no conversation": Kind("lost", "the row has nothing to train on", "take it out, or name the column messages"),
    "empty conversation": Kind("lost", "the row has nothing to train on", _EXPORT + " leaves it out and reports it"),
    "unknown role": Kind("lost", "loaders raise, or the template leaves the turn out", "rename the role"),
    "role not mapped": Kind("lost", "the consumer does not know this name of a role", _EXPORT),
    "no assistant turn": Kind(
        "lost", "there is no token to train on", "take the row out; exports to openai and llamafactory leave it out and report it"
    ),
    "nothing to train on": Kind("lost", "every assistant turn is masked: the row's loss is nothing, or NaN", "unmask a turn"),
    "empty assistant turn": Kind("harm", "the model learns to say nothing", "take the turn or the row out"),
    "system turn not first": Kind(
        "note", "several templates raise, others move or drop it", "merge it into the first", {"llamafactory": "lost"}
    ),
    "part is no text": Kind(
        "harm",
        "chat templates, and kiseki export, leave out parts of a content other than text and images: calls, results",
        "write calls as tool_calls, and each result as a turn of the role tool",
        {"swift": "note"},
    ),
    "call without result": Kind("harm", "converters drop the row or shift later results; APIs refuse it", _INCOMPLETE),
    "ends on calls": Kind(
        "note",
        "the last turn calls tools and nothing answers; chat APIs refuse to go on from there, trainers train up to there",
        "nothing, or --only completed at the export",
    ),
    "result without call": Kind("harm", "converters drop the row or answer another call with it; APIs refuse it", _INCOMPLETE),
    "result doubled": Kind(
        "harm",
        "one call is answered twice; APIs refuse it",
        "keep one of them; exports to openai and llamafactory leave the row out and report it",
    ),
    "arguments not JSON": Kind(
        "harm",
        "converters raise or train the broken text",
        "take the row out, as exports to trl and llamafactory do",
        {"axolotl": "lost", "llamafactory": "lost", "trl": "lost"},
    ),
    "arguments double-encoded": Kind(
        "harm",
        "the model learns to write JSON inside a JSON string",
        "decode them in the file; exports to trl and llamafactory leave the row out and report it",
    ),
    "arguments as text": Kind(
        "note",
        "templates that need objects raise (Qwen3.5, GLM-4.5, Nemotron); others encode them twice",
        _EXPORT + " writes objects",
        {"trl": "harm", "llamafactory": "harm"},
        only=("trl", "llamafactory", "verl"),
    ),
    "arguments as objects": Kind(
        "note", "the API wants JSON text", _EXPORT + " writes text", {"openai": "lost"}, only=("openai", "messages")
    ),
    "tools missing": Kind("note", "calls are trained without the schemas that explain them", "add a tools column"),
    "unknown tool": Kind(
        "note", "the model learns to call what is not offered", "kiseki export {file} --to {to} --drop tool_errors"
    ),
    "wrapped result": Kind(
        "harm",
        "templates put <tool_response> around the results of a tool turn by themselves: it is there twice",
        _TAGS,
        {"sharegpt": "note", "openai": "note", "axolotl": "note"},
    ),
    "ends on a tool turn": Kind(
        "note",
        "LLaMA-Factory drops the row; others train up to there",
        _EXPORT + " cuts the end off",
        {"llamafactory": "lost"},
        only=("", "llamafactory", "sharegpt", "messages"),
    ),
    "alternation broken": Kind(
        "note",
        "LLaMA-Factory drops the row with only a warning: turns must alternate and end on the assistant's",
        _EXPORT,
        {"llamafactory": "lost"},
        only=("", "llamafactory", "sharegpt", "messages"),
    ),
    "images and <image> differ": Kind(
        "harm", "loaders raise or move images to other turns", "one <image> in the text for each of the row's images"
    ),
    "duplicate row": Kind("note", "it counts twice", _EXPORT + " --dedup exact"),
    # ---- what one consumer asks for
    "not in this consumer's form": Kind("lost", "the consumer does not read the row", _EXPORT),
    "dropped by the consumer": Kind("harm", "its converter leaves this out without a word", _EXPORT),
    "column the consumer reads differently": Kind("harm", "it is taken for something else", _EXPORT),
    "row left out": Kind("lost", "the consumer's own code gives nothing for it", _EXPORT),
    "no loss on it": Kind("harm", "the consumer's own code does not train these assistant turns", _EXPORT),
    "turns do not add up": Kind(
        "lost",
        "verl renders turn by turn, and stops where that differs from the whole: results of several calls, last turns",
        "data.ignore_input_ids_mismatch=True in verl, or a template whose turns stand alone",
    ),
    "the consumer's code raises": Kind("lost", "preparation stops, or the row is left out", _EXPORT),
    "no token ids": Kind(
        "note",
        "the row is for Atropos' SFT loader alone, which makes token ids itself",
        "run with --capture_tokens, or export with --retokenize TOKENIZER",
    ),
    # ---- chat templates
    "template raises": Kind("lost", "preparation stops at that row", _OTHER),
    "template has no end": Kind(
        "lost",
        "preparation hangs or fills the memory at that row; the rows after it were not rendered",
        "choose another template",
    ),
    "row emptied": Kind("lost", "nothing of the user and the assistant is left of it, without an error", _OTHER),
    "turn lost": Kind("lost", "the rendered text does not have it", _OTHER),
    "call lost": Kind("lost", "the rendered text does not have it", "choose a template that renders tool calls"),
    "result lost": Kind("lost", "the rendered text does not have it", _OTHER),
    "reasoning stripped": Kind(
        "harm",
        "the rendered text does not have it",
        "the template's training variant, or one that keeps it, and no user turn in the middle; for LLaMA-Factory and ms-swift: "
        + _EXPORT,
    ),
    "reasoning doubled": Kind("harm", "an empty think block stands before the one in the text", _EXPORT),
    "response doubled": Kind("harm", "<tool_response> stands inside <tool_response>", _TAGS),
    "text doubled": Kind("harm", "the rendered text has it twice", "choose another template"),
    "arguments encoded again": Kind("harm", "the model learns to write JSON inside a JSON string", _TRAIN),
    "tools not rendered": Kind("harm", "the model is not told its tools", "choose a template that renders tools"),
    # ---- tokens
    "over the token limit": Kind(
        "harm", "trainers drop the row or cut its end off", "kiseki compress --input={file} --target_max_tokens={limit}"
    ),
}

BY_MODEL = ("reasoning stripped", "tools not rendered", "reasoning doubled")
"""What another model's template would not do."""


def severity_of(kind: str, target: str) -> Severity:
    """For a consumer; `target` may be ""."""
    known = KINDS[kind]
    return known.among.get(target, known.severity)


_FIRST = {
    "torn last line": "lines",
    "mixed types": "columns",
    "columns differ between files": "loading",
    "no conversation": "conversations",
    "call without result": "calls",
    "wrapped result": "conversations",
    "not in this consumer's form": "rules",
    "template raises": "rendering",
    "over the token limit": "tokens",
}
"""Of `KINDS` in order, where what is looked at together begins."""


def sections() -> dict[str, str]:
    """Kind → what is looked at together with it."""
    section, made = "", {}
    for kind in KINDS:
        section = _FIRST.get(kind, section)
        made[kind] = section
    return made
