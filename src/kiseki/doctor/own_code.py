"""The first rows of the data through the consumer's own code, where that is installed, and what it lost of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kiseki.doctor.findings import Check, Findings, Place, Problem
from kiseki.doctor.kinds import BY_MODEL
from kiseki.doctor.own_program import Made, OwnJob, installed
from kiseki.doctor.programs import last_words, start
from kiseki.doctor.rendering import Mark, compare, listed_turns, mark_row, signs
from kiseki.doctor.rules import NAMES
from kiseki.doctor.turns import Conversation

MOST_ROWS = 200
"""That go through it: consumers take milliseconds to a second for each."""
_RENDER = ("trl", "axolotl", "verl")
"""Consumers that render with the model's template; the others' text is their own doing."""


class OwnCode:
    """Collects rows with marks in them, runs the consumer over them, and reports."""

    def __init__(self, target: str, template: str, scratch: Path, parquet_schema: Any = None) -> None:
        """template: Jinja text. parquet_schema: Of the data's parquet file; None for JSON lines."""
        self.target = target
        self.version = installed(target)
        self._template = template
        self._scratch = scratch
        self._schema = parquet_schema
        self._rows: list[dict[str, Any]] = []
        self._places: list[Place] = []
        self._marks: list[dict[str, Mark]] = []
        self._silent: list[set[int]] = []
        self.info: dict[str, Any] = {}
        """For LLaMA-Factory: what the user's own dataset_info.json says of the file."""
        self.dataset_class = ""
        """For verl: path of the Python file with the dataset class to use, where that is our own."""

    @property
    def takes_more(self) -> bool:
        return bool(self.version) and len(self._rows) < MOST_ROWS

    def add(self, row: dict[str, Any], conversation: Conversation | None, place: Place) -> None:
        """conversation: None for rows that are given as they are, without marks."""
        marks: dict[str, Mark] = {}
        if conversation is not None:
            row, marks = mark_row(row, conversation, sum(map(len, self._marks)))
            self._silent.append({turn.at for turn in conversation.turns if turn.masked})
        else:
            self._silent.append(set())
        self._rows.append(row)
        self._places.append(place)
        self._marks.append(marks)

    def report(self, findings: Findings) -> None:
        """Run it, and add what it lost."""
        name = NAMES[self.target]
        if not self.version:
            note = "not installed here: its documented rules were checked"
            findings.checks.append(Check(f"{name}'s own code", note=note))
            return
        if not self._rows:
            return
        where = f"{name} {self.version}"
        made, failed = self._run()
        by_mark = {sign: number for number, marks in enumerate(self._marks) for sign in marks}
        answered: set[int] = set()
        marked = any(self._marks)
        for number, each in enumerate(made):
            at = next((by_mark[sign] for sign in signs(each.text + each.row) if sign in by_mark), None if marked else number)
            if at is None:
                if each.error and not each.row:
                    failed = each.error
                continue
            answered.add(at)
            for problem in self._judge(at, each):
                severity = "note" if problem.kind in BY_MODEL and self.target in _RENDER else problem.severity
                findings.add(msgspec.structs.replace(problem, where=where, severity=severity), self._places[at])
        if failed:
            findings.add(Problem("the consumer's code raises", failed, where), Place("", 0))
        else:
            for at in sorted({*range(len(self._rows))} - answered):
                findings.add(Problem("row left out", "", where), self._places[at])
        words = (
            f"{where}: its own code, the first {len(self._rows)}" if len(self._rows) == MOST_ROWS else f"{where}: its own code"
        )
        findings.checks.append(Check(words, len(self._rows), section="rules", where=where))

    def _judge(self, at: int, made: Made) -> Iterator[Problem]:
        if made.error:
            turns = self.target == "verl" and "each turn separately" in made.error
            yield Problem("turns do not add up" if turns else "the consumer's code raises", made.error)
            return
        marks = self._marks[at]
        yield from compare(marks, made.text)
        if made.trained is not None:
            trained = set(signs(made.trained))
            seen = set(signs(made.text))
            untrained = [
                mark.at
                for sign, mark in marks.items()
                if mark.part in ("text", "call", "arguments") and sign in seen - trained and mark.at not in self._silent[at]
            ]
            if untrained:
                yield Problem("no loss on it", listed_turns(untrained))

    def _run(self) -> tuple[list[Made], str]:
        """(what it made, why it stopped; "" where it did not)."""
        folder = self._scratch / "own"
        folder.mkdir(exist_ok=True)
        file = folder / ("rows.jsonl" if self._schema is None else "rows.parquet")
        if self._schema is None:
            file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in self._rows))
        else:
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema), file)
        if self.target == "llamafactory":
            (folder / "dataset_info.json").write_bytes(msgspec.json.encode({"rows": self._info(file.name)}))
        job = OwnJob(self.target, str(file), self._template, str(folder), "rows", self.dataset_class)
        with tempfile.TemporaryFile(dir=self._scratch) as stderr:
            with start("kiseki.doctor.own_program", msgspec.json.encode(job), folder, stderr) as process:
                assert process.stdout is not None
                lines: Sequence[bytes] = process.stdout.read().splitlines()
            made = [msgspec.json.decode(line, type=Made) for line in lines]
            return made, "" if process.returncode == 0 else f"it ended with {process.returncode}: {last_words(stderr)}"

    def _info(self, name: str) -> dict[str, Any]:
        """As the user's own dataset_info.json has it, or as the layout needs it."""
        if self.info:
            return self.info | {"file_name": name}
        sharegpt = "conversations" in self._rows[0]
        columns = {"messages": "conversations" if sharegpt else "messages"}
        columns |= {each: each for each in ("system", "tools", "images") if each in self._rows[0]}
        tags = {"observation_tag": "observation", "function_tag": "function_call", "system_tag": "system"}
        tags |= {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
        if not sharegpt:
            tags |= {"observation_tag": "tool", "function_tag": "function", "role_tag": "role", "content_tag": "content"}
            tags |= {"user_tag": "user", "assistant_tag": "assistant"}
        return {"file_name": name, "formatting": "sharegpt" if sharegpt else "openai", "columns": columns, "tags": tags}
