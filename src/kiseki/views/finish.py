"""All views of a run brought up to date: at the end of a session, and by `kiseki merge`."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from kiseki.ledger.ledger import Ledger
from kiseki.views.bar import counting_bar
from kiseki.views.build import Views, ViewSettings, are_stale, mark_fresh
from kiseki.views.statistics import Statistics, write_statistics

DAMAGED_SHOWN = 10


def finish_views(ledger: Ledger, views: Views, settings: ViewSettings, console: Console, *, rebuild: bool = False) -> Statistics:
    """Write what is missing of the batch files (all that may be stale, or with `rebuild`), then every file of the run."""
    batches = views.stale_batches(all_of_them=rebuild or are_stale(ledger))
    if batches:
        with counting_bar(console, "batch files", len(batches)) as written:
            for number, batch in enumerate(batches, 1):
                views.write_batch(batch)
                written(number)
    with counting_bar(console, "merging") as written:
        views.write_trajectories(written)
    views.write_children()
    views.write_checkpoint()
    statistics = write_statistics(ledger, settings)
    mark_fresh(ledger)
    if views.damaged:
        some = ", ".join(f"{prompt} (sample {sample})" for prompt, sample in sorted(views.damaged)[:DAMAGED_SHOWN])
        console.print(Text(f"records that cannot be read: {len(views.damaged)}, left out; prompts {some}"), style="red")
    return statistics
