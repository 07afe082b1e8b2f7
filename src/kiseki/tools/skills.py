"""The `skills` toolset: instructions for kinds of tasks, in a folder that every sandbox gets a copy of.

A skill is a folder with a SKILL.md; YAML at its head may give `name` and `description`. The folders above it, below ~/skills, are
its category. All is read from the sandbox, so what the model sees is what its commands see.
"""

from __future__ import annotations

import functools
import posixpath
import re
from typing import Any, NamedTuple

from kiseki.errors import ToolError
from kiseki.sandboxes.base import TIMED_OUT
from kiseki.tools.context import ToolContext
from kiseki.tools.paths import absolute, check_path
from kiseki.tools.registry import tool
from kiseki.tools.seeding import seed
from kiseki.trajectory.text import clean_text

FOLDER = "skills"
"""In the sandbox's home folder."""
MAIN = "SKILL.md"
MAX_SKILLS = 500
"""That are looked at."""
MAX_LISTED = 100
"""In one result: about 5,000 tokens; `category` shows the others."""
MAX_LINKED = 100
"""Files of a skill that are named."""
MAX_CHARS = 40_000
"""Of one file: 10,000 tokens. What is longer is for the file and terminal tools."""
_HEAD_BYTES = 4096
"""Of a SKILL.md that are looked at for its name and description."""
_DESCRIPTION_CHARS = 200
"""In a list."""
_SECONDS = 30.0
_MAX_BYTES = 5_000_000
_FRONT = re.compile(r"---[ \t]*\n(.*?)(?:\n---[ \t]*(?:\n|\Z)|\Z)(.*)", re.DOTALL)
_LINE = re.compile(r"^(name|description):[ \t]*(\S.*)$", re.MULTILINE)
_LIST = (
    f'cd -- "$HOME/{FOLDER}" 2>/dev/null || exit 0; find -L . -name {MAIN} -type f | LC_ALL=C sort | head -n {MAX_SKILLS} | '
    f'{{ set --; while IFS= read -r file; do set -- "$@" "$file"; done; [ $# = 0 ] && exit; '
    f'wc -c "$@"; head -v -c {_HEAD_BYTES} "$@"; }}'
)
"""The sizes come first: so that no text of a file is taken for the next file's name."""
_SIZE = re.compile(rb" *(\d+) +(\./.*)")
"""A line of `wc`, but for that with the total."""
_FILES = f'cd -- "$HOME/{FOLDER}/$1" && find -L . ! -name {MAIN} -type f | LC_ALL=C sort | head -n {MAX_LINKED + 1}'


class Skill(NamedTuple):
    """One in the sandbox."""

    path: str
    """Of its folder below ~/skills; "." for ~/skills itself."""
    name: str
    description: str

    @property
    def category(self) -> str:
        return posixpath.dirname(self.path)


async def set_up_skills(context: ToolContext) -> None:
    """Have the skills of --skills_dir there."""
    if context.services.settings.skills_dir:
        await seed(context, context.services.settings.skills_dir, FOLDER)


@tool(toolset="skills")
async def skills_list(context: ToolContext, category: str = "") -> dict[str, Any]:
    """List the skills there are: tested instructions, with scripts and templates, for kinds of tasks. Look here before you begin
    a task, and read the skill that fits with skill_view.

    Args:
        category: Only the skills of this category and those below it; empty lists all.
    """
    skills = await _skills(context)
    wanted = category.strip("/")
    found = [each for each in skills if not wanted or f"{each.category}/".startswith(f"{wanted}/")]
    categories = sorted({each.category for each in skills} - {""})
    if wanted and not found:
        raise ToolError(f"there is no category {category!r}; there are: {', '.join(categories[:MAX_LISTED]) or 'none'}")
    shown = [
        {"name": _called(each, skills), "description": _cut(each.description, _DESCRIPTION_CHARS), "category": each.category}
        for each in found[:MAX_LISTED]
    ]
    answer: dict[str, Any] = {"skills": shown, "count": len(found)}
    if categories and not wanted:
        answer["categories"] = categories[:MAX_LISTED]
    if len(found) > MAX_LISTED:
        answer["note"] = f"the first {MAX_LISTED} of {len(found)}; give a category to see the others"
    return answer


