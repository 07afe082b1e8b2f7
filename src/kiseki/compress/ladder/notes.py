"""Notes: what stands in the place of an output that is no longer there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiseki.compress.draft import Draft
from kiseki.compress.ladder.many import change_outputs
from kiseki.compress.turns import Output

SAME = "[Same output as before: "
OLDER = "[Older view of "
MASK = "[Old output left out"
SURELY_LONGER = 400
"""Characters of an output that is longer than a note in its place, without counting it."""


def is_note(text: str) -> bool:
    """Whether an output is a note."""
    return text.startswith((SAME, OLDER, MASK)) and text.endswith("]") and "\n" not in text


def leave_notes(draft: Draft, at: int, notes: Mapping[int, str], budget: int) -> list[int]:
    """Put `notes` in the place of the outputs with their numbers in turn `at`, in order and as many as needed, those that are
    shorter. Returns their numbers."""
    if draft.total <= budget:
        return []
    layout, count = draft.layout, draft.counter.count
    outputs = layout.outputs(draft.turns[at])
    sizes = sizes_of(outputs, draft.tokens[at])
    gains = {
        number: sizes[number] - count(note)
        for number, note in notes.items()
        if len(outputs[number].text) >= SURELY_LONGER or count(note) < count(outputs[number].text)
    }
    return change_outputs(
        draft,
        at,
        gains,
        lambda numbers: layout.replace_outputs(draft.turns[at], {number: notes[number] for number in numbers}),
        budget,
    )


def sizes_of(outputs: Sequence[Output], tokens: int) -> list[int]:
    """Tokens of each output of a turn that has `tokens`: its share by its length."""
    lengths = [len(each.text) for each in outputs]
    return [tokens * length // (sum(lengths) or 1) for length in lengths]
