"""Words of texts and queries, for an index whose tokenizer knows words by the spaces between them.

Scripts that are written without spaces are indexed character by character and looked up as phrases, so that any part of such a
text can be found, one character alone too, and texts of several languages share one index.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from kiseki.trajectory.text import clean_text, printable

MAX_QUERY_CHARS = 1_000
MAX_TERMS = 32
"""Of one query that count: each costs a look at all documents that have it."""
EXCERPT_SCANNED = 100_000
"""Characters of a document that an excerpt is looked for in; one found further on shows its beginning."""
_LEAD = 60
"""Characters shown before what was found, at most, where no sentence begins there."""

_KANJI = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff々〆\U00020000-\U0003ffff"
_KATAKANA = "\u30a1-\u30faー"
_HIRAGANA = "\u3041-\u3096"
_OTHER_UNSPACED = "\uac00-\ud7a3\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Hangul is written with spaces, but a word with its particles is one; Thai, Lao, Burmese and Khmer have none."""
_UNSPACED = f"{_KANJI}{_KATAKANA}{_HIRAGANA}{_OTHER_UNSPACED}"
_RUN = re.compile(f"[{_UNSPACED}]+")
_PIECE = re.compile(
    f"(?P<hiragana>[{_HIRAGANA}]+)|[{_KANJI}]+|[{_KATAKANA}]+|[{_OTHER_UNSPACED}]+|(?P<spaced>[^\\W_{_UNSPACED}]+)"
)
_ASKING = re.compile(
    "について|に関して|とは|(?:を)?(?:教え|調べ|検索し)て(?:ください|下さい)?|何(?:ですか|でしょうか)?|(?:です|ます)か"
)
"""What a question is asked with, and no document answers with."""
_PARTICLE = "から|まで|より|です|ます|どこ|どの|する|した|して|いる|ある|の|は|が|を|に|で|と|も|へ|や|か|な"
_ENDS = re.compile(f"^(?:{_PARTICLE})+|(?:{_PARTICLE})+$")
_COMMON_TEXT = """a about an and are as at be by can could did do does for from had has have how i in is it its me my no not of on
 or s so t than that the their them then there these they this to us was we were what when where which who why will with would
 you your"""
_COMMON = frozenset(_COMMON_TEXT.split())
"""So many documents have these that they say nothing, and would cost the most."""


class Terms(NamedTuple):
    """What a query asks for."""

    every: str
    """Expression of FTS5 for what has all of it; "" where the query has no words."""
    some: tuple[str, ...]
    """Expressions for what has one part of it."""
    words: tuple[str, ...]
    """As `excerpt` takes them."""


def spaced(text: str) -> str:
    """`text` as it is indexed: one form of each character, and spaces where the script has none."""
    if text.isascii():
        return text
    return _RUN.sub(lambda run: f" {' '.join(run[0])} ", unicodedata.normalize("NFKC", text))


def read_query(query: str) -> Terms:
    """What any text asks for; nothing, where it has no words."""
    text = unicodedata.normalize("NFKC", clean_text(query[:MAX_QUERY_CHARS])).lower()
    words: dict[str, bool] = {}
    """Word → whether it is one of a script with spaces."""
    for piece in _PIECE.finditer(_ASKING.sub(" ", text)):
        word = _ENDS.sub("", piece[0]) if piece["hiragana"] else piece[0]
        if word and word not in _COMMON and (len(word) > 1 or not piece["hiragana"]):
            words[word] = bool(piece["spaced"])
    if not words:  # nothing but what is in every document: then that is meant
        words = {piece[0]: bool(piece["spaced"]) for piece in _PIECE.finditer(text)}
    words = dict(list(words.items())[:MAX_TERMS])
    parts = dict.fromkeys(part for word, has_spaces in words.items() for part in ([word] if has_spaces else _pairs(word)))
    some = tuple(map(_phrase, list(parts)[:MAX_TERMS]))
    return Terms(" AND ".join(map(_phrase, words)), some, tuple(dict.fromkeys((*words, *parts))))


def _pairs(word: str) -> list[str]:
    return [word[at : at + 2] for at in range(len(word) - 1)] or [word]


def _phrase(word: str) -> str:
    return f'"{spaced(word).strip()}"'


class _Fold(dict[int, str]):
    """Characters → what they are compared as: one character each, so that places stay what they are."""

    def __missing__(self, code: int) -> str:
        folded = (unicodedata.normalize("NFKD", chr(code))[:1] or chr(code)).lower()[:1]
        self[code] = folded
        return folded


_FOLD = _Fold()


def _fold(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_FOLD)


def excerpt(text: str, words: tuple[str, ...], length: int) -> str:
    """About `length` characters of `text` from where most of `words` are together, on one line; its beginning where none is."""
    text = text[:EXCERPT_SCANNED]
    folded = _fold(text)
    patterns = [_pattern(word) for word in words]
    starts = sorted({found.start() for pattern in patterns if (found := pattern.search(folded))})

    def together(start: int) -> int:
        return sum(pattern.search(folded, start, start + length - _LEAD) is not None for pattern in patterns)

    start = _begin(text, max(starts, key=together)) if starts else 0
    if len(text) - start < length // 2:  # little is left there: more of what leads to it
        start = _begin(text, max(0, len(text) - length))
    end = start + length
    if end < len(text) and (space := text.rfind(" ", end - _LEAD, end)) > 0:
        end = space
    shown = " ".join(printable(text[start:end], length).split())
    return f"{'…' * (start > 0)}{shown}{'…' * (end < len(text))}"


def _pattern(word: str) -> re.Pattern[str]:
    """Finds a word, whatever its ending: the index knows it by its stem."""
    folded = re.escape(_fold(word))
    if _RUN.match(word):
        return re.compile(folded)
    stem = re.escape(_fold(word)[: max(4, len(word) - 3)])
    return re.compile(rf"(?<![^\W_])(?:{folded}|{stem}[^\W_]{{0,6}}(?![^\W_]))")


def _begin(text: str, found: int) -> int:
    """Where an excerpt begins that shows `found`: at its sentence, or else a word, a few words before it."""
    window = text[max(0, found - 2 * _LEAD) : found]
    ends = [end.end() for end in re.finditer(r"[.!?。！？]\s+|[。！？]|\n\s*", window)]
    if ends:
        return found - len(window) + ends[-1]
    if found <= _LEAD:
        return 0
    space = text.find(" ", found - _LEAD, found)
    return space + 1 if space >= 0 else found - _LEAD
