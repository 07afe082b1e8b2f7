"""The mock server itself: what it says when, its limits, and its command."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.commands.mock_server import main
from kiseki.errors import UsageError
from kiseki.models.mock_script import Bucket, draw, duration_text, load_script, sample_arguments
from kiseki.models.mock_server import MockServer

USER = {"role": "user", "content": "hi"}


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"function": {"name": name, "parameters": {"type": "object", "properties": properties, "required": list(properties)}}}


def post(root_url: str, body: Any, path: str = "/v1/chat/completions", method: str = "POST") -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection(root_url.removeprefix("http://"), timeout=30)
    connection.request(method, path, body if isinstance(body, bytes) else msgspec.json.encode(body))
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    decoded = msgspec.json.decode(raw) if answer.getheader("Content-Type") == "application/json" else raw
    return answer.status, decoded, {name.lower(): value for name, value in answer.getheaders()}


def ask(server: MockServer, **fields: Any) -> tuple[int, Any, dict[str, str]]:
    return post(server.root_url, {"messages": [USER], **fields})


def listed(server: MockServer, path: str = "/v1/models") -> list[dict[str, Any]]:
    return list(post(server.root_url, b"", path, "GET")[1]["data"])


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


@given(st.floats(1.0, 1e7), st.floats(0.0, 120.0), st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 1e6)), max_size=30))
def test_a_bucket_gives_what_it_promised_and_no_more(rate: float, burst: float, asks: list[tuple[float, float]]) -> None:
    now = taken = 0.0
    bucket = Bucket(rate, burst, lambda: now)
    capacity = bucket.level()
    for pause, wanted in asks:
        now += pause
        amount = min(wanted, capacity)
        wait = bucket.wait(wanted)
        now += max(0.0, wait - 0.002)
        assert bucket.wait(wanted) > 0.0 or wait <= 0.002
        now += min(wait, 0.002)
        assert bucket.wait(wanted) == 0.0
        bucket.take(amount)
        taken += amount
        assert taken <= (capacity + now * rate / 60.0) * (1 + 1e-6) + 1e-3
    now += bucket.until_full()
    assert bucket.level() == pytest.approx(capacity)


def test_durations_as_hosted_apis_write_them() -> None:
    written = {0.0: "0s", 0.02: "20ms", 1.2: "1.2s", 59.999: "59.999s", 360.0: "6m0s", 61.5: "1m1.5s", 3600.0: "1h0m0s"}
    assert {seconds: duration_text(seconds) for seconds in written} == written


def test_requests_per_minute() -> None:
    with MockServer(requests_per_minute=2, retry_after=9000) as server:
        answers = [ask(server) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        told = [[headers[f"x-ratelimit-{what}-requests"] for what in ("limit", "remaining")] for _, _, headers in answers]
        assert told == [["2", "1"], ["2", "0"], ["2", "0"]]
        assert answers[2][2]["x-ratelimit-reset-requests"].endswith("s")
        assert 0.0 < float(answers[2][2]["retry-after"]) <= 30.0
        assert not {"retry-after", "x-ratelimit-limit-tokens"} & answers[0][2].keys()


def test_who_waits_as_told_is_served() -> None:
    with MockServer(requests_per_minute=600, burst=0.1) as server:
        for _ in range(3):
            while (answer := ask(server))[0] == 200:
                pass
            time.sleep(float(answer[2]["retry-after"]))
            assert ask(server)[0] == 200


def test_tokens_per_minute() -> None:
    usage = {"prompt_tokens": 500, "completion_tokens": 400}
    with MockServer([{"turns": [{"content": "a", "usage": usage}]}], tokens_per_minute=1000) as server:
        status, _, headers = ask(server)
        assert (status, headers["x-ratelimit-limit-tokens"]) == (200, "1000")
        assert 100 <= int(headers["x-ratelimit-remaining-tokens"]) < 900
        status, _, headers = ask(server, max_tokens=900)
        assert (status, float(headers["retry-after"]) > 0.0) == (429, True)
        assert ask(server, max_tokens=9)[0] == 200  # what was refused cost nothing


@pytest.mark.parametrize(("kind", "status"), [("no_credit", 402), ("forbidden", 403), ("error_529", 529), ("rate_limit", 429)])
def test_an_outage_begins_and_ends(kind: str, status: int) -> None:
    once = [{"turns": [{"fault": {"kind": "error_500", "times": 1}}]}]  # an outage doesn't take it away
    with MockServer(once, fail_after=1, fail_kind=kind, fail_for=2) as server:
        assert [ask(server)[0] for _ in range(4)] == [status, status, 500, 200]
    with MockServer(fail_after=3, fail_kind=kind) as server:
        assert [ask(server)[0] for _ in range(5)] == [200, 200, status, status, status]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_that_stalls(stream: bool) -> None:
    turn = {"content": "a text that is long enough to come in several events, and then in a few more of them"}
    with MockServer([{"turns": [turn | {"fault": {"kind": "stream_stall", "times": 1}}]}]) as server:
        held = http.client.HTTPConnection(server.root_url.removeprefix("http://"), timeout=30)
        held.request("POST", "/v1/chat/completions", msgspec.json.encode({"messages": [USER], "stream": stream}))
        answer, got = held.getresponse(), b""
        held.sock.settimeout(0.2)  # what comes at all is here by now
        with pytest.raises(TimeoutError):
            while piece := answer.read1(100):
                got += piece
        assert (answer.status, server.stats()["in_flight"]) == (200, 1)
        answer.close()
        held.close()
        _, again, _ = ask(server, stream=stream)
        whole = again if stream else msgspec.json.encode(again)
        assert whole.startswith(got) and 0.3 < len(got) / len(whole) < 0.7
        assert got.endswith(b"\n\n") == stream
        assert server.stats()["completion_tokens"] == 1 + len(turn["content"]) // 4  # of the second answer alone


def test_prices() -> None:
    usage = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000}
    script = [{"match": "free", "turns": [{"usage": usage | {"cost": 0}}]}, {"turns": [{"usage": usage}]}]
    with MockServer(script, price=(3, 15)) as server:
        assert ask(server)[1]["usage"] == usage | {"cost": 10.5}
        assert ask(server, messages=[{"role": "user", "content": "free"}])[1]["usage"]["cost"] == 0
        stats = server.stats()
        assert (stats["prompt_tokens"], stats["completion_tokens"], stats["cost"]) == (2_000_000, 1_000_000, 10.5)
    with MockServer(script, price=(3, 15), report_cost=False) as server:
        assert ask(server)[1]["usage"] == usage
        assert server.stats()["cost"] == 10.5


def test_only_answers_sent_whole_are_counted() -> None:
    turn, faults = {"usage": {"prompt_tokens": 8, "completion_tokens": 2}}, ({"kind": "torn", "times": 1}, {"kind": "no_usage"})
    with MockServer([{"turns": [turn | {"fault": fault} for fault in faults]}]) as server:
        with pytest.raises(http.client.IncompleteRead):
            ask(server)
        assert (server.stats()["calls"], server.stats()["prompt_tokens"]) == (1, 0)
        assert "usage" in ask(server)[1]
        assert "usage" not in ask(server, messages=[USER, {"role": "assistant", "content": "b"}])[1]
        counted = [server.stats()[name] for name in ("calls", "starts", "prompt_tokens", "completion_tokens")]
        assert counted == [3, 2, 16, 4]


def test_models_and_their_prices_are_listed() -> None:
    with MockServer(list_prices=True, price=(3, 15), models=("a/b", "mock")) as server:
        models = listed(server, "/api/v1/models")
        assert [model["id"] for model in models] == ["mock", "a/b"]
        prices = {"prompt": "0.000003", "completion": "0.000015", "request": "0", "input_cache_read": "0.0000003"}
        assert [model["pricing"] for model in models] == [prices, prices]
        assert models[0]["context_length"] > models[0]["top_provider"]["max_completion_tokens"] > 0
    with MockServer(list_prices=True, price=(0, 0.01)) as server:
        assert [listed(server)[0]["pricing"][name] for name in ("prompt", "completion")] == ["0", "0.00000001"]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_no_reply_is_longer_than_asked(field: str) -> None:
    calls = [{"name": "terminal", "arguments": {"command": "x" * 20}}, {"name": "terminal", "arguments": "{}"}]
    scripted = {"usage": {"prompt_tokens": 7, "completion_tokens": 500, "total_tokens": 507, "cost": 0}}
    turn = {"content": "c" * 20, "reasoning": "r" * 18, "tool_calls": calls}
    with MockServer([{"match": "usage", "turns": [scripted]}, {"turns": [turn]}]) as server:
        whole = ask(server)[1]
        full = whole["usage"]["completion_tokens"]
        for most in (*range(1, full + 2), None):
            answer = ask(server, **{field: most})[1]
            cut, choice = most is not None and most < full, answer["choices"][0]
            assert answer["usage"]["completion_tokens"] <= (most or full)
            assert (choice["finish_reason"], choice == whole["choices"][0]) == ("length" if cut else "tool_calls", not cut)
            assert sum(str(choice["message"]).count(letter * 4) for letter in "rcx") < (most or full)
        asked = {"messages": [{"role": "user", "content": "usage"}]}
        usages = [ask(server, **asked, **{field: most})[1]["usage"] for most in (100, 1000)]
        assert [[*usage.values()] for usage in usages] == [[7, 100, 107, 0], [7, 500, 507, 0]]
        assert ask(server, **{field: 0})[0] == 400


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
        assert listed(server) == [{"id": "mock", "object": "model", "created": 0}]
        assert post(server.root_url, b"", "/nothing", "GET")[:2] == (404, {"error": {"message": ANY, "code": 404}})
        connection = http.client.HTTPConnection(server.root_url.removeprefix("http://"))
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
        (["--fail_kind", "flood"], "flood"),
        (["--fail_for", "3"], "fail_after"),
        (["--price", "3"], "IN,OUT"),
        (["--price=-1,2"], "at least 0"),
        (["--requests_per_minute", "nan"], "at least 0"),
        (["--report_cost=maybe"], "neither true nor false"),
    ],
)
def test_bad_flags_are_refused(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        main(argv)


@pytest.mark.parametrize("spelling", ["--max_in_flight", "--max-in-flight"])
def test_the_command_serves_until_interrupted(spelling: str) -> None:
    code = "import sys; from kiseki.commands.mock_server import main; sys.exit(main(sys.argv[1:]))"
    flags = ["--port", "0", spelling, "5", "--fault", "error_503=1", "--fail_after=1", "--fail_kind=forbidden", "--fail_for=1"]
    flags += ["--requests_per_minute=60", "--tokens_per_minute=1e6", "--price=3,15", "--report_cost=false", "--list_prices"]
    with subprocess.Popen([sys.executable, "-c", code, *flags], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        root_url = process.stdout.readline().split()[1].removesuffix("/v1")
        assert post(root_url, {"messages": [USER]})[0] == 403
        status, _, headers = post(root_url, {"messages": [USER]})
        assert (status, headers["x-ratelimit-limit-requests"], headers["x-ratelimit-limit-tokens"]) == (503, "60", "1000000")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
