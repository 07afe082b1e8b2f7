"""Ends what MCP servers on this machine would leave behind when this process is killed, or has lost sight of a program of theirs.

A server that takes no notice of the end of its stdin would go on for ever. So each process with servers has a small shell beside
it, which waits for a pipe to close, as the kernel does whatever end the process comes to, and kills whatever has the mark.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import secrets
import subprocess

NAME = "KISEKI_SERVER_OF"
"""In the environment of each server, and so of all that it starts, in whatever process group."""
_END_SECONDS = 5.0
"""For the watchdog at this process's orderly end; it takes milliseconds."""
_WATCH = """
read -r orderly || killed=1
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  found=$(grep -lsF -- "$1" /proc/[0-9]*/environ)
  if [ -z "$found" ]; then
    [ -n "$killed" ] || exit 0
    killed=
    sleep 1  # one that was just being started has the mark by then
  fi
  for each in $found; do each=${each#/proc/}; kill -KILL "${each%/environ}"; done
done"""


def mark() -> dict[str, str]:
    """What a server's environment has to have. Starts the watchdog where there is none yet; raises `OSError` when it cannot."""
    return {NAME: _watched(os.getpid())}


@functools.lru_cache(1)
def _watched(pid: int) -> str:
    value = f"{pid}-{secrets.token_hex(8)}"
    process = subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "sh", f"{NAME}={value}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ.get("PATH", os.defpath)},
        start_new_session=True,  # what ends this process by its group does not end that one
    )
    atexit.register(_end, process, pid)
    return value


def _end(process: subprocess.Popen[bytes], pid: int) -> None:
    if os.getpid() == pid:  # not in a process that was forked off
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            process.communicate(b"end\n", timeout=_END_SECONDS)
