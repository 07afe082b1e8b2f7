"""A run pushed to a dataset repository of the Hub: all that it is to hold in one commit, or its finished batches so far.

A repository is this run's when its `kiseki.json` says so; into one that holds anything else nothing is put. What `kiseki.json`
lists is ours: files of it that are no longer wanted go with the same commit that brings the new ones, so readers see the dataset
as it was or as it is. All other files of the repository stay. Whether it is public is never changed.

Nothing of a push is kept here: the same run gives the same files, and the Hub knows what of them it has.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from kiseki import __version__
from kiseki.errors import HubError, StorageError, UsageError
from kiseki.hub.card import write_card
from kiseki.hub.contents import stage_text
from kiseki.hub.facts import Facts, gather_facts, run_id
from kiseki.hub.repository import CARD, MANIFEST, Local, Remote, Repository
from kiseki.hub.scan import Guard
from kiseki.hub.wanted import Listed, Wanted, exported, finished_batches, whole_run
from kiseki.hub.words import CONFLICT, in_words, may_pass, retry_after, status_of
from kiseki.ledger.ledger import Ledger
from kiseki.ledger.opening import open_reader
from kiseki.trajectory.text import printable
from kiseki.views.bar import counting_bar
from kiseki.views.build import are_behind, are_stale

PAUSES = (1.0, 5.0, 20.0)
"""Seconds before a push that failed on the way is taken up again, where the Hub does not say how long."""
MOST_PAUSE = 300.0
STAGING = "push.tmp"
"""In the run's folder, while it is pushed."""
AT_ONCE = 4
"""Files that are stored together: what is there when a push is killed is there in whole groups."""
FILES_PER_COMMIT = 100
"""Of checkpoints, which need not come all at once; small files are sent within the commit."""


class Manifest(msgspec.Struct, frozen=True):
    """`kiseki.json`: whose data the repository holds, and which of its files are the data."""

    run: str
    """`facts.run_id`."""
    run_name: str
    state: str
    """`complete`: one commit holds it all; `checkpoints`: batches as they were finished."""
    made_by: str
    files: dict[str, Listed]
    redacted: int = 0
    """Secrets that were replaced by markers in them."""


class Pushed(msgspec.Struct, frozen=True):
    address: str
    files: int
    """Sent this time; 0 when all was there."""
    rows: int
    """That the repository now holds, those of sub-agents not counted."""
    redacted: int


class Target(msgspec.Struct, frozen=True):
    """A repository as it was found."""

    repository: Repository
    remote: Remote | None
    """None where there is none yet."""
    manifest: Manifest | None

    def batches(self) -> dict[str, Listed]:
        """The finished batches that it has just as they were pushed."""
        there = self.manifest
        if not there or not self.remote or there.state != "checkpoints" or there.redacted:
            return {}
        files = self.remote.files
        return {name: each for name, each in there.files.items() if files.get(name, "?") in (each.sha256, each.blob)}


def check_target(name: str, *, public: bool, run: str, make: bool) -> Target:
    """The repository. What would make a push fail later fails here.

    run: The run whose repository it may be already; "" for a run that is still to begin.
    make: Whether it is made where it is not there, private unless `public`: only so the Hub says whether it lets us.

    Raises `UsageError`: no token, none that may write there, of other visibility, or with other things in it; `HubError`.
    """
    repository = Repository(name)
    remote = repository.look()
    if remote is None and make:
        remote = repository.create(private=not public)
    manifest = None
    if remote:
        _check_visibility(repository, remote, public)
        repository.check_may_write()
        with tempfile.TemporaryDirectory() as folder:
            manifest = _read_manifest(repository, remote, Path(folder))
        _check_is_ours(repository, remote, manifest, run)
    return Target(repository, remote, manifest)


