"""docs/training.md: its sample rows are what is written, and its table names the versions that are tested."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from formats.consumers.cases import call, example, result, rows_as, said, tool, user
from support import REPOSITORY

from kiseki.formats.table import FORMATS

TEXT = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")
LOCKED = "\n".join(path.read_text() for path in sorted(REPOSITORY.glob("requirements-consumers*.lock")))
TERMINAL = tool("terminal", command={"type": "string"})
CONVERSATION = (
    user("Which files are there?"),
    said("", call(0, "terminal", {"command": "ls"}), thought="I look."),
    result(0, "terminal", "a.txt"),
    said("Only a.txt.", thought="One file."),
)
ROWS = {
    "TRL": "trl",
    "axolotl": "axolotl",
    "LLaMA-Factory": "llamafactory",
    "ms-swift": "swift",
    "verl, SFT": "verl",
    "verl, RL": "verl-rl",
    "OpenAI fine-tuning": "openai",
    "ATIF": "atif",
    "Session traces on the Hub": "sts",
}


def agree(told: Any, written: Any) -> None:
    """A sample may leave columns out, write `…` for a text, and space out the JSON in one as it likes."""
    if isinstance(told, dict):
        assert told.keys() <= written.keys()
        for name, each in told.items():
            agree(each, written[name])
    elif isinstance(told, list):
        assert len(told) == len(written)
        for each, other in zip(told, written, strict=True):
            agree(each, other)
    elif isinstance(told, str) and told[:1] in ("{", "["):
        agree(json.loads(told), json.loads(written))
    else:
        assert told in ("…", written)


@pytest.mark.parametrize("section", ROWS)
def test_a_sample_is_what_is_written(section: str) -> None:
    name = ROWS[section]
    made = example(0, CONVERSATION, [TERMINAL], toolsets=("terminal",), source='{"answer": "a.txt"}')
    (row,) = rows_as(name, [made])
    blocks = re.findall(r"^```json\n(\{.*?)^```", section_of(section), flags=re.MULTILINE | re.DOTALL)
    if name == "sts":
        agree([json.loads(line) for line in blocks[-1].splitlines()], row["lines"])
    else:
        agree(json.loads(blocks[-1]), row)


def test_every_command_names_a_format() -> None:
    assert set(re.findall(r"--to ([\w-]+)", TEXT)) <= set(FORMATS)


def test_the_versions_are_those_that_are_locked() -> None:
    table = TEXT.partition("| trainer |")[2].partition("\n\n")[0]
    told = re.findall(r"([\w-]+) (\d+\.\d+\.\d+)", table)
    assert len(told) >= 8
    assert all(f"{name.replace('ms-swift', 'ms_swift')}=={version}" in LOCKED for name, version in told)


def section_of(name: str) -> str:
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
