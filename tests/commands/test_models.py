"""`kiseki models check` against endpoints that can all, some or nothing of it, over real HTTP."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from commands.checked import ALL, BLUE, LOOP, PARALLEL, READY, RED, THINKS, Check, Found
from model_gate import Refusal, gate
from support import kiseki

from kiseki.commands.main import main
from kiseki.models import checking, checks
from kiseki.models.endpoints import API_MODES
from kiseki.models.mock_server import MockServer

OLLAMA = "registry.ollama.ai/library/gemma3:latest does not support tools"
VLLM = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


@pytest.mark.parametrize(
    ("api_mode", "others"),
    [
        ("chat", {}),
        ("anthropic", {"seed": "untried", "token ids": "untried", "prompt cache": "yes"}),
        ("responses", {"seed": "untried", "token ids": "untried"}),
    ],
)
def test_all_works(check: Check, api_mode: str, others: dict[str, str]) -> None:
    with MockServer(ALL, list_prices=True) as server:
        found = check(server.base_url, f"--api_mode={api_mode}")
    assert found.status == 0
    assert found.works == {
        "plain": "yes",
        "streaming": "yes",
        "tools, native": "yes",
        "parallel tools": "yes",
        "reasoning": "yes",
        "no reasoning": "no",  # the script reasons whatever it is asked
        "json": "yes",
        "seed": "yes",
        "token ids": "yes",
        "prompt cache": "no",
        "usage and cost": "yes",
        "context length": "yes",
        **others,
    }
    assert found.report["flags"] == ["--model=m", f"--base_url={server.base_url}", f"--api_mode={api_mode}"]
    assert found.report["needed"] == []
    assert found.checks["tools, native"]["calls"] == 2 and found.checks["tools, native"]["prompt_tokens"] > 0
    assert found.words("context length") == "listed: 131,072 tokens"
    assert found.err.splitlines() == [f"asking: {each}" for each in found.works]


def test_what_is_sent_is_small_and_what_the_flags_say(check: Check) -> None:
    with MockServer(ALL, record=100) as server:
        check(server.base_url, "--reasoning_effort=high", "--temperature=0.5", '--extra_body={"top_k": 3}')
        sent = [each["body"] for each in server.stats(log=True)["log"]]
    assert len(sent) < 20
    assert all(body["max_tokens"] == checking.MOST_THINKING and body["top_k"] == 3 for body in sent)
    assert "temperature" not in sent[0] and "reasoning_effort" not in sent[0], "the first call has nothing to refuse"
    assert all(body["temperature"] == 0.5 and body["reasoning_effort"] == "high" for body in sent if body.get("tools"))
    assert sum(body.get("stream", False) for body in sent) == 1
    assert [body["seed"] for body in sent if "seed" in body] == [7, 7]
    assert [body["response_format"]["type"] for body in sent if "response_format" in body] == ["json_schema"]


def test_the_table_is_for_people(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    with MockServer(ALL) as server:
        assert main(["models", "check", "--model=m", f"--base_url={server.base_url}", "--top_p=0.9", "--api_key=sk-mine"]) == 0
    said = capsys.readouterr().out
    for words in ("2 calls in one reply", "Rollouts with tools are possible", "Also possible: --stream, --capture_tokens"):
        assert words in said
    command = said.strip().splitlines()[-1]
    assert command.startswith("kiseki batch --dataset_file=prompts.jsonl ") and command.endswith(" --top_p=0.9")
    assert "sk-mine" not in said


@pytest.mark.parametrize("words", [OLLAMA, VLLM])
def test_where_tools_are_refused_its_own_words_say_why(check: Check, words: str) -> None:
    with MockServer([READY]) as server, gate(server, lambda body: words if "tools" in body else None) as base_url:
        found = check(base_url)
    assert found.status == 3
    assert words in found.words("tools, native")
    assert {name: works for name, works in found.works.items() if name.startswith("tools")} == {
        "tools, native": "no",
        "tools, auto": "no",
        "tools, json": "no",
        "tools, hermes": "no",
    }
    assert found.report["tools"] == "" and "parallel tools" not in found.works


CALLS_IN_TEXT = [
    {"match": "7421", "turns": [{"content": "It is 7421."}]},
    {
        "match": "colour blue",
        "turns": [{"content": f"<tool_call>\n{json.dumps(BLUE)}\n</tool_call>"}, {"content": "It is {{last_tool_result}}."}],
    },
]
CALLS_IN_JSON = [
    {"match": "7421", "turns": [{"content": '{"thought": "I have it.", "answer": "It is 7421."}'}]},
    {"match": "colour blue", "turns": [{"content": json.dumps({"thought": "I look.", "tool_calls": [BLUE]})}]},
]
DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
OTHER_WORDS = "Extra inputs are not permitted: tools"


IN_TEXT = "in the text of the reply, as hermes"


@pytest.mark.parametrize("api_mode", API_MODES[1:])
@pytest.mark.parametrize(
    ("refused", "words", "script", "mode", "how"),
    [
        (("none",), "", CALLS_IN_TEXT, "auto", IN_TEXT),
        (("tools",), OLLAMA, CALLS_IN_TEXT, "auto", IN_TEXT),
        (("tools",), VLLM, CALLS_IN_TEXT, "auto", IN_TEXT),
        (("tools",), OTHER_WORDS, CALLS_IN_JSON, "json", "as JSON"),
        (("tools", "response_format", "text", "output_config"), OTHER_WORDS, CALLS_IN_TEXT, "hermes", IN_TEXT),
    ],
)
def test_models_that_call_tools_in_text_only(
    check: Check, refused: tuple[str, ...], words: str, script: list[Any], mode: str, how: str, api_mode: str
) -> None:
    def refuses(body: dict[str, Any]) -> str | None:
        return words if any(name in body for name in refused) else None

    with MockServer([*script, READY]) as server, gate(server, refuses) as base_url:
        found = check(base_url, f"--api_mode={api_mode}")
    assert found.status == 0 and found.report["tools"] == how
    assert found.works["tools, native"] == "no" and words in found.words("tools, native")
    if refused == ("none",) and api_mode != "chat":  # servers of these APIs read what their models write
        mode = "json"
    if mode == "hermes" and api_mode == "anthropic":  # where the host documents no schema none is sent, and nothing is refused
        mode = "json"
    assert found.works[f"tools, {mode}"] == "yes"
    assert found.report["flags"][3:] == ([] if mode == "auto" else [f"--tool_call_mode={mode}"])


@pytest.mark.parametrize(
    ("refuses", "flags", "expected"),
    [
        (lambda body: "no streams here" if body.get("stream") else None, ("--stream",), []),
        (lambda body: None if body.get("stream") else "only streams here", (), ["--stream"]),
        (lambda body: "no streams here" if body.get("stream") else None, (), []),
    ],
)
def test_the_flags_have_the_transport_that_works(
    check: Check, refuses: Refusal, flags: tuple[str, ...], expected: list[str]
) -> None:
    with MockServer(ALL) as server, gate(server, refuses) as base_url:
        found = check(base_url, *flags)
    assert found.status == 0 and found.works["tools, native"] == "yes"
    assert found.report["flags"][2:] == expected
    refused = "plain" if expected else "streaming"
    assert "streams here" in found.words(refused) and found.works[refused] == "no"
    assert bool(found.report["needed"]) is (bool(flags) or bool(expected))


def test_a_model_without_reasoning(check: Check) -> None:
    script = [PARALLEL, LOOP, {"match": "sheep", "turns": [{"content": "9"}]}, READY]
    with MockServer(script) as server:
        found = check(server.base_url, "--reasoning_effort=low")
    assert found.works["reasoning"] == "no" and found.words("reasoning") == "there is none with --reasoning_effort=low"
    assert found.works["no reasoning"] == "untried" and found.checks["no reasoning"]["calls"] == 0


@pytest.mark.parametrize(
    ("text", "works", "words"),
    [
        ("Four.", "no", "no JSON object: “Four.”"),
        ('{"legs": 4}', "partly", 'not of the schema: “{"legs": 4}”'),
        (DEEP, "no", "no JSON"),
    ],
)
def test_json_that_is_none_or_another(check: Check, text: str, works: str, words: str) -> None:
    with MockServer([{"match": "How many legs", "turns": [{"content": text}]}, *ALL]) as server:
        found = check(server.base_url, "--max_tokens=1000000")
    assert found.works["json"] == works and words in found.words("json")


def test_reasoning_whose_text_is_kept_back(check: Check) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 50, "completion_tokens_details": {"reasoning_tokens": 40}}
    with MockServer([{"match": "sheep", "turns": [{"content": "9", "usage": usage}]}, *ALL]) as server:
        found = check(server.base_url)
    assert found.works["reasoning"] == "partly" and found.words("reasoning").startswith("40 tokens, but")


@pytest.mark.parametrize(
    ("turns", "works", "words"),
    [
        ([{"content": "7421, I guess."}], "no", "it answers without the tool: “7421, I guess.”"),
        ([{"content": "", "finish_reason": "length"}], "no", "nothing within the limit of --max_tokens"),
        ([{"tool_calls": [{"name": "search", "arguments": {}}]}], "no", "it calls 'search', which is no tool"),
        ([{"tool_calls": [{**BLUE, "arguments": '{"colour": '}]}], "no", "the arguments of its call are no JSON object"),
        ([{"tool_calls": [{**BLUE, "arguments": DEEP}]}], "no", "the arguments of its call are no JSON object"),
        ([{"tool_calls": [{**BLUE, "arguments": {"color": "blue"}}]}], "no", "has not the arguments that the schema asks for"),
        ([{"tool_calls": [BLUE]}, {"content": "Done."}], "partly", "the answer has not the tool's result: “Done.”"),
        ([{"tool_calls": [BLUE]}], "partly", "again and again, 4 times"),
        ([{"tool_calls": [BLUE]}, {"fault": {"kind": "bad_request"}}], "no", "the result is refused: HTTP 400"),
        (
            [{"tool_calls": [BLUE, RED], "fault": {"kind": "missing_ids"}}, {"content": "It is 7421."}],
            "yes",
            "has the tool's result",
        ),
    ],
)
def test_what_the_tool_loop_sees(check: Check, turns: list[dict[str, Any]], works: str, words: str) -> None:
    with MockServer([PARALLEL, {"match": "colour blue", "turns": turns}, READY]) as server:
        found = check(server.base_url, "--tool_call_mode=native", "--max_tokens=1000000")
    assert found.works["tools, native"] == works and words in found.words("tools, native")


def test_a_failed_check_says_why_and_the_others_go_on(check: Check) -> None:
    broken = {"match": "sheep", "turns": [{"fault": {"kind": "error_500"}}]}
    with MockServer([broken, *ALL]) as server:
        found = check(server.base_url)
    assert found.status == 0
    assert found.words("reasoning") == "HTTP 500: The server had an error while processing your request."
    assert found.checks["reasoning"]["calls"] == 1 and found.works["no reasoning"] == "no" and found.works["json"] == "yes"


def test_a_failure_that_passes_is_none(check: Check) -> None:
    once = {"match": "sheep", "turns": [{"content": "9", "reasoning": THINKS, "fault": {"kind": "error_503", "times": 1}}]}
    with MockServer([once, *ALL]) as server:
        assert check(server.base_url).works["reasoning"] == "yes"


def test_fields_that_a_host_does_not_document_are_not_tried(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_localhost(base_url: str) -> Any:
        return TOGETHER if "127.0.0.1" in base_url else UNKNOWN

    from kiseki.models.dialects import chat
    from kiseki.models.hosts import HOSTS, UNKNOWN

    TOGETHER = next(each for each in HOSTS if each.name == "Mistral")
    monkeypatch.setattr(chat, "host_of", of_localhost)
    with MockServer(ALL) as server:
        found = check(server.base_url)
    assert found.works["token ids"] == "untried" and "--capture_tokens: no documented field" in found.words("token ids")


def test_fallbacks_are_tried_too(check: Check) -> None:
    with MockServer(ALL) as server, gate(server, lambda body: "no tools" if body["model"] == "b" else None) as base_url:
        found = check(base_url, "--fallback_model=a,b")
    assert found.works["fallback a"] == "yes" and found.works["fallback b"] == "no"
    assert found.report["flags"][-1] == "--fallback_model=a,b"


@pytest.mark.parametrize("api_mode", API_MODES[1:])
@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("auth", 2, "***.; the key comes from --api_key or the environment"),
        ("no_credit", 2, "HTTP 402: Insufficient credits."),
        ("no_vision", 2, "HTTP 404: No endpoints found that support image input.; --model or --base_url names what is not there"),
        ("stall", 1, "No whole answer from"),
    ],
)
def test_what_makes_every_check_useless_is_said_once(
    kind: str, status: int, words: str, api_mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with MockServer([{"turns": [{"content": "a long enough reply", "fault": {"kind": kind}}]}]) as server:
        flags = ("--model=m", f"--base_url={server.base_url}", "--api_key=sk-mine", "--call_timeout=0.5")
        assert main(["models", "check", *flags, f"--api_mode={api_mode}"]) == status
        assert server.stats()["calls"] == 1
    said = capsys.readouterr()
    assert words in said.err.splitlines()[-1] and "sk-mine" not in said.err and said.out == ""


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert main(["models", "check", "--model=m", f"--base_url=http://127.0.0.1:{port}/v1"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].endswith(f"No connection to http://127.0.0.1:{port}/v1/chat/completions: Connection refused")


def test_a_hang_later_on_costs_its_own_check_only(check: Check) -> None:
    hangs = {"match": "sheep", "turns": [{"fault": {"kind": "stall"}}]}
    with MockServer([hangs, *ALL]) as server:
        found = check(server.base_url, "--call_timeout=0.5")
    assert found.status == 0 and found.works["json"] == "yes"
    assert "No whole answer from" in found.words("reasoning")


def test_all_of_it_has_a_bound(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "ALL_SECONDS", -1.0)
    with MockServer(ALL) as server:
        found = check(server.base_url)
        assert server.stats()["calls"] == 0
    assert found.status == 3 and found.works["plain"] == found.works["json"] == "untried"
    assert found.words("tools, native") == "the time for all checks (-1 s) was over"


def test_the_model_that_is_built_in(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a real server gives; what its model says is its own affair."""
    monkeypatch.setattr(checks, "REPEATED", "The ferry leaves at 7:00. " * 10)
    flags = ("--model=builtin/smollm2", "--max_tokens=64", "--reasoning_effort=high", "--temperature=0")
    status = main(["models", "check", "--json", *flags])
    found = Found(status, *capsys.readouterr())
    assert status == (0 if found.report["tools"] else 3)
    assert {found.works[each] for each in ("plain", "streaming", "json", "seed", "prompt cache", "usage and cost")} == {"yes"}
    assert "tools, json" in found.works and found.checks["tools, json"]["prompt_tokens"] > 0
    assert found.report["base_url"] == "" and "127.0.0.1" not in found.report["command"]
    assert found.err.splitlines()[0] == "builtin/smollm2 takes no notice of --reasoning_effort"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("chekc",), "kiseki models has no 'chekc'; did you mean kiseki models check?"),
        (("check", "--modle=m"), "unknown flag --modle=m; did you mean --model?"),
        (("check", "--model=m", "--base_url=ftp://x"), "is not an http:// or https:// URL"),
        (("check", "--model=builtin/practice"), "there is nothing to check"),
        (("check", "--model=m", "--base_url=https://openrouter.ai/api/v1"), "No API key for openrouter.ai"),
        (("check", "--model=m", "--base_url=http://127.0.0.1:1/v1", "--provider_sort=price"), "are OpenRouter's"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_status_2(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = kiseki("models", *arguments, cwd=tmp_path, status=2)
    assert says in done.stderr and len(done.stderr.splitlines()) == 1 and done.stdout == ""


def test_alone_it_teaches(tmp_path: Path) -> None:
    alone, helps = kiseki("models", cwd=tmp_path), kiseki("models", "--help", cwd=tmp_path)
    assert alone.stdout == helps.stdout and "kiseki models check --model=" in alone.stdout
    assert "exit status" in kiseki("models", "check", "--help", cwd=tmp_path).stdout
