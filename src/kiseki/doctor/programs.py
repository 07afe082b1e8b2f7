"""Running the doctor's programs: what uses a consumer's own libraries does it in a process of its own, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO


def start(module: str, job: bytes, scratch: Path, stderr: IO[bytes], *, asked: bool = False) -> subprocess.Popen[bytes]:
    """`python -m module FILE`, offline, with the caches of all libraries in `scratch`.

    job: What the file has, which may be longer than an argument can be. asked: Whether its stdin is a pipe; else it is empty.
    """
    caches = ("HF_HOME", "HF_DATASETS_CACHE", "MODELSCOPE_CACHE", "TMPDIR", "XDG_CACHE_HOME")
    offline = (
        "HF_HUB_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_HUB_DISABLE_TELEMETRY",
        "DISABLE_VERSION_CHECK",
    )
    more = {
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "WANDB_MODE": "disabled",
    }
    environment = os.environ | dict.fromkeys(caches, str(scratch)) | dict.fromkeys(offline, "1") | more
    if found := environment.get("PYTHONPATH"):  # it may be relative, and the program runs elsewhere
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, found.split(os.pathsep)))
    handle, file = tempfile.mkstemp(".job", dir=scratch)
    with open(handle, "wb") as opened:
        opened.write(job)
    command: Sequence[str] = (sys.executable, "-m", module, file)
    stdin = subprocess.PIPE if asked else subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, cwd=scratch, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)


def last_words(stderr: IO[bytes]) -> str:
    """The last line that a program wrote to its stderr, which was a file."""
    stderr.seek(0, os.SEEK_END)
    stderr.seek(max(stderr.tell() - 4096, 0))
    lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
