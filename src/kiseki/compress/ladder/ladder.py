"""The strategy that needs no model: a ladder of rules, from what costs nothing to what costs most, down to the budget.

1. Outputs are cleaned (`observations.py`), oldest first. 2. An output that was there before, and a view of a file that is shown
again or written anew later, become a pointer. 3. The largest outputs lose their middle. 4. Old outputs are left out. 5. Whole
units give way to a digest (`digest.py`). Each step ends as soon as the budget is met. Only tool turns between the protected ones
are edited; turns of the model stay as they are or go with their unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.draft import Draft
from kiseki.compress.ladder.calls import Observation, brief, observations_of
from kiseki.compress.ladder.cutting import cut_output, cut_outputs
from kiseki.compress.ladder.digest import Digest
from kiseki.compress.ladder.file_views import superseded
from kiseki.compress.ladder.many import change_outputs
from kiseki.compress.ladder.observations import clean
from kiseki.compress.metrics import Region
from kiseki.compress.placement import place
from kiseki.compress.regions import Unit, choose_region, spans, units_of
from kiseki.compress.turns import Edit, Layout, Output, Turn, is_summary
from kiseki.trajectory.text import printable

LEVELS = (1_000, 500, 200)
"""Tokens to which outputs are cut, one level after the other."""
TOLERANCE = 24
"""Tokens that the last cut may take too many."""
LEAST_CLEANED = 1_000
"""Characters that cleaning takes out of a text at least, or a tenth of it: for less it stays as it is."""
VISIBLE = 10
"""What a character counts there that is no blank: blanks and line ends are hardly any tokens."""
LEAST_POINTED = 160
"""Characters of an output for which a pointer is worth it."""
LONGEST_PATH = 100
LEAST_MASKED = 32
"""Tokens of an output that is worth leaving out."""
SURELY_LONGER = 400
"""Characters of an output that is longer than a note in its place, without counting it."""
SEVERAL = 8
"""Outputs of a turn that are cut one by one; of more than that all are cut together."""
JOINT = 4
"""Tokens that a digest may take more where it is put after other text."""
_SAME = "[Same output as before: "
_OLDER = "[Older view of "
_MASK = "[Old output left out: "


class Ladder(msgspec.Struct, frozen=True):
    """What was done. An output counts in each step that changed it."""

    observations_cleaned: int = 0
    observations_repeated: int = 0
    observations_cut: int = 0
    observations_masked: int = 0
    units_digested: int = 0
    region: Region = Region()
    """The turns that digests stand for, from the first to the last."""

    def counts(self) -> dict[str, int]:
        """The counters, by their names in `Metrics`."""
        return {
            "observations_cleaned": self.observations_cleaned,
            "observations_repeated": self.observations_repeated,
            "observations_cut": self.observations_cut,
            "observations_masked": self.observations_masked,
            "units_digested": self.units_digested,
        }


def run_ladder(draft: Draft, config: CompressionConfig, budget: int) -> Ladder:
    """Bring `draft` down to `budget` tokens, or as far as it goes; changes it in place."""
    originals = list(draft.turns)
    steps = shrink(draft, _inside(draft, config), budget)
    units, region = _digest(draft, config, budget, originals)
    return msgspec.structs.replace(steps, units_digested=units, region=region)


def shrink(draft: Draft, places: Iterable[int], budget: int) -> Ladder:
    """The steps that take no turn out, on the tool turns among those at `places`."""
    editable = _editable(draft, places)
    before = list(zip(draft.turns, draft.tokens, strict=True))
    return Ladder(
        observations_cleaned=_clean(draft, editable, budget, _cleaned),
        observations_repeated=_point(draft, editable, budget),
        observations_cut=_cut(draft, editable, budget),
        observations_masked=_mask(draft, editable, budget, before),
    )


def clean_all(draft: Draft, config: CompressionConfig) -> Ladder:
    """Only the first step, whatever the budget: every output that may be edited is cleaned, of the least thing too."""
    return Ladder(observations_cleaned=_clean(draft, _editable(draft, _inside(draft, config)), -1, clean))


def _inside(draft: Draft, config: CompressionConfig) -> list[int]:
    """Places of the turns between the protected ones."""
    return [at for span in spans(draft.turns, config) for unit in span for at in range(unit.start, unit.end)]


def _editable(draft: Draft, places: Iterable[int]) -> list[int]:
    """Those of the turns at `places` that are outputs."""
    return [at for at in sorted(places) if draft.turns[at].role == "tool" and not is_summary(draft.turns[at])]


def _is_note(text: str) -> bool:
    """Whether an output is what one of these steps left of it."""
    return text.startswith((_SAME, _OLDER, _MASK)) and text.endswith("]") and "\n" not in text


# ---- 1 and 2: what costs nothing ---------------------------------------------------------------------------------------------


def _clean(draft: Draft, editable: Sequence[int], budget: int, edit: Edit) -> int:
    count = 0
    for at in editable:
        if draft.total <= budget:
            break
        before = draft.turns[at]
        after = draft.layout.edit_leaves(before, edit)
        if after is not before and draft.put(at, after):
            count += len(_differing(draft.layout, before, after))
    return count


def _differing(layout: Layout, before: Turn, after: Turn) -> list[int]:
    """Numbers of the outputs that are not the same in both."""
    pairs = zip(layout.outputs(before), layout.outputs(after), strict=True)
    return [number for number, (old, new) in enumerate(pairs) if old.text != new.text]


def _cleaned(text: str) -> str:
    """`clean(text)` where that is worth an edit and another count."""
    made = clean(text)
    return made if made != text and _weight(text) - _weight(made) >= min(len(text) / 10, LEAST_CLEANED) else text


def _weight(text: str) -> int:
    blanks = sum(map(text.count, " \t\r\n"))
    return VISIBLE * (len(text) - blanks) + blanks


def _point(draft: Draft, editable: Sequence[int], budget: int) -> int:
    """Pointers in the place of outputs that were there before, then of views that are there again."""
    if draft.total <= budget:
        return 0
    layout, may_change = draft.layout, set(editable)
    shown = [
        layout.edit_leaves(turn, _cleaned) if turn.role == "tool" and at not in may_change else turn
        for at, turn in enumerate(draft.turns)
    ]
    observations = [each for unit in units_of(shown) for each in observations_of(shown, layout, unit)]
    first: dict[str, Observation] = {}
    pointers: dict[int, dict[int, str]] = {}
    for each in observations:
        text = each.output.text
        if _is_note(text) or len(text) < LEAST_POINTED:
            continue
        if text not in first:
            first[text] = each
        elif each.at in may_change:
            pointers.setdefault(each.at, {})[each.number] = f"{_SAME}{brief(first[text].call, first[text].output.name)}]"
    repeated = {(at, number) for at in pointers for number in _leave_notes(draft, at, pointers[at], budget)}
    if draft.total <= budget:
        return len(repeated)

    texts = {pointers[at][number] for at, number in repeated} | {each.output.text for each in observations}
    kept_for = {text[len(_SAME) : -1] for text in texts if text.startswith(_SAME)}
    is_note = [(each.at, each.number) in repeated or _is_note(each.output.text) for each in observations]
    views: dict[int, dict[int, str]] = {}
    for nth, path in sorted(superseded(observations, is_note).items()):
        each = observations[nth]
        worth_it = each.at in may_change and len(each.output.text) >= LEAST_POINTED
        if worth_it and brief(each.call, each.output.name) not in kept_for:
            note = f"{_OLDER}{printable(path, LONGEST_PATH)} left out: its later state is shown below]"
            views.setdefault(each.at, {})[each.number] = note
    return len(repeated) + sum(len(_leave_notes(draft, at, views[at], budget)) for at in views)


def _leave_notes(draft: Draft, at: int, notes: Mapping[int, str], budget: int) -> list[int]:
    """Put `notes` in the place of the outputs with their numbers in turn `at`, in order and as many as needed, those that are
    shorter. Returns their numbers."""
    if draft.total <= budget:
        return []
    layout, count = draft.layout, draft.counter.count
    outputs = layout.outputs(draft.turns[at])
    sizes = _sizes(outputs, draft.tokens[at])
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


# ---- 3 and 4: what costs parts of outputs -----------------------------------------------------------------------------------


def _cut(draft: Draft, editable: Sequence[int], budget: int) -> int:
    """Nothing where leaving out every output would not do: they will be left out then."""
    if draft.total <= budget or draft.total - sum(draft.tokens[at] for at in editable) > budget:
        return 0
    sizes: dict[int, list[int]] = {}
    changed: set[tuple[int, int]] = set()
    for level in LEVELS:
        new = [at for at in editable if draft.tokens[at] > level and at not in sizes]
        sizes |= {at: _sizes(draft.layout.outputs(draft.turns[at]), draft.tokens[at]) for at in new}
        if level > LEVELS[-1] and draft.total - _above(sizes, level) > budget:
            continue  # the next level would have to do it all the same
        slack = level // 8
        for size, at, number in _largest(sizes, level + slack):
            too_many = draft.total - budget
            if too_many <= 0:
                return len(changed)
            before = draft.turns[at]
            if len(sizes[at]) > SEVERAL:
                cut_outputs(draft, at, sizes[at], level + slack, budget)
            elif too_many <= size - level:
                cut_output(draft, at, number, size, draft.tokens[at] - too_many, TOLERANCE)
            else:
                cut_output(draft, at, number, size, draft.tokens[at] - size + level + slack, 4 * slack)
            if draft.turns[at] is not before:
                changed |= {(at, number) for number in _differing(draft.layout, before, draft.turns[at])}
                sizes[at] = _sizes(draft.layout.outputs(draft.turns[at]), draft.tokens[at])
    return len(changed)


def _sizes(outputs: Sequence[Output], tokens: int) -> list[int]:
    """Tokens of each output of a turn that has `tokens`: its share by its length."""
    lengths = [len(each.text) for each in outputs]
    return [tokens * length // (sum(lengths) or 1) for length in lengths]


def _above(sizes: Mapping[int, Sequence[int]], level: int) -> int:
    """Tokens that outputs have more than `level`, all together."""
    return sum(max(size - level, 0) for each in sizes.values() for size in each)


def _largest(sizes: Mapping[int, Sequence[int]], least: int) -> list[tuple[int, int, int]]:
    """Tokens, turn and number of the outputs that have more than `least` tokens, largest first, then oldest; of a turn whose
    outputs are cut together only the largest."""
    found: list[tuple[int, int, int]] = []
    for at, each in sizes.items():
        large = [(size, at, number) for number, size in enumerate(each) if size > least]
        found += large if len(each) <= SEVERAL else sorted(large, key=_rank)[:1]
    return sorted(found, key=_rank)


def _rank(output: tuple[int, int, int]) -> tuple[int, int, int]:
    size, at, number = output
    return -size, at, number


def _mask(draft: Draft, editable: Sequence[int], budget: int, before: Sequence[tuple[Turn, int]]) -> int:
    """`before`: the turns as they came and their tokens, for how much it is that is left out."""
    count = 0
    for at in editable:
        if draft.total <= budget:
            break
        turn, tokens = before[at]
        sizes = _sizes(draft.layout.outputs(turn), tokens)
        notes: dict[int, str] = {}
        for number, output in enumerate(draft.layout.outputs(draft.turns[at])):
            small = len(output.text) < SURELY_LONGER and draft.counter.count(output.text) < LEAST_MASKED
            if not (small or _is_note(output.text)):
                notes[number] = f"{_MASK}{sizes[number]:,} tokens]"
        count += len(_leave_notes(draft, at, notes, budget))
    return count


# ---- 5: what costs units ----------------------------------------------------------------------------------------------------


def _digest(draft: Draft, config: CompressionConfig, budget: int, originals: Sequence[Turn]) -> tuple[int, Region]:
    """Units that a digest stands for now, and their turns. What it says comes from `originals`, the turns as they came."""
    places = list(range(len(originals)))  # of each turn among the originals; -1 for one that came since
    units = 0
    taken: list[int] = []
    while draft.total > budget:
        told = [originals[place] if place >= 0 else turn for place, turn in zip(places, draft.turns, strict=True)]
        chosen = _choose(draft, config, budget, told) or _choose(draft, config, budget, draft.turns)
        if chosen is None:
            break
        region, text = chosen
        start, end = region[0].start, region[-1].end
        before, total = list(draft.turns), draft.total
        place(draft, start, end, text, config.summary_placement)
        if draft.total >= total:
            draft.splice(0, len(draft.turns), before)
            break
        own = len(draft.turns) - (len(before) - (end - start))
        units += len(region)
        taken += places[start:end]
        places[start:end] = [-1] * own
    if not taken:
        return 0, Region()
    return units, Region(min(taken), max(taken) + 1, len(taken))


def _choose(draft: Draft, config: CompressionConfig, budget: int, told: Sequence[Turn]) -> tuple[Sequence[Unit], str] | None:
    digest = Digest(told, draft.layout, draft.counter)
    limit = config.summary_target_tokens
    region = choose_region(
        draft.turns,
        draft.tokens,
        spans(draft.turns, config),
        draft.total - budget,
        lambda units: digest.tokens(units, limit) + JOINT,
        own_turn=config.summary_placement == "human",
    )
    if not region:
        return None
    room = sum(draft.tokens[region[0].start : region[-1].end]) - (draft.total - budget) - JOINT
    if 0 < room < digest.tokens(region, limit):  # fewer lines, and the row fits after all
        limit = room
    return region, digest.text(region, limit)
