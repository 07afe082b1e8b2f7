"""The whole examination: every row once through all checks, then the files through what loads them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from kiseki.doctor.as_read import as_read, with_texts_decoded
from kiseki.doctor.columns import Columns
from kiseki.doctor.confined import Confined, TemplateStopped
from kiseki.doctor.conversations import check_conversation
from kiseki.doctor.findings import Check, Findings, Place, Problem
from kiseki.doctor.kinds import BY_MODEL, KINDS, LAYOUTS, Severity
from kiseki.doctor.loading import check_loading
from kiseki.doctor.own_code import OwnCode
from kiseki.doctor.own_program import NEEDS
from kiseki.doctor.reading import json_rows, parquet_rows
from kiseki.doctor.rendering import check_rendering
from kiseki.doctor.rules import NAMES, RULES, check_scored
from kiseki.doctor.templates import PLAIN, TRL_DEFAULT, Render, Template, compile_template, default_templates, find_template
from kiseki.doctor.turns import Conversation, read_conversation
from kiseki.errors import DatasetError
from kiseki.exports.scratch import open_scratch
from kiseki.formats.table import find_format
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_columns import with_json_types
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.row_files import format_of
from kiseki.trajectory.tokens import Tokenizer, open_counter

VERL_FILE = "kiseki_verl.py"


class Order(msgspec.Struct, frozen=True):
    """What to examine, and for whom."""

    files: tuple[Path, ...]
    target: str = ""
    """A consumer (`kinds.TARGETS`); "" for no one in particular."""
    template: str = ""
    """As `templates.find_template` takes it; "" for those that are looked at by themselves."""
    tokenizer: Tokenizer | None = None
    max_tokens: int = 0
    """Of a row, with `tokenizer`."""


class Examined(msgspec.Struct):
    findings: Findings
    rows: int = 0
    """That are objects."""
    conversations: int = 0


class _Renderer(msgspec.Struct, frozen=True):
    name: str
    render: Render
    named: bool
    """Asked for by the user."""
    sharegpt: bool | None
    """Only for rows of that layout; None for all."""
    checked: Check


def examine(order: Order, read: Callable[[int], None] = lambda count: None) -> Examined:
    """Read the files and judge them.

    read: Is told how many bytes have been read since it was last told.

    Raises `DatasetError` for a file that cannot be read at all, and where no file has a row; `UsageError` for a template.
    """
    findings = Findings(order.target)
    made = Examined(findings)
    with (
        tempfile.TemporaryDirectory(prefix="kiseki-doctor-") as folder,
        open_scratch(Path(folder)) as database,
        contextlib.ExitStack() as stack,
    ):
        renderers = _renderers(order, Path(folder), stack)
        database.execute("CREATE TABLE seen (digest BLOB PRIMARY KEY, row INTEGER) WITHOUT ROWID")
        own = _own_code(order, Path(folder))
        rows = _Rows(order, made, renderers, database, own)
        columns: dict[Path, Columns] = {}
        for file in order.files:
            columns[file] = rows.file(file, read)
        if not rows.lines and rows.unreadable:
            raise rows.unreadable
        if not rows.lines:
            raise DatasetError(f"there is no row in {', '.join(map(str, order.files))}")
        _add_checks(order, made, renderers, rows)
        _compare_columns(findings, columns)
        parquet = [file for file in order.files if format_of(file) == ".parquet"]
        json = [file for file in order.files if file not in parquet]
        if parquet and json:
            findings.add(Problem("files of two kinds", f"{len(json)} of JSON lines, {len(parquet)} of parquet"), Place("", 0))
        if json:  # before parquet, which no finding about columns is about
            check_loading(findings, json, rows.longest, Path(folder))
        if parquet:
            check_loading(findings, parquet, rows.longest, Path(folder))
        if own and rows.stopped:
            findings.checks.append(Check(f"{NAMES[order.target]}'s own code", note="not run: the template has no end"))
        elif own:
            own.report(findings)
    return made


class _Rows:
    """Every row through all checks that need only the row."""

    def __init__(self, order: Order, made: Examined, renderers: list[_Renderer], database: Any, own: OwnCode | None) -> None:
        self._order = order
        self._made = made
        self._findings = made.findings
        self._renderers = renderers
        self._database = database
        self._own = own
        self._rule = RULES.get(order.target)
        self._tags: dict[str, str] = {}
        self._decodes = False
        self._like = find_format(order.target).read if order.target == "atif" else None
        self._count = open_counter(order.tokenizer).count if order.tokenizer else None
        self.stopped: set[str] = set()
        """Templates that ran into a bound, and render nothing more."""
        self.unreadable: DatasetError | None = None
        """Of the last file that could not be read, or not to its end."""
        self.longest = 0
        self.turns = 0
        self.calls = 0
        self.scored = 0
        self.lines = 0

    def file(self, path: Path, read: Callable[[int], None]) -> Columns:
        """One file."""
        columns = Columns()
        before = self.lines
        self._decodes = self._order.target == "verl" and has_own_dataset(path)
        info = _factory_info(path) if self._order.target == "llamafactory" else {}
        self._tags = info["tags"] if isinstance(info.get("tags"), dict) else {}
        if self._own:
            self._own.info = self._own.info or info
        parquet = format_of(path) == ".parquet"
        if self._order.target == "verl" and not parquet:
            self._findings.add(Problem("not in this consumer's form", "verl reads parquet only"), Place(path.name, 0))
        number = 0
        try:
            for number, row, offset, problems in parquet_rows(path, read) if parquet else json_rows(path, read):
                self._line(row, problems, Place(path.name, number))
                if not parquet:
                    self.longest = max(self.longest, offset[1])
                    if row is not None:
                        columns.see(row, number, offset[0])
        except DatasetError as error:
            self.unreadable = error
            words = f"after row {number:,}: {error}" if number else str(error)
            self._findings.add(Problem("file cannot be read", words), Place(path.name, 0))
        else:
            if self.lines == before:
                self._findings.add(Problem("empty file"), Place(path.name, 0))
        for number, problem in sorted(columns.problems(), key=lambda each: each[0]):
            self._findings.add(problem, Place(path.name, number))
        return columns

    def _line(self, row: dict[str, Any] | None, problems: list[Problem], place: Place) -> None:
        self.lines += 1
        for problem in problems:
            self._findings.add(problem, place)
        if row is not None:
            self._made.rows += 1
            for problem in self._row(row, place):
                self._findings.add(problem, place)

    def _row(self, row: dict[str, Any], place: Place) -> Iterator[Problem]:
        own = self._own if self._own and self._own.takes_more else None
        if own and self._order.target in ("atif", "atropos"):
            own.add(row, None, place)
        if self._order.target == "atropos" and "tokens" in row:
            self.scored += 1
            yield from check_scored(row)
            return
        if self._like is not None:
            try:
                row = _as_messages(self._like(row))
            except KeyError as error:
                yield Problem("not in this consumer's form", f"there is no {error.args[0]}")
                return
            except (ValueError, TypeError, AttributeError, IndexError) as error:
                yield Problem("not in this consumer's form", str(error))
                return
        conversation = read_conversation(row)
        if isinstance(conversation, Problem):
            yield conversation
            return
        if own and self._order.target not in ("atif", "atropos"):
            own.add(row, conversation, place)
        if self._decodes:
            row = with_texts_decoded(row)
            conversation = read_conversation(row)
            assert not isinstance(conversation, Problem)
        self._made.conversations += 1
        self.turns += len(conversation.turns)
        self.calls += sum(len(turn.calls) for turn in conversation.turns)
        for problem in check_conversation(row, conversation):
            by_rule = problem.kind == "alternation broken" and self._order.target == "llamafactory" and conversation.sharegpt
            if _concerns(problem.kind, self._order.target) and not by_rule:
                yield problem
        if self._rule:
            where = NAMES[self._order.target]
            for problem in self._rule(row, conversation, self._tags):
                yield msgspec.structs.replace(problem, where=where)
        if (first := self._seen_before(row, conversation)) is not None:
            yield Problem("duplicate row", f"the same conversation as row {first}")
        yield from self._rendered(row, conversation)

    def _seen_before(self, row: dict[str, Any], conversation: Conversation) -> int | None:
        """Row of the same conversation before this one."""
        digest = blake2b(encode_row([turn.raw for turn in conversation.turns]), digest_size=16).digest()
        done = self._database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (digest, self.lines)).rowcount
        if done:
            return None
        return int(self._database.execute("SELECT row FROM seen WHERE digest = ?", (digest,)).fetchone()[0])

    def _rendered(self, row: dict[str, Any], conversation: Conversation) -> Iterator[Problem]:
        messages, tools, more = as_read(row, conversation, self._order.target)
        counted = False
        for renderer in self._renderers:
            if renderer.sharegpt not in (None, conversation.sharegpt):
                continue
            if renderer.name in self.stopped:
                continue
            renderer.checked.count += 1
            try:
                found = list(check_rendering(renderer.render, messages, tools, more))
            except TemplateStopped as stopped:
                self.stopped.add(renderer.name)
                found = [Problem("template has no end", str(stopped))]
            for problem in found:
                severity: Severity | None = None
                if not renderer.named and (self._order.target in ("", *LAYOUTS) or problem.kind in BY_MODEL):
                    severity = "note"
                yield msgspec.structs.replace(problem, where=f"template {renderer.name}", severity=severity)
            if self._count and renderer.named and not counted:
                with contextlib.suppress(Exception):  # what the template raises is told already
                    yield from self._over(self._count(renderer.render(messages, tools, more)))
                    counted = True
        if self._count and not counted:
            texts = (turn.raw.get("value" if "from" in turn.raw else "content") for turn in conversation.turns)
            rest = (turn.raw.get(name) for turn in conversation.turns for name in ("reasoning_content", "tool_calls"))
            plain = sum(
                self._count(each if isinstance(each, str) else encode_row(each).decode()) for each in (*texts, *rest) if each
            )
            yield from self._over(plain + (self._count(encode_row(tools).decode()) if tools else 0))

    def _over(self, tokens: int) -> Iterator[Problem]:
        if tokens > self._order.max_tokens:
            yield Problem("over the token limit", f"{tokens:,} tokens, {self._order.max_tokens:,} allowed")


def _concerns(kind: str, target: str) -> bool:
    only = KINDS[kind].only
    return not only or target in only


def _as_messages(example: Example) -> dict[str, Any]:
    from kiseki.formats.format import Options

    row: dict[str, Any] = next(iter(find_format("messages").write(example, Options())))
    return row


def _factory_info(path: Path) -> dict[str, Any]:
    """What a LLaMA-Factory `dataset_info.json` beside a file says of it; nothing where there is none."""
    try:
        known = msgspec.json.decode((path.parent / "dataset_info.json").read_bytes(), type=dict[str, dict[str, Any]])
    except (OSError, msgspec.DecodeError):
        return {}
    return next((each for each in known.values() if each.get("file_name") == path.name), {})


def _own_code(order: Order, scratch: Path) -> OwnCode | None:
    if order.target not in NEEDS:
        return None
    wanted = order.template or ("qwen2_5" if order.target == "verl" else "qwen3")
    found = [find_template(order.template)] if order.template else default_templates((wanted,))
    template = (found or [find_template(PLAIN)])[0]
    schema = None
    if format_of(order.files[0]) == ".parquet" and order.target not in ("atif", "atropos"):  # whose code gets rows as JSON
        import pyarrow.parquet

        with contextlib.suppress(pyarrow.ArrowException, OSError):  # reading its rows tells why
            schema = with_json_types(pyarrow.parquet.read_schema(order.files[0]))
        if "extension<" in str(schema):  # the rows have what its columns of JSON hold, which JSON lines say as well
            schema = None
    made = OwnCode(order.target, template.with_tools or template.text, scratch, schema)
    if order.target == "verl" and has_own_dataset(order.files[0]):
        made.dataset_class = str(order.files[0].parent.absolute() / VERL_FILE)
    return made


def has_own_dataset(path: Path) -> bool:
    """Whether our own dataset class for verl stands beside a file, byte for byte: another one is not run."""
    beside = find_format("verl").beside
    ours = beside([path.name])[VERL_FILE] if beside else b""
    try:
        return (path.parent / VERL_FILE).read_bytes() == ours
    except OSError:
        return False


def _compare_columns(findings: Findings, columns: dict[Path, Columns]) -> None:
    """Columns of later files that the first one does not have."""
    named = [(file, each.names) for file, each in columns.items() if each.names]
    for file, names in named[1:]:
        if other := [name for name in names if name not in named[0][1]]:
            detail = f"{', '.join(other)} {'is' if len(other) == 1 else 'are'} not in {named[0][0].name}"
            findings.add(Problem("columns differ between files", detail), Place(file.name, 0))


def _renderers(order: Order, scratch: Path, stack: contextlib.ExitStack) -> list[_Renderer]:
    """`stack` ends their processes."""
    if order.template:
        template = find_template(order.template)
        if template.known:
            return [_renderer(template, compile_template(template), named=True)]
        confined = Confined(template, scratch)
        stack.callback(confined.close)
        return [_renderer(template, confined, named=True)]
    if order.target in ("llamafactory", "swift", "openai", "atif", "atropos"):
        return []  # they render without the model's template, or not at all
    plain = find_template(PLAIN)
    found = default_templates(TRL_DEFAULT) or [plain]
    made = [_renderer(each, compile_template(each)) for each in found]
    if order.target in ("", *LAYOUTS):
        return [
            _renderer(plain, compile_template(plain), sharegpt=True),
            *(msgspec.structs.replace(each, sharegpt=False) for each in made),
        ]
    return made


def _renderer(template: Template, render: Render, *, named: bool = False, sharegpt: bool | None = None) -> _Renderer:
    check = Check(f"rendered through the chat template {template.name}", section="rendering", where=f"template {template.name}")
    return _Renderer(template.name, render, named, sharegpt, check)


def _add_checks(order: Order, made: Examined, renderers: list[_Renderer], rows: _Rows) -> None:
    """The table of what was looked at."""
    add = made.findings.checks.append
    json = [file for file in order.files if format_of(file) != ".parquet"]
    if json:
        add(Check("lines: whole, UTF-8, one JSON object each, no lone surrogates", rows.lines, section="lines"))
        add(Check("columns: one type each, all of them from the first row on", made.rows, section="columns"))
    if rows.scored:
        add(Check("tokens, masks and scores of one length", rows.scored, "groups", "rules"))
    if not made.conversations and rows.scored:
        return
    add(Check("conversations: roles, order, trainable turns, no duplicates", made.conversations, section="conversations"))
    add(Check("calls: arguments, tools, one result each", rows.calls, "calls", "calls"))
    if order.target in RULES:
        add(Check(f"the documented rules of {NAMES[order.target]}", made.conversations, section="rules"))
    for renderer in renderers:
        if renderer.checked.count:
            add(renderer.checked)
    if not order.template and renderers and all(each.name == PLAIN for each in renderers):
        add(
            Check(
                "rendered through models' chat templates", note="TRL, which brings them, is not installed; --template takes any"
            )
        )
    if order.tokenizer:
        add(Check(f"at most {order.max_tokens:,} tokens by {order.tokenizer.name}", made.conversations, section="tokens"))
