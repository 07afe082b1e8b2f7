"""Pushes to a stand-in for the Hub, in this process or as a user starts them, and what `datasets` then reads."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hub_uploads import TOKEN, UploadHub
from support import FAST, environment, kiseki, light_tools, write_dataset

from kiseki.commands.main import main


def make_run(folder: Path, name: str, rows: list[Any], *more: str) -> Path:
    write_dataset(folder / f"{name}.jsonl", rows)
    flags = ("--batch_size=2", f"--run_name={name}", "--model=builtin/practice", *light_tools(folder), *FAST, *more)
    kiseki("batch", f"--dataset_file={name}.jsonl", *flags, cwd=folder)
    return folder / "data" / name


def hub_environment(hub: UploadHub, folder: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder / "hf")}


def start_push(hub: UploadHub, folder: Path, *flags: str, to: str = "org/mine", status: int = 0, **more: str) -> str:
    """`kiseki push` in a process of its own. What it says."""
    done = kiseki("push", to, *flags, cwd=folder, status=status, **(hub_environment(hub, folder) | more))
    return checked(done.stdout + done.stderr)


def push(hub: UploadHub, folder: Path, *flags: str, to: str = "org/mine", status: int = 0, **more: str) -> str:
    """The same in this process, which has the library already: a tenth of the time."""
    with asking(hub.address) as patch, redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        for name, value in {"HF_TOKEN": TOKEN, "COLUMNS": "200", **more}.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        ended = main(["push", to, *flags])
    said = checked(out.getvalue() + errors.getvalue())
    assert ended == status, said
    return said


@contextmanager
def asking(address: str) -> Iterator[pytest.MonkeyPatch]:
    """The library asks the Hub there. It reads these variables when it is imported, which it may be already."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", address)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}")
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield patch


def checked(said: str) -> str:
    assert TOKEN not in said
    assert "Traceback" not in said
    return said


def load(hub: UploadHub, folder: Path, code: str) -> Any:
    """What `datasets` gives for an expression."""
    pytest.importorskip("datasets")
    script = f"import json, datasets\ndatasets.disable_progress_bars()\nprint(json.dumps({code}))"
    variables = environment(**hub_environment(hub, folder))
    done = subprocess.run([sys.executable, "-c", script], env=variables, capture_output=True, text=True, cwd=folder, check=True)
    return json.loads(done.stdout)


def front_matter(card: str) -> dict[str, Any]:
    front = yaml.safe_load(card.split("---\n")[1])
    assert isinstance(front, dict)
    return front
