"""The environment for Atropos with its real programs: API server, environment process, managed server; the model is scripted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from atropos_programs import Trainer, atropos_python, free_port, run_environment, started, until
from atropos_tokenizer import build_tokenizer
from support import REPOSITORY, read_rows, write_dataset

from kiseki.models.mock_server import MockServer
from kiseki.models.mock_tokens import logprob
from kiseki.sandboxes.reaper import survey
from kiseki.sandboxes.settings import SandboxSettings

pytestmark = pytest.mark.timeout(300)

EXAMPLE = REPOSITORY / "examples" / "atropos_env.py"
ENVIRONMENT = """\
from kiseki.integrations.atropos import KisekiEnv, Rollout

class Counted(KisekiEnv):
    async def reward(self, rollout: Rollout) -> float:
        left = await rollout.sandbox.exec("cat answer.txt", timeout=30)
        again = await rollout.sandbox.read_file("answer.txt")
        assert left.output.encode() == again
        return float(again) + rollout.row["bonus"] + rollout.record.sample_index

Counted.cli()
"""
COMMAND = "echo 7 >> answer.txt; cat answer.txt"
CALLS = (
    "<think>\nI call the shell.\n</think>\n\n\n<tool_call>\n"
    f'{{"name": "terminal", "arguments": {{"command":"{COMMAND}"}}}}\n</tool_call>'
)
ANSWER = '<think>\nI read it.\n</think>\n\nIt says {"output":"7\\n","exit_code":0}'
SCRIPT = [
    {"match": "broken", "turns": [{"content": "never said", "fault": {"kind": "error_503"}}]},
    {
        "match": "",
        "turns": [
            {
                "reasoning": "I call the shell.",
                "tool_calls": [{"name": "terminal", "arguments": {"command": COMMAND}}],
            },
            {"reasoning": "I read it.", "content": "It says {{last_tool_result}}"},
        ],
    },
]


def arguments(server: MockServer, tokenizer: str, dataset: Path, **more: object) -> list[str]:
    own = {"dataset_file": dataset, "tokenizer_name": tokenizer, "group_size": 2, "use_wandb": False, "sandbox": "local", **more}
    there = {"base_url": server.base_url, "model_name": "scripted", "tokenizer_name": tokenizer}
    pairs = [*((f"--env.{name}", value) for name, value in own.items()), *((f"--openai.{n}", v) for n, v in there.items())]
    return [str(part) for pair in pairs for part in pair]


def runs(mask: list[int]) -> list[list[int]]:
    """The stretches that are trained."""
    return [list(run) for trained, run in groupby(mask, lambda token: token != -100) if trained]


def decoded(tokenizer: str, ids: list[int]) -> str:
    from tokenizers import Tokenizer

    text: str = Tokenizer.from_file(f"{tokenizer}/tokenizer.json").decode(ids, skip_special_tokens=False)
    return text


def check_sequence(tokenizer: str, group: dict[str, Any], at: int, said: list[str]) -> str:
    """Mask and logprobs cover exactly the tokens of the turns `said`. Returns the whole text."""
    tokens, mask, logprobs = (group[name][at] for name in ("tokens", "masks", "inference_logprobs"))
    assert len(tokens) == len(mask) == len(logprobs)
    assert all(sent in (-100, token) for sent, token in zip(mask, tokens, strict=True))
    assert [decoded(tokenizer, run) for run in runs(mask)] == [f"{text}<|im_end|>" for text in said]
    expected = [logprob(place, token) for run in runs(mask) for place, token in enumerate(run)]
    assert [each for each, sent in zip(logprobs, mask, strict=True) if sent != -100] == expected
    assert {each for each, sent in zip(logprobs, mask, strict=True) if sent == -100} == {1.0}
    return decoded(tokenizer, tokens)


def test_a_trainer_gets_batches_with_exact_tokens_and_the_rewards_of_the_users_function(tmp_path: Path) -> None:
    python = atropos_python()
    tokenizer = build_tokenizer(tmp_path / "tokenizer")
    rows = [{"prompt": "broken"}, {"prompt": "What is in the file?", "bonus": 100}, {"prompt": "And here?", "bonus": 200}]
    dataset = write_dataset(tmp_path / "prompts.jsonl", rows)
    file = tmp_path / "counted.py"
    file.write_text(ENVIRONMENT)
    port = free_port()
    trainer = Trainer(f"http://127.0.0.1:{port}")
    api = [python, "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path / "environment.log"
    with MockServer(SCRIPT, tokenizer=tokenizer) as server, started(*api, log=tmp_path / "api.log"):
        trainer.register(batch_size=4, max_token_len=16_000)
        serve = arguments(server, tokenizer, dataset, rollout_server_url=trainer.url, epochs=1)
        with started(python, str(file), "serve", *serve, log=log) as process:
            groups = trainer.next_batch(process)
            until(lambda: "prompt 0 is left out: rollout" in log.read_text(), "the end of the prompt that no model answers")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 130, log.read_text()[-4000:]
    assert sorted(group["scores"] for group in groups) == [[107.0, 108.0], [207.0, 208.0]]
    for group in groups:
        for at in range(2):
            text = check_sequence(tokenizer, group, at, [CALLS, ANSWER])
            assert text.startswith("<|im_start|>system\nYou may call functions.\n<tools>\n")
            assert text.count("<|im_start|>") == 5
            assert '<|im_start|>tool\n<tool_response>\n{"output":"7\\n","exit_code":0}\n</tool_response><|im_end|>' in text
        assert group["generation_params"] == {"temperature": 1.0, "top_p": 1.0}
        assert group["messages"] is None
    assert "attempt 3: ProviderError: the inference server gave no reply: ClientResponseError: 503" in log.read_text()
    left = survey(SandboxSettings("local"), lambda label: label.startswith(f"atropos-{process.pid}-"))
    assert not [found for found in left if found.sandboxes]


SOMETIMES = """\
from kiseki.integrations.atropos import KisekiEnv, Rollout

