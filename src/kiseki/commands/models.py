"""`kiseki models check`: what a model's endpoint can do of what rollouts need, and the flags to use with it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser
from kiseki.commands.shared_flags import add_model_flags, model_settings
from kiseki.errors import KisekiError, UsageError
from kiseki.models.endpoints import ModelSettings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from kiseki.models.checking import Checked, Report

POSSIBLE, NO_TOOLS = 0, 3
MOST_WORDS = 300
"""Characters of an endpoint's words."""
STYLES = {"yes": "green", "partly": "yellow", "no": "red", "untried": "dim"}
SIGNS = {"yes": "yes", "partly": "partly", "no": "no", "untried": "–"}
WORTH = (("streaming", "--stream"), ("token ids", "--capture_tokens"), ("no reasoning", "--reasoning_disabled"))
"""Checks that show that a flag may be used."""
USAGE = """\
usage: kiseki models check [FLAGS]

Makes one tiny call each for what rollouts need of a model: text, streaming, tool calls, several of them at once, reasoning, JSON,
a seed, token ids, the prompt cache. Shows what works, and what to give to kiseki batch.

examples:
  kiseki models check --model=Qwen/Qwen3-8B --base_url=http://127.0.0.1:8000/v1
  OPENROUTER_API_KEY=… kiseki models check --model=anthropic/claude-sonnet-4.6

kiseki models check --help lists the flags: those of the model, as kiseki batch has them
"""
EPILOG = """\
examples:
  kiseki models check --model=Qwen/Qwen3-8B --base_url=http://127.0.0.1:8000/v1
  OPENROUTER_API_KEY=… kiseki models check --model=anthropic/claude-sonnet-4.6 --reasoning_effort=high
  kiseki models check --model=gemma3 --base_url=http://127.0.0.1:11434/v1 --json

About 15 calls, of 120 s each and 10 minutes in all at most, and about 6,000 tokens of prompts (15,000 to Claude).

exit status: 0 rollouts with tools are possible; 3 the endpoint answers, but the model calls no tools in any way;
2 unusable arguments, key or model; 1 the endpoint cannot be reached, or does not answer"""


def build_parser() -> Parser:
    parser = Parser("kiseki models check", "Try what a model's endpoint can do, with one tiny call for each thing.", EPILOG)
    group = parser.add_argument_group("what is printed")
    parser.switch(group, "json", "a JSON object: model, base_url, tools, gone, needed, flags, command, checks")
    add_model_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0
    if argv[0] != "check":
        raise UsageError(f"kiseki models has no {argv[0]!r}; did you mean kiseki models check?")
    flags = build_parser().parse(argv[1:])
    return _check(model_settings(flags), as_json=flags.json)


def _check(settings: ModelSettings, *, as_json: bool) -> int:
    import asyncio
    import os

    from rich.console import Console
    from rich.text import Text

    from kiseki.models.checking import check
    from kiseki.models.factory import PRACTICE, check_model, ignored_flags, with_api_key
    from kiseki.models.smollm2 import serving

    check_model(settings)
    if settings.model == PRACTICE:
        raise UsageError(f"{PRACTICE} is a program that uses the tools of its prompts, and no model: there is nothing to check")
    settings = with_api_key(settings, os.environ)
    progress = Console(stderr=True)
    if ignored := ignored_flags(settings):
        words = f"{settings.model} takes no notice of {', '.join(ignored)}"
        progress.print(Text(words, "yellow"), soft_wrap=True)
    hide = _hiding(settings)
    with serving(settings) as served:
        try:
            report = asyncio.run(check(served, lambda what: progress.print(Text(f"asking: {what}", "dim"), soft_wrap=True)))
        except KisekiError as error:
            error.args = (hide(str(error)),)
            raise
    shown = tuple(msgspec.structs.replace(each, words=hide(each.words)) for each in report.checks)
    report = msgspec.structs.replace(report, checks=shown, gone=tuple(map(hide, report.gone)))
    used = msgspec.structs.replace(settings, **report.changed)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(_plain(report, used)), indent=2).decode() + "\n")
    else:
        _show(make_console(), report, used)
    return POSSIBLE if report.tools else NO_TOOLS


def _hiding(settings: ModelSettings) -> Callable[[str], str]:
    """What takes the key and the secrets of the extra body out of an endpoint's words."""
    from kiseki.tools.extra_body import secrets_in_body
    from kiseki.tools.redact import redact, secrets_of

    secrets = secrets_of(settings.api_key, secrets_in_body(settings.extra_body))
    return lambda text: redact(text, secrets)[0]


