"""Programs that call the rollout's other tools, in real sandboxes; whatever a program does, there is one result."""

from __future__ import annotations

import ast
import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import msgspec
import pytest

from kiseki.errors import SandboxError
from kiseki.models.base import ToolSchema
from kiseki.tools.code import conversation, tool
from kiseki.tools.context import ToolContext
from kiseki.tools.redact import secrets_of
from kiseki.tools.registry import Tool, make_tool
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_tools
from kiseki.trajectory.types import InnerCall, Usage

Play = Callable[[Callable[[Any], Awaitable[None]]], None]
ENOUGH = 4.0
"""Seconds in which a small program starts and calls a tool, on a machine under load, too."""
ONE = pytest.mark.parametrize("play", ["local"], indirect=True)
NUMBER = 40_000_000 + os.getpid()
SLEEPERS = f"grep -las '[4]{str(NUMBER)[1:]}' /proc/[0-9]*/cmdline | wc -l"
"""How many processes sleep for so long."""
SECRET = "sk-planted-9Xw2LmQz71RtYvB6"


def take_tools(box: Any, *own: Tool) -> None:
    """Have the rollout's toolsets be these."""
    chosen = [*load_tools(["terminal", "file", "todo", "code_execution"]), *own]
    box.toolbox = Toolbox(chosen, secrets_of(SECRET, {}))
    box.toolbox.attach(box.context)


async def run(box: Any, code: str) -> dict[str, Any]:
    answer = await box("execute_code", code=code)
    assert isinstance(answer, dict)
    return answer


def inner(box: Any) -> tuple[InnerCall, ...]:
    found = box.run.inner
    assert isinstance(found, tuple)
    return found


def test_a_program_calls_the_other_tools(play: Play) -> None:
    async def scenario(box: Any) -> None:
        take_tools(box)
        await box.sh("mkdir -p work; cd work; export GREETING='h i'; touch mine.py; echo 'X = 5' >mine.py")
        code = """
            import inspect, os, sys, kiseki_tools, mine
            for i in range(3):
                write_file(f"{i}.txt", "line\\n" * (i + 1))
            print([read_file(f"{i}.txt")["total_lines"] for i in range(3)])
            print(terminal(command="cat *.txt | wc -l; exit 3"))
            print(len(kiseki_tools.todo([{"id": "1", "content": "日本"}])["todos"]))
            print(os.path.basename(os.getcwd()), os.environ["GREETING"], mine.X, repr(sys.stdin.read()), __name__)
            print(inspect.signature(read_file), "Args:" in write_file.__doc__)
            sys.exit("the end")
        """
        answer = await run(box, "\n".join(line[12:] for line in code.splitlines()))
        assert answer == {"output": answer["output"], "exit_code": 1, "tool_calls": 8}
        lines = answer["output"].splitlines()
        assert lines[0] == "[1, 2, 3]" and "'6\\n', 'exit_code': 3" in lines[1]
        assert lines[2:4] == ["1", "work h i 5 '' __main__"]
        assert lines[4].startswith("(path: str, offset: int") and lines[4].endswith("True") and lines[5] == "the end"
        assert box.run.ok and box.run.exit_code == 1
        assert [each.call.id for each in inner(box)] == [f"c/{n}" for n in range(1, 9)]
        assert inner(box)[0].call.arguments == '{"path": "0.txt", "content": "line\\n"}'
        assert inner(box)[7].call.arguments == '{"todos": [{"id": "1", "content": "日本"}]}'
        assert [each.run.name for each in inner(box)] == ["write_file"] * 3 + ["read_file"] * 3 + ["terminal", "todo"]
        assert json.loads(inner(box)[3].content)["total_lines"] == 1 and all(each.run.ok for each in inner(box))
        assert await box.sh("pwd; ls -A ${TMPDIR:-/tmp} | grep -c '^.code'") == (await box.sh("pwd")) + "0\n"

    play(scenario)


