"""Shells in a machine (see machine.py): the lines that start one and make it say who it is."""

from __future__ import annotations

import re
import shlex

from kiseki.sandboxes.programs import SESSION
from kiseki.sandboxes.streams.machine import Stream

BOOT = 'IFS= read -r kiseki; eval "$kiseki"'
"""Silent until it is spoken to, and takes not a byte more than its line: what comes after it is for the shell that it becomes."""
HOME = ': "${HOME:=/}"; mkdir -p "$HOME" 2>/dev/null; cd "$HOME" 2>/dev/null || { HOME=/tmp; cd /tmp; }; export HOME'
FIND_BASH = "kiseki_shell=sh; command -v bash >/dev/null 2>&1 && bash -c : 2>/dev/null </dev/null && kiseki_shell=bash"
BECOME = f"[ $kiseki_shell = sh ] || exec {shlex.join(SESSION['bash'])}; exec {shlex.join(SESSION['sh'])}"
HELLO = r"""printf '\036%s%s:%s:%s\000' @nonce@ "$$" "${kiseki_shell-}" "$HOME" """
CLOCK = r"""sh -c 'IFS= read -r stat </proc/$$/stat; printf "\036%s%s\000" @nonce@ "$stat"' </dev/null"""
"""The line of a new process in the process table, which says when it was started. /proc/uptime may be another clock, in LXC."""
NO_PROCESS = re.compile("unable to start container process|temporarily unavailable|can't fork|cannot fork|cannot allocate", re.I)
"""In what engines say where a machine runs and has no process to spare; the first one is runc's, whatever the cause."""


class Shell:
    """A shell in the machine, and its process number there."""

    def __init__(self, stream: Stream, said: str) -> None:
        pid, self.kind, self.home = said.split(":", 2)
        self.stream = stream
        self.kept = False
        """It has done a job before, and may have died since without our knowing."""
        self.pid = int(pid)
