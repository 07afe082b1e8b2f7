"""What is drawn from where."""

from __future__ import annotations

from pathlib import Path

import msgspec


class SampleJob(msgspec.Struct, frozen=True):
    """What is drawn from where."""

    datasets: tuple[str, ...]
    """As `sources.py` reads them. A conversation that several have drawn is taken from the first of them."""
    folder: Path
    """Of the raw sample and of what is needed to go on with it."""
    written: tuple[Path, ...] = ()
    """Files that come of the sample later. Like the folder, they are never read as a dataset. Default: none."""
    total_samples: int = 2500
    seed: int = 42
    min_tokens: int = 16_000
    """Shorter trajectories are left out."""
    batch_size: int = 100
    """Rows that a process gets at once, and after which a download can go on."""
    num_proc: int = 8
    """Processes that count tokens; never more than there are cores."""
