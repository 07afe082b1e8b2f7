"""Families in a browser: open a page, fill in its fields, follow its links, say what it says then.

The policy sees pages as the browser tools show them: an accessibility tree, one element a line, as `- button "Send" [@e12]`.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

from kiseki.models.practice.view import Call, Flow, Kit, Result, Turn, brief, stop
from kiseki.models.practice.web_flows import find_urls, in_japanese_too, listed

MOST_STEPS = 4
"""Beside opening the page, one look more and the answer: within eight turns, one step that has to be done again included."""
_VERBS = re.compile(
    r"\b(?:open|visit|go to|navigate|browse|click|press|fill|type|enter|log ?in|sign ?in|submit|browser\w*)\b"
    r"|開|アクセス|クリック|押|入力|ログイン|移動",
    re.IGNORECASE,
)
_Q = r"[\"“”'‘’「」『』`]"
_FIELD = rf"(?:{_Q}(?P<fieldq>[^\"“”「」『』`\n]{{1,80}}?){_Q}|(?P<field>\w[\w -]{{0,40}}?))"
_VALUE = rf"(?:{_Q}(?P<value>[^\"“”「」『』`\n]{{0,300}}?){_Q}|(?P<word>[^\s,;、。]{{1,100}}?))"
_END = r"\s*(?:[,.;]|$|\s(?:and|then)\b)"
_STEPS_TEXT = (
    ("type", rf"\b(?:type|enter|write|put)\s+{_VALUE}\s+(?:in|into|as|for)\s+(?:the\s+|your\s+)?{_FIELD}"
     rf"(?=\s+(?:field|box|input|area|bar)\b|{_END})"),
    ("type", rf"\bfill\s+(?:in\s+|out\s+)?(?:the\s+)?{_FIELD}(?:\s+(?:field|box|input))?\s+with\s+{_VALUE}(?=[\s,.;]|$)"),
    ("type", rf"{_FIELD}(?:欄|フィールド)?に{_Q}(?P<value>[^」』\n]{{0,300}}){_Q}(?P<word>)と?(?:を)?入力"),
    ("login", rf"\b(?:log|sign)\s*in\s+as\s+{_VALUE}\s+(?:with|using)\s+(?:the\s+)?password\s+"
     rf"{_Q}?(?P<field>[^\s\"“”'’`,;]{{1,100}}){_Q}?"),
    ("click", rf"\b(?:click|press|push|choose|select|follow)\s+(?:on\s+)?(?:the\s+)?(?:button\s+|link\s+)?{_FIELD}"
     rf"(?=\s+(?:button|link|tab|checkbox|entry|item)\b|{_END})"),
    ("click", r"[「『“\"](?P<fieldq>[^「『」』“”\"\n]{1,80})[」』”\"](?P<field>)"
     r"(?:という)?(?:の)?(?:ボタン|リンク)?を(?:クリック|押)"),
)  # fmt: skip
_STEPS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _STEPS_TEXT)
_FIELDS = ("textbox", "searchbox", "combobox", "spinbutton", "textarea", "input")
_CLICKED = ("button", "link", "checkbox", "radio", "tab", "menuitem", "option", "switch")
_LINE = re.compile(r'(?:- )?(?P<role>[a-z]+)(?: "(?P<name>(?:[^"\\]|\\.)*)")?(?P<more>.*)$')
_REF = re.compile(r"\[ref=(@?\w+)\]|(?<!\w)(@\w+)\b")
_NO_TEXT = re.compile(r"\[[^\]]*\]|(?<!\S)(?:url|placeholder)=\S*")
_LINE_CHARS = 2_000
_SHOWN_CHARS = 900


class Step(NamedTuple):
    """One thing to do on a page."""

    kind: str
    """type or click."""
    name: str
    """Of the field, button or link."""
    value: str = ""


class Element(NamedTuple):
    """A line of a snapshot."""

    role: str
    name: str
    ref: str
    """"" for text."""
    rest: str


def acting_flow(text: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow | None:
    """The flow of a prompt that also says what is to be done on the page: then reading it alone is not what is asked."""
    urls = find_urls(text)
    return browser_flow(text, kit, draw, japanese) if urls and find_steps(text.replace(urls[0], " ")) else None


def browser_flow(text: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow | None:
    """The flow of a prompt that gives an address to be opened; None when it does not, or there is no browser."""
    urls = [each for each in find_urls(text) if each.lower().startswith("http")]
    if not urls or "browser_navigate" not in kit.known or not (_VERBS.search(text) or "web_extract" not in kit.known):
        return None
    steps = find_steps(text.replace(urls[0], " "))
    return browse(urls[0], steps[:MOST_STEPS], kit, draw, japanese, left=len(steps) - MOST_STEPS)


def find_steps(text: str) -> list[Step]:
    """What the prompt wants done on the page, in its order."""
    found: list[tuple[int, list[Step]]] = []
    taken: list[range] = []
    for kind, pattern in _STEPS:
        for match in pattern.finditer(text):
            if any(match.start() in each or each.start in range(*match.span()) for each in taken):
                continue
            taken.append(range(*match.span()))
            groups = match.groupdict()
            name = (groups.get("fieldq") or groups.get("field") or "").strip()
            value = groups.get("value") or groups.get("word") or ""
            if kind == "login":
                password = name.rstrip(".,;!。、")
                steps = [Step("type", "user", value), Step("type", "password", password), Step("click", "log in")]
            else:
                steps = [Step(kind, re.sub(r"\s+(?:field|box|input|button|link)$", "", name), value)]
            found.append((match.start(), steps))
    return [step for _, steps in sorted(found) for step in steps]


def browse(url: str, steps: list[Step], kit: Kit, draw: random.Random, japanese: bool, left: int = 0) -> Flow:
    """Open the page, do the steps, report."""
    thought = draw.choice(
        (
            f"I open {brief(url, 100)} and look before I do anything.",
            f"The request is about {brief(url, 100)}. First I open it and see what is there.",
        )
    )
    (seen,) = yield Turn(thought, (Call("browser_navigate", {"url": url}),))
    if seen.error:
        yield _gave_up(f"{url} could not be opened: {seen.error}", [], japanese)
        return
    if not elements_of(seen) and "browser_snapshot" in kit.known:
        (seen,) = yield Turn("The page is open; a snapshot shows what is on it.", (Call("browser_snapshot", {}),))
    page = Page(seen)
    done: list[str] = []
    again = False
    queue = list(steps)
    while queue:
        step = queue.pop(0)
        call, what, why_not = _call(step, page.elements, kit)
        if call is None:
            yield _gave_up(why_not, done, japanese)
            return
        (result,) = yield Turn(f"Next: {what}.", (call,))
        if result.error and "snapshot" in result.error and not again and "browser_snapshot" in kit.known:
            again = True
            (result,) = yield Turn(f"{stop(brief(result.error))} I look again.", (Call("browser_snapshot", {}),))
            queue.insert(0, step)
        elif not result.error:
            done.append(what)
        if result.error:
            yield _gave_up(f"I could not {what}: {brief(result.error)}", done, japanese)
            return
        page.see(result)
    yield Turn("I report what the page says.", text=_report(url, page, done, left, japanese))


class Page:
    """What is known of the page that is open."""

    def __init__(self, result: Result) -> None:
        self.elements: list[Element] = []
        self.title = self.url = ""
        self.new: list[str] = []
        """What it says that it did not say before the last action."""
        self.see(result)

    def see(self, result: Result) -> None:
        before = _said(self.elements)
        shown = elements_of(result)
        if "changes" in result.data:  # the rest is as it was; of two of a name the newer one is meant
            self.elements = [*shown, *(each for each in self.elements if each not in shown)]
        elif shown:
            self.elements = shown
        self.new = [each for each in _said(shown) if each not in before]
        for key in ("title", "url"):
            if isinstance(value := result.data.get(key), str):
                setattr(self, key, brief(value, 300))
        events = result.data.get("events")
        if isinstance(events, list):
            self.new += [brief(each, 300) for each in events if isinstance(each, str)]


def _call(step: Step, elements: list[Element], kit: Kit) -> tuple[Call | None, str, str]:
    """The call of a step, what it does in words, and why there is none."""
    roles = _FIELDS if step.kind == "type" else _CLICKED
    there = [each for each in elements if each.ref and each.role in roles]
    found = _named(step.name, there)
    if found is None and step.kind == "type" and len(there) == 1:
        found = there[0]
    if step.kind == "click" and found is None:
        found = _named(step.name, [each for each in elements if each.ref])
    tool = f"browser_{step.kind}"
    if found is None or tool not in kit.known:
        names = listed([each.name for each in there if each.name][:8])
        kind = "field" if step.kind == "type" else "button or link"
        lacks = f"the page has no {kind} named “{brief(step.name, 60)}”" + (f"; it has {names}" if names else "")
        return None, "", lacks if tool in kit.known else f"I have no tool to {step.kind} on a page"
    name = found.name or found.role
    if step.kind == "type":
        return Call(tool, {"ref": found.ref, "text": step.value}), f"type “{brief(step.value, 60)}” into “{brief(name, 60)}”", ""
    return Call(tool, {"ref": found.ref}), f"click “{brief(name, 60)}”", ""


def _named(name: str, among: list[Element]) -> Element | None:
    """The element that is called so: exactly, or in part, or by one of the usual names of the same thing."""
    wanted = name.lower().strip()
    if not wanted:
        return None
    names = [wanted, *_SYNONYMS.get(wanted, ())]
    for fits in (str.__eq__, lambda there, one: one in there, lambda there, one: bool(there) and there in one):
        for one in names:
            for each in among:
                if fits(each.name.lower().strip(), one):
                    return each
    return None


_SYNONYMS = {
    "user": ("username", "user name", "login", "email", "e-mail", "name", "account", "ユーザー", "メール"),
    "password": ("passphrase", "パスワード"),
    "log in": ("login", "sign in", "submit", "continue", "ログイン"),
    "search": ("query", "find", "検索"),
}


def elements_of(result: Result) -> list[Element]:
    """The lines of the snapshot that a result holds."""
    shown = (result.data.get(key) for key in ("snapshot", "changes"))
    text = next((each for each in shown if isinstance(each, str)), "" if result.data else result.text)
    found = []
    for line in text[:60_000].splitlines():
        if match := _LINE.match(line.strip()[:_LINE_CHARS]):
            ref = _REF.search(match["more"])
            rest = _NO_TEXT.sub("", match["more"]).strip().removeprefix(":").strip()
            name = (match["name"] or "").replace('\\"', '"')
            found.append(Element(match["role"], name, (ref[1] or ref[2]) if ref else "", rest.strip('"')))
    return found


def _said(elements: list[Element]) -> list[str]:
    """What the page says, element by element, nothing twice."""
    said = (each.rest or each.name for each in elements if each.role not in ("document", "img", "iframe"))
    return list(dict.fromkeys(brief(each, 300) for each in said if each))


def _report(url: str, page: Page, done: list[str], left: int, japanese: bool) -> str:
    where = f"“{page.title}” ({page.url or url})" if page.title else page.url or url
    new = page.new if done else []
    shown = brief(" / ".join(new or _said(page.elements)), _SHOWN_CHARS) or "(no text)"
    more = f"\n\nI left out {left} further step{'s' * (left != 1)}." if left > 0 else ""
    if japanese:
        steps = f"行った操作: {'、'.join(done)}。\n\n" if done else ""
        return f"{url} を開きました。{steps}現在のページは {where} で、次の内容が表示されています。\n\n> {shown}{more}"
    steps = f"Then I did this: {'; '.join(done)}.\n\n" if done else ""
    says = "What is new on the page" if new else "The page"
    return f"I opened {url}. {steps}{says}, {where}:\n\n> {shown}{more}"


def _gave_up(why: str, done: list[str], japanese: bool) -> Turn:
    text = f"I did not get to the end: {stop(why)}"
    if done:
        text += f" Before that I did this: {'; '.join(done)}."
    return Turn(f"{stop(why)} I say so instead of guessing.", text=in_japanese_too(text) if japanese else text)
