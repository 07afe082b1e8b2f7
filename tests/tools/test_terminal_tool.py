"""`terminal` and `process` in real sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kiseki.tools import processes, terminal

Play = Callable[[Callable[[Any], Awaitable[None]]], None]


async def until(box: Any, session_id: str, text: str) -> str:
    """All that a process wrote, as soon as `text` is in it."""
    seen = ""
    while text not in seen:
        answer = await box("process", action="poll", session_id=session_id)
        assert answer["status"] == "running" or text in seen + answer["output"], answer
        seen += answer["output"]
        await asyncio.sleep(0.02)
    return seen


def test_the_session_persists_and_exit_codes_are_no_errors(play: Play) -> None:
    async def scenario(box: Any) -> None:
        assert await box("terminal", command="echo out; echo err >&2; false") == {"output": "out\nerr\n", "exit_code": 1}
        assert box.run.ok and box.run.exit_code == 1
        await box("terminal", command="mkdir -p a/b; cd a; export X='1 2'; f() { echo from f; }")
        answer = await box("terminal", command='echo "$X" "${PWD##*/}"; f; cat; echo end')
        assert answer == {"output": "1 2 a\nfrom f\nend\n", "exit_code": 0}
        assert (await box("terminal", command="echo ${PWD##*/}", workdir="b"))["output"] == "b\n"
        assert (await box("terminal", command="echo ${PWD##*/}", workdir="~/a"))["output"] == "a\n"
        missing = await box("terminal", command="echo never", workdir="/no/such/folder")
        assert missing["exit_code"] != 0 and "never" not in missing["output"]

    play(scenario)


def test_odd_output_survives(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box("write_file", path="odd", content="</tool_call>\u2028\0\x1b[31mred\x1b[0m\rprogress\r\n日本")
        assert (await box("terminal", command="cat odd"))["output"] == "</tool_call>\u2028\0\x1b[31mred\x1b[0m\rprogress\r\n日本"
        assert (await box("terminal", command=r"printf 'a\377b'"))["output"] == "a\ufffdb"

    play(scenario)


def test_time_limits(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box("terminal", command="X=kept")
        answer = await box("terminal", command="echo begun; sleep 60", timeout=0.1)
        assert answer == {
            "output": "begun\n",
            "exit_code": 124,
            "timed_out": True,
            "error": "the command was killed after 1 s; the session goes on",
            "note": "timeout was set to 1 s (allowed: 1 to 600)",
        }
        assert box.run.timed_out and not box.run.ok
        assert (await box("terminal", command="echo $X"))["output"] == "kept\n"
        assert not box.run.timed_out
        assert (await box("terminal", command=":", timeout=9999))["note"] == "timeout was set to 600 s (allowed: 1 to 600)"
        ended = await box("terminal", command="exit 7")
        assert ended["exit_code"] == 7
        assert ended["note"] == "the shell was restarted, in the folder of before this command; variables and functions are reset"
        assert (await box("terminal", command="echo ${X-gone}"))["output"] == "gone\n"
        assert (await box("terminal", command="(sleep 0.1; kill -9 $$) &"))["exit_code"] == 0
        await asyncio.sleep(0.5)
        await box("search_files", pattern="*", target="files")  # which looks into the session first, and must not hide it
        assert "the shell was restarted" in (await box("terminal", command=":"))["note"]
        assert "note" not in await box("terminal", command=":")

    play(scenario)


def test_long_output_is_cut_in_the_middle(play: Play) -> None:
    async def scenario(box: Any) -> None:
        answer = await box("terminal", command="echo first; yes あいう | head -n 20000; echo last")
        assert answer["truncated"] is True and box.run.truncated
        output = answer["output"]
        assert output.startswith("first\nあいう\n") and output.endswith("あいう\nlast\n")
        assert "bytes left out here" in output and "\ufffd" not in output
        assert len(output.encode()) < terminal.MAX_OUTPUT + 200
        assert "truncated" not in await box("terminal", command="printf '%30000s' x")

    play(scenario)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"command": " "}, "command is empty"),
        ({"command": "a\0b"}, "command contains a NUL character"),
        ({"command": "a", "workdir": "a\0b"}, "workdir contains a NUL character"),
        ({"command": "a", "background": True, "workdir": "/no/such"}, "the command could not be started in /no/such: "),
        ({"command": 5}, "the arguments of terminal have wrong values: Expected `str`, got `int`"),
    ],
)
def test_wrong_calls(play: Play, arguments: dict[str, Any], message: str) -> None:
    async def scenario(box: Any) -> None:
        assert (await box.error("terminal", **arguments)).startswith(message)

    play(scenario)


def test_a_background_process_from_start_to_end(play: Play) -> None:
    async def scenario(box: Any) -> None:
        assert await box("process", action="list") == {"processes": []}
        await box("terminal", command="mkdir -p d; cd d; export X='a  b' Y=$'1\\n2'; unset_in_env=1")
        command = 'echo "$X|$Y|${unset_in_env-}|${PWD##*/}"; read line; echo got $line; read more; exit 3'
        assert await box("terminal", command=command, background=True) == {"session_id": "proc_1", "status": "running"}
        assert await until(box, "proc_1", "|d\n") == "a  b|1\n2||d\n"
        poll = await box("process", action="poll", session_id="proc_1")
        assert poll == {"session_id": "proc_1", "status": "running", "exit_code": None, "output": ""}
        await box("process", action="write", session_id="proc_1", data="hel")
        written = await box("process", action="write", session_id="proc_1", data="lo\n")
        assert written == {"session_id": "proc_1", "status": "running", "bytes_written": 3}
        assert await until(box, "proc_1", "\n") == "got hello\n"
        waited = await box("process", action="wait", session_id="proc_1", timeout=0.1)
        assert waited["note"] == "still running after 0.1 s" and waited["status"] == "running" and box.run.ok
        await box("process", action="write", session_id="proc_1", data="\n")
        waited = await box("process", action="wait", session_id="proc_1", timeout=30)
        assert (waited["status"], waited["exit_code"], waited["output"]) == ("exited", 3, "")
        assert box.run.ok and box.run.exit_code == 3
        listed = await box("process", action="list")
        assert listed == {"processes": [{"session_id": "proc_1", "command": command, "status": "exited", "exit_code": 3}]}
        ended = await box.error("process", action="write", session_id="proc_1", data="x")
        assert ended == "proc_1 has ended (exit code 3): it takes no input"
        again = await box("process", action="kill", session_id="proc_1")
        assert (again["status"], again["note"]) == ("exited", "it had ended before")

    play(scenario)


def test_the_session_and_background_processes_do_not_touch_each_other(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box("terminal", command="cat; echo eof; sleep 60", background=True)
        await box("terminal", command="exit 1")
        killed = await box("terminal", command="sleep 60", timeout=1)
        assert "killed after 1 s" in killed["error"]
        assert (await box("process", action="poll", session_id="proc_1"))["status"] == "running"
        closed = await box("process", action="write", session_id="proc_1", data="in\x04")
        assert closed == {"session_id": "proc_1", "status": "running", "bytes_written": 2, "stdin": "closed"}
        assert await until(box, "proc_1", "eof") == "ineof\n"
        assert await box.error("process", action="write", session_id="proc_1", data="x") == "the stdin of proc_1 is closed"
        assert ".process." not in await box.sh("ls -A ~; echo $0")

    play(scenario)


def test_kill_ends_the_whole_tree(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(box: Any) -> None:
        tree = "setsid sh -c 'echo $$ >>pids; exec sleep 61' & sleep 62 & echo $! >>pids; wait"
        await box("terminal", command=f"trap '' TERM; ({tree}) & echo up; wait", background=True)
        await until(box, "proc_1", "up")
        while len((await box.sh("cat pids 2>/dev/null")).split()) < 2:
            await asyncio.sleep(0.02)
        await box("terminal", command="sleep 63", background=True)
        monkeypatch.setattr(processes, "GRACE_TICKS", 4)  # this one ignores SIGTERM: no need to wait long for it
        answer = await box("process", action="kill", session_id="proc_1")
        monkeypatch.undo()
        assert (answer["status"], answer["exit_code"]) == ("killed", 137)
        state = "cut -d')' -f2 /proc/$p/stat 2>/dev/null | cut -c 2"
        alive = f'for p in $(cat pids); do case $({state}) in ""|Z) ;; *) echo $p ;; esac; done'
        assert await box.sh(alive) == ""
        assert (await box("process", action="poll", session_id="proc_2"))["status"] == "running"
        answer = await box("process", action="kill", session_id="proc_2")
        # by SIGTERM; by SIGKILL where that reached its shell before it had become `sleep`
        assert (answer["status"], answer["exit_code"] in (143, 137)) == ("killed", True)

    play(scenario)


def test_a_process_killed_from_outside_is_lost(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box("terminal", command="echo $PPID; sleep 60", background=True)
        parent = (await until(box, "proc_1", "\n")).strip()
        await box.sh(f"kill -9 {parent}")
        answer = await box("process", action="wait", session_id="proc_1")
        assert answer["status"] == "lost"
        assert answer["note"] == "it was killed from outside, so its exit code is not known"

    play(scenario)


def test_the_log_in_pages(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box("terminal", command="seq 1 1000; printf 'no end'", background=True)
        assert (await box("process", action="wait", session_id="proc_1"))["output"].startswith("1\n2\n")
        last = await box("process", action="log", session_id="proc_1", limit=2)
        assert (last["output"], last["first_line"], last["total_lines"]) == ("1000\nno end", 1000, 1001)
        assert "next_offset" not in last
        page = await box("process", action="log", session_id="proc_1", offset=5, limit=2)
        assert (page["output"], page["next_offset"]) == ("5\n6\n", 7)
        past = await box.error("process", action="log", session_id="proc_1", offset=5000)
        assert past == "offset 5000 is past the end: the log has 1001 lines"
        await box("terminal", command=":", background=True)
        await box("process", action="wait", session_id="proc_2")
        empty = await box("process", action="log", session_id="proc_2")
        assert (empty["output"], empty["total_lines"]) == ("", 0)

    play(scenario)


def test_much_output_and_torn_characters(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box(
            "terminal", command=r"printf 'a\343\201'; read x; printf '\202b\377'; yes | head -n 50000; echo end", background=True
        )
        assert await until(box, "proc_1", "a") == "a"  # the character that is not whole yet comes with the next poll
        await box("process", action="write", session_id="proc_1", data="\n")
        answer = await box("process", action="wait", session_id="proc_1")
        assert answer["truncated"] is True and box.run.truncated
        assert answer["output"].startswith("あb\ufffdy\n") and answer["output"].endswith("y\nend\n")
        assert "of 100,009 bytes left out here" in answer["output"]
        assert len(answer["output"]) < terminal.MAX_OUTPUT + 200
        assert (await box("process", action="poll", session_id="proc_1"))["output"] == ""

    play(scenario)


def test_a_long_command_and_a_full_pipe(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(box: Any) -> None:
        await box("terminal", command=f": {'x' * 200_000}\necho long; sleep 60", background=True)
        await until(box, "proc_1", "long")
        error = await box.error("process", action="write", session_id="proc_1", data="y" * 200_000)
        assert error == "proc_1 did not take the whole input within 0.5 s: it does not read its stdin"

    monkeypatch.setattr(processes, "WRITE_SECONDS", 0.5)
    play(scenario)


def test_wrong_process_calls(play: Play) -> None:
    async def scenario(box: Any) -> None:
        none = await box.error("process", action="poll", session_id="proc_9")
        assert none == "there is no process with session_id 'proc_9'; there are: none: terminal with background true starts one"
        await box("terminal", command="a", background=True)
        await box("terminal", command="b", background=True)
        assert (await box.error("process", action="kill")).endswith("session_id ''; there are: proc_1, proc_2")
        assert await box.error("process", action="write", session_id="proc_1") == "data is empty: nothing to write"
        assert "Invalid enum value 'stop'" in await box.error("process", action="stop")
        waited = await box("process", action="wait", session_id="proc_1")
        assert (waited["exit_code"], waited["status"]) == (127, "exited")
        assert "a: " in waited["output"] and "not found" in waited["output"] and "/" not in waited["output"]

    play(scenario)
