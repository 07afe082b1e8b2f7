"""Puts a copy of a folder of the user's into a rollout's sandbox, below its home folder."""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile

from kiseki.errors import SandboxError, ToolError, UsageError
from kiseki.tools.context import ToolContext
from kiseki.tools.folders import MAX_BYTES, Entry, entries
from kiseki.tools.paths import absolute
from kiseki.tools.services import Services

SECONDS = 120.0
"""For unpacking: a second here, more on a remote host."""
MODIFIED = 1_577_836_800
"""Date of every file, 2020-01-01: when a folder was cloned must not make two runs differ."""
NO_TAR = 127
"""What a shell says of a program that is not there."""
_UNPACK = (
    f'exec 2>&1; mkdir -p -- "$HOME/$1" && cd -- "$HOME/$1" || exit 1; command -v tar >/dev/null || exit {NO_TAR}; exec tar -xf -'
)


class Seeds:
    """The user's folders as a worker read them: each once, so that all of its rollouts begin alike."""

    def __init__(self, services: Services) -> None:
        self._packed: dict[str, asyncio.Task[bytes]] = {}

    async def packed(self, folder: str) -> bytes:
        """The folder as a tar archive. Raises `SandboxError` when it cannot be read (any more)."""
        if folder not in self._packed:
            self._packed[folder] = asyncio.ensure_future(asyncio.to_thread(pack, folder))
        try:
            return await asyncio.shield(self._packed[folder])
        except (OSError, UsageError) as error:
            self._packed.pop(folder, None)  # the next rollout may find it readable again
            raise SandboxError(f"{folder} cannot be copied into sandboxes: {error}") from error

    async def close(self) -> None:
        self._packed.clear()


async def seed(context: ToolContext, folder: str, name: str) -> None:
    """Make the sandbox's `~/name` a copy of `folder`. Raises `SandboxError`."""
    archive = await context.services.get(Seeds).packed(folder)
    argv = ["sh", "-c", _UNPACK, "sh", name]
    try:
        status, output = await context.sandbox.run(argv, timeout=SECONDS, stdin=archive, max_output=10_000)
        if status == NO_TAR:
            await _write_one_by_one(context, archive, name)
        elif status:
            raise ToolError(f"tar ended with status {status}: {output.decode('utf-8', 'replace').strip()[-500:]}")
    except ToolError as error:  # no call of the model's has failed
        raise SandboxError(f"~/{name} could not be filled with {folder}: {error}") from error


def pack(folder: str) -> bytes:
    """The same bytes for the same files, whoever owns them and whenever they were made."""
    buffer = io.BytesIO()
    # not pax, whose long names the tar of small images does not know
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for each in entries(folder):
            member = _member(each)
            if each.is_folder or each.link:
                archive.addfile(member)
                continue
            with each.path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)  # it may have grown meanwhile
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
            if buffer.tell() > 2 * MAX_BYTES:
                raise UsageError(f"{folder} grew beyond {MAX_BYTES:,} bytes while it was read")
    return buffer.getvalue()


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.inside)
    member.mtime = MODIFIED
    member.mode = 0o755 if entry.is_folder or entry.executable else 0o644
    if entry.is_folder:
        member.type = tarfile.DIRTYPE
    elif entry.link:
        member.type, member.linkname = tarfile.SYMTYPE, entry.link
    return member


async def _write_one_by_one(context: ToolContext, archive: bytes, name: str) -> None:
    """For a sandbox without tar: folders, links and what is executable take a call each."""
    home = await absolute(context, "~")
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            path = posixpath.join(home, name, member.name)
            if file := members.extractfile(member) if member.isreg() else None:
                await context.sandbox.write_file(path, file.read())
            argv = ["mkdir", "-p", "--", path] if member.isdir() else ["chmod", "755", "--", path]
            argv = ["ln", "-s", "--", member.linkname, path] if member.issym() else argv
            if not member.isreg() or member.mode & 0o100:
                await context.sandbox.run(argv, timeout=SECONDS)
