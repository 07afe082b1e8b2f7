"""All views of a run brought up to date: at the end of a session, and by `kiseki merge`."""

from __future__ import annotations

from rich.console import Console

from kiseki.ledger.ledger import Ledger
from kiseki.views.bar import counting_bar
from kiseki.views.build import Views, ViewSettings
from kiseki.views.statistics import Statistics, write_statistics


def finish_views(ledger: Ledger, views: Views, settings: ViewSettings, console: Console, *, rebuild: bool) -> Statistics:
    """Write what is missing of the batch files (all of them with `rebuild`), then every file of the whole run."""
    batches = views.stale_batches(all_of_them=rebuild)
    if batches:
        with counting_bar(console, "batch files", len(batches)) as written:
            for number, batch in enumerate(batches, 1):
                views.write_batch(batch)
                written(number)
    with counting_bar(console, "merging") as written:
        views.write_trajectories(written)
    views.write_checkpoint()
    return write_statistics(ledger, settings)
