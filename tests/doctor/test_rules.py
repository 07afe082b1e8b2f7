"""What the consumers' documented rules say of rows, and that clean rows of their own form are clean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doctor.cases import TOOLS, by_rule, examined, factory, messages, rows_of, sharegpt

from kiseki.doctor.rules import check_scored


def own(target: str) -> dict[str, Any]:
    """A clean row of a consumer's form."""
    row = messages()
    if target == "llamafactory":
        return factory()
    if target in ("verl", "openai"):
        row["tools"] = TOOLS
    if target in ("openai", "swift"):
        for turn in row["messages"]:
            reasoning = turn.pop("reasoning_content", "")
            if reasoning and target == "swift":
                turn["content"] = f"<think>\n{reasoning}\n</think>\n\n{turn['content']}"
    return row


@pytest.mark.parametrize("target", ["trl", "axolotl", "llamafactory", "swift", "verl", "openai", "atropos"])
def test_clean_rows(target: str) -> None:
    assert by_rule(target, own(target)) == {}


@pytest.mark.parametrize("target", ["trl", "verl", "atropos"])
def test_roles_that_are_not_mapped(target: str) -> None:
    assert "role not mapped" in by_rule(target, sharegpt())
    assert "role not mapped" not in by_rule(target, messages())


def test_axolotl_maps_human_and_gpt_but_not_observation() -> None:
    assert "role not mapped" not in by_rule("axolotl", sharegpt())
    assert "role not mapped" in by_rule("axolotl", factory())


def test_trl_and_columns_of_its_own_meaning() -> None:
    assert "KeyError" in by_rule("trl", messages(prompt="x"))["column the consumer reads differently"]
    assert by_rule("trl", messages(chat_template_kwargs=None))["the consumer's code raises"]
    assert by_rule("trl", {**messages(), "tools": "[{"})["the consumer's code raises"].startswith("tools is not valid JSON")
    text = messages()
    text["messages"] = json.dumps(text["messages"])
    assert "not in this consumer's form" in by_rule("trl", text)


def test_llamafactory_and_the_order_of_turns() -> None:
    row = factory()
    row["conversations"].insert(3, {"from": "human", "value": "[SUMMARY]"})
    assert by_rule("llamafactory", row)["alternation broken"] == "turn 4 is user, not assistant"
    row = factory()
    row["conversations"].insert(2, dict(row["conversations"][2]))
    assert by_rule("llamafactory", row)["alternation broken"] == "turn 4 is tool, not assistant"
    row = factory()
    row["conversations"].append({"from": "human", "value": "Thanks"})
    assert "it ends on turn 5" in by_rule("llamafactory", row)["alternation broken"]


def test_llamafactory_and_names_of_roles() -> None:
    row = factory()
    row["conversations"][2]["from"] = "tool"
    assert by_rule("llamafactory", row)["role not mapped"] == "tool, turn 3"
    assert "role not mapped" not in by_rule("llamafactory", row, observation_tag="tool")


def test_llamafactory_and_what_it_drops_of_chat_messages() -> None:
    assert by_rule("llamafactory", messages())["dropped by the consumer"]
    row = factory()
    row["conversations"][1]["value"] = "I call it: " + row["conversations"][1]["value"]
    assert "a call's JSON" in by_rule("llamafactory", row)["the consumer's code raises"]


def test_swift_drops_reasoning_in_a_field() -> None:
    assert "reasoning_content" in by_rule("swift", messages())["dropped by the consumer"]


def test_openai_wants_ids_and_no_text_for_tools() -> None:
    row = own("openai")
    row["messages"][2]["tool_calls"][0].pop("id")
    assert by_rule("openai", row)["not in this consumer's form"] == "turn 3 has a call without an id"
    assert "not in this consumer's form" in by_rule("openai", sharegpt())


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        ({"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": [1.0]}, []),
        ({"tokens": [[1, 2]], "masks": [[-100]], "scores": [1.0]}, ["not in this consumer's form"]),
        ({"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": []}, ["not in this consumer's form"]),
        ({"tokens": [[1, 2]], "masks": [[0, 1]], "scores": [1.0]}, ["not in this consumer's form"]),
        ({"tokens": [[1, 2]], "masks": [[-100, -100]], "scores": [1.0]}, ["nothing to train on"]),
    ],
)
def test_groups_of_tokens(row: dict[str, Any], kinds: list[str]) -> None:
    assert [each.kind for each in check_scored(row)] == kinds


@pytest.mark.parametrize(
    "row", [messages(), {"steps": 1}, {"steps": [1], "agent": {}}, {"schema_version": "x", "agent": 1, "steps": [{}]}]
)
def test_rows_that_are_no_trajectories_of_the_interchange_format(tmp_path: Path, row: dict[str, Any]) -> None:
    assert rows_of(examined(tmp_path, [row], "atif")["not in this consumer's form"]) == [1]