def _show(console: Console, report: Report, used: ModelSettings) -> None:
    from rich.text import Text

    from kiseki.tools.extra_body import HIDDEN

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style), soft_wrap=True)

    console.print(_table(report.checks))
    for line in report.gone:
        say(f"{_printable(line)}.", "yellow")
    if not report.tools:
        say("Rollouts with tools are not possible: the model calls none in any way that was tried.", "red")
        return
    say(f"Rollouts with tools are possible: the model calls them {report.tools}.", "green")
    if any(each.what.startswith("tools, ") and each.state == "partly" for each in report.checks):
        say("It did not get from the tool's result to the right answer, though: expect few good rollouts.", "yellow")
    for why in report.needed:
        say(f"Needed: {why}.", "yellow")
    flags = flags_of(used, report)
    if also := _also(report.checks, flags):
        say(f"Also possible: {', '.join(also)}")
    if HIDDEN in "".join(flags):
        say(f"{HIDDEN} in --extra_body stands for a secret, which is not shown.")
    say("")
    say(command(flags))


def _also(checks: Sequence[Checked], flags: Sequence[str]) -> list[str]:
    """Flags that would work, too."""
    works = {each.what for each in checks if each.state == "yes"}
    return [flag for what, flag in WORTH if what in works and flag not in flags]


def _table(checks: Sequence[Checked]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from kiseki.trajectory.types import Usage

    table = Table()
    table.add_column("check")
    table.add_column("works")
    table.add_column("what was seen", overflow="fold")
    for title in ("tokens", "cost", "seconds"):
        table.add_column(title, justify="right")
    above = ""
    for each in checks:
        words = _words(each)
        shown = "the same" if words == above and each.state == "no" else words
        above = words
        tokens = each.usage.prompt_tokens + each.usage.completion_tokens
        table.add_row(
            Text(_printable(each.what)),
            Text(SIGNS[each.state], STYLES[each.state]),
            Text(shown),
            f"{tokens:,}" if tokens else "",
            f"${each.usage.cost:.4f}" if each.cost_known else "",
            f"{each.seconds:.1f}" if each.calls else "",
        )
    table.add_section()
    usage = sum((each.usage for each in checks), Usage())
    cost = f"${usage.cost:.4f}" if any(each.cost_known for each in checks) else ""
    words = f"{sum(each.calls for each in checks)} calls"
    seconds = sum(each.seconds for each in checks)
    table.add_row("all", "", words, f"{usage.prompt_tokens + usage.completion_tokens:,}", cost, f"{seconds:.1f}")
    return table


def _words(checked: Checked) -> str:
    """They may be a stranger's."""
    return _printable(" ".join(checked.words.split()))


def _printable(text: str) -> str:
    from kiseki.trajectory.text import printable

    return printable(text, MOST_WORDS)


# ---- what to use --------------------------------------------------------------------------------------------------------


def flags_of(settings: ModelSettings, report: Report) -> list[str]:
    """Those of the command line that make these settings, but for the key, and what `kiseki batch` needs besides."""
    from kiseki.models.checking import FILTER_OFF
    from kiseki.tools.extra_body import shown_body

    default = ModelSettings(settings.model)
    found = [f"--model={settings.model}"]
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if name in ("model", "api_key", "fallback", "price") or value == getattr(default, name):
            continue
        if value is True:
            found.append(f"--{name}")
        elif isinstance(value, dict):
            found.append(f"--{name}={msgspec.json.encode(shown_body(value)).decode()}")
        else:
            found.append(f"--{name}={','.join(value) if isinstance(value, tuple) else value}")
    if settings.fallback:
        found.append(f"--fallback_model={','.join(each.model for each in settings.fallback)}")
        if (there := settings.fallback[0].base_url) != settings.base_url:
            found.append(f"--fallback_base_url={there}")
    return [*found, FILTER_OFF] if report.filter_off else found


def command(flags: Sequence[str]) -> str:
    """To be pasted."""
    return shlex.join(["kiseki", "batch", "--dataset_file=prompts.jsonl", "--batch_size=50", "--run_name=my_run", *flags])


def _plain(report: Report, used: ModelSettings) -> dict[str, Any]:
    from kiseki.models.factory import is_builtin

    flags = flags_of(used, report)
    return {
        "model": used.model,
        "base_url": "" if is_builtin(used.model) else used.base_url,
        "tools": report.tools,
        "gone": [_printable(line) for line in report.gone],
        "needed": report.needed,
        "flags": flags,
        "command": command(flags),
        "checks": [
            {
                "check": each.what,
                "works": each.state,
                "words": _words(each),
                "calls": each.calls,
                "prompt_tokens": each.usage.prompt_tokens,
                "completion_tokens": each.usage.completion_tokens,
                "cost": each.usage.cost if each.cost_known else None,
                "seconds": round(each.seconds, 3),
            }
            for each in report.checks
        ],
    }
