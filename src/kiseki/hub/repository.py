"""A dataset repository of the Hugging Face Hub: looked at, made, and changed in commits. The library is imported here alone.

Files are told apart by what they hold: the Hub names large ones by their SHA-256, small ones by git's hash of a blob, and both
are known here before anything is sent. Large files are stored before the commit that names them, so a push that was killed finds
what it had sent when it comes again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from kiseki.errors import UsageError
from kiseki.hub.words import HOW_TO_LOG_IN, in_words, status_of
from kiseki.trajectory.hugging_face import set_library_defaults

INSTALL = "pip install 'kiseki[hf]'"
SECONDS = 300.0
"""Until the Hub has taken or given anything more; a silent one would be waited for without end."""
KIND = "dataset"
CARD, MANIFEST = "README.md", "kiseki.json"
READ_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}", re.ASCII)


class Local(msgspec.Struct, frozen=True):
    """A file as it is to be in the repository."""

    name: str
    """Its path there."""
    path: Path
    size: int
    sha256: str
    blob: str
    """Git's hash of it."""
    rows: int = 0
    read: bool = True
    """False: all this is what the Hub says of the file that is there, and nobody has looked into the one on the disk."""


class Remote(msgspec.Struct, frozen=True):
    """A repository at one commit."""

    commit: str
    private: bool
    files: dict[str, str]
    """Path → SHA-256 or git's hash, in hex."""


def check_name(repository: str) -> str:
    """`org/name`. Raises `UsageError` for anything else."""
    if not _NAME.fullmatch(repository) or ".." in repository or "--" in repository:
        raise UsageError(f"{repository!r} is no name of a dataset on the Hub; it is org/name, such as my-org/my-traces")
    return repository


def local_file(name: str, path: Path, rows: int = 0) -> Local:
    """What a file on the disk will be in the repository; reads it once."""
    size = path.stat().st_size
    sha256, blob = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            sha256.update(data)
            blob.update(data)
    return Local(name, path, size, sha256.hexdigest(), blob.hexdigest(), rows)


class Repository:
    """One repository, with the user's token. Every method raises `UsageError` or `HubError` for what the Hub answers."""

    def __init__(self, name: str) -> None:
        """Raises `UsageError`: no such name, no library, no token."""
        self.name = check_name(name)
        set_library_defaults()
        try:
            import huggingface_hub
            from huggingface_hub import utils
        except ImportError:
            raise UsageError(f"pushing to the Hub needs the huggingface_hub library: {INSTALL}") from None
        utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call] # it logs each new try, with the signed address
        token = huggingface_hub.get_token()
        if not token:
            raise UsageError(HOW_TO_LOG_IN)
        self.token: str = token
        self._hub = huggingface_hub
        self._api = huggingface_hub.HfApi(token=token, library_name="kiseki")
        self.endpoint: str = self._api.endpoint
        huggingface_hub.get_session().timeout = SECONDS

    @property
    def address(self) -> str:
        return f"{self.endpoint}/datasets/{self.name}"

    def look(self) -> Remote | None:
        """As it is now; None where there is none that the token may see."""
        try:
            about = self._api.dataset_info(self.name)
            entries = self._api.list_repo_tree(self.name, repo_type=KIND, revision=about.sha, recursive=True)
            files = {
                each.path: each.lfs.sha256 if each.lfs else each.blob_id
                for each in entries
                if isinstance(each, self._hub.hf_api.RepoFile)
            }
            return Remote(str(about.sha), bool(about.private), files)
        except Exception as error:
            if isinstance(error, self._hub.errors.RepositoryNotFoundError) and not self._is_refused():
                return None
            raise in_words(error, self.name, self.endpoint) from error

    def _is_refused(self) -> bool:
        """Whether it is the token that the Hub does not take: it says of such a repository only that there is none."""
        try:
            self._api.whoami()
        except Exception as error:
            raise in_words(error, self.name, self.endpoint) from error
        return False

    def create(self, *, private: bool) -> Remote:
        """Make it, empty."""
        try:
            self._api.create_repo(self.name, repo_type=KIND, private=private)
        except Exception as error:
            if status_of(error) != 409:  # else somebody was faster: it is looked at as any other
                raise in_words(error, self.name, self.endpoint) from error
        made = self.look()
        if made is None:
            raise UsageError(f"{self.name} was made, but the token may not see it: give it read access too")
        return made

    def check_may_write(self) -> None:
        """Raises `UsageError` where the token is one that only reads."""
        if not hasattr(self._api, "auth_check"):
            return
        try:
            self._api.auth_check(self.name, repo_type=KIND, write=True)
        except TypeError:  # a library that cannot ask that yet: the first commit will tell
            return
        except Exception as error:
            raise in_words(error, self.name, self.endpoint) from error

    def read(self, name: str, remote: Remote, into: Path) -> bytes:
        """A small file of a commit; empty where it is not in it."""
        if name not in remote.files:
            return b""
        try:
            path = self._api.hf_hub_download(self.name, name, repo_type=KIND, revision=remote.commit, local_dir=into)
            return Path(path).read_bytes()
        except Exception as error:
            raise in_words(error, self.name, self.endpoint) from error

    def additions(self, files: Iterable[Local]) -> list[Any]:
        """Operations that `store` and `commit` take."""
        return [self._hub.CommitOperationAdd(each.name, str(each.path)) for each in files]

    def store(self, additions: list[Any], threads: int) -> None:
        """Have the large ones there, nowhere to be seen yet. Raises the library's own errors."""
        self._api.preupload_lfs_files(self.name, additions, repo_type=KIND, num_threads=threads, free_memory=False)

    def commit(self, additions: list[Any], gone: Iterable[str], message: str, parent: str) -> str:
        """All of it at once, on top of `parent` and nothing else. Returns the commit. Raises the library's own errors."""
        operations = [*(self._hub.CommitOperationDelete(name, is_folder=False) for name in gone), *additions]
        made = self._api.create_commit(self.name, operations, commit_message=message, repo_type=KIND, parent_commit=parent)
        return str(made.oid)
