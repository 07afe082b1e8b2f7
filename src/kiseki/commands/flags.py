"""Flags as every command takes them: `--flag_name=value`, `--flag-name value`, booleans bare; one clear line when wrong."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from kiseki.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Long flags only, never abbreviated, `_` and `-` the same; raises `UsageError` instead of printing the usage."""

    def __init__(self, prog: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=_width()),
        )
        self._switches: set[str] = set()

    def flag(self, group: argparse._ArgumentGroup, name: str, kind: Callable[[str], Any], help: str, default: Any = None) -> None:
        """One flag with a value. `kind` turns the text into it, raising `ValueError` with the reason."""
        shown = "" if default in (None, "", (), {}) else f" (default: {default})"
        metavar = name.rsplit("_", 1)[-1].upper()
        group.add_argument(
            f"--{name}", type=_named(kind), default=default, help=f"{help}{shown}".replace("%", "%%"), metavar=metavar
        )

    def switch(self, group: argparse._ArgumentGroup, name: str, help: str, *, default: bool = False) -> None:
        """A boolean: bare, or with a value (`=true`, `=false`)."""
        shown = f" (default: on; --{name}=false switches it off)" if default else ""
        group.add_argument(f"--{name}", action="store_true", default=default, help=help + shown)
        self._switches.add(f"--{name}")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Raises `UsageError`: an unknown flag (with the likely one), a bad value, a missing flag."""
        said: dict[str, bool] = {}
        flags = self.parse_args(self._without_boolean_values([_normal(each) for each in argv], said))
        vars(flags).update(said)
        return flags

    def _without_boolean_values(self, arguments: list[str], said: dict[str, bool]) -> list[str]:
        """`--resume=true` and `--resume true` as `--resume`; with false as nothing. `said` gets each such value by its name."""
        kept: list[str] = []
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if kept and kept[-1] in self._switches and argument.lower() in ("true", "false"):
                name, equals, value = kept.pop(), "=", argument
            if name not in self._switches or not equals:
                kept.append(argument)
            elif value.lower() not in ("true", "false"):
                raise UsageError(f"{name}: {value!r} is neither true nor false")
            else:
                said[name[2:]] = value.lower() == "true"
                kept += [name] if said[name[2:]] else []
        return kept

    def error(self, message: str) -> NoReturn:
        if unknown := re.search(r"unrecognized arguments: (.*)", message):
            first = unknown[1].split(" ")[0]
            name, equals, _ = first.partition("=")
            first = f"{name}=…" if equals and _holds_a_secret(name) else first
            known = [option for action in self._actions for option in action.option_strings]
            close = difflib.get_close_matches(first.split("=")[0], known, 1)
            hint = f"; did you mean {close[0]}?" if close else f"; {self.prog} --help lists the flags"
            raise UsageError(f"unknown {'flag' if first.startswith('-') else 'argument'} {first}{hint}")
        if missing := re.search(r"the following arguments are required: (.*)", message):
            raise UsageError(f"missing {missing[1]}; {self.prog} --help shows an example")
        raise UsageError(message.removeprefix("argument ").replace("expected one argument", "a value is needed"))


def _holds_a_secret(name: str) -> bool:
    """Whether that is a misspelled --api_key or the like, whose value must not be shown."""
    from kiseki.tools.redact import is_secret_name

    return is_secret_name(name)


def _width() -> int:
    return min(120, int(os.environ.get("COLUMNS") or 0) or 110)


def _normal(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name[:2] + name[2:].replace("-", "_") + equals + value


def _named(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            reason = "a whole number is needed" if kind is int else str(error)
            raise argparse.ArgumentTypeError(f"{text!r} cannot be used: {reason}") from error

    return convert


# ---- kinds of values ----------------------------------------------------------------------------------------------------


def at_least(minimum: float, kind: type[int] | type[float] = int) -> Callable[[str], Any]:
    """A number not below `minimum`."""

    def convert(text: str) -> int | float:
        try:
            number = kind(text)
        except ValueError:
            raise ValueError(f"{'a whole number' if kind is int else 'a number'} is needed") from None
        if not number >= minimum:
            raise ValueError(f"it must be at least {minimum:g}")
        return number

    return convert


def one_of(*choices: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in choices:
            close = difflib.get_close_matches(text, choices, 1)
            raise ValueError(f"it must be one of {', '.join(choices)}" + (f"; did you mean {close[0]}?" if close else ""))
        return text

    return convert


def json_object(text: str) -> dict[str, Any]:
    """A JSON object, or @FILE with one in it."""
    import json
    from pathlib import Path

    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("it must be a JSON object")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number that JSON has")


def names(text: str) -> tuple[str, ...]:
    """A comma-separated list."""
    return tuple(part for each in text.split(",") if (part := each.strip()))
