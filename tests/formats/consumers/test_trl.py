"""`trl`, as TRL's SFTTrainer makes it into ids and labels, and through the templates that it ships."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consumer_python import ask
from formats.consumers.cases import EXAMPLES, check_all, check_row, exported, words, words_of, write_as
from formats.consumers.conftest import PROGRAMS, Asked

Row = dict[str, Any]
CALLS = [call for example in EXAMPLES for message in example.messages for call in message.tool_calls]
REASONING = ("qwen3", "qwen3_5_think", "qwen3_6", "qwen3_8", "glm4moe", "nemotron_3_nano")
"""Templates that have reasoning in their text."""
TEMPLATES = (*REASONING, "qwen2_5", "qwen3_instruct_2507")
OWN_CALLS = ("qwen3_5_think", "qwen3_6", "qwen3_8", "glm4moe", "nemotron_3_nano")
"""Templates that write calls in another way than Qwen's JSON between tags."""

LOSES = {
    "deepseekv3": {"w01fx", "w08fx"},
    "deepseek_r1_distill": {word for each in CALLS for word in words(each.arguments)},
    "llama3_1": {"w01fx", "w05bx", "w06bx", "w08bx", "w08fx"},
    "gptoss": {"w00cx", "w00ex", "w01fx", "w06bx", "w08bx", "w08fx"},
}
"""What templates lose beside reasoning, whatever the file has: docs/training.md names the kinds."""


@pytest.fixture
def rendered(asked: Asked) -> dict[str, list[Row]]:
    def make(folder: Path) -> list[Row]:
        path = exported(folder, "trl") / "train.parquet"
        return ask("consumers", PROGRAMS / "trl_templates.py", path, *TEMPLATES, *LOSES, scratch=folder)

    rows: list[Row] = asked("trl_templates", make)
    return {name: [row for row in rows if row["template"] == name] for name in (*TEMPLATES, *LOSES)}


@pytest.fixture(params=["parquet", "jsonl"])
def trained(request: pytest.FixtureRequest, asked: Asked, pasted: Callable[[str, str], str]) -> list[Row]:
    def make(folder: Path) -> list[Row]:
        paths = [write_as("trl", folder / f"train.{kind}", EXAMPLES) for kind in ("parquet", "jsonl")]
        return ask("consumers", PROGRAMS / "trl_sft.py", pasted("TRL", "json"), *paths, scratch=folder)

    rows: list[Row] = asked("trl_sft", make)
    return [row for row in rows if row["file"].endswith(request.param)]


def test_the_trainer_trains_on_every_assistant_turn_and_on_nothing_else(trained: list[Row]) -> None:
    *rows, step = trained
    check_all(rows, masks=False, cut=False)
    assert step["loss"] > 0


@pytest.mark.parametrize("name", TEMPLATES)
def test_its_templates_render_every_row(rendered: dict[str, list[Row]], name: str) -> None:
    for example, row in zip(EXAMPLES, rendered[name], strict=True):
        assert "error" not in row, (example.key, row)
        assert words(row["text"]) == words_of(example.messages, reasoning=name in REASONING, tails=True), example.key
        if row["masked"]:
            check_row(example, row, masks=False, cut=False, reasoning=name in REASONING, calls=name not in OWN_CALLS)


@pytest.mark.parametrize("name", LOSES)
def test_what_its_templates_lose_is_documented(rendered: dict[str, list[Row]], name: str) -> None:
    for example, row in zip(EXAMPLES, rendered[name], strict=True):
        if name == "llama3_1" and any(len(each.tool_calls) > 1 for each in example.messages):
            assert "single tool-call" in row["error"]
            continue
        lost = words_of(example.messages, reasoning=False, tails=True) - words(row["text"])
        assert set(lost) == {word for word in LOSES[name] if word.startswith(f"w{example.prompt_index:02}")}, example.key
