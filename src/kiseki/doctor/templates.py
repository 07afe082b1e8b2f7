"""Chat templates: where they are found, and rendering one as `transformers` does it, in a sandbox without that library."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from kiseki.errors import UsageError
from kiseki.trajectory.hugging_face import INSTALL, one_line

Render = Callable[[list[dict[str, Any]], "list[dict[str, Any]] | None", dict[str, Any]], str]
"""(messages, tools, other variables) → text. Raises `TemplateRaised`."""

PLAIN = "chatml"
_CHATML = (
    "{%- if tools %}{{- '<|im_start|>system\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\n\n' }}{%- endif %}"
    "{{- '<tools>\n' + (tools | tojson) + '\n</tools><|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}{%- if not (tools and loop.first and message.role == 'system') %}"
    "{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.reasoning_content %}{{- '<think>\n' + message.reasoning_content + '\n</think>\n' }}{%- endif %}"
    "{{- message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}{%- set function = call.function or call %}"
    '{{- \'\n<tool_call>\n{"name": "\' + function.name + \'", "arguments": \' }}'
    "{{- function.arguments if function.arguments is string else function.arguments | tojson }}"
    "{{- '}\n</tool_call>' }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
)
"""Our own: every text as it stands between ChatML's tokens, with the Hermes tags around what chat messages have in fields. What a
ShareGPT row with such tags is made for."""
TRL_DEFAULT = ("qwen3_training", "qwen3_6_training", "qwen2_5_training")
"""Of TRL's templates, what is looked at where none is named: the variants that its trainer puts in place of the models' own."""
_CONFIG = "tokenizer_config.json"
_FOR_TOOLS = "additional_chat_templates/tool_use.jinja"
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class Template(msgspec.Struct, frozen=True):
    name: str
    text: str
    special: dict[str, str] = {}
    """Tokens that it may write, by their variable."""
    with_tools: str = ""
    """Another one, for rows that have tools; "" for the same."""
    known: bool = False
    """Ours or TRL's, so that it needs no bounds (`confined.py`)."""


class TemplateRaised(Exception):
    """What a template raised, as `Type: words`."""


def shipped() -> dict[str, Path]:
    """The templates that come with TRL, by name; none where it is not installed. It is not imported."""
    spec = find_spec("trl")
    found = [
        path
        for root in (spec.submodule_search_locations or () if spec else ())
        for path in Path(root, "chat_templates").glob("*.jinja")
    ]
    return {path.stem: path for path in sorted(found)}


def find_template(asked: str) -> Template:
    """What `asked` names: `chatml`, a name of TRL's, a .jinja file, a tokenizer_config.json, or a model's folder. Raises
    `UsageError`."""
    path = Path(asked).expanduser()
    if path.exists():
        return _of_path(path)
    if asked == PLAIN:
        return Template(PLAIN, _CHATML, known=True)
    known = shipped()
    if asked in known:
        return Template(asked, known[asked].read_text(encoding="utf-8"), known=True)
    close = difflib.get_close_matches(asked, known, 1)
    if not known:
        hint = f"; TRL, which has templates by name, is not installed (pip install --no-deps trl), so name a file or {PLAIN}"
    else:
        hint = f"; did you mean {close[0]}?" if close else f"; TRL has {', '.join(known)}"
    raise UsageError(f"there is no template {asked!r}, nor such a file{hint}")


def default_templates(names: tuple[str, ...]) -> list[Template]:
    """Those of TRL's that are there."""
    known = shipped()
    return [Template(name, known[name].read_text(encoding="utf-8"), known=True) for name in names if name in known]


def _of_path(path: Path) -> Template:
    try:
        if path.is_dir():
            config, own, tools = (path / name for name in (_CONFIG, "chat_template.jinja", _FOR_TOOLS))
            found = _of_config(config) if config.exists() else None
            if own.exists():
                with_tools = tools.read_text(encoding="utf-8") if tools.exists() else ""
                return Template(path.name, own.read_text(encoding="utf-8"), found.special if found else {}, with_tools)
            if not found or not found.text:
                raise UsageError(f"{path} has neither chat_template.jinja nor a {_CONFIG} with a template")
            return found
        if path.suffix == ".json":
            found = _of_config(path)
            if not found.text:
                raise UsageError(f"{path} has no chat_template")
            return found
        return Template(path.stem, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the template {path}: {error}") from error


def _of_config(path: Path) -> Template:
    """Its text is "" where the configuration has none. Of several, `transformers` takes `tool_use` for rows with tools, else
    `default`."""
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is no JSON object: {error}") from error
    special = {}
    for name in _SPECIAL:
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            special[name] = token
    template = config.get("chat_template")
    name = path.parent.name or path.stem
    if not isinstance(template, list):
        return Template(name, template if isinstance(template, str) else "", special)
    named = {str(each.get("name")): each.get("template") for each in template if isinstance(each, dict)}
    default, with_tools = named.get("default"), named.get("tool_use")
    if not isinstance(default, str):
        raise UsageError(f"{path} has several chat templates ({', '.join(named)}), but none with the name default")
    return Template(name, default, special, with_tools if isinstance(with_tools, str) else "")


def compile_template(template: Template) -> Render:
    """Raises `UsageError` where it is no Jinja template, or Jinja is not installed."""
    try:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise UsageError(f"chat templates need Jinja: {INSTALL}") from error

    class Generation(Extension):
        """`{% generation %}`, between which trainers find the assistant's tokens: here, what is inside."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form: str) -> str:
        from datetime import datetime

        return datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    try:
        compiled = environment.from_string(template.text)
        with_tools = environment.from_string(template.with_tools) if template.with_tools else compiled
    except jinja2.TemplateError as error:
        raise UsageError(f"{template.name} is no Jinja template: {one_line(error)}") from error

    special = {"bos_token": "", "eos_token": ""} | template.special

    def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, more: dict[str, Any]) -> str:
        given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": False}
        try:
            return (with_tools if tools else compiled).render(**(special | more | given))
        except Exception as error:  # a template is code: it raises its own errors, and any of Python's for what it did not expect
            raise TemplateRaised(f"{type(error).__name__}: {one_line(error)}") from error

    return render