@tool(toolset="skills")
async def skill_view(context: ToolContext, name: str, file_path: str = "") -> dict[str, Any]:
    """Read a skill: its instructions and the names of its files, or one of these files. The skill's folder is in the sandbox, at
    the path that is given, so its scripts can be run there.

    Args:
        name: The skill, as skills_list names it.
        file_path: One of the skill's files, from its folder (as scripts/run.py); empty reads the instructions.
    """
    skills = await _skills(context)
    skill = _choose(skills, name.strip())
    inside = posixpath.normpath(check_path(file_path, "file_path")) if file_path else MAIN
    if inside.startswith(("/", "../")) or inside == "..":
        raise ToolError(f"file_path {file_path!r} leads out of the skill's folder; give one that begins there, as scripts/run.py")
    folder = posixpath.normpath(posixpath.join(await absolute(context, f"~/{FOLDER}"), skill.path))
    files = await _files(context, skill)
    try:
        data = await context.sandbox.read_file(posixpath.join(folder, inside), max_bytes=_MAX_BYTES)
    except ToolError as error:
        there = f"; its files are: {', '.join(files[:MAX_LINKED]) or 'none'}" if file_path else ""
        raise ToolError(f"skill {name!r}: {error}{there}") from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ToolError(
            f"{inside} is no text ({len(data):,} bytes); it is {posixpath.join(folder, inside)} in the sandbox"
        ) from error
    answer: dict[str, Any] = {"name": _called(skill, skills), "folder": folder}
    answer |= {"file": inside} if file_path else {"description": skill.description, "files": files[:MAX_LINKED]}
    answer["content"] = text[:MAX_CHARS]
    if len(text) > MAX_CHARS:
        answer |= {"truncated": True, "note": f"the first {MAX_CHARS:,} of {len(text):,} characters"}
    elif not file_path and len(files) > MAX_LINKED:
        answer["note"] = f"it has more files than the {MAX_LINKED} that are named"
    return answer


def _choose(skills: list[Skill], name: str) -> Skill:
    """By its path, else by its own name or its folder's, where that is only one."""
    by_path = [each for each in skills if each.path == name.strip("/")]
    found = by_path or [each for each in skills if each.name == name]
    found = found or [each for each in skills if posixpath.basename(each.path) == name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ToolError(
            f"there are several skills {name!r}; give the path: {', '.join(each.path for each in found[:MAX_LISTED])}"
        )
    from difflib import get_close_matches

    known = [_called(each, skills) for each in skills]
    close = get_close_matches(name, known, 5, 0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(known[:MAX_LISTED]) or 'none'}"
    raise ToolError(f"there is no skill {name!r}; {hint}")


def _called(skill: Skill, skills: list[Skill]) -> str:
    """Its name, or its path where another has the same name."""
    return skill.name if sum(each.name == skill.name for each in skills) == 1 else skill.path


async def _skills(context: ToolContext) -> list[Skill]:
    rest = await _ask(context, ["sh", "-c", _LIST])
    sizes: list[tuple[bytes, int]] = []
    while rest and not rest.startswith(b"==> "):
        line, _, rest = rest.partition(b"\n")
        if found := _SIZE.fullmatch(line):
            sizes.append((found[2], int(found[1])))
    skills: list[Skill] = []
    for file, size in sizes:
        _, is_there, rest = rest.partition(b"==> %b <==\n" % file)
        if is_there:
            head, rest = rest[: min(size, _HEAD_BYTES)], rest[min(size, _HEAD_BYTES) :]
            skills.append(_skill(file.decode("utf-8", "replace"), head.decode("utf-8", "replace")))
    return skills


async def _files(context: ToolContext, skill: Skill) -> list[str]:
    output = await _ask(context, ["sh", "-c", _FILES, "sh", skill.path])
    return [clean_text(each.removeprefix("./")) for each in output.decode("utf-8", "replace").splitlines()]


async def _ask(context: ToolContext, argv: list[str]) -> bytes:
    limit = MAX_SKILLS * (_HEAD_BYTES + 1000)
    status, output = await context.sandbox.run(argv, timeout=_SECONDS, max_output=limit)
    if status == TIMED_OUT:
        raise ToolError(f"the skills could not be listed within {_SECONDS:g} s")
    return output


_REPEATS = re.compile(r"(?:^|[\s\[{,:-])[&*][^\s&*]|<<")
"""An anchor, an alias or a merge: a few hundred bytes of them can take minutes to read."""


@functools.lru_cache(1024)  # all rollouts of a worker begin with the same ones
def _skill(file: str, head: str) -> Skill:
    path = posixpath.normpath(posixpath.dirname(file))
    folder = posixpath.basename(path) if path != "." else FOLDER
    about, body = _front_matter(head.replace("\r\n", "\n"))
    description = about.get("description") or _first_lines(body)
    return Skill(clean_text(path), clean_text(about.get("name") or folder), clean_text(" ".join(description.split())))


def _front_matter(text: str) -> tuple[dict[str, str], str]:
    """The texts in the YAML between the `---` at the head, and what follows."""
    import yaml

    if not (found := _FRONT.match(text)):
        return {}, text
    front, body = found.groups()
    try:
        values = None if _REPEATS.search(front) else yaml.safe_load(front)
    except Exception:  # whatever it stumbles over, it is only what a list shows
        values = None
    if not isinstance(values, dict):  # often it is only a colon in the description
        values = {name: value.strip("\"'") for name, value in _LINE.findall(front)}
    about = {key: value.strip() for key in ("name", "description") if isinstance(value := values.get(key), str)}
    return about, body if values or body.strip() else text


def _first_lines(body: str) -> str:
    """The first paragraph that is no heading, else the first heading."""
    lines = [line.strip() for line in body.splitlines()]
    text = [line for line in lines if line and not line.startswith(("#", "---"))]
    return text[0] if text else next((line.strip("# ") for line in lines if line.startswith("#")), "")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
