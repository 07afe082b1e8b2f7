"""Assistant turns that `--mask` takes out of the loss, beside those that the source masks already.

`errors`: a turn of which a call failed, by its result (`trajectory/outcome.py`). `summaries`: a turn that stands for turns that a
compressor took out: its text begins with `SUMMARY_MARK`, or the results of all its calls do (a call that was made up to hold the
summary). Summaries in user and tool turns have no loss anyway.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from kiseki.exports.job import Mask
from kiseki.exports.steps import calls_with_results
from kiseki.trajectory.example import Example, trained
from kiseki.trajectory.summaries import SUMMARY_MARK


def with_masks(example: Example, masks: Collection[Mask]) -> tuple[Example, int]:
    """The example with what `masks` names masked, and how many turns a loss fell on before."""
    found: set[int] = set()
    if "errors" in masks:
        found |= {at for at, _, result in calls_with_results(example) if result in example.failed}
    if "summaries" in masks:
        found |= _summaries(example)
    new = found & set(trained(example))
    return (msgspec.structs.replace(example, masked=example.masked | new), len(new)) if new else (example, 0)


def _summaries(example: Example) -> set[int]:
    messages = example.messages
    whole = {at: True for at, _, _ in calls_with_results(example)}
    for at, _, result in calls_with_results(example):
        whole[at] &= result is not None and messages[result].content.startswith(SUMMARY_MARK)
    said = {at for at, each in enumerate(messages) if each.role == "assistant" and each.content.startswith(SUMMARY_MARK)}
    return said | {at for at, is_summary in whole.items() if is_summary}
