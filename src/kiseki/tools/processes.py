"""Background processes inside a sandbox, by means of `Sandbox.run` and POSIX sh alone, so that every backend has them.

Each process has a folder in the sandbox's temporary folder: `command`, `log` (its output), `in` (a fifo, its stdin), `status`
(its exit code, written when it has ended). A small supervising shell, in a session of its own, starts the command, keeps the
fifo open and writes the status. The variable KISEKI_PROCESS marks the command's whole tree, so that a kill also finds what
left the process group. The programs take their values as arguments and read text from stdin, never by quoting.
"""

from __future__ import annotations

import msgspec

from kiseki.errors import SandboxError, ToolError
from kiseki.sandboxes.base import Sandbox
from kiseki.trajectory.text import cut_middle

GRACE_TICKS = 40
"""A killed process has this many times 0.05 s to end after SIGTERM, then comes SIGKILL."""
CALL_SECONDS = 30.0
"""For one of the programs below; they do little, but a busy machine is slow."""
WRITE_SECONDS = 10.0
"""A process that does not read its stdin fills the pipe (64 KiB); then the write is given up."""
PAGE_BYTES = 1_000_000
"""Of one page of the log that leaves the sandbox, before it is cut to the result's limit."""
END_OF_INPUT = "\x04"

_SUPERVISE = r"""
exec 3<>"$1/in"
trap 'exec 3>&-' USR1
trap : TERM
if [ "$(wc -c <"$1/command")" -lt 100000 ]; then
  "$2" -c "$(cat "$1/command")" "${2##*/}" <"$1/in" >"$1/log" 2>&1 3>&- &
else
  "$2" "$1/command" <"$1/in" >"$1/log" 2>&1 3>&- &
fi
child=$!
while :; do
  wait "$child"; status=$?
  kill -0 "$child" 2>/dev/null || break
done
printf %s "$status" >"$1/status.new" && mv -f "$1/status.new" "$1/status"
"""
# $1 the supervisor's program, $2 the folder to start in; stdin: the command. Prints the process's folder and id.
_START = r"""
exec 2>&1
dir=$(mktemp -d "${TMPDIR:-/tmp}/.process.XXXXXX") && cat >"$dir/command" && : >"$dir/log" && mkfifo "$dir/in" || exit 1
cd "$2" || exit 1
shell=$(command -v bash || command -v sh)
KISEKI_PROCESS=${dir##*/}; export KISEKI_PROCESS
if command -v setsid >/dev/null; then
  setsid sh -c "$1" sh "$dir" "$shell" </dev/null >/dev/null 2>&1 &
  printf '%s\n%s\n' "$!" "$dir"
else
  set -m 2>/dev/null
  sh -c "$1" sh "$dir" "$shell" </dev/null >/dev/null 2>&1 &
  printf '%s\n%s\n' "$!" "$dir"
fi
"""
# The end may come between two looks: the status is read again once the process is seen to be gone. A killed process whose
# parent does not care stays in the table as a zombie.
_STATE = r"""
there() {
  kill -0 "$1" 2>/dev/null && { ! read -r stat <"/proc/$1/stat" || case $stat in *") Z "*) false ;; esac; } 2>/dev/null
}
state() {
  if [ -f "$1/status" ]; then cat "$1/status"
  elif there "$2"; then printf running
  elif [ -f "$1/status" ]; then cat "$1/status"
  else printf lost
  fi
}
"""
_LIST = _STATE + r"""while [ $# -gt 1 ]; do state "$1" "$2"; echo; shift 2; done"""
# $1 folder, $2 id, $3 bytes already seen, $4 half of the most bytes to give, $5 ticks of 0.05 s to wait for the end.
_POLL = (
    _STATE
    + r"""
tick=0
while [ "$tick" -lt "$5" ] && [ ! -f "$1/status" ] && there "$2"; do
  if [ "$tick" -lt 20 ]; then nap=0.05 more=1; else nap=0.25 more=5; fi
  sleep "$nap" 2>/dev/null || { sleep 1; more=20; }
  tick=$((tick + more))
done
state "$1" "$2"
size=$(($(wc -c <"$1/log")))
echo " $size"
if [ $((size - $3)) -le $(($4 * 2)) ]; then tail -c "+$(($3 + 1))" "$1/log" | head -c $((size - $3))
else
  tail -c "+$(($3 + 1))" "$1/log" | head -c "$4"
  tail -c "+$((size - $4 + 1))" "$1/log" | head -c "$4"
fi
"""
)
# $1 folder, $2 id, $3 first line from 1, or 0 for the last ones, $4 lines, $5 most bytes.
_LOG = (
    _STATE
    + r"""
total=$(grep -ac '' "$1/log" 2>/dev/null || sed -n '$=' "$1/log")
total=$((${total:-0}))
first=$3
if [ "$first" -eq 0 ]; then first=$((total - $4 + 1)); fi
if [ "$first" -lt 1 ]; then first=1; fi
state "$1" "$2"
echo " $total $first"
sed -n "$first,$((first + $4 - 1))p" "$1/log" | head -c "$5"
"""
)
# $1 folder, $2 id, $3 ticks of 0.05 s between SIGTERM and SIGKILL.
_KILL = (
    _STATE
    + r"""
before=$(state "$1" "$2")
there "$2" && group=1 || group=
marked() { grep -ls "KISEKI_PROCESS=${dir##*/}" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3; }
signal() {
  if [ "$group" ]; then kill "-$1" "-$pid" 2>/dev/null; fi
  for each in $(marked); do kill "-$1" "$each" 2>/dev/null; done
}
alive() { { [ "$group" ] && kill -0 "-$pid" 2>/dev/null; } || [ "$(marked)" ]; }
dir=$1 pid=$2
await_end() {
  tick=0
  while [ "$tick" -lt "$1" ] && alive; do
    sleep 0.05 2>/dev/null || { sleep 1; tick=$((tick + 19)); }
    tick=$((tick + 1))
  done
}
signal TERM
await_end "$3"
if alive; then signal KILL; await_end 40; fi
if [ ! -f "$1/status" ]; then printf 137 >"$1/status"; fi
printf '%s %s' "$before" "$(cat "$1/status")"
"""
)
# $1 folder, $2 id, $3 "close" to end the input after what stdin holds.
_WRITE = (
    _STATE
    + r"""
now=$(state "$1" "$2")
if [ "$now" = running ]; then
  cat 1<>"$1/in"
  if [ "$3" = close ]; then kill -USR1 "$2"; fi
fi
printf %s "$now"
"""
)


