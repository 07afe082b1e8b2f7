"""What the sandboxes of a run are called, and where they may be, so that the next session finds what a killed one left.

Both are in the ledger before the first sandbox is started, since a session may be killed at any moment, and the next one may use
another backend.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

import msgspec

from kiseki.errors import SandboxError
from kiseki.ledger.ledger import Ledger
from kiseki.ledger.opening import LOCK_NAME
from kiseki.sandboxes import owners
from kiseki.sandboxes.factory import LEAVES_MORE
from kiseki.sandboxes.reaper import reap, reap_orphans
from kiseki.sandboxes.settings import SandboxSettings

KEY = "sandboxes"
"""In the ledger's `meta`."""


class Place(msgspec.Struct, frozen=True):
    """Where sandboxes of the run may be, beside the machine that it runs on."""

    backend: str
    host: str = ""


class Trace(msgspec.Struct, frozen=True):
    id: str
    """Random, of this ledger."""
    places: tuple[Place, ...] = ()


def owned(ledger: Ledger, settings: SandboxSettings) -> SandboxSettings:
    """`settings` with the run's label and owner.

    The label is another for a copy of the run's folder, which has the same ledger, and the same after it was renamed or mounted
    on another machine: a folder keeps its number. Several machines may share an engine, so a path would not do.
    """
    trace = _trace(ledger)
    number = ledger.folder.stat().st_ino
    label = hashlib.blake2b(f"{trace.id} {number}".encode(), digest_size=6).hexdigest()
    lock = str((ledger.folder / LOCK_NAME).resolve())
    return msgspec.structs.replace(settings, label=label, owner=owners.of_this_process(lock))


def clear(ledger: Ledger, settings: SandboxSettings, say: Callable[[str], None]) -> None:
    """Remove what earlier sessions of this run left, wherever they ran; and keep in mind where this one will.

    The ledger's lock is ours, so whoever made them is gone.
    """
    trace = _trace(ledger)
    here = Place(settings.backend, settings.host)
    places = dict.fromkeys((*trace.places, here))
    _keep(ledger, trace, places)
    removed = 0
    for place in list(places):
        try:
            removed += reap(msgspec.structs.replace(settings, backend=place.backend, host=place.host))
        except SandboxError as error:
            say(f"what an earlier session may have left in {place.backend} stays until it can be asked: {error}")
        else:
            if place != here:
                del places[place]
    _keep(ledger, trace, places)
    reap_orphans(settings)
    if removed:
        say(f"removed {removed} sandboxes that a killed session of this run had left")


def clear_workers(settings: SandboxSettings, say: Callable[[str], None]) -> None:
    """Remove what killed workers left, at the end of a session."""
    try:
        reap(settings)
    except SandboxError as error:
        say(f"what killed workers may have left in {settings.backend} is removed by the next start, or by kiseki reap: {error}")


def _trace(ledger: Ledger) -> Trace:
    if kept := ledger.get_meta(KEY):
        return msgspec.json.decode(kept, type=Trace)
    trace = Trace(secrets.token_hex(8))
    ledger.set_meta(KEY, msgspec.json.encode(trace).decode())
    return trace


def _keep(ledger: Ledger, trace: Trace, places: dict[Place, None]) -> None:
    """Write down where sandboxes may be; those of this machine are looked for anyway."""
    now = tuple(place for place in places if place.backend in LEAVES_MORE)
    if now != _trace(ledger).places:
        ledger.set_meta(KEY, msgspec.json.encode(Trace(trace.id, now)).decode())
