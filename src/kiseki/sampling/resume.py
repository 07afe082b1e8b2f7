"""What earlier runs left in a sample's folder, and what of it a job goes on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kiseki.errors import UsageError
from kiseki.sampling.folder import SAMPLE, Part, Saved, clear, differences, is_whole, load, save
from kiseki.sampling.job import SampleJob
from kiseki.sampling.sources import find_source
from kiseki.trajectory.tokens import Tokenizer

Note = Callable[[str], None]


def settings_of(job: SampleJob, tokenizer: Tokenizer) -> dict[str, Any]:
    """What decides the sample, as plain JSON."""
    return {
        "datasets": list(job.datasets),
        "total_samples": job.total_samples,
        "seed": str(job.seed),  # JSON's numbers end at 64 bits
        "min_tokens": job.min_tokens,
        **tokenizer_settings(tokenizer),
    }


def tokenizer_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"tokenizer": tokenizer.name, "tokenizer_version": tokenizer.version}


def find_finished(folder: Path, asked: Mapping[str, Any]) -> Saved:
    """The finished sample in a folder, for `--skip_download`. `asked`: those of `settings_of` that it has to be made with.

    Raises `UsageError` where there is none, or it is another one.
    """
    saved = load(folder)
    if saved is None or not saved.complete or not (folder / SAMPLE).exists():
        is_there = "no finished" if saved else "no"
        raise UsageError(f"--skip_download: {folder} has {is_there} raw sample; run it without that flag")
    if other := differences(saved.settings, asked):
        raise UsageError(f"--skip_download: the raw sample in {folder} was made with {other}; run it without that flag")
    if not is_whole(folder, saved):
        sizes = f"{(folder / SAMPLE).stat().st_size:,} bytes, not the {saved.bytes:,} that were drawn"
        raise UsageError(f"--skip_download: {folder / SAMPLE} has {sizes}; run it without that flag")
    return saved


def begin(job: SampleJob, settings: dict[str, Any], note: Note) -> Saved:
    """The job as it was left, or a new one: without what was read of the first datasets only where that cannot be used.

    Raises as `find_source` does; then all stays as it was.
    """
    saved = load(job.folder)
    kept: list[Part] = []
    reason = ""
    if saved:
        reason, kept = _what_changed(job, saved, settings, note)
        if not reason:
            return saved
    fresh = [Part(find_source(given, note, (job.folder, *job.written))) for given in job.datasets[len(kept) :]]
    parts = [*kept, *fresh]
    _check_doubled(parts)
    if saved:
        read = ", ".join(part.source.given for part in kept)
        end = f"what was read of {read} is kept" if kept else "it is drawn afresh"
        note(f"{job.folder} holds a sample made with {reason}: {end}")
    clear(job.folder, len(kept))
    saved = Saved(settings, parts)
    save(job.folder, saved)
    return saved


def _what_changed(job: SampleJob, saved: Saved, settings: dict[str, Any], note: Note) -> tuple[str, list[Part]]:
    """In words, and the first datasets whose rows are there and the same; "" where nothing did."""
    reason = differences(saved.settings, settings)
    if any(saved.settings.get(name) != settings[name] for name in settings if name != "datasets"):
        return reason, []
    same = 0
    for given, part in zip(job.datasets, saved.parts, strict=False):
        if given != part.source.given:
            break
        if part.source.kind != "hub" and find_source(given, note, (job.folder, *job.written)) != part.source:
            reason = f"{reason}{', ' if reason else ''}{given} as it was before"
            break
        same += 1
    if not reason and saved.complete and not is_whole(job.folder, saved):
        reason = "other files"
    return reason, [] if saved.complete else saved.parts[:same]


def _check_doubled(parts: list[Part]) -> None:
    seen: dict[tuple[str, ...], str] = {}
    for source in (part.source for part in parts):
        key = (source.kind, str(Path(source.name).resolve()), source.config, source.split, *source.files, source.version)
        if key in seen:
            raise UsageError(f"--datasets names {seen[key]} more than once: {source.given} is the same")
        seen[key] = source.given