def push_run(
    folder: Path,
    name: str,
    console: Console,
    *,
    public: bool = False,
    redact: bool = False,
    checkpoint: bool = False,
    to: str = "",
    split: str = "",
    seed: int = 42,
    api_key: str = "",
    ledger: Ledger | None = None,
) -> Pushed:
    """Push the run in `folder`.

    public: Whether the repository is to be so; one that is there has to be already. Default: private.
    redact: Secrets are replaced in what is pushed; otherwise one is an error. Default: no.
    checkpoint: The finished batches so far, instead of the whole dataset. Default: no.
    to: Format of an export (`formats.table`) that is pushed instead; "" for the rows of `trajectories.jsonl`.
    split: Of that export, as `train=0.95,val=0.05`, drawn with `seed`.
    api_key: One that is in no variable of the environment, and must not leave either. Default: none.
    ledger: The run's, where this process has it open and locked: it may be that no other connection can read it then. Default: it
        is opened here.

    Raises `UsageError` for what the user has to put right (secrets among it: nothing was sent then), `HubError` when the Hub
    cannot be reached or fails again and again, `StorageError` where the folder cannot be written.
    """
    with nullcontext(ledger) if ledger else open_reader(folder) as ledger:
        run = run_id(ledger)
        target = check_target(name, public=public, run=run, make=False)
        repository = target.repository
        guard = Guard((repository.token, api_key), replaces=redact)
        if kinds := guard.kinds(split):
            raise UsageError(f"--split has a secret in it ({', '.join(kinds)}), and its names are those of files")
        with _staging(folder) as staging:
            with _one_moment(ledger):
                facts = _checked(gather_facts(ledger), guard)
                goes_on = checkpoint or are_behind(ledger)
                if checkpoint:
                    known = {} if redact or are_stale(ledger) else target.batches()
                    wanted = finished_batches(ledger, staging, guard, console, known)
                elif to:
                    wanted = exported(folder, to, split, seed, staging, guard, console)
                else:
                    wanted = whole_run(ledger, staging, guard, console)
            if not wanted.files:
                missing = "batch is finished" if checkpoint else "rollout is kept"
                raise UsageError(f"{folder} has no rows to push: no {missing} yet")
            guard.check()
            manifest = Manifest(
                run=run,
                run_name=facts.statistics.run_name,
                state="checkpoints" if checkpoint else "complete",
                made_by=f"kiseki {__version__}",
                files={each.name: Listed(each.size, each.sha256, each.rows, each.blob) for each in wanted.files},
                redacted=guard.count,
            )
            work = _Work(repository, public, staging, guard, facts, wanted, manifest, goes_on, console)
            sent = work.until_done()
    rows = sum(wanted.data[0].rows.values())
    return Pushed(repository.address, sent, rows, manifest.redacted)


def print_pushed(console: Console, pushed: Pushed) -> None:
    if not pushed.files:
        console.print(Text(f"nothing new to push: {pushed.address} has all {pushed.rows:,} rows"), soft_wrap=True)
        return
    hidden = f", {pushed.redacted:,} secrets replaced by markers" if pushed.redacted else ""
    console.print(Text(f"pushed: {pushed.rows:,} rows are at {pushed.address}{hidden}"), soft_wrap=True)


@contextmanager
def _one_moment(ledger: Ledger) -> Iterator[None]:
    """All that is read is as of one moment: the data, and what the card says of it."""
    ledger.db.execute("BEGIN")
    try:
        yield
    finally:
        ledger.db.execute("COMMIT")


