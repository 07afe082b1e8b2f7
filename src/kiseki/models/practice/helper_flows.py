"""Families for what the other toolsets are for: draw and look at images, hand work on, remember, read skills."""

from __future__ import annotations

import random
import re
from typing import Any

from kiseki.models.practice.view import Call, Flow, Kit, Result, Turn, brief, stop
from kiseki.models.practice.web_flows import find_urls, in_japanese_too

_DRAW = re.compile(
    r"\b(?:draw|paint|generate|create|make|produce|design)\s+(?:me\s+|us\s+)?(?:an?\s+|the\s+|one\s+)?(?:[a-z]+\s+){0,2}?"
    r"(?:image|picture|illustration|drawing|painting|photo(?:graph)?|logo|icon|poster)\s+(?:of|with|showing|that shows|for)\s+"
    r"(?P<what>[^\n]{2,600})"
    r"|\bimage_generate\b[^\n]{0,40}?\b(?:of|for|with)\s+(?P<named>[^\n]{2,600})"
    r"|\b(?:draw|paint|sketch)\s+(?:me\s+)?(?P<drawn>(?:an?|the|some|two|three)\s+(?!random|number|conclusion|line\b|card|name)[^\n]{2,600})",
    re.IGNORECASE,
)
_DRAW_JA = re.compile(r"(?P<what>.{1,200}?)の(?:画像|絵|イラスト|写真)を(?:描|生成|作)")
_SHAPES = {"landscape": r"\b(?:landscape|wide)\b|横長", "portrait": r"\b(?:portrait|tall)\b|縦長", "square": r"\bsquare\b|正方形"}
_IMAGE_END = r"\.(?:png|jpe?g|gif|webp|bmp|tiff?)"
_IMAGE_FILE = re.compile(rf"(?<![\w/.~-])[~\w./-]{{1,200}}{_IMAGE_END}\b", re.IGNORECASE)
_LOOK = re.compile(
    r"\b(?:look at|describe|analy[sz]e|see|vision_analyze|what(?:'s| is| does| do)|which|how many|how (?:large|big|wide|tall))\b"
    r"|見|画像|写真|説明|[?？]",
    re.IGNORECASE,
)
_OF_FILE = re.compile(
    r"\b(?:bytes?|size|create|write|save|convert|rename|delete|remove|copy|move|download|permissions?)\b", re.IGNORECASE
)
"""What is asked about an image's file, or done with it, and not about what it shows."""
_IMAGE_WORD = re.compile(r"\b(?:image|picture|photo(?:graph)?|screenshot|drawing)\b|画像|写真", re.IGNORECASE)
_DELEGATE = re.compile(
    r"\b(?:delegate(?:_task)?|sub-?agents?|in parallel|side by side|at the same time)\b|サブエージェント|並行して|並列で|任せて",
    re.IGNORECASE,
)
_ITEM = re.compile(r"^[ \t]{0,8}(?:[-*•]|\(?\d{1,2}[.)、])\s+(\S[^\n]{1,1000})$", re.MULTILINE)
_HANDED = (
    re.compile(r"[^\n:：]{0,160}[:：]\s*"),
    re.compile(r".{0,120}?\b(?:sub-?agents?|delegate(?:_task)?)\b\s*(?:(?:for|to)\s+)?", re.IGNORECASE | re.DOTALL),
)
"""What stands before the work that is handed on."""
MOST_TASKS = 3
_REMEMBER = re.compile(
    r"\b(?:remember|memori[sz]e|(?:save|store|keep|note)(?: it| this)? (?:in|to) (?:your )?memory)\b\s*(?:that\s+|[:,]\s*)?"
    r"(?P<what>[^\n]{2,1000})"
    r"|\b(?:add|save|store|write|put)\s+[\"“](?P<quoted>[^\"”\n]{1,1000})[\"”]\s+(?:in|into|to)\s+(?:your\s+|the\s+)?memory\b",
    re.IGNORECASE,
)
_REMEMBER_JA = re.compile(r"(?:「(?P<quoted>[^」\n]{1,500})」|(?P<what>.{1,500}?))(?:と|を|ことを)?(?:覚え|記憶し)")
_RECALL = re.compile(
    r"\bwhat (?:do|did|can) you (?:still )?(?:remember|have in (?:your )?memory)\b|\b(?:read|show) (?:me )?your memory\b"
    r"|何を覚えて",
    re.IGNORECASE,
)
_OF_USER = re.compile(r"\b(?:I|I'm|my|me|mine)\b|私|僕|わたし")
_SKILLS = re.compile(
    r"\b(?:which|what|list|show|are there)\b[^.\n]{0,40}\bskills?\b|\buse (?:the|a|your) [^.\n]{0,60}\bskill\b"
    r"|\bskills?_(?:list|view)\b|スキル",
    re.IGNORECASE,
)
_SHOWN_CHARS = 1_200


