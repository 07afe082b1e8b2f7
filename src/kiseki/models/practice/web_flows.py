"""Families about what others wrote: search for something and quote what is found, read a page."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from typing import Any

from kiseki.models.practice.view import Call, Flow, Kit, Result, Turn, brief, stop

URL = re.compile(r"(?:https?|corpus)://[^\s\"'“”<>「」『』、。（）]{1,500}", re.IGNORECASE)
_WHERE = r"(?:web|internet|net|corpus|documents?|document collection|collection|library|knowledge base|archive)"
_TOPIC = r"(?P<{}>[^\n]{{2,400}})"
_SEARCH = (
    re.compile(
        rf"\b(?:web_search|search|google|look(?= (?:in|through) the {_WHERE}))\b"
        rf"(?:\s+(?:(?:in|through|on)\s+)?(?:(?:the|our|my)\s+)?{_WHERE})?"
        rf"\s+(?:for|about|on|to\s+(?:find|see|learn)(?:\s+out)?)\s+{_TOPIC.format('topic')}",
        re.IGNORECASE,
    ),
    re.compile(
        rf"\bwhat\s+(?:do|does|can)\s+(?:the|our|my)\s+{_WHERE}\s+(?:say|tell(?:\s+(?:us|me))?|have|know)\s+"
        rf"(?:about|on)\s+{_TOPIC.format('topic')}",
        re.IGNORECASE,
    ),
    re.compile(rf"\baccording\s+to\s+(?:the|our|my)\s+{_WHERE}\s*[,:]?\s*{_TOPIC.format('topic')}", re.IGNORECASE),
    re.compile(rf"\b(?:look\s+up|find\s+out)(?:\s+(?:about|on\s+the\s+web))?\s+{_TOPIC.format('topic')}", re.IGNORECASE),
)
_WHERE_JA = "(?:コーパス|資料|文書|ウェブ|ネット|インターネット)"
_SEARCH_JA = (
    re.compile(
        rf"(?:{_WHERE_JA}(?:の中)?(?:で|から|には|は))?(?P<topic>.{{1,200}}?)(?:について|に関して|のことを|を)\s*"
        rf"(?:{_WHERE_JA}(?:で|から))?(?:検索|調べ|探し)"
    ),
    re.compile(rf"{_WHERE_JA}(?:には|は)(?P<topic>.{{1,200}}?)(?:について|に関して)"),
)
_ACCORDING_JA = re.compile(rf"{_WHERE_JA}によると[、,]?(?P<topic>[^。\n]{{1,200}}?)(?:[。？?]|$)")
"""Those in `_SEARCH_JA` begin where a part of a sentence does."""
_ON_DISK = re.compile(r"\b(?:files?|folders?|director(?:y|ies)|repo(?:sitory)?|code)\b", re.IGNORECASE)
_AND_THEN = re.compile(
    r"[,;]? and (?:then )?(?:quote|tell|say|answer|give|report|summari[sz]e|cite|write|name|explain|read|show)\b"
    r"|[.!?。！？](?: |$)|[;；]",
    re.IGNORECASE,
)
_ASKED = re.compile(
    r"(?:,\s*)?(?:when|who|what|where|which|why|how(?: \w+)?)\s+(?:is|are|was|were|did|does|do|has|have|had)\s+", re.I
)
_READ = re.compile(r"\b(?:read|summari[sz]e|extract|fetch|quote|say|about)\b|要約|読|内容|まとめ", re.IGNORECASE)
MOST_URLS = 5
"""That one call of `web_extract` takes."""
_QUOTE_CHARS = 400


def search_flow(text: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow | None:
    """The flow of a prompt that asks to search for something; None when it does not, or no tool can."""
    if "web_search" not in kit.known or ((kit.can_read or "search_files" in kit.known) and _ON_DISK.search(text)):
        return None
    found = [pattern.search(text) for pattern in (*_SEARCH, *([_ACCORDING_JA] if japanese else []))]
    if japanese:
        found += [pattern.match(part) for part in re.split(r"[。、\n！？!?，]", text) for pattern in _SEARCH_JA]
    topics = (_topic(each["topic"]) for each in found if each)
    topic = next((each for each in topics if each), "")
    return search(topic, kit, draw, japanese) if topic else None


def read_flow(text: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow | None:
    """The flow of a prompt that gives addresses to be read; None when it does not, or no tool can."""
    urls = find_urls(text)
    if not urls or "web_extract" not in kit.known:
        return None
    if "browser_navigate" in kit.known and not _READ.search(text) and not urls[0].lower().startswith("corpus:"):
        return None
    return read(urls[:MOST_URLS], URL.sub(" ", text), draw, japanese)


def find_urls(text: str) -> list[str]:
    """The addresses in a prompt, without the punctuation of its sentence."""
    return list(dict.fromkeys(each.rstrip(".,;:!?)]}'") for each in URL.findall(text)))


def question_flow(text: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow | None:
    """A question of no known family, where there is a search: somebody may have written the answer down."""
    if "web_search" in kit.known and re.search(r"[?？]|(?:です|ます)か", text):
        question = next(
            (each for each in re.split(r"(?<=[.!。！\n])\s*", text) if re.search(r"[?？]|(?:です|ます)か", each)), text
        )
        return search(_topic(question) or question[:200], kit, draw, japanese)
    return None


def _topic(text: str) -> str:
    topic = _AND_THEN.split(" ".join(text.split()), maxsplit=1)[0]
    topic = re.sub(r"^(?:information|something|anything|facts|details)\s+(?:about|on)\s+", "", topic, flags=re.IGNORECASE)
    return topic.strip(" \t\"'“”‘’「」『』`,:").removesuffix("について")[:200]


def search(topic: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Search, read the best hit, quote from it."""
    thought = draw.choice(
        (
            f"The request: “{brief(topic, 80)}”. I do not answer from memory; I search.",
            f"I am asked to find “{brief(topic, 80)}”. One search first, then I read the best hit.",
            f"“{brief(topic, 80)}”: a search tells more than a guess, and gives a source to quote.",
        )
    )
    (found,) = yield Turn(thought, (Call("web_search", {"query": topic, "limit": draw.choice((3, 5))}),))
    hits = hits_of(found)
    shorter = _ASKED.sub("", topic, count=1)
    if not found.failed and not hits and shorter != topic and shorter.strip():
        (found,) = yield Turn("Nothing for the whole question. Fewer words may find more.", (_search_call(shorter),))
        hits = hits_of(found)
    if found.failed:
        yield _gave_up(f"the search failed: {found.complaint}", japanese)
        return
    if not hits:
        text = f"I searched for “{topic}” and found nothing, so I have no source to answer from."
        if japanese:
            text = f"「{topic}」を検索しましたが、何も見つかりませんでした。そのため、根拠のあるお答えはできません。"
        yield Turn("Nothing was found. I say so instead of guessing.", text=text)
        return
    said, title, url = "", hits[0][0], hits[0][1]
    troubles: list[str] = []
    if "web_extract" in kit.known:
        for place, (title, url, _) in enumerate(hits[:2]):
            why = (
                f"“{brief(title, 60)}” looks best. I read it whole, a snippet is no source."
                if not place
                else "I read the next hit."
            )
            (page,) = yield Turn(why, (Call("web_extract", {"urls": [url]}),))
            (_, read_title, content, error) = (pages_of(page) or [(url, "", "", page.complaint)])[0]
            if page.failed or error or not content.strip():
                troubles.append(f"{url} could not be read ({error or page.complaint})")
                continue
            title = read_title or title
            said = best_sentence(content, topic)
            break
    if not said:
        snippets = [(best_sentence(snippet, topic), title, url) for title, url, snippet in hits if snippet.strip()]
        if not snippets:
            yield _gave_up("; ".join(troubles) or "the hits had no text", japanese)
            return
        said, title, url = snippets[0]
        troubles.append("this is only the search result's own snippet")
    thought = f"This sentence answers best: {brief(said, 100)!r}. I quote it with its address."
    yield Turn(thought, text=_quotation(said, title, url, topic, len(hits), troubles, japanese))


