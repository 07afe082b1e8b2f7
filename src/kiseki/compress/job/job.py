"""What one run of the compressor reads, writes and may spend."""

from __future__ import annotations

from pathlib import Path

import msgspec


class CompressionJob(msgspec.Struct, frozen=True):
    """What one run of the compressor reads, writes and may spend."""

    input: Path
    """A file of trajectories, a folder of such files, or a run's folder."""
    output: Path | None = None
    """File or folder. Default: the input's name with the settings' suffix."""
    sample_percent: float = 100.0
    """Only so many percent of the rows, drawn by `seed`. Default: all."""
    seed: int = 42
    dry_run: bool = False
    """Analyse for real, write nothing and ask no model. Default: False."""
    plot: str = ""
    """PNG for the histogram of tokens before and after. Default: none."""
    strict: bool = False
    """Exit status 3 when a row is still over the target. Default: False."""
    max_cost: float | None = None
    """US dollars that the summaries may cost. Default: no limit."""
    max_total_tokens: int | None = None
    """Tokens that the summaries may take, in and out. Default: no limit."""
    prices: str = ""
    """YAML with prices that the endpoint does not list."""
