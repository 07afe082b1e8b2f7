"""`llamafactory`, read by LLaMA-Factory's own converter and template with the configuration of docs/training.md and the
dataset_info.json that the export writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from consumer_python import ask
from formats.consumers.cases import EXAMPLES, check_all, exported
from formats.consumers.conftest import PROGRAMS, Asked

from kiseki.trajectory.sharegpt import escape_text

Row = dict[str, Any]
READ = ("dataset", "template", "cutoff_len")
"""What `DataArguments` takes of the pasted configuration, beside `dataset_dir`."""


@pytest.fixture
def rows(asked: Asked, pasted: Callable[[str, str], str]) -> list[Row]:
    def make(folder: Path) -> list[Row]:
        path = exported(folder, "llamafactory")
        config = yaml.safe_load(pasted("LLaMA-Factory", "yaml"))
        assert {*READ, "dataset_dir"} < set(config)
        arguments = {name: config[name] for name in READ} | {"dataset_dir": str(path)}
        return ask("consumers", PROGRAMS / "llamafactory_rows.py", json.dumps(arguments), scratch=folder)

    made: list[Row] = asked("llamafactory", make)
    return made


def test_no_row_is_dropped_and_everything_arrives_once(rows: list[Row]) -> None:
    check_all(rows, masks=False, whole=escape_text)


def test_turns_end_where_the_model_ends_them(rows: list[Row]) -> None:
    for example, row in zip(EXAMPLES, rows, strict=True):
        turns = sum(each.role == "assistant" for each in example.messages)
        assert row["trained"].count("<|im_end|>") == turns, example.key


def test_a_row_without_tools_has_no_system_block_for_them(rows: list[Row]) -> None:
    assert rows[3]["text"].startswith("<|im_start|>system\nw03ax You answer.<|im_end|>\n<|im_start|>user\n")
