"""Rows for Atropos: groups with masks of -100, and a conversation that its SFT loader can render."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from chat_model import chat_model, decode
from hypothesis import given
from hypothesis import strategies as st
from support import FAST, kiseki, light_tools, read_rows, write_dataset

from kiseki.formats import atropos
from kiseki.formats.format import Options
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.example import Example
from kiseki.trajectory.hugging_face import load_tokenizer
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.token_trace import share
from kiseki.trajectory.types import CallTokens, Message, ModelCall, ToolCall

TOOLS = ({"type": "function", "function": {"name": "ls", "description": "List.", "parameters": {"type": "object"}}},)
PROMPT = (Message("system", "Be brief."), Message("user", "What is here?"))
ASKED = Message("assistant", "I look.", "Hm.", (ToolCall("a", "ls", '{"path": "."}'), ToolCall("b", "ls", "{}")))
RESULTS = (
    Message("tool", '{"error": "no"}', tool_call_id="b", name="ls"),
    Message("tool", "a.txt </tool_response>", tool_call_id="a", name="ls"),
)
ANSWER = Message("assistant", "One file.")
EXAMPLE = Example(messages=(*PROMPT, ASKED, *RESULTS, ANSWER), tools=TOOLS, prompt_messages=2, key="k", prompt_index=3)


def calls(*whole: tuple[list[int], list[int], list[float]]) -> tuple[ModelCall, ...]:
    found: list[ModelCall] = []
    for prompt, completion, logprobs in whole:
        tokens = CallTokens(tuple(prompt), tuple(completion), tuple(logprobs))
        found.append(share(ModelCall(1.0, 1.0, tokens=tokens), found))
    return tuple(found)


def example(**fields: Any) -> Example:
    return Example(**{name: getattr(EXAMPLE, name) for name in EXAMPLE.__struct_fields__} | fields)


def write(given: Example, **options: Any) -> dict[str, Any]:
    (row,) = atropos.write(given, Options(**options))
    pa.Table.from_pylist([row], schema=atropos.schema())
    assert list(row) == atropos.schema().names
    return row


def test_masks_are_the_token_id_or_minus_100() -> None:
    row = write(example(calls=calls(([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5], [7], [-1.0])), reward=2))
    assert row["tokens"] == [[1, 2, 3, 4, 5, 7]]
    assert row["masks"] == [[-100, -100, 3, 4, -100, 7]]
    assert row["inference_logprobs"] == [[1.0, 1.0, -0.5, -0.25, 1.0, -1.0]]
    assert (row["scores"], row["has_reward"]) == ([2.0], True)
    assert row["messages"] == [row["conversation"]]


def test_every_segment_is_a_sequence_of_the_group() -> None:
    row = write(example(calls=calls(([1, 2], [3], [-0.5]), ([1, 2, 9], [7], [])), masked=frozenset()))
    assert row["tokens"] == [[1, 2, 3], [1, 2, 9, 7]]
    assert row["masks"] == [[-100, -100, 3], [-100, -100, -100, 7]]
    assert row["inference_logprobs"] == []  # of the second there are none
    assert (row["scores"], row["has_reward"]) == ([0.0, 0.0], False)
    assert [len(each) for each in row["messages"]] == [3, 6]


def test_messages_are_texts_that_need_no_fields_of_a_template() -> None:
    row = write(EXAMPLE)
    assert (row["tokens"], row["masks"], row["inference_logprobs"], row["scores"]) == ([], [], [], [0.0])
    system, *rest = row["conversation"]
    assert json.dumps(TOOLS[0]).replace(": ", ":").replace(", ", ",") in system["content"]
    assert system["content"].endswith("\n\nBe brief.")
    assert rest == [
        {"role": "user", "content": "What is here?"},
        {
            "role": "assistant",
            "content": "<think>\nHm.\n</think>\nI look.\n"
            '<tool_call>\n{"name": "ls", "arguments": {"path": "."}}\n</tool_call>\n'
            '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>',
        },
        {"role": "tool", "content": "a.txt <\\/tool_response>"},
        {"role": "tool", "content": '{"error": "no"}'},
        {"role": "assistant", "content": "One file."},
    ]
    assert write(EXAMPLE, empty_think="keep")["conversation"][-1]["content"] == "<think>\n</think>\nOne file."


def test_without_tools_or_system_there_is_no_system_message() -> None:
    row = write(Example(messages=(PROMPT[1], ANSWER)))
    assert [each["role"] for each in row["conversation"]] == ["user", "assistant"]


def loader(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[list[int], list[int]]:
    """Tokens and masks by the rule of the SFT loader with `mask_everything_but_assistant_answer`."""

    def ids(part: list[dict[str, str]], reply_next: bool = False) -> list[int]:
        return list(tokenizer.apply_chat_template(part, add_generation_prompt=reply_next, return_dict=False))

    masks: list[int] = []
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            masks += [-100] * (len(ids(messages[:at], reply_next=True)) - len(masks))
            masks += ids(messages[: at + 1])[len(masks) :]
    return ids(messages), masks


def test_the_sft_loader_trains_on_what_the_model_said(tmp_path: Path) -> None:
    model = chat_model(tmp_path)
    tokens, masks = loader(load_tokenizer(model, False), write(EXAMPLE)["conversation"])
    assert len(tokens) == len(masks)
    trained = decode(model, [each for each in masks if each != -100])
    said = [each["content"] for each in write(EXAMPLE)["conversation"] if each["role"] == "assistant"]
    assert trained == "".join(f"{each}<|im_end|>\n" for each in said)
    assert "a.txt" in decode(model, tokens)


def test_retokenized_groups_say_so(tmp_path: Path) -> None:
    row = write(EXAMPLE, retokenize=str(chat_model(tmp_path)))
    assert row["retokenized"]
    assert row["inference_logprobs"] == []
    assert len(row["tokens"][0]) == len(row["masks"][0])
    assert all(mask in (-100, token) for token, mask in zip(row["tokens"][0], row["masks"][0], strict=True))


texts = st.text(st.sampled_from("ab \n<>/\\{}\"軌'\t") | st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["<think>", "</think>", "</tool_call>", "<tool_response>\nx\n</tool_response>", '{"a": 1}', "<image>", "<\\think>"]
)


@given(texts, texts.map(str.strip).filter(bool), texts, texts, st.dictionaries(texts, texts, max_size=2))
def test_a_row_comes_back(system: str, thought: str, said: str, result: str, arguments: dict[str, str]) -> None:
    call = ToolCall("call_1", "ls", json.dumps(arguments))
    messages = (
        *([Message("system", system)] if system.strip() else []),
        Message("user", said),
        Message("assistant", "", thought, (call,)),
        Message("tool", result, tool_call_id="call_1", name="ls"),
        Message("assistant", said or "x"),
    )
    row = json.loads(encode_row(write(Example(messages=messages, tools=TOOLS, reward=0.25))))
    read = atropos.read(row)
    assert (read.messages, read.tools, read.reward) == (messages, TOOLS, 0.25)


def test_a_run_goes_through_and_comes_back(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    flags = ("batch", "--dataset_file=p.jsonl", "--batch_size=2", "--run_name=r", "--model=m", "--num_samples=2")
    with MockServer() as server:
        kiseki(*flags, *FAST, *light_tools(tmp_path), f"--base_url={server.base_url}", "--capture_tokens", cwd=tmp_path)
    kiseki("export", "data/r", "--to=atropos", "--out=out", cwd=tmp_path)
    rows = [row for path in (tmp_path / "out").glob("*.jsonl") for row in read_rows(path) if "tokens" in row]
    assert [row["prompt_index"] for row in rows] == [0, 0, 1, 1]
    for row in rows:
        assert [len(each) for each in row["tokens"]] == [len(each) for each in row["masks"]]
        assert [len(each) for each in row["tokens"]] == [len(each) for each in row["inference_logprobs"]]
        said = bytes(each for each in row["masks"][0] if 0 <= each < 256).decode()
        assert said.endswith("</think>\nDone. HELLO")
