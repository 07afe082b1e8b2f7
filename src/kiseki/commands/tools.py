"""`kiseki tools`: every tool, what it takes, whether it can be had here; `kiseki tools call` runs one as a rollout would."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, names
from kiseki.commands.shared_flags import add_model_flags, add_sandbox_flags, add_tool_flags, model_settings, tool_settings
from kiseki.errors import UsageError
from kiseki.models.endpoints import ModelSettings
from kiseki.tools.settings import ToolSettings

if TYPE_CHECKING:
    from rich.table import Table

    from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
    from kiseki.sandboxes.settings import SandboxSettings
    from kiseki.tools.gather import Gathered
    from kiseki.trajectory.types import ToolRun

FAILED = 3
EPILOG = """\
examples:
  kiseki tools
  kiseki tools --toolset=terminal,file
  kiseki tools --tools=my_tools.py --toolset=mine --json
  kiseki tools call terminal '{"command": "ls"}'

kiseki tools call --help explains that one"""
CALL_EPILOG = """\
examples:
  kiseki tools call terminal '{"command": "python3 --version"}'
  kiseki tools call web_search '{"query": "tides"}' --corpus=notes
  kiseki tools call shout '{"text": "hello"}' --tools=my_tools.py

exit status: 0 the result counts as a success; 3 as a failure; 2 unusable arguments; 1 anything unexpected"""


class Listed(msgspec.Struct, frozen=True):
    """One tool in one toolset; with --json, one object of the list."""

    name: str
    """"" where a toolset has no tool that is known."""
    toolset: str
    description: str
    parameters: msgspec.Raw
    """JSON schema."""
    available: bool
    why: str
    """Not, and what would help; "" when it is."""


def build_parser() -> Parser:
    parser = Parser("kiseki tools", "Print every tool: its toolset, what it takes, and whether it can be had here.", EPILOG)
    group = parser.add_argument_group("what is printed")
    words = "only these toolsets (comma-separated), with the parameters of their tools (default: all)"
    parser.flag(group, "toolset", names, words, ())
    parser.switch(group, "json", "a JSON list: name, toolset, description, parameters, available, why")
    _add_flags(parser, group)
    return parser


def build_call_parser() -> Parser:
    words = "Run one tool in a fresh sandbox and print its result as a model would get it."
    parser = Parser("kiseki tools call", words, CALL_EPILOG)
    parser.add_argument("name", metavar="NAME", help="the tool")
    parser.add_argument("arguments", metavar="ARGUMENTS", help="a JSON object with its arguments, such as {}")
    group = parser.add_argument_group("the rollout that it runs in")
    words = "toolsets of the rollout, whose tools it may call (comma-separated; default: every one that is available)"
    parser.flag(group, "toolset", names, words, ())
    _add_flags(parser, group)
    return parser


def _add_flags(parser: Parser, group: argparse._ArgumentGroup) -> None:
    words = (
        "Python files with tools of your own, or kiseki.tools entry points (comma-separated; installed ones are looked at anyway)"
    )
    parser.flag(group, "tools", names, words, ())
    add_tool_flags(parser)
    add_model_flags(parser)
    add_sandbox_flags(parser)


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] == "call":
        return _call(build_call_parser().parse(argv[1:]))
    flags = build_parser().parse(argv)
    return print_tools(
        flags.tools,
        tool_settings(flags),
        model_settings(flags),
        flags.toolset,
        sandbox=_sandbox(flags),
        as_json=flags.json,
    )


def print_tools(
    files: Sequence[str],
    settings: ToolSettings,
    model: ModelSettings,
    toolsets: Sequence[str],
    *,
    sandbox: SandboxSettings | None = None,
    as_json: bool = False,
) -> int:
    """A table of the tools of `toolsets` (none: of all), and of their parameters when some are named; or a JSON list.

    Raises `UsageError` for a toolset that nobody has heard of.
    """
    from kiseki.sandboxes.settings import SandboxSettings

    gathered = _gather(files, settings, sandbox or SandboxSettings())
    listed = _listed(gathered, model, toolsets)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(listed), indent=2).decode() + "\n")
        return 0
    console = make_console()
    console.print(_table(listed))
    for each in listed if toolsets else ():
        if each.name:
            console.print(_parameter_table(each))
    return 0


def _sandbox(flags: argparse.Namespace) -> SandboxSettings:
    from kiseki.sandboxes import owners
    from kiseki.sandboxes.base import Limits
    from kiseki.sandboxes.settings import SandboxSettings

    sizes = (flags.sandbox_memory, flags.sandbox_cpus, flags.sandbox_processes, flags.sandbox_disk)
    return SandboxSettings(
        flags.sandbox,
        Limits(*sizes, network=flags.network == "on"),
        owners.process_label("tools"),
        start_timeout=flags.sandbox_timeout,
        image=flags.sandbox_image,
        host=flags.ssh_host,
    )


# ---- what there is ------------------------------------------------------------------------------------------------------


def _gather(files: Sequence[str], settings: ToolSettings, sandbox: SandboxSettings) -> Gathered:
    """Everything that a run could have: the tools of `files`, those of installed packages, and MCP servers'."""
    from kiseki.tools.gather import gather
    from kiseki.tools.user_tools import installed_entry_points, load_user_tools

    lost: dict[str, str] = {}
    points = [name for name in installed_entry_points() if name not in files]
    with contextlib.redirect_stdout(sys.stderr):  # what a user's file prints is none of the output
        for name in points:
            try:
                load_user_tools(name)
            except UsageError as error:
                lost[name] = str(error)
        found = gather((*files, *(name for name in points if name not in lost)), settings, sandbox)
    return msgspec.structs.replace(found, lost={**lost, **found.lost})


