"""`axolotl`, read by axolotl's own chat_template strategy with the configuration of docs/training.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from consumer_python import ask
from formats.consumers.cases import EXAMPLES, check_all, exported
from formats.consumers.conftest import PROGRAMS, Asked

from kiseki.trajectory.example import trained

Row = dict[str, Any]


def rows(asked: Asked, pasted: Callable[[str, str], str]) -> list[Row]:
    def make(folder: Path) -> list[Row]:
        path = exported(folder, "axolotl")
        (dataset,) = yaml.safe_load(pasted("axolotl", "yaml"))["datasets"]
        return ask(
            "consumers", PROGRAMS / "axolotl_rows.py", path / dataset["path"].split("/")[-1], json.dumps(dataset), scratch=folder
        )

    made: list[Row] = asked("axolotl", make)
    return made


def test_everything_arrives_and_only_what_is_to_be_trained_is(asked: Asked, pasted: Callable[[str, str], str]) -> None:
    check_all(rows(asked, pasted), masks=True, cut=False)


def test_turns_end_where_the_model_ends_them(asked: Asked, pasted: Callable[[str, str], str]) -> None:
    """The token that ends a turn is trained as often as there are turns to train."""
    for example, row in zip(EXAMPLES, rows(asked, pasted), strict=True):
        assert row["trained"].count("<|im_end|>") == len(trained(example)), example.key
