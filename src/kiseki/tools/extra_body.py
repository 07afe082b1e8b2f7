"""What of `--extra_body` is secret: by the names in it, as those of variables, and by its values' shape. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kiseki.tools.redact import Secrets, is_secret_name, redact

HIDDEN = "***"
_NO_SECRETS = Secrets()
"""Of the run's own: those of others are found by their shape."""


def shown_body(value: Any) -> Any:
    """The body, or a part of it, as it may be kept and shown."""
    if isinstance(value, dict):
        secret = {name: HIDDEN for name, each in value.items() if is_secret_name(name) and isinstance(each, str)}
        return {name: secret.get(name) or shown_body(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shown_body(each) for each in value]
    return redact(value, _NO_SECRETS)[0] if isinstance(value, str) else value


def secrets_in_body(value: Any) -> dict[str, str]:
    """The values under secret names, each under a name of its own that still says so."""
    return {f"{number}_{name}": each for number, (name, each) in enumerate(_named(value))}


def _named(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, each in value.items():
            if isinstance(each, str):
                if is_secret_name(name):
                    yield name, each
            else:
                yield from _named(each)
    elif isinstance(value, list):
        for each in value:
            yield from _named(each)
