"""The flags and the command that `kiseki models check` proposes: rollouts with them come to something, and no secret is shown."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from commands.checked import ALL, BLUE, LEGS, LOOP, PARALLEL, READY, SHEEP, Check
from model_gate import gate
from support import kiseki, light_tools, read_rows, write_dataset

from kiseki.commands.main import main
from kiseki.models.mock_server import MockServer

FILTER = "--reasoning_filter=off"
NO_THOUGHT = {"match": "sheep", "turns": [{"content": "9"}]}
HIDDEN = {
    "match": "sheep",
    "turns": [{"content": "9", "usage": {"completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 40}}}],
}
THINKING_CALLS = {
    "match": "colour blue",
    "turns": [{"tool_calls": [BLUE], "reasoning": "I look."}, {"content": "It is {{last_tool_result}}."}],
}
SECRET = "Kx93-horse-battery-77"


@pytest.mark.parametrize(
    ("sheep", "flags", "proposed"),
    [
        (SHEEP, (), False),
        (NO_THOUGHT, (), True),
        (NO_THOUGHT, ("--reasoning_effort=low",), True),
        (HIDDEN, (), True),
        (NO_THOUGHT, ("--reasoning_disabled",), False),  # kiseki batch filters nothing then
        (NO_THOUGHT, ("--reasoning_effort=none",), False),
    ],
)
def test_rows_without_reasoning_are_not_to_be_discarded(
    check: Check, sheep: dict[str, Any], flags: tuple[str, ...], proposed: bool
) -> None:
    with MockServer([PARALLEL, LOOP, sheep, LEGS, READY]) as server:
        found = check(server.base_url, *flags)
    assert (FILTER in found.report["flags"]) is (FILTER in found.report["command"]) is proposed
    assert [FILTER in why for why in found.report["needed"]] == [True] * proposed


def test_reasoning_beside_a_tool_call_is_reasoning(check: Check) -> None:
    with MockServer([PARALLEL, THINKING_CALLS, NO_THOUGHT, READY]) as server:
        found = check(server.base_url)
    assert found.works["reasoning"] == "no" and FILTER not in found.report["flags"]


def test_where_the_riddle_could_not_be_asked_nothing_is_known(check: Check) -> None:
    broken = {"match": "sheep", "turns": [{"fault": {"kind": "error_500"}}]}
    with MockServer([broken, *ALL]) as server:
        assert FILTER not in check(server.base_url).report["flags"]


def test_a_run_with_the_proposed_command_has_rows(check: Check, tmp_path: Path) -> None:
    write_dataset(tmp_path / "prompts.jsonl", [{"prompt": "say something"}])
    said = {"match": "say something", "turns": [{"content": "Something."}]}
    with MockServer([PARALLEL, LOOP, NO_THOUGHT, LEGS, READY, said]) as server:
        words = shlex.split(check(server.base_url).report["command"])
        assert words[0] == "kiseki"
        kiseki(*words[1:], *light_tools(tmp_path), cwd=tmp_path)
    assert len(read_rows(tmp_path / "data/my_run/trajectories.jsonl")) == 1


@pytest.mark.parametrize(("model", "least"), [("m", 4_000), ("claude-opus-4-8", 16_000)])
def test_the_cache_is_asked_as_rollouts_ask(check: Check, model: str, least: int) -> None:
    """With tools: where the API wants marks, all of them are there. As long as the model's cache wants it."""
    with MockServer(ALL, record=100) as server:
        found = check(server.base_url, "--api_mode=anthropic", model=model)
        sent = [each["body"] for each in server.stats(log=True)["log"]]
    twice = [body for body in sent if "Which pier" in json.dumps(body["messages"])]
    assert len(twice) == 2 and twice[0] == twice[1] and twice[0]["tools"]
    assert least < len(twice[0]["system"][0]["text"]) < 2 * least
    assert "cache_control" in twice[0]["system"][-1] and "cache_control" in twice[0]["messages"][-1]["content"][-1]
    assert found.works["prompt cache"] == "yes"


def gone(body: dict[str, Any]) -> str | None:
    return f"The model `{body['model']}` does not exist" if body["model"] in ("m", "b") else None


def test_where_the_model_is_gone_its_fallback_is_checked(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer(ALL) as server, gate(server, gone) as base_url:
        found = check(base_url, "--fallback_model=b,a,c")
        assert main(["models", "check", "--model=m", f"--base_url={base_url}", "--fallback_model=b,a,c"]) == 0
    said = capsys.readouterr().out
    assert found.status == 0 and found.report["tools"] == "by the API's own tool calls"
    assert [name for name in found.works if name.startswith(("plain", "fallback"))] == [
        "plain",
        "plain, b",
        "plain, a",
        "fallback c",
    ]
    assert found.works["plain"] == found.works["plain, b"] == "no" and found.works["plain, a"] == "yes"
    assert found.works["reasoning"] == found.works["fallback c"] == "yes"
    first, second = found.report["gone"]
    assert "m is gone (HTTP 400: The model `m` does not exist): b is checked in its place" in first and "a is checked" in second
    assert first in said and found.report["flags"][-1] == "--fallback_model=b,a,c"


def test_where_all_of_them_are_gone_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer(ALL) as server, gate(server, gone) as base_url:
        assert main(["models", "check", "--model=m", f"--base_url={base_url}", "--fallback_model=b"]) == 2
    assert "`b` does not exist; --model or --base_url names what is not there" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("as_json", [(), ("--json",)])
@pytest.mark.parametrize("answers", [True, False])
def test_secrets_of_an_extra_body_are_not_shown(
    as_json: tuple[str, ...], answers: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the command nor where the endpoint says them again."""
    monkeypatch.setenv("COLUMNS", "200")
    body = json.dumps({"top_k": 3, "options": {"api_key": SECRET}})

    def refuses(asked: dict[str, Any]) -> str | None:
        return None if answers and asked.get("seed") is None else f"unknown model: {asked['options']}"

    with MockServer(ALL) as server, gate(server, refuses) as base_url:
        status = main(["models", "check", "--model=m", f"--base_url={base_url}", f"--extra_body={body}", *as_json])
    said = capsys.readouterr()
    assert status == (0 if answers else 2)
    assert SECRET not in said.out + said.err and "unknown model" in said.out + said.err
    assert not answers or ("top_k" in said.out and "***" in said.out)
