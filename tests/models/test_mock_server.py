"""The mock server itself: what it says when, its limits, and its command."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kiseki.commands.mock_server import main
from kiseki.errors import UsageError
from kiseki.models.mock_script import draw, load_script, sample_arguments
from kiseki.models.mock_server import MockServer

USER = {"role": "user", "content": "hi"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"function": {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(properties)}}}


def post(root_url: str, body: Any, path: str = "/v1/chat/completions") -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection(root_url.removeprefix("http://"), timeout=30)
    connection.request("POST", path, body if isinstance(body, bytes) else msgspec.json.encode(body))
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    decoded = msgspec.json.decode(raw) if answer.getheader("Content-Type") == "application/json" else raw
    return answer.status, decoded, {name.lower(): value for name, value in answer.getheaders()}


def say(server: MockServer, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The choice that a conversation gets."""
    status, answer, _ = post(server.root_url, {"model": "m", "messages": list(messages), **fields})
    assert status == 200, answer
    choice: dict[str, Any] = answer["choices"][0]
    return choice


def called(choice: dict[str, Any]) -> tuple[str, Any]:
    function = choice["message"]["tool_calls"][0]["function"]
    return function["name"], msgspec.json.decode(function["arguments"])


def test_the_default_script_calls_tools_then_answers() -> None:
    tools = [tool("other"), tool("terminal", command={"type": "string"})]
    with MockServer(turns=2) as server:
        conversation: list[dict[str, Any]] = [USER]
        for _ in range(2):
            choice = say(server, *conversation, tools=tools)
            assert choice["finish_reason"] == "tool_calls"
            assert called(choice) == ("terminal", {"command": "echo hello"})
            assert choice["message"]["reasoning_content"]
            call_id = choice["message"]["tool_calls"][0]["id"]
            conversation += [choice["message"], {"role": "tool", "tool_call_id": call_id, "content": "hello"}]
        final = say(server, *conversation, tools=tools)
        assert final["message"]["content"] == "Done. hello"
        assert final["finish_reason"] == "stop"
        ids = [message["tool_calls"][0]["id"] for message in conversation if "tool_calls" in message]
        assert len(set(ids)) == 2


def test_the_default_script_makes_do_with_the_tools_there_are() -> None:
    with MockServer() as server:
        count = tool("count", n={"type": "integer"}, mode={"enum": ["a", "b"]}, deep={"type": "boolean"}, items={"type": "array"})
        assert called(say(server, USER, tools=[count])) == ("count", {"n": 1, "mode": "a", "deep": False, "items": []})
        assert say(server, USER)["message"]["content"] == "Done."


def test_sample_arguments() -> None:
    assert sample_arguments(b"{}") == {}
    schema = {"required": ["a", "b", "c"], "properties": {"a": {"type": ["number", "null"], "minimum": 5}, "b": {"default": "x"}}}
    assert sample_arguments(msgspec.json.encode(schema)) == {"a": 5, "b": "x", "c": "hello"}


SCRIPT: list[dict[str, Any]] = [
    {
        "match": "(?i)weather",
        "turns": [
            {"reasoning": "r", "tool_calls": [{"name": "terminal", "arguments": {"command": "say '{{prompt}}'"}}]},
            {"content": "{{last_tool_result}} at turn {{turn}} of {{model}}, {{unknown}}"},
        ],
    },
    {"turns": [{"content": "else"}]},
]


def test_scripts_by_rule_and_turn() -> None:
    with MockServer(SCRIPT) as server:
        question = {"role": "user", "content": [{"type": "text", "text": 'The "Weather"?'}]}
        first = say(server, question)
        assert called(first) == ("terminal", {"command": "say 'The \"Weather\"?'"})
        result = {"role": "tool", "tool_call_id": "x", "content": "sunny"}
        expected = "sunny at turn 1 of m, {{unknown}}"
        assert say(server, question, first["message"], result)["message"]["content"] == expected
        beyond = say(server, question, first["message"], result, first["message"], result)
        assert beyond["message"]["content"] == "sunny at turn 2 of m, {{unknown}}"
        assert say(server, question, first["message"], USER)["message"]["content"] == "else"


@pytest.mark.parametrize("name", ["script.json", "script.yaml"])
def test_scripts_from_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    encode = msgspec.json.encode if name.endswith("json") else msgspec.yaml.encode
    path.write_bytes(encode({"rules": SCRIPT}))
    with MockServer(load_script(path)) as server:
        assert say(server, USER)["message"]["content"] == "else"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "script"),
        ("[{}]", "turns"),
        ('[{"turns": []}]', "at least one turn"),
        ('[{"turns": [{"contents": "x"}]}]', "contents"),
        ('[{"match": "(", "turns": [{}]}]', "regular expression"),
        ('[{"turns": [{"fault": {"kind": "flood"}}]}]', "rate_limit"),
    ],
)
def test_bad_scripts_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        main(["--script", str(path), "--port", "0"])
    with pytest.raises(UsageError, match="No such file"):
        load_script(tmp_path / "missing.json")


