"""One call of a user's tool through `Toolbox`: whatever it does, there is exactly one result that can be stored."""

from __future__ import annotations

import array
import asyncio
import gc
from typing import Any

import pytest

from kiseki.errors import SandboxError, ToolError
from kiseki.tools import running
from kiseki.tools.registry import make_tool
from kiseki.tools.results import MAX_RESULT_BYTES
from kiseki.tools.toolbox import Toolbox
from kiseki.trajectory.types import ToolCall, ToolRun

ended_by: list[str] = []
"""By which tools, after they were cancelled."""
LOOP: list[Any] = []
LOOP.append(LOOP)


class Text(str):
    """As some libraries return it."""


class Exits:
    def __str__(self) -> str:
        raise SystemExit("from a result")


RESULTS: dict[str, Any] = {
    "text": "plain \x1b[0m",
    "object": {"a": 1, "b": {"c": None}},
    "surrogates": {"name\udc80": ["x\udc81", {"y": "\ud83d\ude00"}]},
    "text surrogates": "a\udc80",
    "other": {"at": ToolCall("i", "n", "{}"), "set": {1}, "what": complex(1, 2)},
    "loop": LOOP,
    "long": "あ" * 100_000,
    "nothing": None,
    "empty": "",
    "own text": Text("error: of a class of its own"),
    "own texts": {Text("error"): Text("no")},
    "array": array.array("d", [1.5, 2.0]),
    "deep text": '{"a":' + "[" * 100_000,
    "exits": Exits(),
    "exits inside": {"rows": [Exits()]},
    "generator": {"rows": (each for each in "ab")},
    "function": {"f": lambda: 1},
    "long error": {"rows": ["x" * 1000] * 300, "error": "it failed"},
    "long error's text": {"error": "e" * 300_000},
    "long failure": {"success": False, "rows": list(range(100_000))},
    "long failure, surrogates": '{"success": false, "text": "\udc80' + "x" * 500_000 + '"}',
}


def give(what: str) -> Any:
    """Give something."""
    if what == "tool error":
        raise ToolError("cannot")
    if what == "crash":
        raise KeyError("x")
    if what == "timeout":
        raise TimeoutError("the other side is slow")
    if what == "sandbox":
        raise SandboxError("gone")
    return RESULTS[what]


