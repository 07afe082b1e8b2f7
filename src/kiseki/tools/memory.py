"""The `memory` toolset: notes that one rollout keeps in files of its sandbox. What another wrote is never in them."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.paths import PROBE_SECONDS
from kiseki.tools.registry import tool
from kiseki.tools.seeding import seed
from kiseki.trajectory.text import clean_text

FOLDER = "memory"
"""In the sandbox's home folder."""
FILES = {"memory": "MEMORY.md", "user": "USER.md"}
SEPARATOR = "§"
"""The line between two entries."""
MAX_CHARS = 10_000
"""Of one file: about 2,500 tokens, so that reading both costs little of a context window."""
_MAX_BYTES = 1_000_000
"""Of a file that something else may have written into; more is no memory."""
_LISTED = 5
_LISTED_CHARS = 120
"""Of the entries in an error."""
_LOOK = 'printf %s "$HOME/$1"; test -e "$HOME/$1"'

Action = Literal["add", "replace", "remove", "read"]
Target = Literal["memory", "user"]


async def set_up_memory(context: ToolContext) -> None:
    """Begin with what --memory_dir holds."""
    if context.services.settings.memory_dir:
        await seed(context, context.services.settings.memory_dir, FOLDER)


@tool(toolset="memory")
async def memory(
    context: ToolContext, action: Action, target: Target = "memory", content: str = "", old_text: str = ""
) -> dict[str, Any]:
    """Keep short notes across a long task. There are two lists of entries: memory (facts, decisions, how things work here) and
    user (who the user is and what they want). Read them before you begin; add what will matter later, one fact to an entry;
    replace or remove what no longer holds. They are the files ~/memory/MEMORY.md and ~/memory/USER.md.

    Args:
        action: add a new entry, replace or remove the one entry that contains old_text, or read all entries.
        target: Which list.
        content: For add and replace: the entry's whole text.
        old_text: For replace and remove: a piece of text that only the entry in question contains.
    """
    lock: asyncio.Lock = context.rollout_state.setdefault("memory", asyncio.Lock())
    async with lock:  # calls of one turn run side by side, and each writes the whole file
        path, is_there = await _locate(context, FILES[target])
        entries = await _read(context, path) if is_there else []
        if action == "read":
            return _summary(target, entries) | _shown(entries)
        note = ""
        if action == "add":
            added = _checked(content)
            note = "it was there already" if added in entries else ""
            changed = entries if added in entries else [*entries, added]
        else:
            place = _find(entries, old_text, target)
            new = [_checked(content)] if action == "replace" else []
            changed = [*entries[:place], *new, *entries[place + 1 :]]
        size, before = _size(changed), _size(entries)
        if size > MAX_CHARS and size > before:
            raise ToolError(
                f"{target} is full: it would have {size:,} characters, and {MAX_CHARS:,} are allowed; it has {before:,} now."
                " Remove or shorten other entries first"
            )
        if changed != entries:
            await context.sandbox.write_file(path, _joined(changed).encode())
    return _summary(target, changed) | ({"note": note} if note else {})


def _checked(content: str) -> str:
    entry = clean_text(content).strip()
    if not entry:
        raise ToolError("content is empty: it is the text of the entry")
    if any(line.strip() == SEPARATOR for line in entry.split("\n")):
        raise ToolError(f"an entry must not have a line with only {SEPARATOR}, which stands between entries")
    return entry


def _find(entries: list[str], old_text: str, target: str) -> int:
    if not old_text:
        raise ToolError("old_text is empty: it says which entry is meant")
    places = [place for place, entry in enumerate(entries) if old_text in entry]
    if len(places) == 1:
        return places[0]
    if not entries:
        raise ToolError(f"{target} has no entries")
    listed = [entries[place] for place in places] or entries
    shown = "\n".join(f"- {each[:_LISTED_CHARS]}{'…' if len(each) > _LISTED_CHARS else ''}" for each in listed[:_LISTED])
    more = f"\nand {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    if places:
        raise ToolError(f"{len(places)} entries of {target} contain {old_text!r}; give more of the one you mean:\n{shown}{more}")
    raise ToolError(f"no entry of {target} contains {old_text!r}; there are:\n{shown}{more}")


async def _locate(context: ToolContext, file: str) -> tuple[str, bool]:
    """The file's path in the sandbox, and whether it is there."""
    status, answer = await context.sandbox.run(["sh", "-c", _LOOK, "sh", f"{FOLDER}/{file}"], timeout=PROBE_SECONDS)
    return answer.decode("utf-8", "replace"), status == 0


async def _read(context: ToolContext, path: str) -> list[str]:
    try:
        text = (await context.sandbox.read_file(path, max_bytes=_MAX_BYTES)).decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{path} is not UTF-8 text any more; delete it, or write it anew with another tool") from error
    entries = [""]
    for line in text.split("\n"):
        if line.strip() == SEPARATOR:
            entries.append("")
        else:
            entries[-1] += f"{line}\n"
    return [entry for each in entries if (entry := each.strip())]


def _shown(entries: list[str]) -> dict[str, Any]:
    """The entries as far as there is room: what the sandbox's own programs write into the file knows no limit."""
    shown, room = list[str](), MAX_CHARS
    for entry in entries:
        if len(entry) > room:
            return {"entries": [*shown, entry[:room]], "truncated": True}
        shown.append(entry)
        room -= len(entry)
    return {"entries": shown}


def _joined(entries: list[str]) -> str:
    return f"\n{SEPARATOR}\n".join(entries) + ("\n" if entries else "")


def _size(entries: list[str]) -> int:
    return len(_joined(entries))


def _summary(target: str, entries: list[str]) -> dict[str, Any]:
    return {"target": target, "count": len(entries), "characters": _size(entries), "limit": MAX_CHARS}
