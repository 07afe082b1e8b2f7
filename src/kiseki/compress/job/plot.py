"""The histogram of tokens before and after, as a picture."""

from __future__ import annotations

from pathlib import Path

from kiseki.compress.job.report import bin_edges, histogram
from kiseki.compress.job.totals import Totals
from kiseki.errors import UsageError


def check_plot(path: str) -> None:
    """Raises `UsageError` when no picture can be made there, before anything else is done."""
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'kiseki[plot]'")
    if Path(path).suffix.lower() != ".png":
        raise UsageError(f"--plot: {path} does not end with .png")
    if not Path(path).parent.is_dir():
        raise UsageError(f"--plot: there is no folder {Path(path).parent}")


def plot_tokens(path: Path, totals: Totals, target: int) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    edges = bin_edges(totals, target)
    width = (edges[1] if len(edges) > 1 else target) * 0.4
    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=120)
    middle = [edge + width * 1.25 for edge in edges]
    before, after = histogram(totals.before, edges), histogram(totals.after, edges)
    axes.bar([at - width / 2 for at in middle], before, width, label="before", color="#9aa5b1")
    axes.bar([at + width / 2 for at in middle], after, width, label="after", color="#2a6f97")
    axes.axvline(target, color="#c1121f", linestyle="--", linewidth=1.2, label=f"target {target:,}")
    axes.set_xlabel("tokens per trajectory")
    axes.set_ylabel("trajectories")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