class Sometimes(KisekiEnv):
    async def reward(self, rollout: Rollout) -> float:
        if rollout.row["kind"] == "bug":
            raise KeyError("nothing")
        return float(rollout.row["kind"]) + rollout.record.sample_index

Sometimes.cli()
"""


def test_a_reward_that_fails_costs_its_group_and_one_traceback_and_the_end_of_the_dataset_is_told(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tmp_path / "tokenizer")
    kinds = ["bug", "nan", "1", "bug", "2"]
    lines = [json.dumps({"prompt": f"Prompt {at}", "kind": kind}) for at, kind in enumerate(kinds)]
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text("\n".join([*lines[:2], '{"prompt": broken', *lines[2:]]) + "\n")
    file, out = tmp_path / "sometimes.py", tmp_path / "groups.jsonl"
    file.write_text(SOMETIMES)
    with MockServer(SCRIPT, tokenizer=tokenizer) as server:
        more = {"total_steps": 9, "epochs": 1, "data_path_to_save_groups": out}
        said = run_environment(file, "process", *arguments(server, tokenizer, dataset, **more)).stderr
    assert [group["scores"] for group in read_rows(out)] == [[1.0, 2.0], [2.0, 3.0]]
    assert said.count("(the reward raised KeyError: 'nothing' (sometimes.py:6))") == 2
    assert re.search(r"prompt 1 is left out: rollout \d failed \(the reward must be a finite number, not nan\)", said)
    assert said.count("Traceback") == 1
    assert "dataset line 3 is left out: not valid JSON" in said
    assert "the dataset has been gone through (epochs: 1): no prompt is left" in said


@pytest.mark.parametrize(("begins", "reasoning_field"), [("", "reasoning_content"), ("<think>\n", "think_unopened")])
def test_process_writes_the_groups_of_the_example_to_a_file(tmp_path: Path, begins: str, reasoning_field: str) -> None:
    tokenizer = build_tokenizer(tmp_path / "tokenizer", begins=begins)
    rows = [{"prompt": "Write it.", "answer": "7"}, {"prompt": "Write it here.", "answer": "8"}]
    dataset = write_dataset(tmp_path / "prompts.jsonl", rows)
    out = tmp_path / "groups.jsonl"
    more = {"total_steps": 2, "data_path_to_save_groups": out, "ephemeral_system_prompt": "Be short."}
    with MockServer(SCRIPT, tokenizer=tokenizer, reasoning_field=reasoning_field) as server:
        run_environment(EXAMPLE, "process", *arguments(server, tokenizer, dataset, **more))
    groups = read_rows(out)
    assert [group["scores"] for group in groups] == [[1.0, 1.0], [0.0, 0.0]]
    for group, row in zip(groups, rows, strict=True):
        said = [CALLS.removeprefix(begins), ANSWER.removeprefix(begins)]
        assert check_sequence(tokenizer, group, 0, said).startswith("<|im_start|>system\nBe short.\n\nYou may")
        roles = [(message["role"], message["content"]) for message in group["messages"][0]]
        assert roles[:3] == [("system", "Be short."), ("user", row["prompt"]), ("assistant", CALLS)]
        assert roles[3:] == [("tool", '{"output":"7\\n","exit_code":0}'), ("assistant", ANSWER)]
    assert out.with_suffix(".html").exists()


def test_where_the_template_changes_earlier_turns_only_what_follows_is_trained(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tmp_path / "tokenizer", lowers=True)
    dataset = write_dataset(tmp_path / "prompts.jsonl", [{"prompt": "Write it.", "answer": "7"}])
    out = tmp_path / "groups.jsonl"
    with MockServer(SCRIPT, tokenizer=tokenizer) as server:
        more = {"total_steps": 1, "data_path_to_save_groups": out}
        done = run_environment(EXAMPLE, "process", *arguments(server, tokenizer, dataset, **more))
    (group,) = read_rows(out)
    text = check_sequence(tokenizer, group, 0, [ANSWER])
    assert "i call the shell." in text
    assert done.stderr.count("the chat template changes earlier turns") == 1


def test_what_cannot_work_is_one_line(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(tmp_path / "tokenizer")
    dataset = write_dataset(tmp_path / "prompts.jsonl", [{"prompt": "Write it.", "answer": "7"}])
    with MockServer(SCRIPT, tokenizer=tokenizer) as server:
        given = [*arguments(server, tokenizer, dataset), "--openai.server_type", "openai"]
        done = run_environment(EXAMPLE, "process", *given, status=2)
    assert done.stderr.endswith("error: openai.server_type openai gives neither token ids nor logprobs; take vllm or sglang\n")
    assert "Traceback" not in done.stderr


def test_without_atroposlib_the_error_says_how_to_get_it() -> None:
    code = "import sys; sys.modules['atroposlib'] = None\nimport kiseki.integrations.atropos"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs atroposlib" in done.stderr
    assert done.stderr.endswith("pip install 'kiseki[atropos]'\n")
