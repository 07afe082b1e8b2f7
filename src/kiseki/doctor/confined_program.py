"""A program: renders rows through a chat template, within bounds of time and memory.

A template is code, and one that came with a model is a stranger's. Jinja's sandbox keeps it from files and programs, not from
running for ever or from filling the memory: `{{ 'x' * 10 ** 10 }}` does that before the first row, when it is compiled.

Its one argument is a file with a `Confinement` as JSON. On stdout is one `Rendered` a line: the first says whether the template
compiles, each other answers an `Asked` on stdin. A row that takes too long ends the process.
"""

from __future__ import annotations

import contextlib
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from kiseki.doctor.templates import Template, TemplateRaised, compile_template
from kiseki.errors import UsageError


class Confinement(msgspec.Struct, frozen=True):
    template: Template
    seconds: int
    """Of processor time for a row."""
    megabytes: int
    """Of memory, and a quarter of it of text."""


class Asked(msgspec.Struct, frozen=True):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    more: dict[str, Any]


class Rendered(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str = ""
    error: str = ""
    """What the template raised, or why it does not compile."""
    stopped: str = ""
    """Which bound it ran into."""


def main() -> None:
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Confinement)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # some systems know no such limit
        resource.setrlimit(resource.RLIMIT_AS, (job.megabytes * 2**20, job.megabytes * 2**20))
    too_much = Rendered(stopped=f"it needs more than {job.megabytes:,} MB of memory")
    _bound_time(job.seconds)
    try:
        render = compile_template(job.template)
    except UsageError as error:
        _answer(Rendered(error=str(error)))
        return
    except MemoryError:
        _answer(too_much)
        return
    _answer(Rendered())
    for line in sys.stdin.buffer:
        _bound_time(job.seconds)
        try:
            asked = msgspec.json.decode(line, type=Asked)
            text = render(asked.messages, asked.tools, asked.more)
            made = too_much if len(text) > job.megabytes * 2**18 else Rendered(text.encode("utf-8", "replace").decode())
        except TemplateRaised as raised:
            made = too_much if isinstance(raised.__cause__, MemoryError) else Rendered(error=str(raised))
        except MemoryError:
            made = too_much
        _answer(made)


def _bound_time(seconds: int) -> None:
    """The system ends the process when it has computed for so long from now on."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    wanted = math.ceil(time.process_time()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _answer(made: Rendered) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(made) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
