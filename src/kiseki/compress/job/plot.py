"""The histogram of tokens before and after, as a picture."""

from __future__ import annotations

from pathlib import Path

from kiseki.compress.job.report import bins, histogram
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
    from matplotlib.ticker import MaxNLocator

    bounds = bins(totals, target)
    figure, axes = pyplot.subplots(figsize=(9, 5), dpi=120)
    for values, shift, label, color in ((totals.before, -0.2, "before", "#9aa5b1"), (totals.after, 0.2, "after", "#2a6f97")):
        axes.bar([place + shift for place in range(len(bounds))], histogram(values, bounds), 0.4, label=label, color=color)
    axes.axvline(bounds.index(target) + 0.5, color="#c1121f", linestyle="--", linewidth=1.2, label=f"target {target:,}")
    axes.set_xticks(range(len(bounds)), [f"≤ {bound:,}" for bound in bounds], rotation=30, ha="right")
    axes.set_xlabel("tokens per trajectory")
    axes.set_ylabel("trajectories")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
