"""Pointers, notes that name what is there instead: for an output that is there a second time, and for an older view of a file."""

from __future__ import annotations

from collections.abc import Sequence

from kiseki.compress.draft import Draft
from kiseki.compress.ladder.calls import Observation, brief, observations_of
from kiseki.compress.ladder.file_views import superseded
from kiseki.compress.ladder.notes import OLDER, SAME, is_note, leave_notes
from kiseki.compress.ladder.observations import clean_where_it_pays
from kiseki.compress.regions import units_of
from kiseki.compress.turns import Turn
from kiseki.trajectory.text import printable

Spot = tuple[int, int]
"""Where an output is: its turn, and its number in that."""
LEAST_POINTED = 160
"""Characters of an output for which a pointer is worth it."""
LONGEST_PATH = 100


def point(draft: Draft, editable: Sequence[int], budget: int) -> int:
    """Pointers in the place of outputs that were there before, then of views that are there again, as many as the budget needs;
    how many. `editable`: the turns that may have them."""
    if draft.total <= budget:
        return 0
    layout, may_change = draft.layout, set(editable)
    observations = _observations(
        draft,
        [
            layout.edit_leaves(turn, clean_where_it_pays) if turn.role == "tool" and at not in may_change else turn
            for at, turn in enumerate(draft.turns)
        ],
    )
    pointers: dict[int, dict[int, str]] = {}
    for each, note in _repeated(observations):
        if each.at in may_change:
            pointers.setdefault(each.at, {})[each.number] = note
    repeated = {(at, number) for at in pointers for number in leave_notes(draft, at, pointers[at], budget)}
    if draft.total <= budget:
        return len(repeated)

    texts = {pointers[at][number] for at, number in repeated} | {each.output.text for each in observations}
    kept_for = {text[len(SAME) : -1] for text in texts if text.startswith(SAME)}
    gone = [(each.at, each.number) in repeated or is_note(each.output.text) for each in observations]
    views: dict[int, dict[int, str]] = {}
    for nth, stale in sorted(superseded(observations, gone).items()):
        each = observations[nth]
        worth_it = each.at in may_change and not gone[nth] and len(each.output.text) >= LEAST_POINTED
        if worth_it and brief(each.call, each.output.name) not in kept_for:
            note = f"{OLDER}{printable(stale.path, LONGEST_PATH)} left out: its later state is below]"
            views.setdefault(each.at, {})[each.number] = note
    return len(repeated) + sum(len(leave_notes(draft, at, views[at], budget)) for at in views)


def relying(draft: Draft) -> dict[Spot | None, list[Spot]]:
    """The pointers that there are, by the output that each points to: the last one before it of the call that it names, or the
    last later state of its file. None for those whose output is not there."""
    if not any(turn.role == "tool" and (SAME in turn.text or OLDER in turn.text) for turn in draft.turns):
        return {}
    observations = _observations(draft, draft.turns)
    gone = [is_note(each.output.text) for each in observations]
    stale = superseded(observations, gone)
    latest: dict[str, Spot] = {}
    found: dict[Spot | None, list[Spot]] = {}
    for nth, each in enumerate(observations):
        text, spot = each.output.text, (each.at, each.number)
        if not gone[nth]:
            latest[brief(each.call, each.output.name)] = spot
        elif text.startswith(SAME):
            found.setdefault(latest.get(text[len(SAME) : -1]), []).append(spot)
        elif text.startswith(OLDER):
            by = observations[stale[nth].by] if nth in stale else None
            found.setdefault((by.at, by.number) if by else None, []).append(spot)
    return found


def _observations(draft: Draft, turns: Sequence[Turn]) -> list[Observation]:
    return [each for unit in units_of(turns) for each in observations_of(turns, draft.layout, unit)]


def _repeated(observations: Sequence[Observation]) -> list[tuple[Observation, str]]:
    """Those that say what one before them said, each with its pointer. None where the call that it would name has said
    something else since."""
    long = [each.output.text for each in observations if len(each.output.text) >= LEAST_POINTED]
    if len(set(long)) == len(long):
        return []
    first: dict[str, str] = {}
    latest: dict[str, str] = {}
    found = []
    for each in observations:
        text, name = each.output.text, brief(each.call, each.output.name)
        if is_note(text):
            continue
        if len(text) >= LEAST_POINTED and latest.get(first.setdefault(text, name)) == text:
            found.append((each, f"{SAME}{first[text]}]"))
        latest[name] = text
    return found
