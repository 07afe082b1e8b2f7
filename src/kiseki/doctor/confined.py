"""Rendering through a stranger's chat template in a process of its own, which bounds its time and memory
(`confined_program.py`)."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from kiseki.doctor.confined_program import Asked, Confinement, Rendered
from kiseki.doctor.programs import last_words, start
from kiseki.doctor.templates import Template, TemplateRaised
from kiseki.errors import UsageError
from kiseki.trajectory.json_rows import encode_row

SECONDS = 20
"""Of processor time for a row: a thousand times what long ones take."""
MEGABYTES = 2048


class TemplateStopped(Exception):
    """A template ran into a bound; it renders nothing more."""


class Confined:
    """A `Render`. Its process ends with `close`."""

    def __init__(self, template: Template, scratch: Path, seconds: int = SECONDS, megabytes: int = MEGABYTES) -> None:
        """Raises `UsageError` where it is no Jinja template, also where compiling it runs into a bound."""
        self._template, self._seconds = template, seconds
        self._stderr = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - `close` closes it
        job = msgspec.json.encode(Confinement(template, seconds, megabytes))
        self._process = start("kiseki.doctor.confined_program", job, scratch, self._stderr, asked=True)
        try:
            made = self._answer()
        except TemplateStopped as stopped:
            self.close()
            raise UsageError(f"{template.name} cannot be compiled: {stopped}") from None
        if made.error:
            self.close()
            raise UsageError(made.error)

    def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, more: dict[str, Any]) -> str:
        """Raises `TemplateRaised` and `TemplateStopped`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(encode_row(Asked(messages, tools, more)) + b"\n")
            self._process.stdin.flush()
        made = self._answer()
        if made.error:
            raise TemplateRaised(made.error)
        return made.text

    def _answer(self) -> Rendered:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.endswith(b"\n"):
            made = msgspec.json.decode(line, type=Rendered)
            if made.stopped:
                raise TemplateStopped(made.stopped)
            return made
        status = self._process.wait()
        if status in (-signal.SIGXCPU, -signal.SIGKILL):
            raise TemplateStopped(f"it runs for more than {self._seconds} s")
        raise TemplateStopped(f"its process ended with {status}: {last_words(self._stderr)}")

    def close(self) -> None:
        """Twice is once."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
