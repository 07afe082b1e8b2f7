"""Finds and removes what dead runs, workers and agents left: on this machine by folder, elsewhere through the backend.

On this machine a sandbox leaves a folder, a cgroup and processes; a backend's `reap` knows what else it makes. What belongs to a
live owner, or to one that cannot be told from here, is never touched but by that owner itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import msgspec

from kiseki.errors import SandboxError, UsageError
from kiseki.sandboxes import cgroup, folders, owners, processes
from kiseki.sandboxes.factory import LEAVES_MORE, backend_module
from kiseki.sandboxes.owners import Owner, State
from kiseki.sandboxes.settings import SandboxSettings

HERE = "local"
"""The backend that stands for the folders of this machine, whichever made them."""
REAP_SECONDS = 5.0
"""How long killed processes may take to be gone before their folder is removed all the same."""

REAP_ROUNDS = 3
"""After something was found: an engine may still be making what it was asked for before the kill."""


class Found(msgspec.Struct, frozen=True):
    """The sandboxes of one owner in one place."""

    settings: SandboxSettings
    """Backend, host and label: by which `remove` removes them."""
    owner: Owner
    state: State
    sandboxes: int
    """Without any, it is only an empty folder or a lock file."""
    since: float
    """When the oldest was made, in Unix seconds; 0 where it is not known."""


def reap(settings: SandboxSettings) -> int:
    """Remove every sandbox whose label is `settings.label` or below it (`abc`: also `abc.3`, never `abcd`), in that backend and
    on this machine. How many that were.

    For the owner of that label: before it starts its workers, and for a worker that died. It does not spare live sandboxes.
    Blocks. Raises SandboxError where the backend cannot be asked; what is on this machine is gone all the same.
    """
    removed = 0
    try:
        if settings.backend in LEAVES_MORE:
            removed = _reap_there(settings)
    finally:
        removed += _reap_here(settings)
    return removed


def reap_orphans(settings: SandboxSettings) -> None:
    """Remove what processes that are gone left under labels of their own, on this machine and in this backend. Blocks.

    Nobody else would: there is no next start of theirs, as a run has one. Never raises; the next process tries again.
    """
    for backend in {HERE, settings.backend} if settings.backend in LEAVES_MORE else {HERE}:
        with contextlib.suppress(SandboxError, OSError):
            for found in survey(msgspec.structs.replace(settings, backend=backend), owners.is_process_label):
                remove(found)


def survey(settings: SandboxSettings, wanted: Callable[[str], bool] = lambda label: True) -> list[Found]:
    """What is there in one backend (`HERE`: the folders of this machine), under the labels that are wanted. Removes nothing.

    Raises SandboxError where it cannot be asked.
    """
    if settings.backend == HERE:
        labels = {owners.top_label(label) for label in (*folders.labels(), *folders.grouped_labels(), *owners.recorded())}
        return [_found_here(settings, label) for label in sorted(labels) if wanted(label)]
    groups: dict[tuple[str, Owner], list[float]] = {}
    with _without_it():
        left = backend_module(settings.backend).left_over(settings)
    for each in left:
        label = owners.top_label(each.label)
        if wanted(label):
            groups.setdefault((label, each.owner), []).append(each.created)
    states = {owner: owners.state(owner) for _, owner in groups}
    # A label has one owner. Where commands can write one down themselves, another's word is not enough for its removal.
    in_use = {label for label, owner in groups if states[owner] != "dead"}
    found = []
    for (label, owner), made in groups.items():
        state = "unknown" if states[owner] == "dead" and label in in_use else states[owner]
        found.append(_found(settings, label, owner, state, made))
    return found


def remove(found: Found) -> int:
    """Remove what a dead owner left; nothing when it isn't dead, or no longer. How many sandboxes that were.

    Meanwhile nobody can become its owner: a run that goes on in this moment is told that its folder is in use.
    Raises SandboxError.
    """
    if found.state != "dead":
        return 0
    with owners.seized(found.owner.file) as dead:
        if not dead:
            return 0
        return _reap_here(found.settings) if found.settings.backend == HERE else _reap_there(found.settings)


@contextlib.contextmanager
def _without_it() -> Iterator[None]:
    """A backend whose package is missing cannot be asked either."""
    try:
        yield
    except UsageError as error:
        raise SandboxError(str(error)) from error


def _found_here(settings: SandboxSettings, label: str) -> Found:
    owner = owners.find(label)
    state = owners.state(owner)
    # What is in use here has processes: without any, it was left even where nobody wrote down whose it is.
    if state == "unknown" and folders.is_untouched(label) and not processes.marked(*folders.cookies(label)):
        owner, state = Owner(), "dead"
    return _found(settings, label, owner, state, [folders.made_at(folder) for folder in folders.left_over(label)])


def _found(settings: SandboxSettings, label: str, owner: Owner, state: State, made: list[float]) -> Found:
    since = min((each for each in made if each), default=0.0)
    return Found(msgspec.structs.replace(settings, label=label), owner, state, len(made), since)


def _reap_there(settings: SandboxSettings) -> int:
    removed = 0
    with _without_it():
        for _ in range(REAP_ROUNDS):
            more = backend_module(settings.backend).reap(settings)
            removed += more
            if not more:
                break
    return removed


def _reap_here(settings: SandboxSettings) -> int:
    label = settings.label
    if folders.left_over(label):
        with contextlib.suppress(SandboxError, UsageError):
            backend_module("apptainer").reap(settings)
    cookies = folders.cookies(label)
    groups = list(cgroup.left_over(folders.group_prefix(label)))

    def remaining() -> set[int]:
        pids = set(processes.marked(*cookies))
        pids.update(pid for group in groups for pid in group.pids())
        return {pid for pid in pids if (process := processes.look(pid)) and process.running}

    processes.end_all(remaining)
    end = time.monotonic() + REAP_SECONDS
    while remaining() and time.monotonic() < end:
        time.sleep(0.01)
    while groups and time.monotonic() < end:
        groups = [group for group in groups if not group.remove()]
        time.sleep(0.01 if groups else 0)
    left = folders.left_over(label)
    for sandbox in left:
        folders.remove(sandbox)
    folders.remove_labels(label)
    owners.forget(label)
    return len(left)
