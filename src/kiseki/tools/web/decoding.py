"""Bytes of a page → text, in the encoding that they are in, whatever is said about it."""

from __future__ import annotations

import codecs
import contextlib
import re

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HEAD = 4096
"""Bytes in which a page says its encoding."""
_SAMPLE = 100_000
"""Bytes by which an encoding that nobody names is guessed."""
_META = re.compile(rb"<meta[^>]{0,500}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_XML = re.compile(rb"^\s*<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.:-]{1,40})", re.IGNORECASE)
_HTTP = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_CODECS = {
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "windows-31j", "ms_kanji", "cp932", "ms932"), "cp932"),
    **dict.fromkeys(("euc-jp", "x-euc-jp", "eucjp"), "euc_jp"),
    **dict.fromkeys(("iso-2022-jp", "csiso2022jp"), "iso2022_jp"),
    **dict.fromkeys(("gb2312", "gb_2312-80", "gbk", "x-gbk", "cp936", "gb18030"), "gb18030"),
    **dict.fromkeys(("big5", "big5-hkscs", "x-x-big5", "cn-big5"), "big5hkscs"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987", "ksc5601", "windows-949", "cp949"), "cp949"),
    **dict.fromkeys(("iso-8859-1", "iso8859-1", "latin1", "l1", "us-ascii", "ascii", "windows-1252", "cp1252"), "cp1252"),
    **dict.fromkeys(("iso-8859-9", "latin5", "windows-1254"), "cp1254"),
    **dict.fromkeys(("tis-620", "iso-8859-11", "windows-874"), "cp874"),
    **dict.fromkeys(("utf-8", "utf8", "unicode-1-1-utf-8"), "utf-8"),
    **dict.fromkeys(("utf-16", "utf-16le", "unicode"), "utf-16-le"),
    **{name: name for name in ("utf-16be", "koi8-r", "koi8-u", "ibm866", "macintosh")},
    **{f"windows-{number}": f"cp{number}" for number in (1250, 1251, 1253, 1255, 1256, 1257, 1258)},
    **{f"iso-8859-{number}": f"iso8859_{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
}
"""What pages call encodings → what they mean by it (encoding.spec.whatwg.org). No other of Python's is ever used for a page."""
_LOOK_LIKE_UTF8 = ("iso2022_jp", "utf-16-le", "utf-16be")
"""Whose bytes may be valid UTF-8, too, and mean something else."""
_JIS_KANJI = (b"\x1b$B", b"\x1b$@")
"""How ISO-2022-JP begins what is not ASCII."""
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa]")
_KANA_SHARE = 0.2
"""Of the characters beyond ASCII in the least that are kana in Japanese: half of what is usual."""


def decode(body: bytes, content_type: str) -> str:
    """The text, with U+FFFD for what is damaged. `content_type`: the HTTP header.

    A byte order mark counts most; then that the bytes are UTF-8, which others hardly ever are by chance; then what HTTP, the XML
    declaration or a meta element says; then a guess.
    """
    for mark, codec in _MARKS:
        if body.startswith(mark):
            return body.decode(codec, "replace")
    named = _named(body, content_type)
    if named in _LOOK_LIKE_UTF8:
        return body.decode(named, "replace")
    if not named and any(each in body for each in _JIS_KANJI) and body.isascii():
        return body.decode("iso2022_jp", "replace")
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.decode(named or _guess(body), "replace")


def _named(body: bytes, content_type: str) -> str:
    if (found := _HTTP.search(content_type)) and (codec := _CODECS.get(found[1].lower())):
        return codec
    for own in (_XML.search(body[:_HEAD]), _META.search(body[:_HEAD])):
        if own and (codec := _CODECS.get(own[1].decode().lower())):
            return "utf-8" if codec.startswith("utf-16") else codec  # in UTF-16 it would not have been found
    return ""


def _guess(body: bytes) -> str:
    from charset_normalizer import from_bytes

    sample = body[:_SAMPLE]
    text = sample.decode("utf-8", "replace")
    damaged = text.count("\ufffd")
    if damaged * 10 < sum(not each.isascii() for each in text) - damaged:
        return "utf-8"  # but for a few damaged characters
    for codec in ("euc_jp", "cp932"):  # by kana even a few words are told from Chinese and Korean
        with contextlib.suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(codec)().decode(sample)
            if len(_KANA.findall(text)) >= _KANA_SHARE * sum(not each.isascii() for each in text):
                return codec
    found = from_bytes(sample)
    best, western = found.best(), next((each for each in found if each.encoding == "cp1252"), None)
    # where others seem as likely it is the one that pages mean when they say nothing
    if best is None or (western is not None and 0 < western.coherence >= best.coherence):
        return "cp1252"
    return best.encoding