def test_every_kth_request_is_limited() -> None:
    with MockServer(rate_limit_every=3, retry_after=2.5) as server:
        answers = [post(server.root_url, {"messages": [USER]}) for _ in range(6)]
        assert [status for status, _, _ in answers] == [200, 200, 429, 200, 200, 429]
        assert answers[2][2]["retry-after"] == "2.5"
        assert server.stats()["by_status"] == {"200": 4, "429": 2}


def test_more_than_so_many_in_flight_are_limited() -> None:
    with MockServer([{"match": "stay", "turns": [{"fault": {"kind": "stall"}}]}], max_in_flight=1) as server:
        held = http.client.HTTPConnection(server.root_url.removeprefix("http://"))
        held.request("POST", "/v1/chat/completions", msgspec.json.encode({"messages": [{"role": "user", "content": "stay"}]}))
        while server.stats()["in_flight"] < 1:
            pass
        assert post(server.root_url, {"messages": [USER]})[0] == 429
        held.close()
        while server.stats()["in_flight"] > 0:
            pass
        assert post(server.root_url, {"messages": [USER]})[0] == 200


def test_chance_depends_on_the_seed_and_the_conversation_alone() -> None:
    def statuses(seed: int, order: range) -> list[int]:
        with MockServer(faults={"error_503": 0.5}, seed=seed) as server:
            got = {n: post(server.root_url, {"messages": [{"role": "user", "content": f"{n}"}]})[0] for n in order}
            return [got[n] for n in sorted(got)]

    one = statuses(1, range(20))
    assert one == statuses(1, range(19, -1, -1))
    assert one != statuses(2, range(20))
    assert {200, 503} == set(one)
    assert all(0.0 <= draw(seed, "k", "w") < 1.0 for seed in range(100))


def test_other_endpoints_and_bad_requests() -> None:
    with MockServer() as server:
        connection = http.client.HTTPConnection(server.root_url.removeprefix("http://"))
        connection.request("GET", "/v1/models")
        assert msgspec.json.decode(connection.getresponse().read())["data"][0]["id"] == "mock"
        connection.request("GET", "/nothing")
        answer = connection.getresponse()
        assert (answer.status, answer.read() != b"") == (404, True)
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        assert connection.getresponse().status == 411
        connection.close()
        assert post(server.root_url, b"{")[0] == 400
        assert post(server.root_url, {"messages": 3})[0] == 400


def test_the_log_keeps_the_last_requests_and_hides_keys() -> None:
    with MockServer(record=2) as server:
        for n in range(3):
            post(server.root_url, {"messages": [{"role": "user", "content": f"{n}"}]})
        log = server.stats(log=True)["log"]
        assert [entry["body"]["messages"][0]["content"] for entry in log] == ["1", "2"]
        assert "log" not in server.stats()


def test_it_runs_in_a_process_of_its_own() -> None:
    server = MockServer(SCRIPT, process=True)
    server.start()
    try:
        assert say(server, USER)["message"]["content"] == "else"
        assert server.stats()["cpu_seconds"] >= 0.0
    finally:
        server.stop()
    server.stop()
    with pytest.raises(OSError, match="refused"):
        server.stats()


def test_a_taken_port_is_said() -> None:
    with MockServer() as server:
        port = int(server.root_url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            MockServer(port=port).start()
        with pytest.raises(UsageError, match="in use"):
            main(["--port", str(port)])


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--fault", "rate_limit"], "KIND=RATE"),
        (["--fault", "flood=0.1"], "flood"),
        (["--fault", "torn=0.7", "--fault", "reset=0.7"], "at most 1"),
    ],
)
def test_bad_flags_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        main(argv)


@pytest.mark.parametrize("spelling", ["--max_in_flight", "--max-in-flight"])
def test_the_command_serves_until_interrupted(spelling: str) -> None:
    code = "import sys; from kiseki.commands.mock_server import main; sys.exit(main(sys.argv[1:]))"
    flags = ["--port", "0", spelling, "5", "--fault", "error_503=1"]
    with subprocess.Popen([sys.executable, "-c", code, *flags], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        root_url = process.stdout.readline().split()[1].removesuffix("/v1")
        assert post(root_url, {"messages": [USER]})[0] == 503
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
