"""What becomes of calls when servers die, hang, or answer anything; and whose a running server is."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp_rollouts import SANDBOX, Play, Rollout
from mcp_servers import ODD_SERVER, odd
from support import until

from kiseki.errors import SandboxError
from kiseki.sandboxes import bubblewrap
from kiseki.tools.mcp import session, transport
from kiseki.tools.results import MAX_RESULT_BYTES
from kiseki.trajectory.types import ToolCall

PIXEL = b"\x89PNG\r\n\x1a\n and more"


@pytest.fixture(scope="module")
def answering(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """With a server `odd`, found once."""
    play = Play(tmp_path_factory.mktemp("answering"))
    play.find(odd=odd())
    return play


def starts(log: Path) -> int:
    return log.read_text().count("start\n")


def test_a_server_of_a_rollout_is_that_of_its_sub_agents(play: Play, tmp_path: Path) -> None:
    play.find(odd=odd(tmp_path / "log", scope="rollout"))

    async def scenario(rollout: Rollout) -> None:
        own, rollout.context = rollout.context, rollout.context.for_sub_agent()
        assert await rollout("mcp_odd_count") == "1"
        await rollout.context.close()
        rollout.context = own
        assert await rollout("mcp_odd_count") == "2"

    play(scenario)


def test_a_server_is_started_once_for_all_rollouts_of_a_worker(play: Play, tmp_path: Path) -> None:
    log = tmp_path / "log"
    play.find(odd=odd(log))

    async def scenario(*rollouts: Rollout) -> None:
        counted = await asyncio.gather(*(each("mcp_odd_count") for each in rollouts))
        assert sorted(counted) == ["1", "2", "3"]

    play(scenario, rollouts=3)
    assert starts(log) == 2, "one for the listing, one for the worker"


def test_a_server_of_a_rollout_is_nobody_elses(play: Play, tmp_path: Path) -> None:
    log = tmp_path / "log"
    play.find(odd=odd(log, scope="rollout"))

    async def scenario(one: Rollout, other: Rollout) -> None:
        assert [await one("mcp_odd_count"), await one("mcp_odd_count"), await other("mcp_odd_count")] == ["1", "2", "1"]
        pid = (await one.json("mcp_odd_look"))[0]
        await one.context.close()
        assert not Path(f"/proc/{pid}").exists()
        assert await other("mcp_odd_count") == "2"

    play(scenario, rollouts=2)
    assert starts(log) == 3


@pytest.mark.parametrize("backend", ["local", "bubblewrap"])
def test_a_server_in_the_sandbox(backend: str, tmp_path: Path) -> None:
    if backend == "bubblewrap" and (why := bubblewrap.working_program()[1]):
        pytest.skip(f"bubblewrap does not work here: {why}")
    play = Play(tmp_path, msgspec.structs.replace(SANDBOX, backend=backend))
    program = {"command": "python3", "args": ["-c", ODD_SERVER.read_text()]}
    play.find(odd={**program, "env": {"GIVEN": "a 'b' \\n $c"}, "cwd": "/", "scope": "sandbox"})

    async def scenario(one: Rollout, other: Rollout) -> None:
        assert one.sandbox
        _, folder, environment = await one.json("mcp_odd_look")
        inside = await one.sandbox.exec("echo $HOME", timeout=20)
        assert (folder, environment["HOME"], environment["GIVEN"]) == ("/", inside.output.strip(), "a 'b' \\n $c")
        assert [await one("mcp_odd_count"), await one("mcp_odd_count"), await other("mcp_odd_count")] == ["1", "2", "1"]
        error = await one.error("mcp_odd_die")
        assert error.endswith("was lost during the call: it has ended; it wrote: a line that is no message dying")
        assert await one("mcp_odd_count") == "1"
        await one("mcp_odd_spawn")
        assert "was lost during the call" in await one.error("mcp_odd_die"), "though a program of its own goes on"
        await one.sandbox.close()
        with pytest.raises(SandboxError):
            await one("mcp_odd_count")
            await one("mcp_odd_count")

    play(scenario, rollouts=2, sandbox=True)


def test_a_server_that_dies_is_started_again(play: Play, tmp_path: Path) -> None:
    log = tmp_path / "log"
    play.find(odd=odd(log))

    async def scenario(rollout: Rollout) -> None:
        assert await rollout("mcp_odd_count") == "1"
        error = await rollout.error("mcp_odd_die")
        assert error == "the MCP server odd was lost during the call: it has ended; it wrote: dying"
        assert await rollout("mcp_odd_count") == "1"
        pid = (await rollout.json("mcp_odd_look"))[0]
        assert await rollout("mcp_odd_leave") == "bye"
        await until(lambda: not Path(f"/proc/{pid}").exists())
        for _ in range(20):  # its pipe is closed by now, and only has to be looked at
            await asyncio.sleep(0.001)
        assert await rollout("mcp_odd_count") == "1", "it was dead before the call: nobody notices"

    play(scenario)
    assert starts(log) == 4


@pytest.mark.parametrize("pause", [3600.0, 0.0])
def test_a_server_that_dies_again_and_again_is_left_alone(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    log = tmp_path / "log"
    play.find(odd=odd(log))
    monkeypatch.setattr(session, "PAUSE_SECONDS", pause)

    async def scenario(rollout: Rollout) -> None:
        for _ in range(session.MAX_STARTS):
            assert "was lost during the call" in await rollout.error("mcp_odd_die")
        if pause:
            assert "is not available, it was lost 3 times in a row: it has ended" in await rollout.error("mcp_odd_count")
        else:
            assert await rollout("mcp_odd_count") == "1"

    play(scenario)
    assert starts(log) == 4 + (not pause)


def test_a_call_in_flight_does_not_survive_its_server(play: Play) -> None:
    play.find(odd=odd())

    async def scenario(one: Rollout, other: Rollout) -> None:
        waiting = asyncio.create_task(one.error("mcp_odd_slow", seconds=60))
        assert await other("mcp_odd_count") == "1"
        await other.error("mcp_odd_die")
        assert "was lost during the call" in await waiting

    play(scenario, rollouts=2)


def test_a_server_that_hangs_is_ended_and_one_that_is_only_slow_is_not(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    play.find(odd=odd(log, timeout=0.3))
    monkeypatch.setattr(session, "PROBE_SECONDS", 0.5)

    async def scenario(rollout: Rollout) -> None:
        assert await rollout("mcp_odd_count") == "1"
        assert await rollout.error("mcp_odd_slow", seconds=30) == "the MCP server odd did not answer within 0.3 s"
        await until(lambda: "cancelled True" in log.read_text())
        assert await rollout("mcp_odd_count") == "2"
        assert await rollout.error("mcp_odd_hang") == "the MCP server odd did not answer within 0.3 s, and was stopped"
        assert await rollout("mcp_odd_count") == "1"

    play(scenario)


def test_a_cancelled_call_is_cancelled_at_the_server_too(play: Play, tmp_path: Path) -> None:
    log = tmp_path / "log"
    play.find(odd=odd(log))

    async def scenario(rollout: Rollout) -> None:
        await rollout("mcp_odd_count")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await rollout("mcp_odd_slow", seconds=30)
        await until(lambda: "cancelled True" in log.read_text())
        assert await rollout("mcp_odd_count") == "2"

    play(scenario)


def block(kind: str, **fields: Any) -> dict[str, Any]:
    return {"content": [{"type": kind, **fields}]}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    ("result", "answer", "ok"),
    [
        (block("text", text="plain"), "plain", True),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb", True),
        ({"content": []}, '{"output":""}', True),
        (block("text", text=" "), '{"output":" "}', True),
        ({}, "does not follow the protocol", False),
        ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}', True),
        ({"structuredContent": {"a": None}}, '{"a":null}', True),
        ({"content": None, "structuredContent": [1]}, "[1]", True),
        ({"content": "no list"}, "no list", True),
        (block("text", text="shown") | {"structuredContent": {"a": 1}, "_meta": 3}, "shown", True),
        (block("text", text="no") | {"isError": True}, '{"error":"no"}', False),
        ({"content": [], "isError": True}, '{"error":"the MCP server reports an error without a word"}', False),
        (block("text", text="yes") | {"isError": None}, "yes", True),
        (block("hologram", size=3), '{"type": "hologram", "size": 3}', True),
        (block("text", text=7), '{"type": "text", "text": 7}', True),
        (block("image", data="%%%"), "its data is not base64", True),
        (block("resource_link", uri="a:b", name=3), '{"attachments":[{"uri":"a:b","name":""}]}', True),
        (block("resource", resource={"uri": "a:b", "text": "t"}), '{"attachments":[{"uri":"a:b","text":"t"}]}', True),
        (block("text", text="A \udc80 B"), "A \ufffd B", True),
    ],
)
def test_answers(answering: Play, result: Any, answer: str, ok: bool) -> None:
    async def scenario(rollout: Rollout) -> None:
        given = await rollout("mcp_odd_raw", line=encoded(json.dumps({"jsonrpc": "2.0", "id": "ID", "result": result}).encode()))
        assert answer in given if "protocol" in answer or "base64" in answer else answer == given, given
        assert rollout.run and rollout.run.ok is ok

    answering(scenario)


def test_images_and_other_bytes_become_files(play: Play) -> None:
    play.find(odd=odd())
    blocks = [
        {"type": "text", "text": "see"},
        {"type": "image", "data": encoded(PIXEL), "mimeType": "image/png"},
        {"type": "image", "data": encoded(PIXEL), "mimeType": "image/../../x"},
        {"type": "audio", "data": encoded(b"sound"), "mimeType": "audio/x-wav"},
        {"type": "resource", "resource": {"uri": "a:b", "blob": encoded(b"blob"), "mimeType": "text/plain; charset=x"}},
    ]

    async def scenario(rollout: Rollout) -> None:
        assert rollout.sandbox
        answer = await rollout.json("mcp_odd_answer", result={"content": blocks})
        assert answer["text"] == "see"
        first, second, sound, blob = answer["attachments"]
        places = [first["image"], second["image"], sound["audio"], blob["file"]]
        assert [place.rpartition("/")[2] for place in places] == ["image-3.png", "image-4.bin", "audio-1.wav", "resource-2.txt"]
        assert [await rollout.sandbox.read_file(place) for place in places] == [PIXEL, PIXEL, b"sound", b"blob"]

    play(scenario, sandbox=True)


def test_long_answers_are_cut_and_longer_ones_never_held(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    play.find(odd=odd())
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", 1_000_000)

    async def scenario(rollout: Rollout) -> None:
        assert len(await rollout("mcp_odd_big", size=900_000)) < MAX_RESULT_BYTES + 200
        assert rollout.run and rollout.run.ok and rollout.run.truncated
        assert "the server's answer has more than" in await rollout.error("mcp_odd_big", size=3_000_000)
        assert await rollout("mcp_odd_count") == "1", "the same server, still"

    play(scenario)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"caf\xe9"}]}}', "caf\ufffd"),
        (b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"\\ud83d"}]}}', "\ufffd"),
        (b'noise\n[1]\n{"a":\n{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"x"}]}}\r', "x"),
    ],
)
def test_lines_that_are_not_quite_json(answering: Play, line: bytes, answer: str) -> None:
    async def scenario(rollout: Rollout) -> None:
        assert await rollout("mcp_odd_raw", line=encoded(line)) == answer

    answering(scenario)


def test_what_a_server_asks_is_refused(play: Play) -> None:
    play.find(odd=odd())

    async def scenario(rollout: Rollout) -> None:
        message = {"role": "user", "content": {"type": "text", "text": "x"}}
        sampling = {"messages": [message], "maxTokens": 9}
        assert await rollout("mcp_odd_ask", method="sampling/createMessage", params=sampling) == '"Sampling not supported"'
        assert await rollout("mcp_odd_ask", method="roots/list", params={}) == '"List roots not supported"'
        assert await rollout("mcp_odd_ask", method="ping", params={}) == "{}"
        assert await rollout.error("mcp_odd_fail", message="it is full") == "it is full"

    play(scenario)


def test_a_server_on_the_host_sees_nothing_of_its_environment(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "abcdefgh-0123456789")
    play.find(odd=odd(env={"OWN": "${SECRET_API_KEY}x"}))

    async def scenario(rollout: Rollout) -> None:
        _, _, environment = await rollout.json("mcp_odd_look")
        assert environment["OWN"] == "abcdefgh-0123456789x" and environment["PATH"] == os.environ["PATH"]
        assert "SECRET_API_KEY" not in environment

    play(scenario)


def test_arguments_that_no_message_can_hold(answering: Play) -> None:
    async def scenario(rollout: Rollout) -> None:
        deep: Any = 1
        for _ in range(252):
            deep = [deep]
        assert "nested deeper than 100 levels" in await rollout.error("mcp_odd_count", a=deep)
        call = ToolCall("c", "mcp_odd_count", '["no object"]')
        message, run = await rollout.toolbox.call(rollout.context, call)
        assert run.invalid and "have wrong values: Expected `object`, got `array`" in message.content
        assert await rollout("mcp_odd_count") == "1"

    answering(scenario)
