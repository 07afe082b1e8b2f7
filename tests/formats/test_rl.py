"""Rows of token ids: the captured ones as they were sampled, masks, segments, and new ones from a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chat_model import chat_model, decode
from support import FAST, kiseki, light_tools, read_rows, write_dataset

from kiseki.errors import UsageError
from kiseki.formats import rl
from kiseki.formats.format import Options, Unfit
from kiseki.models.mock_server import MockServer
from kiseki.models.mock_tokens import END, logprobs_of, prompt_ids
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.token_trace import share
from kiseki.trajectory.types import CallTokens, Message, ModelCall, ToolCall

CALL = Message("assistant", "", "Look.", (ToolCall("c1", "ls", '{"path": "."}'),))
MESSAGES = (
    Message("system", "Be brief."),
    Message("user", "What is here?"),
    CALL,
    Message("tool", "a.txt", tool_call_id="c1", name="ls"),
    Message("assistant", "One file.", "Done."),
)
TOOLS = ({"type": "function", "function": {"name": "ls", "description": "List.", "parameters": {"type": "object"}}},)
EXAMPLE = Example(messages=MESSAGES, tools=TOOLS, prompt_messages=2, key="k", prompt_index=3, sample_index=1)


def calls(*whole: tuple[list[int], list[int], list[float]]) -> tuple[ModelCall, ...]:
    found: list[ModelCall] = []
    for prompt, completion, logprobs in whole:
        tokens = CallTokens(tuple(prompt), tuple(completion), tuple(logprobs))
        found.append(share(ModelCall(1.0, 1.0, tokens=tokens), found))
    return tuple(found)


TWO = calls(([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4, 5, 6], [7], [-1.0]))


def example(**fields: Any) -> Example:
    return Example(**{name: getattr(EXAMPLE, name) for name in EXAMPLE.__struct_fields__} | fields)


def write(given: Example, **options: Any) -> list[dict[str, Any]]:
    rows = rl.write(given, Options(**options))
    for row in rows:
        pa.Table.from_pylist([row], schema=rl.schema())
        assert list(row) == rl.schema().names
        assert len(row["response_ids"]) == len(row["response_mask"]) == len(row["logprobs"])
    return rows


def test_one_row_for_a_contiguous_rollout() -> None:
    (row,) = write(example(calls=TWO, reward=0.5))
    assert (row["prompt_ids"], row["response_ids"]) == ([1, 2], [3, 4, 5, 6, 7])
    assert row["response_mask"] == [1, 1, 0, 0, 1]
    assert row["logprobs"] == [-0.5, -0.25, 0.0, 0.0, -1.0]
    assert (row["reward"], row["has_reward"], row["has_logprobs"], row["retokenized"]) == (0.5, True, True, False)
    assert (row["key"], row["prompt_index"], row["sample_index"], row["segment"], row["segments"]) == ("k", 3, 1, 0, 1)
    read = rl.read(json.loads(encode_row(row)))
    assert (read.messages, read.tools, read.reward, read.key) == (MESSAGES, TOOLS, 0.5, "k")


def test_a_row_for_each_segment() -> None:
    rows = write(example(calls=calls(([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 9], [7], [-1.0]))))
    assert [(row["segment"], row["segments"], row["prompt_ids"], row["response_ids"]) for row in rows] == [
        (0, 2, [1, 2], [3, 4]),
        (1, 2, [1, 2, 9], [7]),
    ]
    assert [len(json.loads(row["messages"])) for row in rows] == [3, 5]


def test_without_a_reward_it_says_so() -> None:
    (row,) = write(example(calls=TWO))
    assert (row["reward"], row["has_reward"]) == (0.0, False)
    assert rl.read(row).reward is None


def test_masked_replies_are_not_trained_on() -> None:
    (row,) = write(example(calls=TWO, masked=frozenset({2})))
    assert row["response_mask"] == [0, 0, 0, 0, 1]
    assert row["logprobs"] == [0.0, 0.0, 0.0, 0.0, -1.0]
    assert rl.read(row).masked == {2}


def test_a_segment_with_nothing_to_train_on_is_left_out() -> None:
    both = calls(([1, 2], [3], [-0.5]), ([1, 2, 9], [7], [-1.0]))
    (row,) = write(example(calls=both, masked=frozenset({2})))
    assert (row["prompt_ids"], row["segments"]) == ([1, 2, 9], 1)
    with pytest.raises(Unfit, match="nothing to train on"):
        write(example(calls=both, masked=frozenset({2, 4})))
    (first,) = write(example(calls=both, masked=frozenset({4})))
    assert len(json.loads(first["messages"])) == 3, "not those of the segment that is left out"


def test_logprobs_that_are_missing_for_some_are_there_for_none() -> None:
    (row,) = write(example(calls=calls(([1, 2], [3, 4], [-0.5, -0.25]), ([1, 2, 3, 4], [7], []))))
    assert (row["has_logprobs"], row["logprobs"]) == (False, [0.0, 0.0, 0.0])


def test_what_followed_the_last_reply_is_in_the_last_row() -> None:
    (row,) = write(example(messages=MESSAGES[:4], calls=TWO[:1]))
    assert len(json.loads(row["messages"])) == 4
    assert row["response_ids"] == [3, 4]


def test_without_ids_it_is_refused_and_told_what_to_do() -> None:
    with pytest.raises(Unfit) as caught:
        write(EXAMPLE)
    assert caught.value.reason == "no token ids"
    assert "--capture_tokens" in caught.value.detail
    assert "--retokenize" in caught.value.detail


def test_calls_that_do_not_fit_the_messages() -> None:
    with pytest.raises(Unfit, match="calls and messages differ"):
        write(example(calls=TWO[:1]))


# ---- made anew ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"))


def test_retokenized_rows_are_the_whole_render(model: Path) -> None:
    (row,) = write(EXAMPLE, retokenize=str(model))
    assert (row["retokenized"], row["has_logprobs"], row["segments"]) == (True, False, 1)
    assert decode(model, row["prompt_ids"]) == (
        f"<|im_start|>tools\n{json.dumps(list(TOOLS))}<|im_end|>\n<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWhat is here?<|im_end|>\n<|im_start|>assistant\n"
    )
    said = [token for token, on in zip(row["response_ids"], row["response_mask"], strict=True) if on]
    assert decode(model, said) == (
        '<think>Look.</think><tool_call>{"name": "ls", "arguments": {"path": "."}}</tool_call><|im_end|>'
        "<think>Done.</think>One file.<|im_end|>"
    )
    put_in = [token for token, on in zip(row["response_ids"], row["response_mask"], strict=True) if not on]
    assert decode(model, put_in) == "\n<|im_start|>tool\na.txt<|im_end|>\n<|im_start|>assistant\n"


def test_captured_ids_are_never_made_anew(model: Path) -> None:
    (row,) = write(example(calls=TWO), retokenize=str(model))
    assert (row["retokenized"], row["prompt_ids"]) == (False, [1, 2])


def test_a_template_that_takes_old_reasoning_out_gives_segments(tmp_path: Path) -> None:
    model = chat_model(tmp_path, keep_reasoning=False)
    rows = write(EXAMPLE, retokenize=str(model))
    texts = [decode(model, [*row["prompt_ids"], *row["response_ids"]]) for row in rows]
    assert len(rows) == 2
    assert "<think>Look.</think>" in texts[0]
    assert "<think>Look.</think>" not in texts[1]


def test_a_template_that_changes_replies_is_refused(tmp_path: Path) -> None:
    model = chat_model(tmp_path, opening="<think>")
    with pytest.raises(Unfit, match="the template changes replies: message 3"):
        write(example(messages=(*MESSAGES[:2], Message("assistant", "Hm."))), retokenize=str(model))


def test_a_conversation_that_the_template_refuses(model: Path) -> None:
    refused = (Message("user", "REFUSE"), Message("assistant", "No."))
    with pytest.raises(Unfit, match="the template refuses it: no such words"):
        write(Example(messages=refused), retokenize=str(model))


def test_a_tokenizer_that_cannot_be_used_ends_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        write(EXAMPLE, retokenize=str(tmp_path / "none"))
    with pytest.raises(UsageError, match="no chat template"):
        write(EXAMPLE, retokenize="bundled")


# ---- end to end ---------------------------------------------------------------------------------------------------------

SHOUT = {"name": "shout", "arguments": {"text": "hi"}}
SCRIPT = [{"turns": [{"reasoning": "Loud.", "tool_calls": [SHOUT]}, {"content": "It said {{last_tool_result}} to {{prompt}}"}]}]


def run(folder: Path, server: MockServer, *more: str) -> str:
    base = ("batch", "--dataset_file=p.jsonl", "--batch_size=4", "--run_name=r", f"--base_url={server.base_url}", "--model=mock")
    return kiseki(*base, *light_tools(folder), "--reasoning_filter=off", *more, cwd=folder).stdout


def test_exported_ids_are_those_that_the_server_sampled(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"number {number}", "reward": number / 2} for number in range(3)])
    with MockServer(SCRIPT, record=100) as server:
        run(tmp_path, server, "--capture_tokens", "--num_samples=2", "--num_workers=2", "--engine=processes", "--stream")
        log = [entry["body"] for entry in server.stats(log=True)["log"]]
    kiseki("export", "data/r", "--to=rl", "--out=out", cwd=tmp_path)
    rows = [row for path in sorted((tmp_path / "out").glob("*.jsonl")) for row in read_rows(path) if "response_ids" in row]
    assert [(row["prompt_index"], row["sample_index"]) for row in rows] == [(at, sample) for at in range(3) for sample in (0, 1)]
    sent = {(len(body["messages"]), body["messages"][0]["content"]): prompt_ids(body["messages"], body["tools"]) for body in log}
    for row in rows:
        words = f"number {row['prompt_index']}"
        assert row["prompt_ids"] == sent[1, words]
        answer = [*f"It said HI to {words}".encode(), END]
        second = sent[3, words]  # prompt, call and result
        assert [*row["prompt_ids"], *row["response_ids"]] == second + answer
        called = row["response_mask"].index(0)
        assert row["response_mask"] == [1] * called + [0] * (len(row["response_mask"]) - called - len(answer)) + [1] * len(answer)
        assert row["logprobs"][:called] == logprobs_of(row["response_ids"][:called])
        assert row["logprobs"][-len(answer) :] == logprobs_of(answer)
        assert (row["reward"], row["has_reward"]) == (row["prompt_index"] / 2, True)


def test_the_practice_model_has_ids_too(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "What is 17 * 23?"}])
    base = ("batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", "--model=builtin/practice", *FAST)
    done = kiseki(*base, *light_tools(tmp_path), "--capture_tokens", cwd=tmp_path)
    assert "takes no notice" not in done.stdout
    kiseki("export", "data/r", "--to=rl", "--out=out", cwd=tmp_path)
    (row,) = (row for path in (tmp_path / "out").glob("*.jsonl") for row in read_rows(path) if "response_ids" in row)
    said = bytes(token for token, on in zip(row["response_ids"], row["response_mask"], strict=True) if on and token < 256)
    assert json.loads(row["messages"])[-1]["content"] in said.decode()


def test_a_resume_may_begin_to_capture_and_the_export_says_what_has_none(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    with MockServer(SCRIPT) as server:
        run(tmp_path, server, *FAST, "--max_samples=1")
        run(tmp_path, server, *FAST, "--capture_tokens", "--resume")
    done = kiseki("export", "data/r", "--to=rl", "--out=out", cwd=tmp_path)
    rows = [row for path in (tmp_path / "out").glob("*.jsonl") for row in read_rows(path) if "response_ids" in row]
    assert [row["prompt_index"] for row in rows] == [1]
    assert "no token ids" in done.stdout + done.stderr


def test_a_run_says_once_that_the_endpoint_gives_none(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    with MockServer(SCRIPT, ids_as="none") as server:
        said = run(tmp_path, server, *FAST, "--capture_tokens")
    assert said.count("without token ids") == 1
    assert "without token ids" in kiseki("log", "data/r", cwd=tmp_path).stdout


def test_a_hosted_provider_is_refused_before_anything_begins(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "one"}])
    flags = ("batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", "--capture_tokens")
    done = kiseki(*flags, cwd=tmp_path, status=2, OPENROUTER_API_KEY="k")
    assert "--capture_tokens: no documented field gives token ids at OpenRouter" in done.stdout + done.stderr
    assert not (tmp_path / "data").exists()
