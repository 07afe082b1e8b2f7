"""What all sandboxes of a run have in common, and what a backend is to those who open them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from kiseki.sandboxes.base import Limits
from kiseki.sandboxes.shell import ShellSandbox


class SandboxSettings(msgspec.Struct, frozen=True):
    """Goes to worker processes as it is."""

    backend: str = "auto"
    """One of `factory.BACKENDS`, or "auto"."""
    limits: Limits = Limits()
    label: str = "run"
    """The run's name: part of the names of folders and cgroups, and a label of containers, by which `reap` finds them. A dot
    makes a level: each worker of the run "abc" may have its own, as "abc.3"."""
    owner: str = ""
    """Absolute path of a file that the owning process holds an flock on for as long as it lives, as `owners.hold` or
    `owners.of_this_process` gives it: it tells a later reaper whose label is whose."""
    start_timeout: float = 60.0
    """Seconds that one may take to start."""
    program: str = ""
    """The bwrap that was found to work, so that no worker tries it again: that would hold up its event loop."""
    image: str = ""
    """Of prompts that name none."""
    lost_images: dict[str, str] = {}
    """Images that could not be had before the run began → the engine's own words. Their prompts fail."""
    host: str = ""
    """Of ssh: `[user@]host[:port]`."""
    warm: int = 0
    """Sandboxes per image that each worker keeps started ahead of need."""


class Backend(Protocol):
    """One kind of sandbox, as one process uses it: holds what its sandboxes share (a connection, a client)."""

    async def open(self, image: str) -> ShellSandbox:
        """A started sandbox in its default folder; the caller closes it. `image` is "" on a backend without images.

        Raises ImageError for an image that cannot be had, SandboxError when it doesn't start otherwise. On any failure, and on
        cancellation, everything made so far is gone before the error leaves.
        """
        ...

    async def close(self) -> None:
        """Let go of what sandboxes share; they are closed before."""
        ...


class Pull(msgspec.Struct, frozen=True):
    """How far an image's download is."""

    done: int = 0
    """Bytes; layers that are unpacked count whole."""
    total: int = 0
    """Bytes known so far; 0 when the engine doesn't say."""
    words: str = ""
    """The engine's, for the screen."""


class ImageStore(Protocol):
    """Images of a backend that has them. Blocking; safe to call from several threads."""

    def has(self, image: str) -> bool:
        """Whether it is there without a download. Raises SandboxError when the engine cannot be asked."""
        ...

    def pull(self, image: str, tell: Callable[[Pull], None]) -> None:
        """Have it there. Tries once; raises ImageError with the engine's own words (`retryable` says whether trying again may
        help: a network error does, "not found" does not)."""
        ...

    def close(self) -> None:
        """Let go at once, also while pulls are under way in other threads (after an interrupt)."""
        ...
