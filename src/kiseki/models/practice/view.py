"""What the policy sees: the tools it was offered, the results it got, the turns it takes. No I/O."""

from __future__ import annotations

import random
import shlex
from collections.abc import Generator
from typing import Any, NamedTuple

import msgspec

from kiseki.models.base import ToolSchema


class Call(NamedTuple):
    """One tool call to be made."""

    tool: str
    arguments: dict[str, Any]


class Turn(msgspec.Struct, frozen=True):
    """One assistant turn: an answer when it has no calls."""

    reasoning: str
    calls: tuple[Call, ...] = ()
    text: str = ""


class Result(msgspec.Struct, frozen=True):
    """One tool result, read leniently: any JSON object, or plain text."""

    name: str
    text: str
    data: dict[str, Any]

    @property
    def output(self) -> str:
        """What the tool printed or read."""
        for key in ("output", "content", "stdout", "result"):
            if isinstance(value := self.data.get(key), str):
                return value
        return self.text

    @property
    def exit_code(self) -> int | None:
        for key in ("exit_code", "returncode"):
            if isinstance(value := self.data.get(key), int):
                return value
        return None

    @property
    def error(self) -> str:
        """Why the tool itself failed; "" when it did not. A command's exit status is no failure of the tool."""
        if error := self.data.get("error"):
            return error if isinstance(error, str) else msgspec.json.encode(error, enc_hook=str).decode()
        if self.data.get("success") is False:
            return "the tool reported success: false"
        if not self.data and (not self.text.strip() or self.text.lstrip()[:6].lower() == "error:"):
            return self.text.strip() or "the result was empty"
        return ""

    @property
    def failed(self) -> bool:
        return bool(self.error) or self.exit_code not in (None, 0)

    @property
    def complaint(self) -> str:
        """The line that says best what went wrong: the tool's error, or the last line of a failed command's output."""
        if self.error:
            return brief(self.error)
        lines = [line.strip() for line in self.output[-4000:].splitlines() if line.strip()]
        return brief(lines[-1]) if lines else f"exit status {self.exit_code} and no output"


Flow = Generator[Turn, list[Result], None]
"""A rollout as a story: yields turns, receives the results of their calls, ends after yielding a turn without calls."""


def read_result(name: str, text: str) -> Result:
    """A tool message's content as a `Result`."""
    data: Any = None
    if text.lstrip()[:1] == "{":
        try:
            data = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            data = None  # not JSON after all: plain text
    return Result(name, text, data if isinstance(data, dict) else {})


def brief(text: str, limit: int = 200) -> str:
    """`text` on one line, at most `limit` characters."""
    line = " ".join(text[: limit * 4].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def stop(text: str) -> str:
    """`text` with a full stop, unless it ends like a sentence already."""
    return text if text.endswith((".", "?", "!", "。")) else f"{text}."


class Parameters(msgspec.Struct, frozen=True):
    """As much of a JSON schema as the policy looks at."""

    properties: dict[str, Any] = {}
    required: list[str] = []


_decode = msgspec.json.Decoder(Parameters).decode


def read_parameters(tool: ToolSchema) -> Parameters:
    """The tool's parameters; none for a schema that is no such object."""
    try:
        return _decode(tool.parameters)
    except (msgspec.DecodeError, RecursionError):
        return Parameters()


_SHELLS = ("terminal", "bash", "shell", "run_command", "execute_bash")
_NEEDS = {
    "write_file": ("path", "content"),
    "read_file": ("path",),
    "patch": ("path", "old_string", "new_string"),
    "search_files": ("pattern",),
    "todo": ("todos",),
    "execute_code": ("code",),
    "web_search": ("query", "limit"),
    "web_extract": ("urls",),
    "browser_navigate": ("url",),
    "browser_snapshot": (),
    "browser_type": ("ref", "text"),
    "browser_click": ("ref",),
    "image_generate": ("prompt", "aspect_ratio"),
    "vision_analyze": ("image_url", "question"),
    "delegate_task": ("goal", "tasks"),
    "memory": ("action", "target", "content"),
    "skills_list": (),
    "skill_view": ("name",),
}
"""The tools that the policy knows, and the parameters that make it believe that they are those tools."""
ASIDE = (
    *("process", "clarify", "browser_scroll", "browser_back", "browser_press", "browser_get_images", "browser_vision"),
    *("browser_console", "delegate_task", "memory"),
)
"""Known by name and left alone: of no use to these tasks, or not the tools that they are taken for."""


class Kit:
    """The tools of one request, by what they are good for, and calls to them."""

    def __init__(self, tools: tuple[ToolSchema, ...]) -> None:
        self.shell = self._command = ""
        self.known: set[str] = set()
        self.others: list[ToolSchema] = []
        for tool in tools:
            if tool.name in _SHELLS:
                properties = read_parameters(tool).properties
                key = next((each for each in ("command", "cmd") if each in properties), "")
                if key and not self.shell:
                    self.shell, self._command = tool.name, key
                    continue
            elif (needs := _NEEDS.get(tool.name)) is not None:
                parameters = read_parameters(tool)
                if set(parameters.required) <= set(needs) <= set(parameters.properties) or (
                    tool.name in ("patch", "search_files", "todo") and set(needs) <= set(parameters.properties)
                ):
                    self.known.add(tool.name)
                    continue
            self.others.append(tool)
        self.others.sort(key=lambda tool: tool.name in ASIDE)

    @property
    def can_write(self) -> bool:
        return bool(self.shell) or "write_file" in self.known

    @property
    def can_read(self) -> bool:
        return bool(self.shell) or "read_file" in self.known

    def run(self, command: str) -> Call:
        return Call(self.shell, {self._command: command})

    def write(self, path: str, content: str) -> Call:
        if "write_file" in self.known:
            return Call("write_file", {"path": path, "content": content})
        return self.run(shell_write(path, content))

    def read(self, path: str) -> Call:
        if "read_file" in self.known:
            return Call("read_file", {"path": path})
        return self.run(f"cat -- {shlex.quote(path)}")

    def fix(self, path: str, bad: str, good: str, whole: str) -> Call:
        """Replace `bad`, which occurs once in the file, by `good`; `whole` is the file as it should be then."""
        if "patch" in self.known and bad.strip():
            return Call("patch", {"path": path, "old_string": bad, "new_string": good})
        return self.write(path, whole)

    def look(self, draw: random.Random) -> tuple[Call, ...]:
        """Looking around: what folder is this, what is in it. () when no tool can."""
        if self.shell:
            if draw.random() < 0.4:
                return self.run("pwd"), self.run("ls -la")
            if "search_files" in self.known and draw.random() < 0.3:
                return self.run("pwd"), Call("search_files", {"pattern": "*", "target": "files"})
            return (self.run(draw.choice(("pwd && ls -la", "ls -la", "pwd; ls"))),)
        if "search_files" in self.known:
            return (Call("search_files", {"pattern": "*", "target": "files"}),)
        return ()


def shell_write(path: str, content: str) -> str:
    """A command that writes `content` whatever it holds: a quoted here-document, or base64 where that could not carry it."""
    plain = content.endswith("\n") and all(char >= " " or char in "\n\t" for char in content) and "\nEOF\n" not in "\n" + content
    if plain and "\x7f" not in content:
        return f"cat > {shlex.quote(path)} <<'EOF'\n{content}EOF"
    import base64  # only for odd content

    data = base64.b64encode(content.encode("utf-8", "replace")).decode()
    return f"printf %s {data} | base64 -d > {shlex.quote(path)}"
