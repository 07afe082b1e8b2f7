"""llama.cpp's server with SmolLM2-135M-Instruct in this process: the child that `smollm2.py` starts, and not to be imported.

    stdin   one line of JSON, `Asked`; its end is the server's end
    stdout  one line, the server's address, when it answers
    stderr  what llama.cpp says

It never outlives its parent: stdin ends when that does, and where another process still holds the pipe (a fork of the parent's),
a look once a second sees that the parent is another.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Any

import msgspec

LOOK_SECONDS = 1.0
"""Between two looks at who the parent is."""
LAST_WORDS_SECONDS = 0.5
"""llama.cpp writes what it says on a thread of its own."""
ERRORS_AND_WARNINGS = 2
"""Of llama.cpp's levels of verbosity; the next one says a line for every request."""


class Asked(msgspec.Struct, frozen=True):
    """What the server is to be."""

    weights: str
    """Path of the model's GGUF file."""
    name: str
    """What the server calls the model."""
    key: str
    """Whoever asks must have it."""
    parent: int
    """Process id."""
    threads: int
    slots: int
    """Requests that it works on at once."""
    context: int
    """Tokens of each slot."""
    temperature: float
    """Where a request says none."""
    top_p: float
    """Where a request says none."""
    start_seconds: float
    """After which it ends, where it does not answer by then."""


def main() -> None:
    asked = msgspec.json.decode(sys.stdin.buffer.readline(), type=Asked)
    # by the kernel and not by a thread of Python's: loading may hold the interpreter up
    signal.setitimer(signal.ITIMER_REAL, asked.start_seconds)
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever C++ prints
    import xllamacpp

    try:
        server = xllamacpp.Server(_parameters(asked))  # answers when this returns
    except RuntimeError as error:
        time.sleep(LAST_WORDS_SECONDS)
        sys.exit(str(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
    with os.fdopen(answer, "w") as stdout:
        stdout.write(f"{server.listening_address}\n")
    while os.getppid() == asked.parent:
        if select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
            break
    os._exit(0)  # there is nothing to be saved, and C++ may take its time


def _parameters(asked: Asked) -> Any:
    """llama.cpp's `CommonParams`."""
    import xllamacpp

    made = xllamacpp.CommonParams()
    made.model.path = asked.weights
    made.model_alias = {asked.name}
    made.offline = True
    made.hostnames = ["127.0.0.1"]
    made.port = 0  # a free one
    made.api_keys = [asked.key]
    made.ui = False
    made.endpoint_slots = False  # would show others' conversations
    made.verbosity = ERRORS_AND_WARNINGS
    made.n_gpu_layers = 0
    made.cpuparams.n_threads = made.cpuparams_batch.n_threads = asked.threads
    made.n_parallel = asked.slots
    made.n_ctx = asked.slots * asked.context
    made.fit_params = False  # the context is what it is
    made.cache_ram_mib = 0  # 8 GB of old prompts beside those in the slots, else
    made.cache_idle_slots = False  # would need that
    made.warmup = False
    made.sampling.temp = asked.temperature
    made.sampling.top_p = asked.top_p
    return made


if __name__ == "__main__":
    main()
