"""`atif` against the models of the package of the same name, which takes no field that it does not know."""

from __future__ import annotations

import json

import msgspec
import pytest
from atif import Trajectory
from formats.examples import drawn
from formats.test_rows import EXAMPLE, FACTS, TOOL, conversation, refused, rows

from kiseki import __version__
from kiseki.formats.atif import read
from kiseki.formats.format import Unfit
from kiseki.trajectory.example import trained
from kiseki.trajectory.types import CallTokens, ImageAt, Message, ModelCall, ToolCall, Usage

CALLS = (
    ModelCall(1_700_000_000.0, 1.0, usage=Usage(10, 5, 2, 1, 0.25), model="m-1", tokens=CallTokens((1,), (2, 3), (-0.5, -1.0))),
    ModelCall(0.0, 1.0, usage_reported=False),
)


def test_a_trajectory() -> None:
    (row,) = rows("atif", msgspec.structs.replace(EXAMPLE, calls=CALLS, failed=frozenset({4}), usage=Usage(10, 5, 2, 1, 0.25)))
    assert row == {
        "schema_version": "ATIF-v1.8",
        "session_id": "k",
        "trajectory_id": "k",
        "agent": {"name": "kiseki", "version": __version__, "model_name": "m", "tool_definitions": [TOOL]},
        "steps": [
            {"step_id": 1, "source": "system", "message": "Be brief."},
            {"step_id": 2, "source": "user", "message": "What is here?"},
            {
                "step_id": 3,
                "source": "agent",
                "message": "Two looks.",
                "reasoning_content": "Hm.",
                "tool_calls": [
                    {"tool_call_id": "a", "function_name": "ls", "arguments": {"path": "."}},
                    {"tool_call_id": "b", "function_name": "ls", "arguments": {}},
                ],
                "llm_call_count": 1,
                "metrics": {
                    "prompt_tokens": 10,
                    "completion_tokens": 5,
                    "cached_tokens": 1,
                    "cost_usd": 0.25,
                    "extra": {"reasoning_tokens": 2},
                    "completion_token_ids": [2, 3],
                    "logprobs": [-0.5, -1.0],
                },
                "model_name": "m-1",
                "timestamp": "2023-11-14T22:13:20+00:00",
                "extra": {"masked": True},
                "observation": {
                    "results": [
                        {"content": "x", "source_call_id": "a", "extra": {"name": "ls"}},
                        {"content": "y", "source_call_id": "b", "extra": {"name": "ls", "failed": True}},
                    ]
                },
            },
            {"step_id": 4, "source": "agent", "message": "x and y.", "llm_call_count": 1},
        ],
        "final_metrics": {
            "total_prompt_tokens": 10,
            "total_completion_tokens": 5,
            "total_cached_tokens": 1,
            "total_cost_usd": 0.25,
            "extra": {"reasoning_tokens": 2},
        },
        "extra": {
            **FACTS,
            "partial": False,
            "stop_reason": "answered",
            "finish_reason": "",
            "seconds": 0.0,
            "prompt_messages": 2,
        },
    }


def test_its_models_take_whatever_is_written_as_it_is() -> None:
    for example in drawn(40):
        try:
            (row,) = rows("atif", example)
        except Unfit as unfit:
            assert unfit.reason == "an image of unknown kind"
            continue
        assert Trajectory.model_validate_json(json.dumps(row)).to_json_dict() == row, example


def test_conversations_out_of_order() -> None:
    stray = Message(role="tool", content="r", tool_call_id="z")
    user, answer = Message(role="user", content="q"), Message(role="assistant", content="a")
    call = Message(role="assistant", tool_calls=(ToolCall("a", "f", "not json"),))
    example = conversation(stray, user, answer, user, call, stray, stray, user, stray, prompt_messages=4)
    (row,) = rows("atif", example)
    assert Trajectory.model_validate(row).to_json_dict() == row
    back = read(row)
    assert back.messages == example.messages
    assert trained(back) == trained(example)


def test_the_kind_of_an_image() -> None:
    for url, kind in (
        ("https://host/a.PNG?size=1", "image/png"),
        ("data:image/webp;base64,AA==", "image/webp"),
        ("a/b.jpg", "image/jpeg"),
    ):
        (row,) = rows("atif", conversation(Message(role="user", content="xy", images=(ImageAt(1, url),))))
        assert row["steps"][0]["message"] == [
            {"type": "text", "text": "x"},
            {"type": "image", "source": {"media_type": kind, "path": url}},
            {"type": "text", "text": "y"},
        ]
    for url in ("https://host/a", "data:image/svg+xml,<svg/>"):
        assert refused("atif", conversation(Message(role="user", images=(ImageAt(0, url),)))) == "an image of unknown kind"


@pytest.mark.parametrize("known", [True, False])
def test_other_agents_trajectories(known: bool) -> None:
    step = {
        "step_id": 2,
        "source": "agent",
        "message": "m",
        "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {}}],
    }
    step["observation"] = {"results": [{"source_call_id": "c", "content": "r"}]}
    steps = [{"step_id": 1, "source": "user", "message": "q", "is_copied_context": known}, step]
    row = {"schema_version": "ATIF-v1.5", "session_id": "s", "agent": {"name": "other", "version": "1"}, "steps": steps}
    Trajectory.model_validate(row)
    example = read(row)
    assert [each.role for each in example.messages] == ["user", "assistant", "tool"]
    assert (example.messages[2].name, example.key, example.prompt_messages) == ("f", "s", int(known))