def _listed(gathered: Gathered, model: ModelSettings, toolsets: Sequence[str]) -> list[Listed]:
    """Raises `UsageError` for a toolset that there is not."""
    from kiseki.tools.toolsets import MCP_PREFIX, TOOLSETS, built_in_tools, why_unavailable

    found: list[Listed] = []
    own = {each.toolset for each in gathered.tools}
    for name in toolsets or dict.fromkeys((*TOOLSETS, *own, *gathered.lost)):
        why = gathered.lost.get(name) or ("" if name in own - set(TOOLSETS) else why_unavailable(name, gathered.settings, model))
        if name not in (*TOOLSETS, *own, *gathered.lost) and not name.startswith(MCP_PREFIX):
            raise UsageError(why)
        here = [(each, why) for each in (built_in_tools(name) if name in TOOLSETS else [])]
        here += [(each, "") for each in gathered.tools if each.toolset == name]
        for each, reason in here:
            schema = each.schema
            found.append(Listed(schema.name, name, schema.description, schema.parameters, not reason, reason))
        if not here:
            found.append(Listed("", name, "", msgspec.Raw(b"{}"), False, why))
    return found


def _table(listed: Iterable[Listed]) -> Table:
    from rich.text import Text

    table = _whole_words("toolset", "tool", "what it does", "available")
    above: Listed | None = None
    for each in listed:
        same = above is not None and above.toolset == each.toolset
        if each.available:
            availability = "yes"
        else:
            availability = "not available" if same and above and above.why == each.why else f"not available: {each.why}"
        first_sentence = each.description.split(". ")[0].removesuffix(".")
        cells = ("" if same else each.toolset, each.name or "–", first_sentence, availability)
        table.add_row(*(Text(cell) for cell in cells))
        above = each
    return table


def _parameter_table(tool: Listed) -> Table:
    from rich.text import Text

    table = _whole_words("parameter", "type", "default", "what it is")
    table.title, table.title_justify, table.title_style = Text.assemble((tool.name, "bold"), f"  {tool.description}"), "left", ""
    schema = msgspec.json.decode(tool.parameters, type=dict[str, Any])
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        default = "needed" if name in required else msgspec.json.encode(each["default"]).decode() if "default" in each else ""
        cells = (name, _type_words(each), default, str(each.get("description", "")))
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _whole_words(*columns: str) -> Table:
    """A table that cuts nothing off, however narrow the screen: what it names is typed again."""
    from rich.table import Column, Table

    return Table(*(Column(each, overflow="fold") for each in columns))


def _type_words(schema: Any) -> str:
    """A JSON schema in a few words."""
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " | ".join(str(each) if isinstance(each, str) else msgspec.json.encode(each).decode() for each in values)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_type_words(each) for each in schema[key])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type_words(schema.get('items'))}"
    if kind == "object" and schema.get("properties"):
        needed = schema.get("required", ())
        fields = (f"{name}{'' if name in needed else '?'}: {_type_words(each)}" for name, each in schema["properties"].items())
        return f"{{{', '.join(fields)}}}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


# ---- trying one ---------------------------------------------------------------------------------------------------------