async def wait(how: str) -> str:
    """Wait for ever."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if how == "clears up":
                await asyncio.sleep(0)
                ended_by.append(how)
                return "half a result"
            if how == "fails":
                ended_by.append(how)
                raise RuntimeError("while it was cancelled") from None


BOX = Toolbox(
    [make_tool(give, "mine", "give", 30.0), make_tool(wait, "mine", "wait", 0.05), make_tool(wait, "mine", "idle", 600)]
)


def call(arguments: str, name: str = "give") -> tuple[str, ToolRun]:
    message, run = asyncio.run(BOX.call(None, ToolCall("c", name, arguments)))
    assert (message.role, message.tool_call_id, message.name) == ("tool", "c", name)
    assert len(message.content.encode()) < MAX_RESULT_BYTES + 200
    return message.content, run


@pytest.mark.parametrize(
    ("what", "content", "ok"),
    [
        ("text", "plain \x1b[0m", True),
        ("object", '{"a":1,"b":{"c":null}}', True),
        ("surrogates", '{"name\ufffd":["x\ufffd",{"y":"😀"}]}', True),
        ("text surrogates", "a\ufffd", True),
        ("other", '{"at":{"id":"i","name":"n","arguments":"{}"},"set":[1],"what":"(1+2j)"}', True),
        ("nothing", "null", True),
        ("empty", "", False),
        ("own text", "error: of a class of its own", False),
        ("own texts", '{"error":"no"}', False),
        ("array", "[1.5,2.0]", True),
        ("tool error", '{"error":"cannot"}', False),
        ("crash", """{"error":"KeyError: 'x'"}""", False),
        ("timeout", '{"error":"TimeoutError: the other side is slow"}', False),
    ],
)
def test_results(what: str, content: str, ok: bool) -> None:
    assert call(f'{{"what": "{what}"}}')[0] == content
    assert call(f'{{"what": "{what}"}}')[1].ok is ok


@pytest.mark.parametrize("what", ["loop", "exits", "exits inside", "generator", "function"])
def test_a_result_that_is_no_json_is_an_error(what: str) -> None:
    content, run = call(f'{{"what": "{what}"}}')
    assert content.startswith('{"error":"the result of give cannot be written as JSON: ')
    assert not run.ok and not run.invalid


def test_a_long_result_is_cut() -> None:
    content, run = call('{"what": "long"}')
    assert run.truncated and run.ok and "of 300,000 bytes left out here" in content and "\ufffd" not in content


@pytest.mark.parametrize("what", ["long error", "long error's text", "long failure", "long failure, surrogates"])
def test_a_failure_that_is_cut_is_a_failure(what: str) -> None:
    _, run = call(f'{{"what": "{what}"}}')
    assert run.truncated and not run.ok


def test_text_too_deep_to_be_read_is_text() -> None:
    content, run = call('{"what": "deep text"}')
    assert run.ok and content.startswith('{"a":[[[')


def test_a_broken_sandbox_is_not_the_models_business() -> None:
    with pytest.raises(SandboxError):
        call('{"what": "sandbox"}')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"what": 1}', "the arguments of give have wrong values: Expected `str`, got `int` - at `$.what`"),
        ("{}", "have wrong values: Object missing required field `what`"),
        ('{"what": "text", "more": 1}', "have wrong values: Object contains unknown field `more`"),
        ('{"what": ', "are not valid JSON"),
        ('{"name": "give", "arguments": {"what": "te', "are not valid JSON: Input data was truncated"),
        ("\udc80", "are not valid JSON"),
        ("[" * 5000, "the arguments of give"),
    ],
)
def test_wrong_arguments_come_back_with_the_schema(arguments: str, message: str) -> None:
    content, run = call(arguments)
    assert message in content and '"expected":{' in content
    assert run.invalid and not run.ok


def test_an_unknown_tool_names_those_there_are() -> None:
    content, run = call("{}", "take")
    assert content == """{"error":"there is no tool named 'take'; the tools are: give, wait, idle"}"""
    assert run.invalid


@pytest.mark.parametrize("how", ["clears up", "fails", "ignores"])
def test_a_tool_ends_at_its_limit(how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.1 if how == "ignores" else 60)
    ended_by.clear()
    content, run = call(f'{{"how": "{how}"}}', "wait")
    assert content == '{"error":"wait did not finish within 0.05 seconds"}'
    assert run.timed_out and not run.ok and not run.invalid
    assert ended_by == ([] if how == "ignores" else [how])
    gc.collect()
    assert not caplog.records, "nothing complains about what was left"


@pytest.mark.parametrize("how", ["clears up", "fails", "ignores"])
def test_a_cancelled_call_is_over_whatever_the_tool_does(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.1 if how == "ignores" else 60)
    ended_by.clear()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await BOX.call(None, ToolCall("c", "idle", f'{{"how": "{how}"}}'))

    asyncio.run(main())
    assert ended_by == ([] if how == "ignores" else [how])


def test_a_call_that_is_cancelled_again_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 3600)

    async def main() -> None:
        task = asyncio.create_task(BOX.call(None, ToolCall("c", "idle", '{"how": "ignores"}')))
        for _ in range(2):
            await asyncio.sleep(0.05)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_what_a_loop_leaves_does_not_hold_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.1)

    async def main() -> None:
        ended_by.clear()
        tasks = [asyncio.create_task(wait(how)) for how in ("clears up", "ignores")]
        await asyncio.sleep(0)
        await running.end_others()
        assert [task.done() for task in tasks] == [True, False]

    asyncio.run(main())
    assert ended_by == ["clears up"]
