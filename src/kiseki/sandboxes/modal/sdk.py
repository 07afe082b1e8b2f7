"""Modal's SDK, as the Modal backend uses it: where it comes from, whether Modal answers, what its errors are to us, and images.

The token (`modal token new`, or MODAL_TOKEN_ID and MODAL_TOKEN_SECRET) stays with the SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kiseki.errors import ImageError, KisekiError, SandboxError, UsageError
from kiseki.sandboxes.settings import Pull

T = TypeVar("T")

APP = "kiseki"
"""What Modal groups our instances and images under; made when it is missing."""
ANSWER_SECONDS = 20.0
"""For Modal to say hello. The SDK itself tries for a minute."""
_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]*")
"""The name becomes a line of a Dockerfile; this leaves no room for another line."""


def sdk() -> Any:
    """The SDK, quiet: what goes wrong in it arrives as an exception. Raises UsageError where it is missing."""
    try:
        import modal
        import modal.stream_type
    except ImportError as error:
        raise UsageError("sandbox backend 'modal' needs the modal package: pip install 'kiseki[modal]'") from error
    if "MODAL_LOGLEVEL" not in os.environ:
        logging.getLogger("modal-client").setLevel(logging.ERROR)
    return modal


def client() -> Any:
    """The SDK's client, once Modal has answered it. Blocks. Raises UsageError without a valid token, else SandboxError."""
    modal = sdk()

    async def hello() -> Any:
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await modal.Client.from_env.aio()
            await found.hello.aio()
            return found

    try:
        with ThreadPoolExecutor(1, thread_name_prefix="modal") as thread:  # The caller's may have an event loop that runs.
            return thread.submit(asyncio.run, hello()).result()
    except modal.exception.AuthError as error:
        raise UsageError(
            "Modal has no valid token from here: `modal token new` makes one, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET; "
            f"it says: {words(error)}"
        ) from error
    except Exception as error:
        raise SandboxError(f"Modal does not answer: {words(error)}") from error


@contextlib.contextmanager
def asking(what: str) -> Iterator[None]:
    """Whatever the SDK raises, and what it stands on, becomes a SandboxError."""
    try:
        yield
    except KisekiError:
        raise
    except Exception as error:
        exception = sdk().exception
        refused = isinstance(error, exception.AuthError | exception.PermissionDeniedError | exception.InvalidError)
        failure = SandboxError(f"Modal does not {what}: {words(error)}")
        failure.retryable = not refused or isinstance(error, exception.ConflictError)
        raise failure from error


async def answer(call: Awaitable[T], seconds: float | None = None) -> T:
    """Of a call of the SDK. Cancelled, or after so many seconds (TimeoutError), it is let go of at once: the SDK's own calls wait
    until its thread has noticed, which would hold up whoever gave up on it."""
    calling = asyncio.ensure_future(call)
    calling.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be there to hear of it
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.shield(calling)
    finally:
        calling.cancel()


def words(error: BaseException) -> str:
    """An error in Modal's own words, in one line."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return " ".join(str(error).split()) or type(error).__name__


def image_of(name: str) -> Any:
    """Of a registry. Without its entrypoint, which Modal would run around every program. Raises ImageError."""
    if not _IMAGE_NAME.fullmatch(name):
        raise ImageError(f"{name!r} is not the name of an image in a registry")
    return sdk().Image.from_registry(name, setup_dockerfile_commands=["ENTRYPOINT []"])


def image_error(name: str, error: Exception) -> ImageError:
    """Of a build."""
    said = words(error)
    failure = ImageError(f"image {name!r}: {said}")
    # A build that failed does so again; one that was cut off need not.
    failure.retryable = not isinstance(error, sdk().exception.ImageBuildError) or "external shut-down" in said
    return failure


class ModalImages:
    """An `ImageStore`. Modal doesn't tell whether an image is there, but to build what is there takes it no time."""

    def __init__(self) -> None:
        self._built: set[str] = set()

    def has(self, image: str) -> bool:
        return image in self._built

    def pull(self, image: str, tell: Callable[[Pull], None]) -> None:
        wanted = image_of(image)
        with asking("build images"):
            app = sdk().App.lookup(APP, create_if_missing=True, client=client())
        tell(Pull(words="Modal builds it"))
        try:
            wanted.build(app)
        except Exception as error:
            raise image_error(image, error) from error
        self._built.add(image)

    def close(self) -> None:
        """The SDK's connection is the process's."""
