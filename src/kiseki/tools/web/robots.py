"""What a site's robots.txt allows, by RFC 9309: the group that names us, else the one for all; the longest rule that fits counts.

(The standard library's parser takes the first rule that fits, and knows no `*` and `$` in paths.)
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import msgspec

MAX_BYTES = 500 * 1024
"""Of a robots.txt that are read, as in the RFC."""
_MAX_RULES = 10_000


class Robots(msgspec.Struct, frozen=True):
    """The rules for one agent."""

    rules: tuple[tuple[str, bool], ...] = ()
    """Pattern of a path, and whether what fits it is allowed."""

    def allows(self, path: str) -> bool:
        """`path`: with its query, beginning with a slash."""
        path = _normal(path)
        fitting = [(len(pattern), allowed) for pattern, allowed in self.rules if _fits(pattern, path)]
        return max(fitting)[1] if fitting else True  # of two that are equally long the one that allows


def parse(text: str, agent: str) -> Robots:
    """The rules in a robots.txt for `agent`, a product name in lower case."""
    ours: list[tuple[str, bool]] = []
    everybodys: list[tuple[str, bool]] = []
    named = False
    agents: list[str] = []
    in_rules = False
    for line in re.split(r"[\r\n]+", text.lstrip("\ufeff")):
        field, colon, value = line.partition("#")[0].partition(":")
        field, value = field.strip().lower(), value.strip()
        if not colon:
            continue
        if field == "user-agent":
            if in_rules:
                agents, in_rules = [], False
            name = value.lower().partition("/")[0].strip()
            agents.append(name)
            named = named or name == agent
        elif field in ("allow", "disallow"):
            in_rules = True
            if not value:  # "Disallow:" forbids nothing
                continue
            rule = _normal(value), field == "allow"
            if agent in agents and len(ours) < _MAX_RULES:
                ours.append(rule)
            if "*" in agents and len(everybodys) < _MAX_RULES:
                everybodys.append(rule)
    return Robots(tuple(ours if named else everybodys))


def _normal(path: str) -> str:
    """With every character escaped in the same way."""
    return quote(unquote(path, errors="surrogateescape"), safe="/?*$=&;:@!'()+,~-._%", errors="surrogateescape")


def _fits(pattern: str, path: str) -> bool:
    """Without a regular expression: those that a site writes may take for ever."""
    whole = pattern.endswith("$")
    first, *others = pattern.removesuffix("$").split("*")
    if not path.startswith(first):
        return False
    at = len(first)
    for number, part in enumerate(others):
        if whole and number == len(others) - 1:
            return len(path) - len(part) >= at and path.endswith(part)
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return not whole or at == len(path)