def helper_flow(text: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow | None:
    """The flow of a prompt that asks for one of these tools' work, None for any other."""
    if "delegate_task" in kit.known and _DELEGATE.search(text) and (goals := find_goals(text)):
        return delegate(goals, japanese)
    if "image_generate" in kit.known and (found := (japanese and _first(_DRAW_JA, text)) or _DRAW.search(text)):
        return paint(_wish(next(each for each in found.groupdict().values() if each)), text, kit, draw, japanese)
    if "vision_analyze" in kit.known and _LOOK.search(text) and (image := find_image(text)):
        return look(image, text, japanese)
    if "memory" in kit.known:
        if _RECALL.search(text):
            return recall(japanese)
        if found := _REMEMBER.search(text) or (_first(_REMEMBER_JA, text) if japanese else None):
            return remember(_entry(found["quoted"] or found["what"]), text, japanese)
    if "skills_list" in kit.known and _SKILLS.search(text):
        return skills(text, kit, japanese)
    return None


def _first(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Where a sentence begins with it."""
    found = (pattern.match(sentence) for sentence in re.split(r"[。\n！？!?]", text))
    return next((each for each in found if each), None)


def find_goals(text: str) -> list[str]:
    """The parts of a prompt that sub-agents can do."""
    items = _ITEM.findall(text)
    if not items:
        head = next((found[0] for each in _HANDED if (found := each.match(text)) and _DELEGATE.search(found[0])), "")
        rest = text.removeprefix(head)
        items = re.split(r"[;；]\s*(?:and\s+)?|\n+", rest)
    goals = [each.strip().rstrip(";；,、") for each in items]
    return [each for each in goals if len(each) > 1 and not re.fullmatch(r"\W*", each)][:MOST_TASKS]


def delegate(goals: list[str], japanese: bool) -> Flow:
    """Hand the parts on and report what came back."""
    several = len(goals) > 1
    arguments: dict[str, Any] = {"tasks": [{"goal": each} for each in goals]} if several else {"goal": goals[0]}
    parts = (
        f"{len(goals)} parts that do not need each other; sub-agents can do them side by side"
        if several
        else "one part to hand on"
    )
    (result,) = yield Turn(f"The request has {parts}.", (Call("delegate_task", arguments),))
    found = result.data.get("results")
    answers = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    if not answers:
        yield _gave_up(f"the sub-agents gave nothing: {result.complaint if result.error else brief(result.output)}", japanese)
        return
    lines = []
    for number, (goal, each) in enumerate(zip(goals, [*answers, *({} for _ in goals)], strict=False), 1):
        answer, error, outcome = (_str(each, key) for key in ("answer", "error", "outcome"))
        ended = "" if outcome in ("", "completed") else f" (it ended {outcome})"
        said = brief(answer, _SHOWN_CHARS // len(goals)) if answer else f"no answer: {error or 'nothing came back'}"
        lines.append(f"{number}. {brief(goal, 100)}{ended}\n   {said}")
    head = (
        "サブエージェントに任せた結果は次のとおりです。" if japanese else "I handed this on, and the answers are the sub-agents':"
    )
    yield Turn("The answers are back; I pass them on as they are.", text="\n".join([head, "", *lines]))


def _wish(text: str) -> str:
    """What the image shall show, without what shall be done with it then."""
    return re.split(
        r"[.!?。]\s|\s*,?\s+(?:and|then)\s+(?:then\s+)?(?:look|tell|describe|say|check|show|save)\b", text, maxsplit=1
    )[0].strip(' .。"“”')


def paint(what: str, text: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Have an image made, and look at it where that can be done."""
    arguments: dict[str, Any] = {"prompt": what}
    if shape := next((name for name, pattern in _SHAPES.items() if re.search(pattern, text, re.IGNORECASE)), ""):
        arguments["aspect_ratio"] = shape
    thought = draw.choice(
        (f"An image of {brief(what, 80)} is wanted; there is a tool for that.", f"I have {brief(what, 80)} drawn.")
    )
    (result,) = yield Turn(thought, (Call("image_generate", arguments),))
    path = "" if result.error else find_path(result.data)
    if not path:
        yield _gave_up(f"no image was made: {result.error or 'the result names no file'}", japanese)
        return
    seen = ""
    if "vision_analyze" in kit.known:
        question = "What does this image show?"
        (looked,) = yield Turn("The file is there. I look at what was drawn.", (_look_at(path, question),))
        failed = f"I could not look at it: {stop(looked.complaint)}"
        seen = failed if looked.error else f"Asked what it shows, the vision model said: {brief(_answer(looked), _SHOWN_CHARS)}"
    else:
        seen = "I had no tool to look at it, so I cannot say how well it came out."
    said = f"「{what}」の画像を作成しました: {path}" if japanese else f"The image of {what} is in {path}."
    yield Turn("I name the file and what is known about it.", text=f"{said}\n\n{seen}")


def find_image(text: str) -> str:
    """The image that a prompt asks about: an address, a data URI, a path; "" where there is none."""
    if _OF_FILE.search(text):
        return ""
    urls = find_urls(text)
    if image := next((each for each in urls if re.search(rf"{_IMAGE_END}(?:[?#]|$)", each, re.IGNORECASE)), ""):
        return image
    if found := re.search(r"data:image/[\w.+-]{1,40};base64,[\w+/=]{1,5000}", text):
        return found[0]
    if found := _IMAGE_FILE.search(text):
        return found[0]
    return urls[0] if urls and re.search(rf"(?:{_IMAGE_WORD.pattern})\s+(?:at|on|from|:|：)\s*http", text, re.IGNORECASE) else ""


def look(image: str, text: str, japanese: bool) -> Flow:
    rest = " ".join(text.replace(image, " " if japanese else "the image").split())
    question = next((each.strip() for each in re.split(r"(?<=[.。!])\s*", rest) if re.search(r"[?？]", each)), "")
    question = question or "What does this image show?"
    (result,) = yield Turn(f"This is about an image, {brief(image, 80)}. I ask what it shows.", (_look_at(image, question),))
    if result.error:
        yield _gave_up(f"the image could not be looked at: {result.complaint}", japanese)
        return
    answer = brief(_answer(result), _SHOWN_CHARS)
    said = f"画像 {brief(image, 200)} についての回答です。\n\n{answer}" if japanese else f"About {brief(image, 200)}: {answer}"
    yield Turn("That answers it; the words are the vision model's.", text=said)


def _look_at(image: str, question: str) -> Call:
    return Call("vision_analyze", {"image_url": image, "question": question})


def _answer(result: Result) -> str:
    return _str(result.data, "answer") or result.output


def find_path(value: Any, depth: int = 4) -> str:
    """The file that a result names, however deep."""
    if isinstance(value, dict) and depth:
        for key in ("image", "path", "file", "images", "url"):
            if found := find_path(value.get(key), depth - 1):
                return found
    if isinstance(value, list) and value and depth:
        return find_path(value[0], depth - 1)
    return value if isinstance(value, str) else ""


def _entry(text: str) -> str:
    return text.strip().strip('"“”「」')[:500]


def remember(what: str, text: str, japanese: bool) -> Flow:
    """Write it down and read it back."""
    target = "user" if _OF_USER.search(what) else "memory"
    arguments = {"action": "add", "target": target, "content": what}
    (added,) = yield Turn("That is to be remembered, so I write it down.", (Call("memory", arguments),))
    if added.error:
        yield _gave_up(f"it could not be written down: {added.complaint}", japanese)
        return
    (back,) = yield Turn("I read it back to be sure.", (Call("memory", {"action": "read", "target": target}),))
    there = not back.error and what in "\n".join(_entries(back) or [back.text])
    state = (
        "reading it back shows it"
        if there
        else f"reading it back did not show it ({back.complaint if back.error else 'not there'})"
    )
    said = f"I wrote this down in {target}: “{brief(what, 300)}”; {state}."
    if japanese:
        said = f"「{brief(what, 300)}」を記憶に書き込みました。\n\n{said}"
    yield Turn("It is written down." if there else "I cannot vouch for it.", text=said)


def recall(japanese: bool) -> Flow:
    calls = tuple(Call("memory", {"action": "read", "target": target}) for target in ("memory", "user"))
    results = yield Turn("What I remember stands in my notes; I read both lists.", calls)
    entries = [entry for each in results if not each.error for entry in _entries(each)]
    if not entries and (bad := next((each for each in results if each.error), None)):
        yield _gave_up(f"my notes cannot be read: {bad.complaint}", japanese)
        return
    text = (
        "\n".join(["My notes say:", "", *(f"- {brief(each, 300)}" for each in entries[:20])])
        if entries
        else "My notes are empty."
    )
    if japanese:
        text = f"覚えていることは次のとおりです。\n\n{text}"
    yield Turn("I report what is written there.", text=text)


def _entries(result: Result) -> list[str]:
    found = result.data.get("entries")
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def skills(text: str, kit: Kit, japanese: bool) -> Flow:
    """List the skills, and read the one that the prompt names, or the first."""
    (result,) = yield Turn("I look which skills there are.", (Call("skills_list", {}),))
    found = result.data.get("skills")
    known = [each for each in found if isinstance(each, dict) and _str(each, "name")] if isinstance(found, list) else []
    if result.error:
        yield _gave_up(f"the skills could not be listed: {result.complaint}", japanese)
        return
    if not known:
        text = "スキルはありません。" if japanese else "There are no skills here."
        yield Turn("The list is empty.", text=text)
        return
    lines = [f"- {_str(each, 'name')}: {brief(_str(each, 'description'), 200) or 'no description'}" for each in known[:20]]
    told = "\n".join([f"There {'are' if len(known) > 1 else 'is'} {len(known)}:", "", *lines])
    if "skill_view" in kit.known:
        name = _str(next((each for each in known if _is_named(_str(each, "name"), text)), known[0]), "name")
        (viewed,) = yield Turn(f"I read {name}, to know what it asks for.", (Call("skill_view", {"name": name}),))
        content = viewed.output.split("---", 2)[-1] if viewed.output.startswith("---") else viewed.output
        begins = brief(content, 400)
        told += f"\n\n{name} could not be read: {stop(viewed.complaint)}" if viewed.error else f"\n\n{name} says:\n\n> {begins}"
    if japanese:
        told = f"スキルの一覧です。\n\n{told}"
    yield Turn("I report what the list and the skill say.", text=told)


def _is_named(name: str, text: str) -> bool:
    parts = re.split(r"[\W_]+", name.rsplit("/", 1)[-1].lower())
    return all(re.search(rf"\b{re.escape(part)}", text.lower()) for part in parts if part)


def _str(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


def _gave_up(why: str, japanese: bool) -> Turn:
    text = f"I could not do that: {stop(why)}"
    return Turn(f"{stop(why)} I say so instead of guessing.", text=in_japanese_too(text) if japanese else text)
