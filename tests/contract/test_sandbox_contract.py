"""What every sandbox must do, with real processes; one suite for all backends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from support import open_sandbox

from kiseki.errors import ImageError, SandboxError, SandboxTimeout, ToolError, UsageError
from kiseki.sandboxes import bubblewrap, cgroup, folders, processes
from kiseki.sandboxes.base import ExecResult, Limits, Sandbox
from kiseki.sandboxes.settings import SandboxSettings

LABEL = f"contract-{os.getpid()}"
LIBRARY_SIGNALS = 1 << (32 - 1) | 1 << (33 - 1)
"""The C library's own. A program that GNU make 4.3 starts is left with both ignored, and nothing below it can change that."""
QUICK = 20.0
"""Seconds that no command here needs, also on a machine under load."""


@pytest.fixture(params=["local", "bubblewrap"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and (reason := bubblewrap.working_program()[1]):
        pytest.skip(reason)
    return str(request.param)


def settings(backend: str, limits: Limits | None = None) -> SandboxSettings:
    return SandboxSettings(backend=backend, label=LABEL, limits=limits or Limits())


def within(backend: str, body: Callable[[Sandbox], Awaitable[None]], *, limits: Limits | None = None, cwd: str = "") -> None:
    """Run `body` with an open sandbox."""

    async def main() -> None:
        box = await open_sandbox(settings(backend, limits), cwd=cwd)
        try:
            await body(box)
        finally:
            await box.close()

    asyncio.run(main())


async def sh(box: Sandbox, command: str, timeout: float = QUICK, max_output: int = 50_000) -> ExecResult:
    return await box.exec(command, timeout=timeout, max_output=max_output)


async def out(box: Sandbox, command: str) -> str:
    return (await sh(box, command)).output


async def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true soon."""
    end = time.monotonic() + QUICK
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.01)
    return condition()


def alive_with(text: str) -> list[int]:
    """Host processes whose command line holds `text`."""
    found = []
    for pid in processes.every_pid():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        process = processes.look(pid)
        if text.encode() in line and process and process.running:
            found.append(pid)
    return found


def traces() -> list[str]:
    """What sandboxes of this suite left on the host."""
    folder = folders.base() / LABEL
    groups = [str(path) for group in cgroup.left_over(folders.group_prefix(LABEL)) for path in group.folders.values()]
    cookie = f"{folder}/".encode()
    marked = [str(pid) for pid in processes.every_pid() if cookie in processes.environment(pid)]
    return groups + marked + ([str(path) for path in folder.iterdir()] if folder.exists() else [])


# The session


def test_state_persists_between_calls(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "mkdir -p d; cd d; export A='x y'; B=2; f() { echo \"f $1\"; }; alias ll='echo aliased'")
        assert await out(box, 'pwd | sed "s,.*/,,"; echo "$A" $B; f 3; sh -c \'echo "$A"\'') == "d\nx y 2\nf 3\nx y\n"
        assert await out(box, "ll") == "aliased\n"

    within(backend, body)


def test_exit_codes_and_interleaved_output(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        result = await sh(box, "echo 1; echo 2 >&2; echo 3; (exit 7)")
        assert (result.output, result.exit_code) == ("1\n2\n3\n", 7)
        assert (await sh(box, "true")).exit_code == 0
        assert (await sh(box, "nosuchprogram")).exit_code == 127
        assert await out(box, "printf 'no newline'") == "no newline"
        assert await out(box, "") == ""
        assert await out(box, "# only a comment") == ""
        assert await out(box, "echo \"it's\" 'a \"b\"' \\\n  c '日本'") == 'it\'s a "b" c 日本\n'
        assert await out(box, "cat <<'E'\n$x `y`\nE\necho next") == "$x `y`\nnext\n"

    within(backend, body)


def test_stdin_is_empty(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, 'cat; read x; echo "$?$x"') == "1\n"
        assert await out(box, "python3 -c 'import sys; print(repr(sys.stdin.read()))'") == "''\n"

    within(backend, body)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 3", 3),
        ("exec true", 0),
        ("exec sh -c 'exit 5'", 5),
        ("kill -9 $$", 137),
        ("set -e; false", 1),
    ],
)
def test_a_lost_shell_gives_its_status_and_is_replaced(backend: str, command: str, status: int) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "mkdir -p kept; cd kept; X=1")
        result = await sh(box, f"echo before; {command}")
        assert (result.output, result.exit_code, result.session_restarted) == ("before\n", status, True)
        after = await sh(box, 'echo "${X-gone}"; pwd | sed "s,.*/,,"')
        assert (after.output, after.session_restarted) == ("gone\nkept\n", False)

    within(backend, body)


@pytest.mark.parametrize(
    "command",
    [
        "echo 'unterminated",
        'echo "unterminated',
        "cat <<EOF\nno end",
        "if true; then",
        "echo )",
        "fi",
        "$(",
        "echo `",
        "exec >/dev/null",
        "exec </dev/null",
        "exec 2>&-",
        "exec >&- 2>&- <&-",
        "trap '' INT TERM",
        "set -u; echo $undefined_variable",
        "set -n",
        "set -x",
        "set -v",
        "PATH=",
        "unset PATH",
        "unset PWD HOME",
        "readonly PATH HOME PS1 PWD",
        "PS1='(venv) '; PS2='>> '",
        "printf() { :; }; eval() { :; }; cd() { :; }; kill() { :; }; trap() { :; }; exec() { :; }; command() { :; }",
        "alias builtin=false printf=false eval=false",
        "IFS=abcdefghijklmnopqrstuvwxyz0123456789",
        "trap 'echo trapped' DEBUG; trap - DEBUG",
        "exec 250>/dev/null 9>/dev/null 3>/dev/null",
        "ulimit -n 300",
        "enable -n printf; enable printf",
        "\\",
        "echo a &&",
        "cd /; rmdir /nosuch",
        "wait; jobs; disown -a",
        "shopt -s extglob; shopt -u sourcepath",
        "set -o posix; set +o posix",
        "set -f -o noclobber",
        "kill -INT $$",
        "umask 777; umask 022",
    ],
)
def test_after_any_command_the_next_works(backend: str, command: str) -> None:
    async def body(box: Sandbox) -> None:
        first = await sh(box, command)
        assert not first.timed_out
        second = await sh(box, "echo alive; (exit 4)")
        assert "alive\n" in second.output
        assert (second.exit_code, second.timed_out) == (4, False)
        assert not second.session_restarted

    within(backend, body)


def test_output_of_a_command_cannot_fake_its_end(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        forged = await sh(box, r"printf '\036%s0:/\000' 0123456789abcdef; echo x; cat /proc/$$/cmdline | tr -d '\0'; echo end")
        assert "\x1e0123456789abcdef0:/\x00x\n" in forged.output
        assert forged.output.endswith("end\n")
        assert await out(box, "echo next") == "next\n"

    within(backend, body)


def test_binary_output(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        result = await sh(box, r"printf '\000\001\377\376ok\303'; printf '\251\n'")
        assert result.output == "\x00\x01\ufffd\ufffdoké\n"

    within(backend, body)


def test_much_output_keeps_head_and_tail(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        result = await sh(box, "echo first; head -c 100000000 /dev/zero | tr '\\0' a; echo; echo last", max_output=1000)
        assert result.truncated
        assert result.output.startswith("first\naaa")
        assert result.output.endswith("aaa\nlast\n")
        assert "of 100,000,012 bytes left out" in result.output
        assert len(result.output) < 1100
        exact = await sh(box, "printf '%01000d' 7", max_output=1000)
        assert (len(exact.output), exact.truncated) == (1000, False)
        # What bash has to say on a child that died of a signal is not the command's output and takes none of its room.
        killed = await sh(box, "yes | head -n 500; sh -c 'kill -9 $$'", max_output=1000)
        assert "tcsetattr" not in killed.output
        assert killed.output.startswith("y\n" * 500)
        piped = await sh(box, "yes | head -n 500", max_output=1000)
        assert (piped.output, piped.truncated) == ("y\n" * 500, False)

    within(backend, body)


def test_background_job_neither_blocks_nor_is_lost(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        assert "started" in await out(box, "(until [ -e go ]; do sleep 0.02; done; echo late; echo done >ok) & echo started")
        assert await out(box, "echo now") == "now\n"
        text = await out(box, "touch go; until [ -e ok ]; do sleep 0.02; done; echo end")
        assert text == "late\nend\n"
        assert "Running" not in await out(box, "wait; jobs")

    within(backend, body)


def test_programs_start_with_no_signal_ignored(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        ask = "grep SigIgn /proc/self/status"
        for _ in range(2):
            assert int((await out(box, ask)).split()[-1], 16) & ~LIBRARY_SIGNALS == 0
            await sh(box, "exit")
        assert int((await box.run(ask.split(), timeout=QUICK))[1].split()[-1], 16) & ~LIBRARY_SIGNALS == 0
        assert await out(box, "sh -c 'kill -INT $$; echo survived'; echo $?") == "130\n"

    within(backend, body)


def test_workdir(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "mkdir -p 'a b'")
        result = await box.exec('pwd | sed "s,.*/,,"', timeout=QUICK, workdir="a b")
        assert result.output == "a b\n"
        missing = await box.exec("echo never", timeout=QUICK, workdir="/nosuch")
        assert missing.exit_code == 1
        assert "No such file" in missing.output
        assert "never" not in missing.output

    within(backend, body)


def test_cwd_is_made(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        assert (await out(box, "pwd")).endswith("/project/re po\n")
        assert (await out(box, "touch x && ls")) == "x\n"

    for cwd in ("/project/re po", "project/re po", "~/project/re po", "/../project/./re po/"):
        within(backend, body, cwd=cwd)


def test_cwd_starts_at_the_home_folder(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, '[ "$PWD" = ~/sub ] && echo there; ls -A ~') == "there\nsub\n"

    within(backend, body, cwd="~/sub")
    within(backend, body, cwd="sub")

    async def at_home(box: Sandbox) -> None:
        assert await out(box, '[ "$PWD" = ~ ] && echo there; ls -A ~') == "there\n"

    for cwd in ("", "~", "~/", "."):
        within(backend, at_home, cwd=cwd)


def test_a_cwd_that_cannot_be_is_the_users_error(backend: str) -> None:
    async def body(_: Sandbox) -> None:
        raise AssertionError("it opened")

    impossible = {"x" * 300: "File name too long", "a\0b": "NUL"}
    if backend == "local":
        impossible |= {"../../x": "leads out", "~/../x": "leads out", "..": "leads out"}
    else:
        impossible |= {"/usr/newdir": "'/usr/newdir' cannot be made in the sandbox: Read-only", "/etc/passwd": "File exists"}
    for cwd, words in impossible.items():
        with pytest.raises(UsageError, match=words) as caught:
            within(backend, body, cwd=cwd)
        assert not caught.value.retryable
        assert "\n" not in str(caught.value)
    assert traces() == []


def test_an_edited_module_runs_at_once(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        # Within one second, with the same size: a .pyc of the first version would pass for the second's.
        for number in range(5):
            await box.write_file("m.py", f"VALUE = {number}\n".encode())
            assert await out(box, "python3 -c 'import m; print(m.VALUE)'") == f"{number}\n"
            assert await box.run(["python3", "-c", "import m; print(m.VALUE)"], timeout=QUICK) == (0, f"{number}\n".encode())

    within(backend, body)


def test_refused_and_cleaned_text(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        with pytest.raises(ToolError, match="NUL"):
            await sh(box, "echo a\0b")
        assert await out(box, "echo '\ud800'") == "\ufffd\n"
        with pytest.raises(ToolError):
            await box.run(["echo", "\0"], timeout=QUICK)

    within(backend, body)


def test_calls_queue_up(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        results = await asyncio.gather(*(sh(box, f"echo {i}; sleep 0.01; echo {i}") for i in range(10)))
        assert [result.output for result in results] == [f"{i}\n{i}\n" for i in range(10)]

    within(backend, body)


def test_a_long_command(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        text = "line 'with' \"quotes\"\n" * 20_000
        assert await out(box, f"cat >f <<'END'\n{text}END\nwc -c <f") == f"{len(text)}\n"

    within(backend, body)


# Time limits


@pytest.mark.parametrize(
    "command",
    [
        "sleep 1000; sleep 1000; touch went-on",
        "while true; do :; done; touch went-on",
        "while :; do\n :\ndone\ntouch went-on",
        "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000; done; touch went-on",
        "python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(1000)'; touch went-on",
        "sleep 1000 | cat; touch went-on",
        "x=$(sleep 1000); touch went-on",
        "f() { sleep 1000; touch went-on; }; f; touch went-on",
        "(sleep 1000; touch went-on)",
        "bash -c 'sleep 1000; touch went-on'",
        "trap '' INT; sleep 1000; touch went-on",
        "sleep 1000 & wait; touch went-on",
    ],
)
def test_a_timeout_ends_the_whole_command_and_nothing_else(backend: str, command: str) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "mkdir d; cd d; X=kept; sleep 3210 & JOB=$!")
        result = await sh(box, f"echo partial; {command}", timeout=0.15)
        assert (result.exit_code, result.timed_out, result.session_restarted) == (124, True, False)
        assert result.output.startswith("partial\n")
        after = await sh(box, 'echo $X; pwd | sed "s,.*/,,"; kill -0 $JOB && echo job; ls')
        assert after.output == "kept\nd\njob\n"

    within(backend, body)


def test_a_timeout_reaches_daemons(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        mark = f"4{os.getpid() % 10_000:04}"
        daemons = f"setsid sleep {mark}.1 & (setsid sleep {mark}.2 &); ( (sleep {mark}.3 &) ); setsid sh -c 'sleep {mark}.4 &'"
        command = f"{daemons}; sleep 60"
        assert (await sh(box, command, timeout=0.3)).timed_out
        assert await until(lambda: not alive_with(f"sleep\0{mark}."))
        assert await out(box, "echo ok") == "ok\n"

    within(backend, body)


def test_a_shell_that_cannot_be_aborted_is_replaced(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        result = await sh(box, "trap '' RTMAX; while :; do :; done", timeout=0.1)
        assert (result.exit_code, result.timed_out, result.session_restarted) == (124, True, True)
        assert await out(box, "echo ok") == "ok\n"

    within(backend, body)


def test_cancelling_a_call_ends_its_processes(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        mark = f"5{os.getpid() % 10_000:04}.5"
        task = asyncio.create_task(sh(box, f"sleep {mark}"))
        assert await until(lambda: bool(alive_with(f"sleep\0{mark}")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await until(lambda: not alive_with(f"sleep\0{mark}"))
        result = await sh(box, "echo ok")
        assert (result.output, result.session_restarted) == ("ok\n", True)

    within(backend, body)


# Programs beside the session


def test_run(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "cd /; X=1; export Y=2; exec 2>/dev/null; ls() { echo no; }")
        status, data = await box.run(["sh", "-c", 'echo "$PWD" "$HOME" "$X$Y"; echo err >&2; exit 9'], timeout=QUICK)
        home = data.decode().split()[0]
        assert (status, data.decode()) == (9, f"{home} {home} \n")
        assert await box.run(["cat"], stdin=b"\0\xff" * 100_000, timeout=QUICK) == (0, b"\0\xff" * 100_000)
        assert await box.run(["cat"], timeout=QUICK) == (0, b"")
        assert await box.run(["printf", "%s|", "a b", "'", "", "$x\n"], timeout=QUICK) == (0, b"a b|'||$x\n|")
        assert (await box.run(["nosuchprogram"], timeout=QUICK))[0] == 127
        assert (await box.run(["sh", "-c", "kill -9 $$"], timeout=QUICK))[0] == 137
        assert await box.run(["sh", "-c", "exec >&-; sleep 0.02; exit 4"], timeout=QUICK) == (4, b"")
        assert (await box.run(["true"], stdin=b"x" * 1_000_000, timeout=QUICK))[0] == 0

    within(backend, body)


def test_runs_overlap_and_do_not_wait_for_the_session(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        busy = asyncio.create_task(sh(box, "until [ -e go ]; do sleep 0.02; done; echo released"))
        results = await asyncio.gather(*(box.run(["sh", "-c", f"sleep 0.05; echo {i}"], timeout=QUICK) for i in range(10)))
        assert [data for _, data in results] == [f"{i}\n".encode() for i in range(10)]
        assert not busy.done()
        await box.write_file("go", b"")
        assert (await busy).output == "released\n"

    within(backend, body)


def test_run_is_killed_with_its_children(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        mark = f"6{os.getpid() % 10_000:04}"
        script = f"(setsid sleep {mark}.1 &); sleep {mark}.2 & echo out; sleep {mark}.3"
        await sh(box, f"sleep {mark}.9 &")
        assert await box.run(["sh", "-c", script], timeout=0.3) == (124, b"out\n")
        assert await until(lambda: len(alive_with(f"sleep\0{mark}.")) == 1)
        assert await out(box, "echo ok") == "ok\n"

    within(backend, body)


def test_run_survives_a_timeout_of_the_session(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        program = asyncio.create_task(box.run(["sh", "-c", "(sleep 0.5; echo a) ; echo b"], timeout=QUICK))
        await asyncio.sleep(0)
        assert (await sh(box, "sleep 100", timeout=0.1)).timed_out
        assert await program == (0, b"a\nb\n")

    within(backend, body)


# Files


def test_files(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        data = bytes(range(256)) * 195_000
        await sh(box, "mkdir here; cd here")
        await box.write_file("new/deep er/bin", data)
        assert await box.read_file("new/deep er/bin") == data
        assert await out(box, "ls new/*; wc -c <'new/deep er/bin'") == f"bin\n{len(data)}\n"
        await box.write_file("~/x", b"")
        assert await box.read_file("~/x") == b""
        for name in ("-n", "a'b", "$HOME", "日本", "new\nline", "*"):
            await box.write_file(name, name.encode())
            assert await box.read_file(name) == name.encode()
        await sh(box, "touch script; chmod 755 script; ln -s script link")
        await box.write_file("link", b"#!")
        assert await out(box, "stat -c %a script; cat script; test -L link && echo link") == "755\n#!link\n"

    within(backend, body)


def test_file_errors(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "mkdir d; mkfifo pipe; echo 12345 >file; ln -s loop loop")
        for path, words in {
            "nosuch": "no such file: nosuch",
            "d": "d is a folder",
            "pipe": "not a regular file",
            "/dev/zero": "not a regular file",
            "loop": "no such file",
            "file/x": "no such file",
        }.items():
            with pytest.raises(ToolError, match=words):
                await box.read_file(path)
        with pytest.raises(ToolError, match="larger than 5 bytes"):
            await box.read_file("file", max_bytes=5)
        assert await box.read_file("file", max_bytes=6) == b"12345\n"
        for path, words in {"d": "is a folder", "file/x": "cannot write file/x: ", "/proc/x/y": "cannot write"}.items():
            with pytest.raises(ToolError, match=words):
                await box.write_file(path, b"x")
        for path in ("", "a\0b"):
            with pytest.raises(ToolError):
                await box.read_file(path)
        await sh(box, "mkdir gone; cd gone; rmdir ../gone")
        with pytest.raises(ToolError, match="working folder"):
            await box.read_file("x")

    within(backend, body)


# Apart from each other and the host


def test_two_sandboxes_and_the_host_are_apart(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")

    async def main() -> None:
        first, second = await asyncio.gather(open_sandbox(settings(backend)), open_sandbox(settings(backend)))
        try:
            await sh(first, 'echo secret >~/x; echo secret >"$TMPDIR/x"; export LEAK=1; sleep 7777 &')
            assert await out(second, 'cat ~/x "$TMPDIR/x" 2>/dev/null; echo "$LEAK"') == "\n"
            environment = await out(second, "env; tr '\\0' '\\n' </proc/self/environ; tr '\\0' '\\n' </proc/$PPID/environ")
            assert "sk-very-secret" not in environment
            assert "KISEKI" not in environment
            names = {line.partition("=")[0] for line in (await out(second, "env")).splitlines()}
            assert names <= {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "USER", "PYTHONDONTWRITEBYTECODE", "PWD", "SHLVL", "_"}
            if backend == "bubblewrap":
                await sh(first, "echo secret >/tmp/x")
                assert await out(second, "cat /tmp/x 2>/dev/null; ls /tmp") == ""
                assert "sleep" not in await out(second, "cat /proc/[0-9]*/comm")
                assert not Path("/tmp/x").exists() or "secret" not in Path("/tmp/x").read_text()
        finally:
            await asyncio.gather(first.close(), second.close())

    asyncio.run(main())


def test_closing_ends_what_is_pending(backend: str) -> None:
    """In every order in which the loop may come to it: many at once, so that a race shows."""
    troubles: list[object] = []

    async def one() -> None:
        box = await open_sandbox(settings(backend))
        pending = [sh(box, "sleep 1000"), sh(box, "sleep 1000"), box.run(["sleep", "1000"], timeout=60)]
        tasks = [asyncio.create_task(each) for each in pending]
        await asyncio.sleep(0.02)
        await box.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        troubles.extend(each for each in ended if not isinstance(each, SandboxError))

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
        for _ in range(4):
            await asyncio.gather(*(one() for _ in range(10)))

    asyncio.run(main())
    assert troubles == []


def test_close_leaves_nothing(backend: str) -> None:
    async def main() -> None:
        mark = f"8{os.getpid() % 10_000:04}"
        box = await open_sandbox(settings(backend))
        await sh(box, f"sleep {mark}.1 & (setsid nohup sleep {mark}.2 >/dev/null 2>&1 &); mkdir -p a/b; touch a/b/c; chmod 0 a")
        pending = asyncio.create_task(sh(box, f"sleep {mark}.3"))
        assert await until(lambda: len(alive_with(f"sleep\0{mark}.")) == 3)
        await box.close()
        await box.close()
        with pytest.raises(SandboxError):
            await pending
        assert alive_with(f"sleep\0{mark}.") == []
        assert traces() == []
        assert not await box.healthy()
        with pytest.raises(SandboxError):
            await sh(box, "echo x")
        with pytest.raises(SandboxError):
            await box.read_file("x")

    before = {entry.name for entry in os.scandir("/proc/self/fd")}
    asyncio.run(main())
    assert {entry.name for entry in os.scandir("/proc/self/fd")} <= before


def test_folders_of_any_depth_are_removed(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, f"mkdir -p {'d/' * 1900} && chmod 0 d && echo made") == "made\n"

    within(backend, body)
    assert traces() == []


def test_closing_while_it_opens_leaves_nothing(backend: str) -> None:
    async def main() -> None:
        for pause in (0, 0.001, 0.003, 0.006, 0.01, 0.02):
            task = asyncio.create_task(open_sandbox(settings(backend)))
            await asyncio.sleep(pause)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await (await task).close()
        assert traces() == []

    asyncio.run(main())


def test_a_dead_sandbox_is_an_infrastructure_failure(backend: str) -> None:
    async def main() -> None:
        box = await open_sandbox(settings(backend))
        assert await box.healthy()
        folder = next((folders.base() / LABEL).iterdir())
        cookie = f"{folder}".encode()
        mine = [
            pid for pid in processes.descendants(os.getpid()) if backend == "bubblewrap" or cookie in processes.environment(pid)
        ]
        task = asyncio.create_task(sh(box, "sleep 100"))
        await asyncio.sleep(0.05)
        processes.send(mine, 9)
        with pytest.raises(SandboxError):
            await task
        with pytest.raises(SandboxError):
            await sh(box, "echo x")
        assert not await box.healthy()
        await box.close()
        assert traces() == []

    asyncio.run(main())


def test_no_image_is_run_elsewhere(backend: str) -> None:
    with pytest.raises(ImageError, match="python:3"):
        asyncio.run(open_sandbox(settings(backend), image="python:3"))


def test_a_late_start_is_an_error_and_leaves_nothing(backend: str) -> None:
    async def main() -> None:
        with pytest.raises(SandboxTimeout, match="did not start within"):
            await open_sandbox(msgspec.structs.replace(settings(backend), start_timeout=0.0001))
        assert traces() == []

    asyncio.run(main())


# Limits


def test_limits_end_as_results(backend: str) -> None:
    async def body(box: Sandbox) -> None:
        said = box.describe()
        big = await sh(box, "head -c 60000000 /dev/zero >big; echo $?")
        assert big.output.split()[-1] != "0"
        await sh(box, "rm -f big")
        if said["memory"] != "not limited":
            hog = await sh(box, "python3 -c 'x = bytearray(300_000_000)'; echo $?")
            assert hog.output.split()[-1] != "0"
        if said["processes"] != "not limited":
            bomb = await sh(box, "bomb() { bomb | bomb & }; bomb; sleep 0.3; wait", timeout=1.5)
            assert isinstance(bomb, ExecResult)
            assert await until_works(box)

    within(backend, body, limits=Limits(memory_mb=128, processes=40, disk_mb=50))


async def until_works(box: Sandbox) -> bool:
    for _ in range(20):
        result = await sh(box, "/bin/echo alive", timeout=0.5)
        if result.output.endswith("alive\n"):
            return True
    return False
