"""Toolset distributions: how likely each toolset is to be on in a rollout, and the draw.

A draw depends on the run's seed, the rollout's key and the toolset's name alone: not on the order of toolsets, on what else
is in the distribution, on what is available, or on the process that draws. Imports nothing heavy, since
`--list_distributions` has to answer at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from kiseki.errors import UsageError

Percent = float
FILE_ENDINGS = (".yaml", ".yml")
EXAMPLE = "such as {terminal: 80, file: 50}"


class Distribution(msgspec.Struct, frozen=True):
    name: str
    toolsets: dict[str, Percent]
    """Percent from 0 to 100 for each toolset, in the order of the table."""


_TABLE: dict[str, dict[str, Percent]] = {
    "default": {"web": 100, "vision": 100, "image_gen": 100, "terminal": 100, "file": 100, "browser": 100},
    "image_gen": {"image_gen": 90, "vision": 90, "web": 55, "terminal": 45},
    "research": {"web": 90, "browser": 70, "vision": 50, "terminal": 10},
    "science": {"web": 94, "terminal": 94, "file": 94, "vision": 65, "browser": 50, "image_gen": 15},
    "development": {"terminal": 80, "file": 80, "web": 30, "vision": 10},
    "safe": {"web": 80, "browser": 70, "vision": 60, "image_gen": 60},
    "balanced": {"web": 50, "vision": 50, "image_gen": 50, "terminal": 50, "file": 50, "browser": 50},
    "minimal": {"web": 100},
    "terminal_only": {"terminal": 100, "file": 100},
    "terminal_web": {"terminal": 100, "file": 100, "web": 100},
    "creative": {"image_gen": 90, "vision": 90, "web": 30},
    "reasoning": {"web": 90, "file": 60, "terminal": 20},
    "browser_use": {"browser": 100, "web": 80, "vision": 70},
    "browser_only": {"browser": 100},
    "browser_tasks": {"browser": 97, "vision": 12, "terminal": 15},
    "terminal_tasks": {"terminal": 97, "file": 97, "web": 97, "browser": 75, "vision": 50, "image_gen": 10},
    "mixed_tasks": {"browser": 92, "terminal": 92, "file": 92, "web": 35, "vision": 15, "image_gen": 15},
}
BUILT_IN = {name: Distribution(name, toolsets) for name, toolsets in _TABLE.items()}


def get_distribution(name: str, file: Path | None = None) -> Distribution:
    """A built-in distribution, or a user's: `FILE.yaml` that holds one, `FILE.yaml:NAME` one of several (or `file` and NAME).

    Raises `UsageError`: unknown name, unreadable file, wrong values.
    """
    if file is not None:
        return _from_file(file, name)
    path, colon, chosen = name.rpartition(":")
    if colon and path.endswith(FILE_ENDINGS):
        return _from_file(Path(path), chosen)
    if name.endswith(FILE_ENDINGS):
        return _from_file(Path(name), "")
    if name not in BUILT_IN:
        raise UsageError(
            f"there is no distribution {name!r}{_guess(name, BUILT_IN)}; a file of your own: FILE.yaml or FILE.yaml:NAME"
        )
    return BUILT_IN[name]


def _guess(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, 3, 0.5)
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"{meant} (there are: {', '.join(known)})"


def _from_file(file: Path, name: str) -> Distribution:
    """One distribution: a mapping of toolset to percent, alone in the file or one of several under their names."""
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the distribution file {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not content:
        raise UsageError(f"{file} must hold a mapping of toolset to percent, {EXAMPLE}")
    several = [str(key) for key, value in content.items() if isinstance(value, dict)]
    if several and len(several) < len(content):
        single = next(str(key) for key, value in content.items() if not isinstance(value, dict))
        raise UsageError(f"{file}: {single!r} is not a distribution as {several[0]!r} is: one distribution or several, not both")
    if not several:
        if name and name != file.stem:
            raise UsageError(f"{file} holds one distribution without a name: give {file} alone")
        return Distribution(file.stem, _checked(content, str(file)))
    if not name:
        if len(several) > 1:
            raise UsageError(f"{file} holds several distributions: choose one, as {file}:{several[0]} ({', '.join(several)})")
        name = several[0]
    by_name = {str(key): value for key, value in content.items()}
    if name not in by_name:
        raise UsageError(f"{file} has no distribution {name!r}{_guess(name, several)}")
    return Distribution(name, _checked(by_name[name], f"{file}: {name}"))


def _checked(mapping: dict[Any, Any], where: str) -> dict[str, Percent]:
    result: dict[str, Percent] = {}
    for key, value in mapping.items():
        if not isinstance(key, str) or not key.strip():
            raise UsageError(f"{where}: {key!r} is not the name of a toolset")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
            raise UsageError(f"{where}: {key} must be a number from 0 to 100 (percent), not {value!r}")
        result[key] = value
    if not any(result.values()):
        raise UsageError(f"{where}: at least one toolset needs more than 0 percent, {EXAMPLE}")
    return result


def draw(distribution: Distribution, seed: int, key: str, available: Collection[str]) -> tuple[str, ...]:
    """The toolsets of one rollout, in the table's order: each drawn by itself; when that leaves none, the most probable one.

    Empty only when no toolset of the distribution is available.
    """
    usable = {name: percent for name, percent in distribution.toolsets.items() if name in available and percent > 0}
    drawn = tuple(name for name, percent in usable.items() if _uniform(seed, key, name) * 100 < percent)
    return drawn if drawn or not usable else (max(usable, key=lambda name: usable[name]),)


def _uniform(seed: int, key: str, toolset: str) -> float:
    """A number from 0 up to, not including, 1."""
    digest = hashlib.blake2b(f"{seed}\0{key}\0{toolset}".encode(), digest_size=8, person=b"toolset draw").digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53  # as many bits as a float holds, so that 1 is never reached


def format_table() -> str:
    """All built-in distributions for people: a line each."""
    width = max(map(len, BUILT_IN))
    lines = [f"{'distribution':<{width}}  toolsets (percent)"]
    for name, each in BUILT_IN.items():
        toolsets = ", ".join(f"{toolset} {percent:g}" for toolset, percent in each.toolsets.items())
        lines.append(f"{name:<{width}}  {toolsets}")
    return "\n".join(lines)
