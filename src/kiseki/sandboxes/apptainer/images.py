"""Images of Apptainer: where the one that a prompt names is on this machine, and how those of registries come here.

A name that begins with `/`, `./`, `../` or `~/`, or ends with `.sif`, is a file or a folder with a root filesystem. That must not
be this machine's, which a row of a dataset could name as well. Every other is of a registry: `docker://IMAGE`, as Apptainer has
it, or IMAGE alone, which is the same. Those are kept as SIF files in a folder of Kiseki's own, `$XDG_CACHE_HOME/kiseki/images`
(by default below ~/.cache), where they stay until somebody removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes.settings import Pull, SandboxSettings

PROGRAMS = ("apptainer", "singularity")
"""In this order: where Apptainer is installed, `singularity` is another name of it."""
NO_PROGRAM = "there is no apptainer or singularity on PATH; install Apptainer 1.2 or newer"
NAME_CHARS = 80
"""Of an image's name in that of its file, for people; what tells images apart is a hash behind it."""
WORDS_CHARS = 1000
"""Of the engine's own words that are passed on."""
LOCK_WAIT = 0.5
"""Seconds between two looks whether another process has finished the same pull, or this store has been closed."""
THIS_MACHINE = ("/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/opt", "/root", "/run", "/srv", "/tmp", "/usr", "/var")  # noqa: S108
"""Folders of which no image is one, or holds one."""
OF_THE_KERNEL = ("/proc", "/sys")
"""In these is no image either."""
SHELLS = ("bin/sh", "usr/bin/sh")
"""One of these is in every root filesystem that a sandbox can be made of."""
END_TIMEOUT = 5.0
"""Seconds for a pull to remove its temporary files after SIGTERM."""

