"""Keys that stand in a `.env` file of the current folder."""

from __future__ import annotations

import os
from pathlib import Path

from kiseki.errors import UsageError

NAME = ".env"
ALSO = ("MODAL_TOKEN_ID",)
"""Halves of keys whose names do not say so."""


def load_keys(folder: Path) -> None:
    """Put the keys of `folder`'s `.env` into this process's environment, as far as they are not set there.

    Only variables whose names say that they are secret (`…_API_KEY`, `…_TOKEN`, …): a file that lies in a folder must not decide
    which programs run or which libraries they load. Raises `UsageError` for a file that cannot be read.
    """
    file = folder / NAME
    if not file.is_file():
        return
    from dotenv import dotenv_values

    from kiseki.tools.redact import is_secret_name

    try:
        found = dotenv_values(file, interpolate=False, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{NAME} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for name, value in found.items():
        if value and (is_secret_name(name) or name in ALSO) and not os.environ.get(name):
            os.environ[name] = value
