"""What each format writes, row by row, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kiseki.formats.format import Options, Row, Unfit
from kiseki.formats.table import find_format
from kiseki.trajectory.example import Example
from kiseki.trajectory.types import ImageAt, Message, ModelCall, ToolCall, Usage

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
FUNCTION = {"name": "ls", "description": "Lists.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
TOOLS = json.dumps([TOOL], separators=(",", ":"))
FLAT = json.dumps([FUNCTION], separators=(",", ":"))
MESSAGES = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="What is here?"),
    Message(
        role="assistant",
        content="Two looks.",
        reasoning="Hm.",
        tool_calls=(ToolCall("a", "ls", '{"path": "."}'), ToolCall("b", "ls", "{}")),
    ),
    Message(role="tool", content="x", tool_call_id="a", name="ls"),
    Message(role="tool", content="y", tool_call_id="b", name="ls"),
    Message(role="assistant", content="x and y."),
)
EXAMPLE = Example(
    messages=MESSAGES,
    tools=(TOOL,),
    key="k",
    prompt_index=3,
    sample_index=1,
    prompt_messages=2,
    masked=frozenset({2}),
    stop_reason="answered",
    model="m",
    reward=0.5,
    source='{"answer": 42}',
)
FACTS = {
    "key": "k",
    "prompt_index": 3,
    "sample_index": 1,
    "completed": True,
    "reward": "0.5",
    "model": "m",
    "source": '{"answer": 42}',
}
CALL_A = {"id": "a", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}
CALL_B = {"id": "b", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


def rows(name: str, example: Example = EXAMPLE, **options: Any) -> list[Row]:
    return list(find_format(name).write(example, Options(**options)))


def conversation(*messages: Message, **fields: Any) -> Example:
    return Example(messages=messages, **fields)


def refused(name: str, example: Example) -> str:
    with pytest.raises(Unfit) as refusal:
        rows(name, example)
    return refusal.value.reason


USER, ANSWER = Message(role="user", content="q"), Message(role="assistant", content="a")


def full(role: str, content: str, **more: Any) -> dict[str, Any]:
    """A message with all the keys that rows for libraries with one type per column have."""
    blank = {"reasoning_content": "", "tool_calls": [], "tool_call_id": "", "name": ""}
    return {"role": role, "content": content} | blank | more


def test_messages() -> None:
    (row,) = rows("messages")
    assert row == {
        "messages": [
            full("system", "Be brief.", weight=0),
            full("user", "What is here?", weight=0),
            full("assistant", "Two looks.", reasoning_content="Hm.", tool_calls=[CALL_A, CALL_B], weight=0),
            full("tool", "x", tool_call_id="a", name="ls", weight=0),
            full("tool", "y", tool_call_id="b", name="ls", weight=0),
            full("assistant", "x and y.", weight=1),
        ],
        "tools": TOOLS,
        "images": [],
        **FACTS,
    }


def test_openai() -> None:
    (row,) = rows("openai")
    assert row == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is here?"},
            {"role": "assistant", "content": "Two looks.", "tool_calls": [CALL_A, CALL_B], "weight": 0},
            {"role": "tool", "tool_call_id": "a", "content": "x"},
            {"role": "tool", "tool_call_id": "b", "content": "y"},
            {"role": "assistant", "content": "x and y.", "weight": 1},
        ],
        "tools": [TOOL],
        "parallel_tool_calls": True,
    }
    seen = Message(role="user", content="see this", images=(ImageAt(4, "https://host/a.png"),))
    (row,) = rows("openai", conversation(seen, ANSWER))
    picture = {"type": "image_url", "image_url": {"url": "https://host/a.png"}}
    assert row == {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "see "}, picture, {"type": "text", "text": "this"}]},
            {"role": "assistant", "content": "a", "weight": 1},
        ]
    }


def test_trl() -> None:
    (row,) = rows("trl")
    calls = [
        {"id": "a", "type": "function", "function": {"name": "ls", "arguments": {"path": "."}}},
        {"id": "b", "type": "function", "function": {"name": "ls", "arguments": {}}},
    ]
    assert row == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is here?"},
            {"role": "assistant", "content": "Two looks.", "reasoning_content": "Hm.", "tool_calls": calls},
            {"role": "tool", "content": "x", "tool_call_id": "a", "name": "ls"},
            {"role": "tool", "content": "y", "tool_call_id": "b", "name": "ls"},
            {"role": "assistant", "content": "x and y.", "reasoning_content": ""},
        ],
        "tools": [TOOL],
        **FACTS,
    }


def test_axolotl() -> None:
    (row,) = rows("axolotl")
    assert row | {"messages": json.loads(row["messages"])} == {
        "messages": [
            {"role": "system", "content": "Be brief.", "train": False},
            {"role": "user", "content": "What is here?", "train": False},
            {
                "role": "assistant",
                "content": "Two looks.",
                "reasoning_content": "Hm.",
                "tool_calls": [CALL_A, CALL_B],
                "train": False,
            },
            {"role": "tool", "content": "x", "tool_call_id": "a", "name": "ls", "train": False},
            {"role": "tool", "content": "y", "tool_call_id": "b", "name": "ls", "train": False},
            {"role": "assistant", "content": "x and y.", "reasoning_content": "", "train": True},
        ],
        "tools": TOOLS,
        **FACTS,
    }


def test_llamafactory() -> None:
    (row,) = rows("llamafactory")
    assert row == {
        "conversations": [
            {"from": "human", "value": "What is here?"},
            {
                "from": "function_call",
                "value": "<think>\nHm.\n</think>\n\nTwo looks.\n<tool_call>\n"
                '[{"name":"ls","arguments":{"path":"."}},{"name":"ls","arguments":{}}]\n</tool_call>',
            },
            {"from": "observation", "value": "x\n</tool_response>\n<tool_response>\ny"},
            {"from": "gpt", "value": "x and y."},
        ],
        "system": "Be brief.",
        "tools": FLAT,
        "images": [],
        **FACTS,
    }
    (row,) = rows("llamafactory", msgspec.structs.replace(EXAMPLE, tools=()), empty_think="keep")
    assert row["tools"] == ""
    assert row["conversations"][-1]["value"] == "<think>\n\n</think>\n\nx and y."


def test_a_call_alone_is_plain_json_for_llamafactory() -> None:
    call = Message(role="assistant", reasoning="Hm.", tool_calls=(ToolCall("a", "f", '{"x": "</tool_call>"}'),))
    (row,) = rows("llamafactory", conversation(USER, call, Message(role="tool", content="r", tool_call_id="a"), ANSWER))
    assert row["conversations"][1]["value"] == ('<think>\nHm.\n</think>\n\n{"name":"f","arguments":{"x":"\\u003c/tool_call>"}}')


def test_dataset_info_lists_every_file() -> None:
    beside = find_format("llamafactory").beside
    assert beside
    columns = {"messages": "conversations", "system": "system", "tools": "tools", "images": "images"}
    assert json.loads(beside(["train.jsonl", "val.jsonl"])["dataset_info.json"]) == {
        name: {"file_name": f"{name}.jsonl", "formatting": "sharegpt", "columns": columns} for name in ("train", "val")
    }


def test_swift() -> None:
    (row,) = rows("swift")
    assert row == {
        "messages": [
            {"role": "system", "content": "Be brief.", "loss": False},
            {"role": "user", "content": "What is here?", "loss": False},
            {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nTwo looks.", "loss": False},
            {"role": "tool_call", "content": '{"name":"ls","arguments":{"path":"."}}', "loss": False},
            {"role": "tool_call", "content": '{"name":"ls","arguments":{}}', "loss": False},
            {"role": "tool_response", "content": "x", "loss": False},
            {"role": "tool_response", "content": "y", "loss": False},
            {"role": "assistant", "content": "x and y.", "loss": True},
        ],
        "tools": TOOLS,
        "images": [],
        **FACTS,
    }


def test_verl() -> None:
    (row,) = rows("verl")
    assert row == {
        "messages": [
            full("system", "Be brief."),
            full("user", "What is here?"),
            full("assistant", "Two looks.", reasoning_content="Hm.", tool_calls=[CALL_A, CALL_B]),
            full("tool", "x", tool_call_id="a", name="ls"),
            full("tool", "y", tool_call_id="b", name="ls"),
            full("assistant", "x and y."),
        ],
        "tools": TOOLS,
        "enable_thinking": True,
        "images": [],
        **FACTS,
    }


def test_verl_rl() -> None:
    made = find_format("verl-rl")
    assert made.per_prompt
    (row,) = rows("verl-rl")
    assert row == {
        "data_source": "kiseki",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is here?"}],
        "images": [],
        "ability": "agent",
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"index": 3, "need_tools_kwargs": False, "source": '{"answer": 42}'},
        "agent_name": "tool_agent",
    }
    source = '{"data_source": "gsm8k", "ground_truth": ["a"], "answer": "b"}'
    (row,) = rows("verl-rl", conversation(USER, ANSWER, source=source))
    assert (row["data_source"], row["reward_model"]["ground_truth"], row["agent_name"]) == ("gsm8k", '["a"]', "single_turn_agent")


def test_parquet() -> None:
    call = ModelCall(1.0, 2.0, "stop", Usage(7, 3), model="m")
    (row,) = rows("parquet", conversation(USER, ANSWER, prompt_messages=1, calls=(call,), reward=1.0))
    blank = {
        "tool_calls": [],
        "tool_call_id": "",
        "name": "",
        "images": [],
        "provider_fields": "{}",
        "masked": False,
        "failed": False,
    }
    used = {"prompt_tokens": 0, "completion_tokens": 0, "reasoning_tokens": 0, "cached_tokens": 0, "cost": 0.0}
    used["cache_write_tokens"] = 0
    assert row == {
        "messages": [
            {"role": "user", "content": "q", "reasoning": "", **blank, "trained": False},
            {"role": "assistant", "content": "a", "reasoning": "", **blank, "trained": True},
        ],
        "tools": "[]",
        "key": "",
        "prompt_index": 0,
        "sample_index": 0,
        "prompt_messages": 1,
        "completed": True,
        "partial": False,
        "stop_reason": "",
        "finish_reason": "",
        "model": "",
        "reward": 1.0,
        "started": 0.0,
        "seconds": 0.0,
        "source": "{}",
        "metadata": "{}",
        "usage": used,
        "calls": [
            {
                "started": 1.0,
                "seconds": 2.0,
                "finish_reason": "stop",
                "usage_reported": True,
                "cost_reported": False,
                "model": "m",
                "provider": "",
                "response_id": "",
                "retries": 0,
                "waited": 0.0,
                "usage": used | {"prompt_tokens": 7, "completion_tokens": 3},
                "prompt_ids": [],
                "shared": 0,
                "completion_ids": [],
                "logprobs": [],
                "has_tokens": False,
            }
        ],
        "toolsets": [],
    }


def test_sts() -> None:
    calls = (ModelCall(1_700_000_000.0, 1.5, model="m-1"),)
    (row,) = rows("sts", msgspec.structs.replace(EXAMPLE, calls=calls))
    said = {"role": "assistant", "content": "Two looks.", "reasoningContent": "Hm."}
    said["toolCalls"] = [{"id": each["id"], "function": each["function"]} for each in (CALL_A, CALL_B)]  # type: ignore[assignment]
    assert row == {
        "name": "000003-001.jsonl",
        "lines": [
            {"type": "session", "harness": "kiseki", "id": "k", "name": "What is here?", "tools": [TOOL], **FACTS},
            {"type": "message", "message": {"role": "system", "content": "Be brief."}},
            {"type": "message", "message": {"role": "user", "content": "What is here?"}},
            {"type": "message", "message": {**said, "timestamp": 1_700_000_001_500, "model": "m-1"}},
            {"type": "message", "message": {"role": "tool", "content": "x", "toolCallId": "a"}},
            {"type": "message", "message": {"role": "tool", "content": "y", "toolCallId": "b"}},
            {"type": "message", "message": {"role": "assistant", "content": "x and y.", "model": "m"}},
        ],
    }


# ---- turns that are made to alternate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llamafactory", "swift"])
def test_users_turns_join_what_is_before_them(name: str) -> None:
    call = Message(role="assistant", tool_calls=(ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}")))
    out_of_order = (Message(role="tool", content="2", tool_call_id="b"), Message(role="tool", content="1", tool_call_id="a"))
    summary = Message(role="user", content="[CONTEXT SUMMARY]: …", images=(ImageAt(3, "u"),))
    example = conversation(
        USER, Message(role="user", content="more"), call, *out_of_order, summary, ANSWER, masked=frozenset({6})
    )
    (row,) = rows(name, example)
    result = "2\n\n[CO<image>NTEXT SUMMARY]: …"
    if name == "llamafactory":
        assert [each["from"] for each in row["conversations"]] == ["human", "function_call", "observation", "gpt"]
        assert row["conversations"][0]["value"] == "q\n\nmore"
        assert row["conversations"][2]["value"] == f"1\n</tool_response>\n<tool_response>\n{result}"
    else:
        assert [each["content"] for each in row["messages"] if each["role"] in ("user", "tool_response")] == [
            "q\n\nmore",
            "1",
            result,
        ]
        assert not any(each["loss"] for each in row["messages"][-1:])
    assert row["images"] == ["u"]


@pytest.mark.parametrize("name", ["llamafactory", "swift"])
@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((ANSWER,), "does not begin with a user turn"),
        ((USER,), "does not end on an assistant turn"),
        ((USER, MESSAGES[2], *MESSAGES[3:5]), "does not end on an assistant turn"),
        ((USER, ANSWER, ANSWER), "two assistant turns in a row"),
        ((USER, ANSWER, Message(role="system", content="s"), USER, ANSWER), "a system message in the middle"),
        ((USER, Message(role="tool", content="r", tool_call_id="z"), ANSWER), "a result without its call"),
        ((USER, MESSAGES[2], MESSAGES[3], ANSWER), "a call without its result"),
    ],
)
def test_what_cannot_alternate_is_refused(name: str, messages: tuple[Message, ...], reason: str) -> None:
    assert refused(name, conversation(*messages)) == reason


# ---- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trl", "axolotl", "llamafactory", "swift", "verl"])
@pytest.mark.parametrize("arguments", ['{"a": ', "[]", '"x"', '{"a": NaN}'])
def test_arguments_that_are_no_object(name: str, arguments: str) -> None:
    call = Message(role="assistant", tool_calls=(ToolCall("a", "f", arguments),))
    result = Message(role="tool", content="r", tool_call_id="a", name="f")
    assert refused(name, conversation(USER, call, result, ANSWER)) == "arguments that are no JSON object"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ((USER, MESSAGES[2], MESSAGES[3], ANSWER), "a call without its result"),
        ((USER, Message(role="tool", content="r", tool_call_id="z"), ANSWER), "a result without its call"),
        ((USER, Message(role="assistant"), USER, ANSWER), "an assistant turn that says nothing"),
        ((USER,), "no turn to train on"),
        ((USER, msgspec.structs.replace(ANSWER, images=(ImageAt(0, "u"),))), "an image outside a user turn"),
    ],
)
def test_what_openai_refuses(messages: tuple[Message, ...], reason: str) -> None:
    assert refused("openai", conversation(*messages)) == reason
    assert rows("openai", conversation(USER, MESSAGES[2]))[0]["messages"][-1]["tool_calls"] == [CALL_A, CALL_B]


@pytest.mark.parametrize("name", ["sharegpt", "messages", "llamafactory", "swift", "verl", "verl-rl"])
def test_a_literal_placeholder_beside_images(name: str) -> None:
    seen = Message(role="user", content="see", images=(ImageAt(0, "u"),))
    literal = Message(role="system", content="Images are <image>.")
    assert refused(name, conversation(literal, seen, ANSWER)) == "literal <image> beside images"


def test_numbers_that_would_keep_a_file_from_loading() -> None:
    for number, fits in ((2**64 - 1, True), (2**64, False), (-(2**63), True), (-(2**63) - 1, False)):
        call = Message(role="assistant", tool_calls=(ToolCall("a", "f", f'{{"x": [{{"y": {number}}}]}}'),))
        example = conversation(USER, call, Message(role="tool", content="r", tool_call_id="a"), ANSWER)
        if fits:
            assert rows("trl", example)
        else:
            assert refused("trl", example) == "a whole number of more than 64 bits"


@pytest.mark.parametrize("name", ["axolotl", "sts"])
def test_images_that_have_no_place(name: str) -> None:
    assert refused(name, conversation(msgspec.structs.replace(USER, images=(ImageAt(0, "u"),)), ANSWER)) == "images"
