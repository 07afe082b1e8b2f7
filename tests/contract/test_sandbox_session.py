"""The shell session that every sandbox must give, with real processes; one suite for all backends."""

from __future__ import annotations

import asyncio

import pytest
from contract.backends import PYTHON, SHELLS, Place, only, places
from contract.opening import QUICK, forget_peak, out, peak_memory, sh, within

from kiseki.errors import ToolError
from kiseki.sandboxes.base import Sandbox

place = places(*SHELLS)

LIBRARY_SIGNALS = 1 << (32 - 1) | 1 << (33 - 1)
"""The C library's own. A program that GNU make 4.3 starts is left with both ignored, and nothing below it can change that."""
LOST = {
    "exit 3": 3,
    "exec true": 0,
    "exec sh -c 'exit 5'": 5,
    "kill -9 $$": 137,
    "set -e; false": 1,
    "set -e; (exit 6); echo never": 6,
}
"""Commands that end their shell, and the status that they end with."""
ANY = [
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
]
"""Commands that a shell may not survive, or not whole."""


def test_state_persists_between_calls(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "mkdir -p d; cd d; export A='x y'; B=2; f() { echo \"f $1\"; }; alias ll='echo aliased'")
        assert await out(box, 'pwd | sed "s,.*/,,"; echo "$A" $B; f 3; sh -c \'echo "$A"\'') == "d\nx y 2\nf 3\nx y\n"
        assert await out(box, "ll") == "aliased\n"
        for separators in (",", "0123456789", ""):
            await sh(box, f"IFS='{separators}'")
            assert await out(box, 'echo "$A"') == "x y\n", separators

    within(place, body)


def test_exit_codes_and_interleaved_output(place: Place) -> None:
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

    within(place, body)


def test_stdin_is_empty(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, 'cat; read x; echo "$?$x"') == "1\n"
        assert await out(box, "sh -c 'wc -c'; head -n 1") == "0\n"

    within(place, body)