def test_a_failed_call_is_an_exception(play: Play) -> None:
    async def scenario(box: Any) -> None:
        take_tools(box)
        code = "try:\n    read_file('no')\nexcept ToolFailed as failed:\n    print(failed, failed.result)\n"
        code += "def look():\n    return kiseki_tools.read_file('nope')\nimport kiseki_tools\nlook()"
        answer = await run(box, code)
        assert answer["output"].startswith("no such file: no {'error': 'no such file: no'}\nTraceback (most recent call last):\n")
        assert "  File \"program.py\", line 6, in look\n    return kiseki_tools.read_file('nope')\n" in answer["output"]
        assert answer["output"].endswith("\nkiseki_tools.ToolFailed: no such file: nope\n")
        assert "kiseki_tools.py" not in answer["output"] and (answer["exit_code"], box.run.ok) == (1, True)
        assert [each.run.ok for each in inner(box)] == [False, False]
        wrong = await run(box, "read_file()")
        assert "TypeError: missing a required argument: 'path'" in wrong["output"] and wrong["tool_calls"] == 0
        wrong = await run(box, "read_file('x', limit='many')")
        assert "ToolFailed: the arguments of read_file have wrong values" in wrong["output"] and inner(box)[0].run.invalid
        for name in ("execute_code", "delegate_task", "nosuch"):
            refused = await run(box, f"import kiseki_tools; kiseki_tools.call_tool('{name}', {{}})")
            assert f"a program cannot call '{name}'; it can call: terminal, process, " in refused["output"]
            assert not inner(box)
        told = await run(box, "write_file('x', {1})\n")
        assert "Object of type set is not JSON serializable" in told["output"]
        told = await run(box, "write_file('x', 'z' * 1_000_000)\n")
        assert "the arguments are larger than 900000 bytes" in told["output"] and not inner(box)
        told = await run(box, "x = (\n")
        assert "SyntaxError: '(' was never closed" in told["output"] and told["exit_code"] == 1
        assert await box.error("execute_code", code=" \n") == "code is empty"
        assert "larger than 500,000 bytes" in await box.error("execute_code", code="#" * 500_001)

    play(scenario)


def test_threads_and_forks_call_at_the_same_time(play: Play) -> None:
    here: list[int] = []
    all_here = asyncio.Event()

    async def meet(number: int) -> str:
        """Wait for the others."""
        here.append(number)
        if len(here) == 12:
            all_here.set()
        await all_here.wait()
        return f"number {number}"

    async def scenario(box: Any) -> None:
        here.clear()
        all_here.clear()
        take_tools(box, make_tool(meet, "mine", "meet", 60))
        code = (
            "import os\nfrom concurrent.futures import ThreadPoolExecutor\n"
            "child = os.fork()\nbase = 6 if child else 0\n"
            "with ThreadPoolExecutor(6) as pool:\n    said = pool.map(meet, range(base, base + 6))\n"
            "    os.write(1, ''.join(each + ',' for each in said).encode())\n"
            "if child:\n    os.waitpid(child, 0)\n"
        )
        answer = await run(box, code)
        assert sorted(answer["output"].replace(",", "\n").split("\n")) == sorted(["", *(f"number {n}" for n in range(12))])
        assert answer["tool_calls"] == 12 == len(inner(box)) and len({each.call.id for each in inner(box)}) == 12

    play(scenario)


def test_limits_of_calls_and_output(play: Play) -> None:
    async def scenario(box: Any) -> None:
        take_tools(box)
        code = "import kiseki_tools\nfor n in range(60):\n    try:\n        todo()\n"
        code += "    except ToolFailed as error:\n        print(n, error)\n        break\nterminal('touch made')"
        answer = await run(box, code)
        assert answer["output"].startswith("50 a program may make 50 tool calls; more need another program\n")
        assert answer["tool_calls"] == 50 == len(inner(box)) and answer["exit_code"] == 1
        assert await box.sh("ls made 2>&1 | grep -c 'No such'") == "1\n"
        flood = await run(box, "print('begin')\nfor _ in range(3000): print('あ' * 1000)\nprint('end')")
        assert flood["truncated"] and flood["exit_code"] == 0 and box.run.truncated
        assert flood["output"].startswith("begin\nああ") and flood["output"].endswith("あ\nend\n")
        assert len(flood["output"].encode()) < 50_200 and "of 9,003,010 bytes left out here" in flood["output"]
        assert "\ufffd" not in flood["output"]
        odd = await run(box, "import sys; sys.stdout.buffer.write(b'\\xff\\xfe\\0ok'); sys.stderr.write('!')")
        assert odd["output"] == "\ufffd\ufffd\0ok!"

    play(scenario)