class Process(msgspec.Struct):
    """One background process, as the rollout remembers it."""

    session_id: str
    command: str
    folder: str
    """In the sandbox; never told to the model."""
    pid: str
    seen: int = 0
    """Bytes of the log that were given to the model."""
    closed: bool = False
    """Its stdin was ended."""
    killed: bool = False


class State(msgspec.Struct, frozen=True):
    status: str
    """running, exited, killed or lost."""
    exit_code: int | None


def _state(process: Process, word: str) -> State:
    if word.lstrip("-").isdigit():
        return State("killed" if process.killed else "exited", int(word))
    return State(word or "lost", None)


async def _program(sandbox: Sandbox, text: str, *arguments: str, timeout: float = CALL_SECONDS, stdin: bytes = b"") -> bytes:
    status, output = await sandbox.run(["sh", "-c", text, "sh", *arguments], timeout=timeout, stdin=stdin)
    if status != 0 and not output:
        raise SandboxError(f"a program of the process tool ended with status {status}")
    return output


async def start(sandbox: Sandbox, session_id: str, command: str, folder: str, variables: dict[str, str]) -> Process:
    """Start `command` in `folder`. Raises `ToolError` when that cannot be."""
    environment = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
    argv = [*environment, "sh", "-c", _START, "sh", _SUPERVISE, folder]
    status, output = await sandbox.run(argv, timeout=CALL_SECONDS, stdin=command.encode())
    text = output.decode("utf-8", "replace")
    pid, _, place = text.strip().partition("\n")
    if status != 0 or not pid.isdigit():
        raise ToolError(f"the command could not be started in {folder}: {text.strip() or f'status {status}'}")
    return Process(session_id, command, place, pid)


async def states(sandbox: Sandbox, processes: list[Process]) -> list[State]:
    arguments = [each for process in processes for each in (process.folder, process.pid)]
    words = (await _program(sandbox, _LIST, *arguments)).decode().split("\n") if processes else []
    return [_state(process, word) for process, word in zip(processes, words, strict=False)]


async def poll(sandbox: Sandbox, process: Process, wait: float, max_bytes: int) -> tuple[State, str, bool]:
    """State, the output since the last poll, and whether its middle was cut. Waits up to `wait` seconds for the end."""
    half = max_bytes // 2
    ticks = round(wait / 0.05)
    arguments = (process.folder, process.pid, str(process.seen), str(half), str(ticks))
    answer = await _program(sandbox, _POLL, *arguments, timeout=2 * wait + CALL_SECONDS)
    line, _, data = answer.partition(b"\n")
    word, _, size = line.decode().partition(" ")
    state = _state(process, word)
    new = int(size) - process.seen
    torn = _torn_tail(data) if state.status == "running" else 0
    process.seen = int(size) - torn
    data = data[: len(data) - torn]
    return state, cut_middle(data, 2 * half, total=new - torn).decode("utf-8", "replace"), new > 2 * half


async def log(sandbox: Sandbox, process: Process, first: int, lines: int, max_bytes: int) -> tuple[State, str, int, int, bool]:
    """State, one page of the whole output, the number of its first line, how many lines there are, whether it was cut."""
    arguments = (process.folder, process.pid, str(first), str(lines), str(PAGE_BYTES))
    line, _, data = (await _program(sandbox, _LOG, *arguments)).partition(b"\n")
    word, total, begin = line.decode().split(" ")
    text = cut_middle(data, max_bytes).decode("utf-8", "replace")
    return _state(process, word), text, int(begin), int(total), len(data) > max_bytes


async def kill(sandbox: Sandbox, process: Process) -> tuple[State, bool]:
    """End the whole tree. The state then, and whether the process had ended before."""
    answer = await _program(sandbox, _KILL, process.folder, process.pid, str(GRACE_TICKS))
    before, _, after = answer.decode().partition(" ")
    process.killed = process.killed or before == "running"
    return _state(process, after), before != "running"


async def write(sandbox: Sandbox, process: Process, data: str) -> State:
    """Give `data` to its stdin exactly; a last Ctrl-D (U+0004) ends the input. Raises `ToolError` when it does not read."""
    text, close = (data[:-1], "close") if data.endswith(END_OF_INPUT) else (data, "")
    arguments = ["sh", "-c", _WRITE, "sh", process.folder, process.pid, close]
    status, answer = await sandbox.run(arguments, timeout=WRITE_SECONDS, stdin=text.encode())
    if status != 0 or not answer:
        raise ToolError(
            f"{process.session_id} did not take the whole input within {WRITE_SECONDS:g} s: it does not read its stdin"
        )
    state = _state(process, answer.decode())
    process.closed = process.closed or (bool(close) and state.status == "running")
    return state


def _torn_tail(data: bytes) -> int:
    """How many bytes at the end are a character that is not yet whole."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
            return back if length > back else 0
    return 0
