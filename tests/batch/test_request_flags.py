"""What flags put into every request, and how samples of a prompt are asked."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support import kiseki, light_tools, read_rows, write_dataset

from kiseki.models.mock_server import MockServer

SECRET = "correct-horse-battery-staple"
SCRIPT: list[dict[str, Any]] = [{"turns": [{"reasoning": "Hm.", "content": "done"}]}]


def run(folder: Path, server: MockServer, *more: str, prompts: int = 1, status: int = 0) -> str:
    write_dataset(folder / "p.jsonl", [{"prompt": f"question {number}"} for number in range(prompts)])
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=10", f"--base_url={server.base_url}", "--model=mock")
    return kiseki(*base, *light_tools(folder), "--engine=inprocess", *more, cwd=folder, status=status).stderr


def bodies(server: MockServer) -> list[dict[str, Any]]:
    return [each["body"] for each in server.stats(log=True)["log"]]


def test_an_extra_body_is_put_over_everything_and_its_secrets_are_kept_nowhere(tmp_path: Path) -> None:
    extra = {"min_p": 0.05, "temperature": 0.3, "options": {"api_key": SECRET, "list": ["ä", None]}}
    (tmp_path / "extra.json").write_text(json.dumps(extra))
    with MockServer(SCRIPT, record=9) as server:
        run(tmp_path, server, "--extra_body=@extra.json", "--temperature=1")
        (sent,) = bodies(server)
        assert {name: sent[name] for name in extra} == extra
        differs = run(tmp_path, server, "--resume", '--extra_body={"min_p": 0.1}', "--temperature=1", status=2)
        run(tmp_path, server, "--resume", "--extra_body=@extra.json", "--temperature=1")
    assert "extra_body" in differs and SECRET not in differs
    assert not [each for each in (tmp_path / "data").rglob("*") if each.is_file() and SECRET.encode() in each.read_bytes()]
    with sqlite3.connect(tmp_path / "data/r/run.db") as db:
        (settings,) = db.execute("SELECT settings FROM sessions ORDER BY id LIMIT 1").fetchone()
    assert json.loads(settings)["model"]["extra_body"]["options"] == {"api_key": "***", "list": ["ä", None]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[1]", "it must be a JSON object"),
        ("{'a': 1}", "it is no JSON"),
        ('{"a": NaN}', "it is no JSON: NaN is no number"),
        ("@none.json", "the file cannot be read: No such file"),
        ('{"messages": []}', "--extra_body must not set messages"),
        ('{"stream": true}', "--extra_body must not set stream"),
    ],
)
def test_an_extra_body_that_cannot_be_used(tmp_path: Path, value: str, words: str) -> None:
    with MockServer(SCRIPT) as server:
        assert words in run(tmp_path, server, f"--extra_body={value}", status=2)
        assert server.stats()["calls"] == 0
    assert not (tmp_path / "data").exists()


def test_samples_of_a_prompt_are_asked_together_each_with_a_seed_of_its_own(tmp_path: Path) -> None:
    with MockServer(SCRIPT, record=99, latency=0.05) as server:
        run(tmp_path, server, "--num_samples=4", "--seed=7", "--concurrency=4", "--top_p=0.9", prompts=5)
        sent = bodies(server)
    asked = [body["messages"][-1]["content"] for body in sent]
    assert [set(asked[at : at + 4]) for at in range(0, 20, 4)] == [{f"question {number}"} for number in range(5)]
    assert len({body["seed"] for body in sent}) == 20 and {body["top_p"] for body in sent} == {0.9}
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert {row["metadata"]["seed"] for row in rows} == {body["seed"] for body in sent}
    assert [row["sample_index"] for row in rows] == [0, 1, 2, 3] * 5