_PASSING = re.compile(
    r"time.?out|timed out|deadline exceeded|connection (?:refused|reset|closed)|no such host|temporary failure"
    r"|network is unreachable|no route to host|unexpected EOF|\bEOF$|TLS handshake|toomanyrequests|too many requests"
    r"|server misbehaving|(?:status|code|error)\D{0,20}(?:429|5\d\d)\b|bad gateway|service unavailable|internal server error",
    re.IGNORECASE | re.MULTILINE,
)
"""Words of Apptainer for what another try may get over. They are Go's network library's and registries' own."""
_LINE = re.compile(rb"[\r\n]+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LEVEL = re.compile(r"^(?:DEBUG|VERBOSE|INFO|WARNING|ERROR|FATAL)\s*:\s*")
_PROGRESS = re.compile(r"^(?:DEBUG|VERBOSE|INFO|WARNING)\s*:|\d%")


def program() -> str:
    """The apptainer or singularity to use; "" where there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), "")


def is_local(image: str) -> bool:
    return image.startswith(("/", "./", "../", "~/")) or (image.endswith(".sif") and "://" not in image)


def reference(image: str) -> str:
    """What Apptainer calls an image of a registry."""
    return image if "://" in image else f"docker://{image}"


def path_of(image: str) -> Path:
    """Absolute path of the file or folder that is or will be this image."""
    if is_local(image):
        return Path.cwd() / Path(image).expanduser()
    name = reference(image)
    safe = re.sub(r"[^A-Za-z0-9.]+", "-", name.removeprefix("docker://"))[:NAME_CHARS].strip("-.")
    return _cache() / f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.sif"


def find(image: str) -> Path:
    """The image's file or folder. Raises ImageError for one that is not there, or is none."""
    path = path_of(image)
    try:
        found = path.resolve(strict=True)
        reason = why_refused(found) if is_local(image) else ""
    except (OSError, ValueError, RuntimeError):  # the last two: a name with a NUL, links in a circle
        if is_local(image):
            raise ImageError(f"there is no image {image!r}: no file or folder {path}") from None
        raise ImageError(f"the image {image!r} is not here; `kiseki images --pull` fetches those of a dataset") from None
    if reason:
        raise ImageError(f"{image!r} is no image: {found} {reason}")
    return found


def why_refused(path: Path) -> str:
    """Why a file or folder without links in its path is no image; "" when it may be one.

    Commands in a sandbox read all that its image holds, as root where root runs it. Raises OSError.
    """
    if any(path.is_relative_to(each) for each in OF_THE_KERNEL):
        return "is the kernel's"
    if not path.is_dir():
        return "" if path.is_file() else "is neither a file nor a folder"
    own = (tempfile.gettempdir(), Path("~").expanduser(), Path.cwd(), _cache())
    if path.samefile("/") or any(Path(each).resolve().is_relative_to(path) for each in (*THIS_MACHINE, *own)):
        return "holds files of this machine, which are not for sandboxes"
    if path.is_mount():
        return "is a file system of this machine, which is not for sandboxes; a folder in it can be an image"
    if not any(os.path.lexists(path / shell) for shell in SHELLS):
        return f"has no {SHELLS[0]}, so it is not a root filesystem"
    return ""


def cleaned(words: str) -> str:
    """What went wrong, of Apptainer's stderr: one line, without colours, levels, and what it said of how it goes."""
    lines = [_COLOUR.sub("", line).strip() for line in re.split(r"[\r\n]+", words)]
    wrong = [_LEVEL.sub("", line) for line in lines if not _PROGRESS.search(line)]
    return " ".join(" ".join(wrong).split())[-WORDS_CHARS:]


class Images:
    """The `ImageStore`."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._pulls: set[subprocess.Popen[bytes]] = set()
        self._guard = threading.Lock()

    def has(self, image: str) -> bool:
        try:
            find(image)
        except ImageError:
            return False
        return True

    def pull(self, image: str, tell: Callable[[Pull], None]) -> None:
        if is_local(image):
            find(image)
            return
        target = path_of(image)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._alone(target, tell):
                if not target.exists():
                    self._pull(image, target, tell)
        except OSError as error:
            raise ImageError(f"the image {image!r} cannot be kept in {target.parent}: {error.strerror}") from error

    def close(self) -> None:
        """Ends the pulls under way; they fail."""
        self._closed.set()
        with self._guard:
            pulls = list(self._pulls)
        for process in pulls:
            _end(process)

    def _pull(self, image: str, target: Path, tell: Callable[[Pull], None]) -> None:
        command = program()
        if not command:
            raise SandboxError(NO_PROGRAM)
        for left in target.parent.glob(f".{target.stem}.*"):  # of a pull that was killed: nobody else has the lock
            left.unlink(missing_ok=True)
        new = target.with_name(f".{target.stem}.{secrets.token_hex(4)}.sif")
        try:
            status, words = self._run([command, "pull", "--force", str(new), reference(image)], tell)
            if status or not new.exists():
                said = cleaned(words) or f"{Path(command).name} pull ended with status {status}"
                error = ImageError(f"the image {image!r} cannot be pulled: {said}")
                error.retryable = bool(_PASSING.search(said)) and not self._closed.is_set()
                raise error
            new.rename(target)
        finally:
            new.unlink(missing_ok=True)

    def _run(self, argv: list[str], tell: Callable[[Pull], None]) -> tuple[int, str]:
        """Status and stderr of a pull. It has the user's environment: there are proxies, certificates, registries' passwords."""
        with self._guard:
            if self._closed.is_set():
                return 1, "stopped"
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
            )
            self._pulls.add(process)
        assert process.stderr
        words, line = bytearray(), b""
        try:
            while data := os.read(process.stderr.fileno(), 65_536):
                words = (words + data)[-65_536:]
                *lines, line = _LINE.split(line[-4096:] + data)
                if shown := [text for each in lines if (text := _told(each))]:
                    tell(Pull(words=shown[-1]))
            return process.wait(), words.decode(errors="replace")
        finally:
            with self._guard:
                self._pulls.discard(process)
            _end(process)
            process.stderr.close()

    @contextlib.contextmanager
    def _alone(self, target: Path, tell: Callable[[Pull], None]) -> Iterator[None]:
        """While no other process and no other thread pulls the same image."""
        with open(target.with_suffix(".lock"), "ab") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    tell(Pull(words="another process is pulling it"))
                    if self._closed.wait(LOCK_WAIT):
                        raise ImageError(f"the pull into {target} was stopped") from None
            yield


def _told(line: bytes) -> str:
    """A line of a pull's stderr, for the screen."""
    return _LEVEL.sub("", _COLOUR.sub("", line.decode(errors="replace")).strip())[:WORDS_CHARS]


def open_images(_: SandboxSettings) -> Images:
    return Images()


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "kiseki" / "images"


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets it remove its temporary files; what is left of its process group is killed then."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT)
