"""Running the doctor's programs: what uses a consumer's own libraries does it in a process of its own, without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO


def start(module: str, argument: str, scratch: Path, stderr: IO[bytes]) -> subprocess.Popen[bytes]:
    """`python -m module argument`, offline, with the caches of all libraries in `scratch`."""
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
    command: Sequence[str] = (sys.executable, "-m", module, argument)
    return subprocess.Popen(
        command, env=environment, cwd=scratch, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr
    )


def last_words(stderr: IO[bytes]) -> str:
    """The last line that a program wrote to its stderr, which was a file."""
    stderr.seek(0, os.SEEK_END)
    stderr.seek(max(stderr.tell() - 4096, 0))
    lines = stderr.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
