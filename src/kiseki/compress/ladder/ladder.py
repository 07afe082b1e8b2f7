"""The strategy that needs no model: a ladder of rules, from what costs nothing to what costs most, down to the budget.

1. Outputs are cleaned (`observations.py`), oldest first. 2. An output that was there before, and a view of a file that is shown
again or written anew later, become a pointer. 3. The largest outputs lose their middle. 4. Old outputs are left out. 5. Whole
units give way to a digest (`digest.py`). Each step ends as soon as the budget is met. Only tool turns between the protected ones
are edited, those of a unit that is protected in part too; turns of the model stay as they are or go with their unit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.draft import Draft
from kiseki.compress.ladder.cutting import cut_output, cut_outputs
from kiseki.compress.ladder.digest import Digest
from kiseki.compress.ladder.notes import MASK, SURELY_LONGER, is_note, leave_notes, sizes_of
from kiseki.compress.ladder.observations import clean, clean_where_it_pays
from kiseki.compress.ladder.pointers import Spot, point, relying
from kiseki.compress.metrics import Region
from kiseki.compress.placement import place
from kiseki.compress.regions import Unit, between, choose_region, spans
from kiseki.compress.turns import Edit, Layout, Turn, is_summary

LEVELS = (1_000, 500, 200)
"""Tokens to which outputs are cut, one level after the other."""
TOLERANCE = 24
"""Tokens that the last cut may take too many."""
LEAST_MASKED = 32
"""Tokens of an output that is worth leaving out."""
SEVERAL = 8
"""Outputs of a turn that are cut one by one; of more than that all are cut together."""
JOINT = 4
"""Tokens that a digest may take more where it is put after other text."""
LEAST_DIGEST = 24
"""Tokens of a digest that says how many steps there were."""


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
    steps = shrink(draft, between(draft.turns, config), budget)
    units, region = _digest(draft, config, budget, originals)
    return msgspec.structs.replace(steps, units_digested=units, region=region)


def shrink(draft: Draft, places: Iterable[int], budget: int) -> Ladder:
    """The steps that take no turn out, on the tool turns among those at `places`."""
    editable = _editable(draft, places)
    before = list(zip(draft.turns, draft.tokens, strict=True))
    return Ladder(
        observations_cleaned=_clean(draft, editable, budget, clean_where_it_pays),
        observations_repeated=point(draft, editable, budget),
        observations_cut=_cut(draft, editable, budget),
        observations_masked=_mask(draft, editable, budget, before),
    )


def clean_all(draft: Draft, config: CompressionConfig) -> Ladder:
    """Only the first step, whatever the budget: every output that may be edited is cleaned, of the least thing too."""
    return Ladder(observations_cleaned=_clean(draft, _editable(draft, between(draft.turns, config)), -1, clean))


def _editable(draft: Draft, places: Iterable[int]) -> list[int]:
    """Those of the turns at `places` that are outputs."""
    return [at for at in sorted(places) if draft.turns[at].role == "tool" and not is_summary(draft.turns[at])]


# ---- 1: what costs nothing ---------------------------------------------------------------------------------------------


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


# ---- 3 and 4: what costs parts of outputs -----------------------------------------------------------------------------------


def _cut(draft: Draft, editable: Sequence[int], budget: int) -> int:
    """Nothing where leaving out every output would not do: they will be left out then."""
    if draft.total <= budget or draft.total - sum(draft.tokens[at] for at in editable) > budget:
        return 0
    sizes: dict[int, list[int]] = {}
    changed: set[tuple[int, int]] = set()
    for level in LEVELS:
        new = [at for at in editable if draft.tokens[at] > level and at not in sizes]
        sizes |= {at: sizes_of(draft.layout.outputs(draft.turns[at]), draft.tokens[at]) for at in new}
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
                sizes[at] = sizes_of(draft.layout.outputs(draft.turns[at]), draft.tokens[at])
    return len(changed)


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
    """A pointer goes with what it points to; what a pointer in a protected turn points to stays.

    `before`: the turns as they came and their tokens, for how much it is that is left out.
    """
    if draft.total <= budget:
        return 0
    may_change = set(editable)
    pointers = relying(draft)
    kept = {target for target, spots in pointers.items() if not may_change.issuperset(at for at, _ in spots)}
    count = _mask_pointers(draft, may_change, pointers.get(None, ()))
    for at in editable:
        if draft.total <= budget:
            return count
        turn, tokens = before[at]
        sizes = sizes_of(draft.layout.outputs(turn), tokens)
        notes: dict[int, str] = {}
        for number, output in enumerate(draft.layout.outputs(draft.turns[at])):
            small = len(output.text) < SURELY_LONGER and draft.counter.count(output.text) < LEAST_MASKED
            if not (small or is_note(output.text) or (at, number) in kept):
                notes[number] = f"{MASK}: {sizes[number]:,} tokens]"
        masked = leave_notes(draft, at, notes, budget)
        count += len(masked) + sum(_mask_pointers(draft, may_change, pointers.get((at, number), ())) for number in masked)
    if draft.total > budget:  # units will go, with what pointers point to
        gone = [spots for target, spots in pointers.items() if target and target[0] in may_change]
        count += sum(_mask_pointers(draft, may_change, spots) for spots in gone)
    return count


def _mask_pointers(draft: Draft, may_change: Collection[int], spots: Iterable[Spot]) -> int:
    """Plain masks, which are shorter, in the place of those that are still pointers; how many."""
    count = 0
    for at, number in spots:
        turn = draft.turns[at]
        if at in may_change and not draft.layout.outputs(turn)[number].text.startswith(MASK):
            count += draft.put(at, draft.layout.replace_outputs(turn, {number: f"{MASK}]"}))
    return count


# ---- 5: what costs units ----------------------------------------------------------------------------------------------------


class _Digests(msgspec.Struct, frozen=True):
    """A draft with its digests."""

    draft: Draft
    taken: Sequence[int]
    """The turns that they stand for, by their places among the originals."""
    units: int
    spent: Sequence[int]
    """Tokens of each."""


def _digest(draft: Draft, config: CompressionConfig, budget: int, originals: Sequence[Turn]) -> tuple[int, Region]:
    """Units that a digest stands for now, and their turns. What it says comes from `originals`, the turns as they came."""
    made = _digests(draft, config, budget, originals, config.summary_target_tokens)
    if made.draft.total > budget and len(made.spent) > 1:  # all of them have to be shorter, not only the last one
        room = (budget - made.draft.total + sum(made.spent)) // len(made.spent) - JOINT
        if room >= LEAST_DIGEST:
            made = min(made, _digests(draft, config, budget, originals, room), key=lambda each: each.draft.total)
    if not made.taken:
        return 0, Region()
    draft.become(made.draft)
    return made.units, Region(min(made.taken), max(made.taken) + 1, len(made.taken))


def _digests(draft: Draft, config: CompressionConfig, budget: int, originals: Sequence[Turn], limit: int) -> _Digests:
    """`limit`: tokens that each digest may have."""
    draft = draft.copy()
    places = list(range(len(originals)))  # of each turn among the originals; -1 for one that came since
    units = 0
    taken: list[int] = []
    spent: list[int] = []
    while draft.total > budget:
        told = [originals[place] if place >= 0 else turn for place, turn in zip(places, draft.turns, strict=True)]
        chosen = _choose(draft, config, budget, told, limit) or _choose(draft, config, budget, draft.turns, limit)
        if chosen is None:
            break
        region, text = chosen
        start, end = region[0].start, region[-1].end
        before = draft.copy()
        place(draft, start, end, text, config.summary_placement)
        if draft.total >= before.total:
            draft = before
            break
        own = len(draft.turns) - (len(before.turns) - (end - start))
        units += len(region)
        spent.append(draft.total - before.total + sum(before.tokens[start:end]))
        taken += places[start:end]
        places[start:end] = [-1] * own
    return _Digests(draft, taken, units, spent)


def _choose(
    draft: Draft, config: CompressionConfig, budget: int, told: Sequence[Turn], limit: int
) -> tuple[Sequence[Unit], str] | None:
    digest = Digest(told, draft.layout, draft.counter)
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
