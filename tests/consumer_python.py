"""Environments with the code of those that read our exports (`make consumers`), and programs that run in them.

They lie in the tests' own virtual environment: `consumers` has the trainers, `datasets3` an older major of the datasets library.
A test that needs one is skipped where it is missing, and fails with KISEKI_REQUIRE_ENGINES set.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from support import environment

Environment = Literal["this", "consumers", "datasets3"]
"""`this`: the tests' own."""
SECONDS = 500
"""A bound for one program; none comes near it."""


def python_of(name: Environment) -> Path:
    """The environment's interpreter."""
    if name == "this":
        return Path(sys.executable)
    folder = Path(sys.prefix) / name
    if not (folder / "installed").exists():
        lacking = f"there is no {folder}: `make consumers` installs the trainers' own code there"
        if os.environ.get("KISEKI_REQUIRE_ENGINES"):
            pytest.fail(f"{lacking}, and KISEKI_REQUIRE_ENGINES is set")
        pytest.skip(lacking)
    return folder / "bin" / "python"


def consumer_environment(scratch: Path) -> dict[str, str]:
    """Variables for its programs: nothing from the network, caches in `scratch`, one thread."""
    own = environment(
        HF_HUB_OFFLINE="1",
        HF_HOME=str(scratch / "huggingface"),
        MODELSCOPE_CACHE=str(scratch / "modelscope"),
        TOKENIZERS_PARALLELISM="false",
        OMP_NUM_THREADS="1",
    )
    own.pop("PYTHONDONTWRITEBYTECODE", None)  # half of the time goes into compiling their packages otherwise
    own.pop("PYTHONPATH", None)
    return own


def ask(name: Environment, program: Path, *arguments: object, scratch: Path) -> list[dict[str, Any]]:
    """Run a program to its end: the JSON lines that it prints."""
    command = [str(python_of(name)), str(program), *map(str, arguments)]
    scratch.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command, cwd=scratch, env=consumer_environment(scratch), capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-6000:])
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def once(name: str, folder: Path, make: Callable[[Path], Any]) -> Any:
    """What `make` gives, as JSON, made by the first of the session's workers that asks for it.

    folder: What pytest's workers have in common: `tmp_path_factory.getbasetemp().parent`. `make` gets a folder of its own in it.
    """
    own = folder / f"once-{name}"
    own.mkdir(exist_ok=True)
    with (own / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = own / "said.json"
        if not said.exists():
            made = json.dumps(make(own))
            said.write_text(made)
        return json.loads(said.read_text())
