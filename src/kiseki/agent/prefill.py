"""Few-shot messages that stand ahead of the prompt and are never saved: from the library's argument, or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kiseki.errors import UsageError
from kiseki.trajectory.chat import kind_of, read_message
from kiseki.trajectory.types import Message


def prefill_messages(listed: Any, where: str) -> tuple[Message, ...]:
    """`listed` (a list of `{role, content}`) as messages; a `Message` in it is taken as it is.

    Raises `UsageError`, which begins with `where`, when it is anything else.
    """
    try:
        if not isinstance(listed, Sequence) or isinstance(listed, str | bytes):
            raise ValueError(f"it is {kind_of(listed)}")
        return tuple(
            each if isinstance(each, Message) else read_message(each, f"message {number}") for number, each in enumerate(listed)
        )
    except ValueError as error:
        raise UsageError(f"{where} must be a list of {{role, content}}: {error}") from error


def read_prefill(file: str) -> tuple[Message, ...]:
    """The messages of `--prefill_messages_file`: a JSON array of {role, content}. None for no file ("")."""
    where = f"--prefill_messages_file {file}"
    if not file:
        return ()
    try:
        listed = msgspec.json.decode(Path(file).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {where}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where} must be a list of {{role, content}}: it is not valid JSON ({error})") from error
    return prefill_messages(listed, where)