def _call(flags: argparse.Namespace) -> int:
    import asyncio
    import os

    from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
    from kiseki.models.factory import check_model, with_api_key
    from kiseki.sandboxes import owners
    from kiseki.sandboxes.factory import with_backend
    from kiseki.sandboxes.reaper import reap_orphans
    from kiseki.tools.toolsets import find_stand_ins, why_unavailable

    arguments = _checked_arguments(flags.arguments)
    model = model_settings(flags)
    check_model(model)
    sandbox = with_backend(_sandbox(flags))
    gathered = _gather(flags.tools, tool_settings(flags), sandbox)
    toolsets = _toolsets_for(flags.name, _listed(gathered, model, flags.toolset))
    has_key = True
    try:
        model = with_api_key(model, os.environ)
    except UsageError:  # most tools ask no model, and one that does says what it lacks
        has_key = False
    stand_ins = find_stand_ins(gathered.tools, lambda name: not why_unavailable(name, gathered.settings, model))
    settings = RolloutSettings(model, sandbox, tools=gathered.settings, stand_ins=stand_ins)
    tools = ToolsOfRollout(toolsets, gathered.tools, settings)
    if tools.needs_sandbox:
        _have_image(sandbox)
        reap_orphans(sandbox)
        sandbox = msgspec.structs.replace(sandbox, owner=owners.hold(sandbox.label))
        settings = msgspec.structs.replace(settings, sandbox=sandbox)
    with contextlib.redirect_stdout(sys.stderr):
        text, run = asyncio.run(_run(flags.name, arguments, tools, settings, has_key=has_key))
    sys.stdout.write(text + "\n")
    return 0 if run.ok else FAILED


def _checked_arguments(text: str) -> str:
    """Raises `UsageError` for what is no JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise UsageError(f'ARGUMENTS must be a JSON object, such as \'{{"command": "ls"}}\': {error}') from error
    return text


def _toolsets_for(tool: str, listed: Sequence[Listed]) -> tuple[str, ...]:
    """Those of a rollout that has `tool`. Raises `UsageError` where it cannot be had."""
    from difflib import get_close_matches

    found = [each for each in listed if each.name == tool]
    if not found:
        known = sorted({each.name for each in listed if each.name})
        close = get_close_matches(tool, known, 3)
        missing = [f"{each.toolset}: {each.why}" for each in listed if not each.name]
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known) or 'none'}"
        raise UsageError("; ".join((f"there is no tool {tool!r}", hint, *missing)))
    if not any(each.available for each in found):
        raise UsageError(f"{tool} (toolset {found[0].toolset}) is not available: {found[0].why}")
    return tuple(dict.fromkeys(each.toolset for each in listed if each.available))


def _have_image(sandbox: SandboxSettings) -> None:
    """The sandbox's image is there after this. Raises `UsageError` and `ImageError`."""
    from rich.console import Console

    from kiseki.batch.images import have_images
    from kiseki.errors import ImageError
    from kiseki.sandboxes.factory import HAS_IMAGES, why_no_image

    if why := why_no_image(sandbox, ""):
        raise UsageError(why)
    if sandbox.backend in HAS_IMAGES:
        for reason in have_images(sandbox, [sandbox.image], Console(stderr=True)).values():
            raise ImageError(reason)


async def _run(
    name: str, arguments: str, tools: ToolsOfRollout, settings: RolloutSettings, *, has_key: bool
) -> tuple[str, ToolRun]:
    """The call in a rollout of its own, without sub-agents."""
    import os

    from kiseki.models.factory import open_model
    from kiseki.sandboxes.factory import Sandboxes
    from kiseki.tools.context import RolloutInfo, ToolContext
    from kiseki.tools.running import end_others
    from kiseki.tools.services import Services
    from kiseki.trajectory.types import ToolCall

    model = open_model(settings.model) if has_key else None
    sandboxes = Sandboxes(settings.sandbox)
    services = Services(settings.tools, model, settings.model, None, os.environ)
    sandbox = context = None
    try:
        sandbox = await sandboxes.open() if tools.needs_sandbox else None
        context = ToolContext(sandbox, services, RolloutInfo("call", 0, 0, 1, 0))
        await tools.toolbox.open(context)
        message, run = await tools.toolbox.call(context, ToolCall("call", name, arguments))
        return message.content, run
    finally:
        if context:
            await context.close()
        if sandbox:
            await sandbox.close()
        await services.close()
        await sandboxes.close()
        if model:
            await model.close()
        await end_others()