def _search_call(query: str) -> Call:
    return Call("web_search", {"query": query.strip(), "limit": 5})


def _quotation(said: str, title: str, url: str, topic: str, count: int, troubles: list[str], japanese: bool) -> str:
    note = f"\n\nNote: {stop('; '.join(troubles))}" if troubles else ""
    if japanese:
        said = f"「{topic}」について、「{brief(title, 100)}」には次のようにあります。\n\n> {said}"
        return f"{said}\n\n出典: {url}（検索結果 {count} 件のうち）{note}"
    results = f"the best of {count} results" if count > 1 else "the only result"
    return f"On “{topic}”, “{brief(title, 100)}” ({results}) says:\n\n> {said}\n\nSource: {url}{note}"


def read(urls: list[str], question: str, draw: random.Random, japanese: bool) -> Flow:
    """Read pages and say what they say: the sentence that fits the question best, or else their beginning."""
    several = f"{len(urls)} pages" if len(urls) > 1 else "a page"
    thought = draw.choice(
        (f"I am given {several} to read. One call gets the text.", f"The request names {several}; I read before I say.")
    )
    (result,) = yield Turn(thought, (Call("web_extract", {"urls": urls}),))
    pages = pages_of(result)
    if result.failed or not pages:
        yield _gave_up(f"reading {urls[0]} failed: {result.complaint if result.failed else 'no text came back'}", japanese)
        return
    parts = []
    for url, title, content, error in pages:
        if error or not content.strip():
            parts.append(f"{url} could not be read: {stop(error or 'it has no text')}")
            continue
        begins = " ".join(sentences(content)[:2])
        fits = best_sentence(content, question)
        head = f"“{brief(title, 100)}” ({url})" if title else url
        if japanese:
            parts.append(f"{head} の冒頭には次のようにあります。\n\n> {brief(begins, _QUOTE_CHARS)}")
        else:
            parts.append(f"{head} begins:\n\n> {brief(begins, _QUOTE_CHARS)}")
        if fits not in begins:
            parts.append(f"{'ご質問に最も近い文' if japanese else 'The sentence closest to the request'}:\n\n> {fits}")
    closing = "I quote what is there; a set of rules cannot put it into better words."
    yield Turn(closing, text="\n\n".join(parts))


