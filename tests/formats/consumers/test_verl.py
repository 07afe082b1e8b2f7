"""`verl` and `verl-rl`, read by verl's own datasets: the first with the class that the export writes beside it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from consumer_python import ask
from formats.consumers.cases import EXAMPLES, check_all, exported, write_as
from formats.consumers.conftest import PROGRAMS, Asked

Row = dict[str, Any]
KEEPS_REASONING = "qwen3_training"
TEMPLATES = ("qwen2_5", KEEPS_REASONING)


def sft_rows(asked: Asked, pasted: Callable[[str, str], str], template: str) -> list[Row]:
    def make(folder: Path) -> list[Row]:
        path = exported(folder, "verl")
        config = yaml.safe_load(pasted("verl, SFT", "yaml"))["data"]
        files = config.pop("train_files")
        config["custom_cls"]["path"] = str(path / Path(config["custom_cls"]["path"]).name)
        program = PROGRAMS / "verl_rows.py"
        return ask("consumers", program, "sft", json.dumps(config), path / Path(files).name, *TEMPLATES, scratch=folder)

    rows: list[Row] = asked("verl_sft", make)
    return [row for row in rows if row["template"] == template]


@pytest.mark.parametrize("template", TEMPLATES)
def test_everything_arrives(asked: Asked, pasted: Callable[[str, str], str], template: str) -> None:
    reasoning = template == KEEPS_REASONING
    check_all(sft_rows(asked, pasted, template), masks=False, cut=False, reasoning=reasoning)


@pytest.fixture
def prompts(asked: Asked, pasted: Callable[[str, str], str]) -> list[Row]:
    def make(folder: Path) -> list[Row]:
        path = write_as("verl-rl", folder / "train.parquet", EXAMPLES)
        config = yaml.safe_load(pasted("verl, RL", "yaml"))["data"] | {"filter_overlong_prompts_workers": 1}
        assert Path(config.pop("train_files")).name == path.name
        config["cache_dir"] = str(folder / "cache")
        return ask("consumers", PROGRAMS / "verl_rows.py", "rl", json.dumps(config), path, "qwen3", scratch=folder)

    made: list[Row] = asked("verl_rl", make)
    return made


def test_every_prompt_arrives_with_its_truth(prompts: list[Row]) -> None:
    assert len(prompts) == len(EXAMPLES)
    for example, row in zip(EXAMPLES, prompts, strict=True):
        asked_of = example.messages[: example.prompt_messages]
        said = [(each["role"], each["content"]) for each in row["raw_prompt"]]
        assert said == [(each.role, each.content) for each in asked_of]
        assert row["reward_model"] == {"style": "rule", "ground_truth": "4"}
        assert (row["index"], row["tools_kwargs"]) == (example.prompt_index, {})