def test_a_lost_shell_gives_its_status_and_is_replaced(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        for command, status in LOST.items():
            await sh(box, "mkdir -p kept; cd kept; X=1")
            result = await sh(box, f"echo before; {command}")
            assert (result.output, result.exit_code, result.session_restarted) == ("before\n", status, True), command
            after = await sh(box, 'echo "${X-gone}"; pwd | sed "s,.*/,,"')
            assert (after.output, after.session_restarted) == ("gone\nkept\n", False), command

    within(place, body)


def test_after_any_command_the_next_works(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        for command in ANY:
            mute = command in place.mute
            first = await sh(box, command, timeout=0.3 if mute else QUICK)
            assert first.timed_out == mute, command
            second = await sh(box, "echo alive; (exit 4)")
            assert "alive\n" in second.output, command
            assert (second.exit_code, second.timed_out, second.session_restarted) == (4, False, False), command
            # A shell of its own for each.
            assert (await sh(box, "cd ~; exit")).session_restarted, command

    within(place, body)


def test_output_of_a_command_cannot_fake_its_end(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        forged = await sh(box, r"printf '\036%s0:/\000' 0123456789abcdef; echo x; cat /proc/$$/cmdline | tr -d '\0'; echo end")
        assert "\x1e0123456789abcdef0:/\x00x\n" in forged.output
        assert forged.output.endswith("end\n")
        assert await out(box, "echo next") == "next\n"

    within(place, body)


def test_binary_output(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        result = await sh(box, r"printf '\000\001\377\376ok\303'; printf '\251\n'")
        assert result.output == "\x00\x01\ufffd\ufffdoké\n"

    within(place, body)


def test_much_output_keeps_head_and_tail(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        forget_peak()
        before = peak_memory()
        result = await sh(box, "echo first; head -c 100000000 /dev/zero | tr '\\0' a; echo; echo last", max_output=1000)
        assert result.truncated
        assert result.output.startswith("first\naaa")
        assert result.output.endswith("aaa\nlast\n")
        assert "of 100,000,012 bytes left out" in result.output
        assert len(result.output) < 1100
        assert peak_memory() - before < place.held_bytes
        exact = await sh(box, "printf '%01000d' 7", max_output=1000)
        assert (len(exact.output), exact.truncated) == (1000, False)
        # What bash says of its terminal when a child died of a signal is not the command's output and takes none of its room.
        room = 1000 + place.death_notice
        killed = await sh(box, "yes | head -n 500; sh -c 'kill -9 $$'", max_output=room)
        assert "tcsetattr" not in killed.output
        assert killed.output.startswith("y\n" * 500)
        piped = await sh(box, "yes | head -n 500", max_output=1000)
        assert (piped.output, piped.truncated) == ("y\n" * 500, False)

    within(place, body)


def test_a_very_long_line(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        forget_peak()
        before = peak_memory()
        result = await sh(box, f"head -c {place.long_line} /dev/zero | tr '\\0' a", timeout=120, max_output=1000)
        assert (result.exit_code, result.timed_out, result.truncated) == (0, False, True)
        assert result.output.startswith("aaa")
        assert f"of {place.long_line:,} bytes left out" in result.output
        assert peak_memory() - before < place.held_bytes
        assert await out(box, "echo next") == "next\n"

    within(place, body)


def test_background_job_neither_blocks_nor_is_lost(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        assert "started" in await out(box, "(until [ -e go ]; do sleep 0.02; done; echo late; echo done >ok) & echo started")
        assert await out(box, "echo now") == "now\n"
        text = await out(box, "touch go; until [ -e ok ]; do sleep 0.02; done; echo end")
        assert text == "late\nend\n"
        assert "Running" not in await out(box, "wait; jobs")

    within(place, body)


def test_programs_start_with_no_signal_ignored(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        ask = "grep SigIgn /proc/self/status"
        for _ in range(2):
            assert int((await out(box, ask)).split()[-1], 16) & ~LIBRARY_SIGNALS == 0
            await sh(box, "exit")
        assert int((await box.run(ask.split(), timeout=QUICK))[1].split()[-1], 16) & ~LIBRARY_SIGNALS == 0
        assert await out(box, "sh -c 'kill -INT $$; echo survived'; echo $?") == "130\n"

    within(place, body)


def test_workdir(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "mkdir -p 'a b'")
        result = await box.exec('pwd | sed "s,.*/,,"', timeout=QUICK, workdir="a b")
        assert result.output == "a b\n"
        missing = await box.exec("echo never", timeout=QUICK, workdir="/nosuch")
        assert missing.exit_code == place.cannot_enter
        assert "No such file" in missing.output
        assert "never" not in missing.output

    within(place, body)


@only(*PYTHON)  # It is about python3, which the other backends' images have not.
def test_an_edited_module_runs_at_once(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        # Within one second, with the same size: a .pyc of the first version would pass for the second's.
        for number in range(5):
            await box.write_file("m.py", f"VALUE = {number}\n".encode())
            assert await out(box, "python3 -c 'import m; print(m.VALUE)'") == f"{number}\n"
            assert await box.run(["python3", "-c", "import m; print(m.VALUE)"], timeout=QUICK) == (0, f"{number}\n".encode())

    within(place, body)


def test_refused_and_cleaned_text(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        with pytest.raises(ToolError, match="NUL"):
            await sh(box, "echo a\0b")
        assert await out(box, "echo '\ud800'") == "\ufffd\n"
        with pytest.raises(ToolError):
            await box.run(["echo", "\0"], timeout=QUICK)

    within(place, body)


def test_calls_queue_up(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        results = await asyncio.gather(*(sh(box, f"echo {i}; sleep 0.01; echo {i}") for i in range(10)))
        assert [result.output for result in results] == [f"{i}\n{i}\n" for i in range(10)]

    within(place, body)


def test_a_long_command(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        text = "line 'with' \"quotes\"\n" * 20_000
        assert await out(box, f"cat >f <<'END'\n{text}END\nwc -c <f") == f"{len(text)}\n"

    within(place, body)