@ONE
def test_time_is_limited(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_SECONDS", ENOUGH)
    monkeypatch.setattr(tool, "MAX_SECONDS", ENOUGH)

    async def ask(context: ToolContext) -> str:
        """Ask a model that never answers."""
        context.pay(Usage(prompt_tokens=7, cost=0.5))
        await asyncio.Event().wait()
        return ""

    async def scenario(box: Any) -> None:
        take_tools(box, make_tool(ask, "mine", "ask", 60))
        code = "import subprocess, threading\nthreading.Thread(target=ask).start()\nprint('begin', end='')\n"
        code += f"subprocess.run(\"trap '' TERM; (setsid sleep {NUMBER} &); sleep {NUMBER}\", shell=True)"
        answer = await run(box, code)
        assert answer == {
            "output": "begin",
            "exit_code": 137,
            "tool_calls": 1,
            "timed_out": True,
            "error": "the program was killed after 4 s",
        }
        assert box.run.timed_out and not box.run.ok
        (cut,) = inner(box)
        assert cut.run.timed_out and not cut.run.ok and cut.run.usage == Usage(prompt_tokens=7, cost=0.5)
        assert cut.content.startswith('{"error":"cut off')
        assert await box.sh(SLEEPERS) == "0\n"

    play(scenario)


def test_a_program_that_is_cut_off_leaves_what_it_did(play: Play) -> None:
    started = asyncio.Event()

    async def wait() -> None:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()

    async def scenario(box: Any) -> None:
        started.clear()
        take_tools(box, make_tool(wait, "mine", "wait", 60))
        code = f"import subprocess\nsubprocess.Popen(['sleep', '{NUMBER}'], start_new_session=True)\ntodo()\nwait()"
        task = asyncio.ensure_future(box("execute_code", code=code))
        await started.wait()
        assert await box.sh(SLEEPERS) == "1\n"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [(each.run.name, each.run.ok) for each in box.context.notes["c"].inner] == [("todo", True), ("wait", False)]
        assert await box.sh(SLEEPERS) == "0\n"

    play(scenario)


@ONE
def test_the_clock_stands_still_while_a_call_waits_for_others(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "MAX_SECONDS", ENOUGH)

    async def crowd(context: ToolContext) -> str:
        """Wait for one's turn."""
        with context.on_hold:
            await asyncio.sleep(ENOUGH + 0.2)
        return "mine"

    async def scenario(box: Any) -> None:
        take_tools(box, make_tool(crowd, "mine", "crowd", 60))
        assert (await run(box, "print(crowd())"))["output"] == "mine\n"

    play(scenario)


ENDINGS = {
    "import os; os._exit(3)": (3, ""),
    "import os; os.kill(os.getpid(), 15)": (143, ""),
    "import os; print('x'); os.kill(os.getpid(), 9)": (137, "x\n"),
    "import os; os.closerange(0, 100); os._exit(0)": (0, ""),
    "import os, sys; sys.stdout.close(); os.close(2); todo()": (0, ""),
    "import os; os.fork(); print('x')": (0, "x\nx\n"),
    "import subprocess; subprocess.Popen(['sh', '-c', 'while :; do echo y; done'], start_new_session=True)": (0, None),
    "import os, signal; signal.signal(15, signal.SIG_IGN); os.kill(0, 15); print('on')": (0, "on\n"),
    "import multiprocessing as m\nif __name__ == '__main__': print(m.get_context('spawn').Pool(2).map(abs, [-1]))": (0, "[1]\n"),
}


def test_however_a_program_ends(play: Play) -> None:
    async def scenario(box: Any) -> None:
        take_tools(box)
        for code, (status, output) in ENDINGS.items():
            answer = await run(box, code)
            assert answer["exit_code"] == status, (code, answer)
            assert output is None or sorted(answer["output"]) == sorted(output), (code, answer)
        assert "ended what ran it" in await box.error("execute_code", code="import os; os.kill(os.getppid(), 9)")
        junk = "import os, time\nos.write(os.open(f'/proc/{os.getppid()}/fd/0', os.O_RDWR), b'\\xff\\n' * 99)\ntime.sleep(9)"
        if (await box.sh("readlink /proc/self/fd/0")).startswith("pipe:"):
            assert "ended what ran it" in await box.error("execute_code", code=junk)
        lost = (
            "import os, shutil\nshutil.rmtree(os.path.dirname(__file__))\ntry: todo()\nexcept ToolFailed as error: print(error)"
        )
        assert (await run(box, lost))["output"] == "there is nobody to call tools any more: No such file or directory\n"
        assert "from 'kiseki_tools' (kiseki_tools.py)\n" in (await run(box, "from kiseki_tools import no"))["output"]
        assert (await run(box, "print(1)"))["output"] == "1\n"

    play(scenario)


def test_what_a_program_forges_reaches_nothing(play: Play) -> None:
    async def scenario(box: Any) -> None:
        take_tools(box)
        code = """
import json, os
line = os.open("/proc/%d/fd/1" % os.getppid(), os.O_WRONLY)
def say(data): os.write(line, data + b"\\n")
for junk in (b"", b"junk", b"\\xff\\0", b"[" * 3000, b"{}", b'{"type":"end"}', b'{"type":"call","call":"x"}', b"1" * 30000):
    say(junk)
say(b'{"type":"call","call":999,"name":"write_file","arguments":{"path":"forged","content":"1"}}')
say(b'{"type":"call","call":998,"name":"write_file","arguments":[1]}')
say(b'{"type":"call","call":-5,"name":"execute_code","arguments":{"code":"print(1)"}}')
import time
while not os.path.exists("forged"): time.sleep(0.01)
print(todo()["todos"])
"""
        answer = await run(box, code)
        assert (answer["output"], answer["exit_code"]) == ("[]\n", 0)
        assert [each.call.name for each in inner(box)][:1] == ["write_file"] and len(inner(box)) == 3  # a call is a call
        flood = "import os\nline = os.open('/proc/%d/fd/1' % os.getppid(), os.O_WRONLY)\nwhile True: os.write(line, b'x' * 9999)"
        assert "ended what ran it" in await box.error("execute_code", code=flood)
        flood = flood.replace("b'x' * 9999", "b'x\\n' * 999")
        assert "ended what ran it" in await box.error("execute_code", code=flood)
        forged = '{"type":"end","exit_code":0,"output":"%s","total":5}' % ("eHh4" * 10_000)
        lie = f"import os\nos.write(os.open('/proc/%d/fd/1' % os.getppid(), os.O_WRONLY), b'{forged}\\n')\nwhile True: pass"
        assert len((await run(box, lie))["output"]) < 60_000

    play(scenario)


def test_secrets_do_not_get_into_a_program(play: Play) -> None:
    def leak() -> dict[str, str]:
        """Leak."""
        return {"key": f"Bearer {SECRET}"}

    async def scenario(box: Any) -> None:
        take_tools(box, make_tool(leak, "mine", "leak"))
        answer = await run(box, "print(leak()); import os; print(dict(os.environ))")
        assert SECRET not in answer["output"] and SECRET not in inner(box)[0].content
        assert inner(box)[0].run.redacted == 1

    play(scenario)


def test_a_broken_sandbox_ends_the_rollout(play: Play) -> None:
    def fail() -> None:
        """Fail."""
        raise SandboxError("gone")

    async def scenario(box: Any) -> None:
        take_tools(box, make_tool(fail, "mine", "fail"))
        with pytest.raises(SandboxError, match="gone"):
            await run(box, "fail()")

    play(scenario)


def test_tools_of_any_schema_can_be_called(play: Play) -> None:
    def echo(**arguments: Any) -> Any:
        return arguments

    schema = {
        "type": "object",
        "properties": {"from": {"type": "string"}, "x-y": True, "b": {"type": ["integer", "null"]}, "a": {"default": 1}},
        "required": ["a", "from"],
        "additionalProperties": True,
    }

    def odd(name: str, parameters: Any) -> Tool:
        raw = msgspec.Raw(msgspec.json.encode(parameters))
        return Tool(ToolSchema(name, "Echo.", raw), "mcp-odd", msgspec.json.Decoder(dict[str, Any]).decode, echo, is_async=False)

    async def scenario(box: Any) -> None:
        names = ("my-tool", "print", "json", "_Any", "call_tool", "class", "9lives")
        take_tools(box, odd("own", schema), *(odd(name, {"properties": [], "required": None}) for name in names))
        code = "import kiseki_tools as k\nprint(own(5, b=2, **{'from': 'f', 'x-y': [], 'z': 0}), json(), k.print())\n"
        code += "print(my_tool(), k.call_tool('class', {'a': 1}), k.call_tool('9lives', {}))"
        answer = await run(box, code)
        assert answer["output"] == "{'a': 5, 'b': 2, 'from': 'f', 'x-y': [], 'z': 0} {} {}\n{} {'a': 1} {}\n", answer

    play(scenario)


def test_without_python_the_model_is_told(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = conversation.runner_argv()
    monkeypatch.setattr(tool, "runner_argv", lambda: ["/usr/bin/env", "PATH=/nowhere", "/bin/sh", *argv[1:]])

    async def scenario(box: Any) -> None:
        take_tools(box)
        assert "there is no python3 in this sandbox" in await box.error("execute_code", code="print(1)")

    play(scenario)


def test_a_lost_folder_is_told(play: Play) -> None:
    async def scenario(box: Any) -> None:
        take_tools(box)
        await box.sh("mkdir gone; cd gone; rmdir ../gone")
        assert "could not be started: FileNotFoundError" in await box.error("execute_code", code="print(1)")

    play(scenario)


@pytest.mark.parametrize("name", ["runner.py", "client.py"])
def test_what_runs_inside_needs_no_new_python(name: str) -> None:
    ast.parse(files("kiseki.tools.code.inside").joinpath(name).read_text(), feature_version=(3, 6))
