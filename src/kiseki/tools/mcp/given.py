"""What servers are given that nobody else is to see."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kiseki.tools.settings import McpServer

_NO_SECRET = ("accept", "content-type", "user-agent")
"""Headers whose values are found in ordinary text."""
_PLAIN_URL = re.compile(r"https?://[^@?\s]*")
"""An address without credentials or parameters: no secret, and results are full of such."""


def secrets_given(servers: Iterable[McpServer]) -> dict[str, str]:
    """The values of their environments and headers, and what was filled in from variables, under names that say that they are
    secret: for `secrets_of`, which leaves out trivial ones."""
    values: list[str] = []
    for each in servers:
        values += (*each.env.values(), *each.secrets)
        for name, header in each.headers.items():
            values += header.split() if name.lower() not in _NO_SECRET else ()
    return {f"{number}_KEY": value for number, value in enumerate(values) if not _PLAIN_URL.fullmatch(value)}