def hits_of(result: Result) -> list[tuple[str, str, str]]:
    """(title, URL, snippet) of each search result that has an address."""
    return [
        (_text(each, "title") or _text(each, "url"), _text(each, "url"), _text(each, "snippet", "content", "description"))
        for each in _list(result.data)
        if _text(each, "url")
    ]


def pages_of(result: Result) -> list[tuple[str, str, str, str]]:
    """(URL, title, text, error) of each page."""
    return [
        (_text(each, "url"), _text(each, "title"), _text(each, "content", "text"), _text(each, "error"))
        for each in _list(result.data)
    ]


def _list(data: dict[str, Any]) -> list[dict[str, Any]]:
    found = data.get("results")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _text(data: dict[str, Any], *keys: str) -> str:
    return next((value for key in keys if isinstance(value := data.get(key), str)), "")


def sentences(text: str) -> list[str]:
    """The sentences of a text, headings left out."""
    found = []
    for block in re.split(r"\n\s*\n", text[:100_000]):
        lines = [line for line in block.splitlines() if line.strip() and not re.match(r"\s*(?:#|=|-{3}|\||!\[)", line)]
        for each in re.split(r"(?<=[.!?])\s+|(?<=[。！？])", " ".join(lines)):
            if len(each := " ".join(each.split())) >= 8 and re.search(r"[.!?。！？]$", each):
                found.append(each)
    return found or [brief(text, _QUOTE_CHARS)]


def best_sentence(text: str, topic: str) -> str:
    """The sentence that shares most with the topic, of equals the first; with the one before it where it points back to that."""
    wanted = _pieces(topic)
    found = sentences(text)

    def shared(place: int) -> float:
        pieces = _pieces(found[place])
        return len(wanted & pieces) / (1 + len(pieces) / 200)

    best = max(range(len(found)), key=shared)
    points_back = best > 0 and _POINTS_BACK.match(found[best])
    return brief(f"{found[best - 1]} {found[best]}" if points_back else found[best], _QUOTE_CHARS)


_POINTS_BACK = re.compile(r"(?:It|They|He|She|This|That|These|Those|His|Her|Its|Their)\b|これ|それ|そこ|その|この|彼")


def _pieces(text: str) -> set[str]:
    """What texts are compared by: the beginnings of words, and pairs of characters where there are no spaces."""
    words = re.findall(r"[a-zA-Z0-9À-ɏ]{3,}|[a-zA-Z]*\d[\d.,]*", text)
    pieces = {word.lower()[:5] for word in words} - _SAYS_NOTHING
    for run in re.findall(r"[一-龠々ァ-ヴーぁ-ん]{2,}", text):
        pieces.update(run[at : at + 2] for at in range(len(run) - 1))
    return pieces


_SAYS_NOTHING = frozenset(
    [
        "the",
        "and",
        "was",
        "were",
        "are",
        "for",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "how",
        "did",
        "does",
        "has",
        "have",
        "had",
        "from",
        "with",
        "that",
        "this",
    ]
)


def _gave_up(why: str, japanese: bool) -> Turn:
    text = f"I have no answer: {stop(why)}"
    return Turn(f"{stop(why)} I say so instead of guessing.", text=in_japanese_too(text) if japanese else text)


def in_japanese_too(text: str) -> str:
    return f"申し訳ありませんが、最後までできませんでした。\n\n{text}"


def listed(names: Iterable[str]) -> str:
    """Names as they stand in a sentence."""
    return ", ".join(f"“{brief(each, 60)}”" for each in names)