def _checked(facts: Facts, guard: Guard) -> Facts:
    """Before markdown's escapes are in its names, which would hide a secret from the guard."""
    return msgspec.json.decode(guard.passed(msgspec.json.encode(facts), "the run's settings and names", 0), type=Facts)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """An empty folder inside of the run's, of this push alone."""
    held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    staging = folder / STAGING
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder} is being pushed by another process; wait for it to end") from None
        shutil.rmtree(staging, ignore_errors=True)  # of a push that was killed
        try:
            staging.mkdir()
            yield staging
        except OSError as error:
            raise StorageError(f"cannot write {error.filename or staging}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    finally:
        os.close(held)


# ---- bringing it there --------------------------------------------------------------------------------------------------


class _Work(msgspec.Struct):
    """One push, which may take several tries."""

    repository: Repository
    public: bool
    staging: Path
    guard: Guard
    facts: Facts
    wanted: Wanted
    manifest: Manifest
    goes_on: bool
    """The run has not ended."""
    console: Console

    def until_done(self) -> int:
        """Files that were sent. A commit whose answer was lost is found there by the next try."""
        sent: set[str] = set()
        for pause in (*PAUSES, None):
            try:
                self._once(sent)
                return len(sent)
            except Exception as error:
                if pause is None or not (may_pass(error) or status_of(error) in CONFLICT):
                    raise in_words(error, self.repository.name, self.repository.endpoint) from error
                time.sleep(min(retry_after(error) or pause, MOST_PAUSE))
        raise AssertionError

    def _once(self, sent: set[str]) -> None:
        repository = self.repository
        remote = repository.look() or repository.create(private=not self.public)
        _check_visibility(repository, remote, self.public)
        there = _read_manifest(repository, remote, self.staging / "there")
        _check_is_ours(repository, remote, there, self.manifest.run)
        before = repository.read(CARD, remote, self.staging / "there").decode("utf-8", "replace")
        card = write_card(
            self.facts,
            self.wanted.data,
            repository=repository.name,
            format=self.wanted.format,
            left_out=self.wanted.left_out,
            in_progress=self.goes_on,
            redacted=self.manifest.redacted,
            before=before,
        )
        listed = msgspec.json.format(msgspec.json.encode(self.manifest), indent=1) + b"\n"
        texts = [
            stage_text(self.staging, CARD, card.encode(), self.guard),
            stage_text(self.staging, MANIFEST, listed, self.guard),
        ]
        self.guard.check()
        new = [each for each in self.wanted.files if _is_new(each, remote)]
        if not all(each.read for each in new):
            raise HubError(f"{repository.name} was changed by somebody else meanwhile; push once more")
        new_texts = [each for each in texts if _is_new(each, remote)]
        before_this = {name for name in (there.files if there else ()) if _is_data(name) and name in remote.files}
        gone = sorted(before_this - {each.name for each in self.wanted.files})
        if not (new or new_texts or gone):
            return
        self._bring(remote, new, new_texts, gone)
        sent.update(each.name for each in (*new, *new_texts))
        sent.update(gone)

    def _bring(self, remote: Remote, new: list[Local], texts: list[Local], gone: list[str]) -> None:
        repository, name = self.repository, self.manifest.run_name
        additions = repository.additions(new)
        total = sum(each.size for each in new)
        with counting_bar(self.console, "pushing MB", max(1, total // 1_000_000)) as pushed:
            done = 0
            for at in range(0, len(new), AT_ONCE):
                repository.store(additions[at : at + AT_ONCE], AT_ONCE)
                done += sum(each.size for each in new[at : at + AT_ONCE])
                pushed(done // 1_000_000)
            additions = [*repository.additions(texts), *additions]  # first: they say whose it is
            parent = remote.commit
            while self.manifest.state != "complete" and len(additions) > FILES_PER_COMMIT:
                some, additions = additions[:FILES_PER_COMMIT], additions[FILES_PER_COMMIT:]
                parent = repository.commit(some, (), f"{name}: finished batches", parent)
            what = "dataset" if self.manifest.state == "complete" else "finished batches"
            repository.commit(additions, gone, f"{name}: {what}", parent)


def _check_visibility(repository: Repository, remote: Remote, public: bool) -> None:
    if remote.private and public:
        raise UsageError(
            f"{repository.name} is private: push without --public, or make it public in its settings on the Hub first"
        )
    if not remote.private and not public:
        raise UsageError(f"{repository.name} is public, and everybody would see what is pushed: --public says that this is meant")


def _read_manifest(repository: Repository, remote: Remote, into: Path) -> Manifest | None:
    text = repository.read(MANIFEST, remote, into)
    try:
        return msgspec.json.decode(text, type=Manifest) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{MANIFEST} of {repository.name} is damaged ({error}); delete it there, or choose another name"
        ) from error


def _check_is_ours(repository: Repository, remote: Remote, manifest: Manifest | None, run: str) -> None:
    if manifest and manifest.run != run:
        raise UsageError(
            f"{repository.name} holds another run, {printable(manifest.run_name, 100)!r}: choose another name; or delete"
            f" {MANIFEST} and the data there, if this run is to take its place"
        )
    others = [name for name in sorted(remote.files) if name not in (CARD, ".gitattributes", MANIFEST)]
    if not manifest and others:
        what = printable(others[0], 200)
        raise UsageError(f"{repository.name} holds something else ({what}, …): choose a name that is not there yet")


def _is_new(file: Local, remote: Remote) -> bool:
    return remote.files.get(file.name) not in (file.sha256, file.blob)


def _is_data(name: str) -> bool:
    """Whether a push may take it away: in one of its own folders."""
    return name.startswith(("data/", "children/", "checkpoints/")) and ".." not in name
