"""How a rollout goes when no family fits: a note on the request, a user's own tool, a todo list, or nothing at all."""

from __future__ import annotations

import random
import re
from typing import Any

from kiseki.models.base import ToolSchema
from kiseki.models.practice.flows import todo_call
from kiseki.models.practice.view import ASIDE, Call, Flow, Kit, Result, Turn, brief, read_parameters, stop

SCANNED = 6_000
"""Characters of a prompt that are looked at. A longer one gets a note: what is given in it could be cut short, and a count or a
sum of half a text would be wrong."""
_COMMON_TEXT = """a an and are as at be but by can do does for from has have how i in is it its me my no not of on or please so
 some such than that the then there these this to us was we were what when where which who will with would you your"""
_COMMON = frozenset(_COMMON_TEXT.split())
_JAPANESE_WORD = re.compile(r"[一-龠々]{2,6}|[ァ-ヴー]{2,12}")


def other(prompt: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """A request of no known family."""
    likely = named_tool(prompt[:SCANNED], kit) or _likeliest(prompt, kit)
    if likely:
        yield from _use_tool(prompt, likely, japanese)
    elif kit.can_write:
        yield from _take_note(prompt, kit, draw, japanese)
    elif "execute_code" in kit.known:
        yield from _count_by_code(prompt, japanese)
    elif kit.can_read or "search_files" in kit.known:
        yield from _only_look(kit, draw, japanese)
    elif "todo" in kit.known:
        yield from _only_plan(prompt, japanese)
    else:
        tools = "none of the tools that I was given helps with it" if kit.known or kit.others else "I was given no tools"
        text = (
            "I am Kiseki's practice model, a set of rules. I recognised no task in the request that I can do, "
            f"and {tools}, so I cannot do more than say so."
        )
        words = ", ".join(keywords(prompt)[:4])
        if words:
            text += f" It seems to be about: {words}."
        yield Turn("This fits none of the tasks that I know, and there is no tool to try.", text=_bilingual(text, japanese))


def keywords(prompt: str) -> list[str]:
    """The words that say most about the prompt: frequent first, then in order."""
    text = prompt[:SCANNED]
    counts: dict[str, int] = {}
    for word in [*re.findall(r"[^\W\d_]{3,30}", text), *_JAPANESE_WORD.findall(text)]:
        if word.lower() not in _COMMON and (word.isascii() or len(word) <= 12):
            counts[word.lower()] = counts.get(word.lower(), 0) + 1
    return sorted(counts, key=lambda word: -counts[word])[:8]


def _bilingual(text: str, japanese: bool) -> str:
    return f"練習用モデルのため、このご依頼にはここまでしかお答えできません。\n\n{text}" if japanese else text


def _take_note(prompt: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    words = keywords(prompt)
    about = ", ".join(words[:5]) or "nothing that I can name"
    plan = ("look around", "write notes.md", "check it with a word count")
    looks = kit.look(draw)
    planned = "todo" in kit.known and draw.random() < 0.6
    thought = f"This is none of the tasks that I know. It seems to be about: {about}. I look around, then write down what I see."
    seen = yield Turn(thought, (todo_call(plan, 0), *looks) if planned else looks or (kit.read("notes.md"),))
    lines = len(prompt.splitlines())
    note = (
        "# Notes on the request\n\n"
        f"- length: {len(prompt)} characters, {lines} line{'s' * (lines != 1)}, about {len(prompt.split())} words\n"
        f"- keywords: {', '.join(words) or 'none'}\n"
        f"- a question: {'yes' if '?' in prompt[:SCANNED] or '？' in prompt[:SCANNED] else 'no'}\n"
        "- done: nothing but this note; a practice model cannot do more here\n"
    )
    failed = next((f" Looking around failed ({each.complaint}); I go on." for each in seen if each.error), "")
    (written,) = yield Turn(
        f"I put the keywords and the length of the request into notes.md.{failed}", (kit.write("notes.md", note),)
    )
    if written.failed:
        text = f"I recognised no task that I can do, and even writing a note failed: {written.complaint}"
        yield Turn("The note could not be written. I say so.", text=_bilingual(text, japanese))
        return
    count = len(note.split())
    if kit.shell:
        slip = draw.random() < 0.6
        name = draw.choice(("note.md", "notes.txt", "Notes.md")) if slip else "notes.md"
        ticked = (todo_call(plan, 2),) if planned else ()
        checked, *_ = yield Turn("A word count shows whether the note is whole.", (kit.run(f"wc -w {name}"), *ticked))
        if checked.failed and slip:
            thought = f"{checked.complaint}: I asked for {name}, the file is notes.md."
            (checked,) = yield Turn(thought, (kit.run("wc -w notes.md"),))
        found = re.search(r"\d+", checked.output)
        good = not checked.failed and found is not None and int(found[0][:18]) == count
        state = (
            f"`wc -w` counts {found[0][:18]} words in it" if found and not checked.failed else f"`wc` failed: {checked.complaint}"
        )
        if found and not checked.failed and not good:
            state += f", though I wrote {count}"
    elif kit.can_read:
        (checked,) = yield Turn("I read the note back to see whether it is whole.", (kit.read("notes.md"),))
        good = not checked.failed and "# Notes on the request" in checked.output
        state = "I read it back whole" if good else f"reading it back did not show it ({checked.complaint})"
    else:
        good, state = False, "I had no tool to read it back"
    text = (
        f"I am Kiseki's practice model, a set of rules, and this request fits none of the tasks that I know. "
        f"What I did: wrote notes.md with its length and keywords ({about}); {state}. A real model would do the work itself."
    )
    yield Turn("The note is there." if good else "I cannot vouch for the note.", text=_bilingual(text, japanese))


def _count_by_code(prompt: str, japanese: bool) -> Flow:
    code = f"text = {prompt[:2000]!r}\nprint(len(text), 'characters,', len(text.split()), 'words')\n"
    (ran,) = yield Turn(
        "No task that I know. With a program I can at least measure the request.", (Call("execute_code", {"code": code}),)
    )
    told = f"The program said: {brief(ran.output)}" if not ran.failed else f"Even measuring its length failed: {ran.complaint}"
    text = f"This request fits none of the tasks that a practice model knows. {told}"
    yield Turn("That is all that I can find out.", text=_bilingual(text, japanese))


def _only_look(kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    looks = kit.look(draw) or (kit.read("README.md"),)
    seen = yield Turn("I can only look at files here, so I look at what there is.", looks)
    each = seen[0]
    told = f"failed: {each.complaint}" if each.failed else f"gave: {brief(each.output, 300)}"
    text = f"This request fits none of the tasks that a practice model knows. Looking around {told}"
    yield Turn("That is all that these tools let me do.", text=_bilingual(text, japanese))


def _only_plan(prompt: str, japanese: bool) -> Flow:
    plan = ("read the request", "name what it is about", "say what I cannot do")
    (noted,) = yield Turn("All I have is a todo list, so I plan before I answer.", (todo_call(plan, 1),))
    if not noted.failed:
        (noted,) = yield Turn("I have read it and know its keywords; I tick that off.", (todo_call(plan, 3, merge=True),))
    about = ", ".join(keywords(prompt)[:5]) or "nothing that I can name"
    failed = f" The todo list failed: {noted.complaint}" if noted.failed else ""
    text = f"The request seems to be about: {about}. With only a todo list I could plan, not do it.{failed}"
    yield Turn("Planning is all that I could do.", text=_bilingual(text, japanese))


def named_tool(text: str, kit: Kit) -> ToolSchema | None:
    """The user's own tool that the prompt calls by its name."""
    own = (tool for tool in kit.others if tool.name and tool.name not in ASIDE)
    return next((tool for tool in own if re.search(rf"(?<!\w){re.escape(tool.name)}(?!\w)", text)), None)


def _likeliest(prompt: str, kit: Kit) -> ToolSchema | None:
    """The tool whose name and description share most words with the prompt; with a terminal at hand only one that shares two."""
    tools = [tool for tool in kit.others if tool.name not in ASIDE] or ([] if kit.can_write or kit.known else kit.others)
    if not tools:
        return None
    words = set(re.findall(r"[^\W_]{3,}", prompt[:SCANNED].lower())) - _COMMON

    def shared(tool: ToolSchema) -> int:
        return len(words & set(re.findall(r"[^\W_]{3,}", f"{tool.name} {tool.description[:2000]}".lower())))

    best = max(tools, key=shared)
    return best if not kit.can_write or shared(best) >= 2 else None


def _use_tool(prompt: str, tool: ToolSchema, japanese: bool) -> Flow:
    """Call a tool that the policy has never seen, by its schema; once more, with everything filled in, when it refuses."""
    schema = read_parameters(tool)
    filler = Filler(prompt)
    required = {name: filler.value(name, schema.properties.get(name, {})) for name in schema.required[:30]}
    if not required and schema.properties:
        name = next(iter(schema.properties))
        required = {name: filler.value(name, schema.properties[name])}
    what = brief(tool.description, 80) or "it has no description"
    thought = f"The tool {tool.name} fits best ({what}). I take its arguments from the request."
    (result,) = yield Turn(thought, (Call(tool.name, required),))
    tried = 1
    if result.failed:
        whole = {name: filler.value(name, each) for name, each in list(schema.properties.items())[:30]}
        if whole != required:
            tried = 2
            thought = f"It refused: {stop(result.complaint)} I try once more with every argument filled in."
            (result,) = yield Turn(thought, (Call(tool.name, whole),))
    if result.failed:
        times = "twice" if tried == 2 else "once"
        text = f"I called {tool.name} {times} and it failed: {stop(result.complaint)} So I have no result to give."
        yield Turn("It fails, and guessing a result would be wrong.", text=_bilingual(text, japanese))
        return
    text = f"{tool.name} answered:\n\n{_shown(result)}"
    if japanese:
        text = f"{tool.name} の結果は次のとおりです。\n\n{_shown(result)}"
    yield Turn(f"{tool.name} gave a result; I report it as it is.", text=text)


def _shown(result: Result) -> str:
    text = result.output if result.output.strip() else result.text
    return text if len(text) <= 1500 else text[:1500] + "\n…"


class Filler:
    """Values for a JSON schema, taken from the prompt where they can be: numbers, quoted texts, links."""

    def __init__(self, prompt: str) -> None:
        text = prompt[:SCANNED]
        self._whole = text[:500].strip() or "hello"
        self._numbers = [float(each[:15]) for each in re.findall(r"-?\d+(?:\.\d+)?", text)]
        self._quoted = re.findall(r"[\"“「`]([^\"”」`\n]{1,200})[\"”」`]", text) or re.findall(
            r"(?<!\w)'([^'\n]{1,200})'(?!\w)", text
        )
        self._links = re.findall(r"https?://[^\s\"'<>)]{1,300}", text)
        self._names = re.findall(r"(?<![.!?。] )(?<!^)\b[A-Z][a-z]+(?: [A-Z][a-z]+)*", text)
        self._text = text.lower()

    def value(self, name: str, schema: Any, depth: int = 0) -> Any:
        """A value that the schema allows, as far as its common keywords say."""
        if not isinstance(schema, dict):
            schema = {}
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            return next((each for each in choices if isinstance(each, str) and each.lower() in self._text), choices[0])
        if "const" in schema:
            return schema["const"]
        for key in ("anyOf", "oneOf", "allOf"):
            options = schema.get(key)
            if isinstance(options, list) and options and depth < 6:
                plain = [each for each in options if isinstance(each, dict) and each.get("type") != "null"]
                return self.value(name, (plain or options)[0], depth + 1)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "null")
        if kind in ("integer", "number"):
            return self._number(schema, whole=kind == "integer")
        if kind == "boolean":
            return schema.get("default") is True
        if kind == "null":
            return None
        if kind == "array":
            least = schema.get("minItems")
            count = min(least, 20) if isinstance(least, int) and least > 1 else 1
            return [self.value(name, schema.get("items"), depth + 1) for _ in range(count)] if depth < 6 else []
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, depth)
        return self._string(name, schema)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or depth >= 6:
            return {}
        wanted = [each for each in required if isinstance(each, str)] if isinstance(required, list) else []
        return {each: self.value(each, properties.get(each), depth + 1) for each in (wanted or list(properties))[:30]}

    def _number(self, schema: dict[str, Any], *, whole: bool) -> int | float:
        value = self._numbers.pop(0) if self._numbers else 1.0
        for key, choose in (("minimum", max), ("maximum", min)):
            if isinstance(bound := schema.get(key), int | float) and abs(bound) < 1e15:
                value = choose(value, float(bound))
        return int(value) if whole or value == int(value) else value

    def _string(self, name: str, schema: dict[str, Any]) -> str:
        name = name.lower()
        if "url" in name or "link" in name or schema.get("format") == "uri":
            return self._links[0] if self._links else "https://example.com/"
        if self._quoted:
            text: str = self._quoted.pop(0) if len(self._quoted) > 1 else self._quoted[0]
        elif self._names and any(part in name for part in ("city", "place", "location", "name", "country", "person", "who")):
            text = self._names[0]
        elif "date" in name or schema.get("format") == "date":
            found = re.search(r"\d{4}-\d\d-\d\d", self._text)
            text = found[0] if found else "2024-01-01"
        else:
            text = self._whole
        longest = schema.get("maxLength")
        return text[:longest] if isinstance(longest, int) and longest >= 0 else text
