"""What pages of all kinds and encodings say, and that one which breaks its reader breaks nothing else."""

from __future__ import annotations

import asyncio
import zlib

import pytest

from kiseki.errors import ToolError
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.web import reader
from kiseki.tools.web.decoding import decode
from kiseki.tools.web.page_text import MAX_TEXT, readable
from kiseki.tools.web.reader import Reader

from .conftest import article

JAPANESE = "軌跡は道具を使うエージェントの記録です。東京都で開かれた会議で、研究者たちは新しい方法を発表しました。"
CHINESE = "轨迹是使用工具的代理的记录。研究人员在北京的会议上发表了新的方法，并且公布了全部数据。"
KOREAN = "궤적은 도구를 사용하는 에이전트의 기록입니다. 연구자들은 서울에서 새로운 방법을 발표했습니다."
FRENCH = "« L’été dernier, à Besançon, le garçon naïf a payé 5 € – c’était déjà trop. »"
RUSSIAN = "Траектория есть запись агента, который пользуется инструментами. Исследователи представили новый метод."
TABLE = """<table><tr><th>city</th><th>people</th></tr><tr><td>Kyoto</td><td>1,463,723</td></tr></table>"""


def pdf(text: str, pages: int = 1, *, packed: bool = False) -> bytes:
    """A PDF with `text` on each page, written by hand."""
    content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode("latin-1")
    filtered = b"/Filter /FlateDecode" if packed else b""
    content = zlib.compress(content) if packed else content
    kids = " ".join(f"{4 + number} 0 R" for number in range(pages))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    stream = 4 + pages
    page = f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {stream} 0 R"
    objects += [f"{page} /Resources << /Font << /F1 3 0 R >> >> >>".encode()] * pages
    objects.append(b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(content), filtered, content))
    objects.append(b"<< /Title (On trajectories) >>")
    data, offsets = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    trailer = b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, size - 1, len(data))
    return data + b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table) + trailer


@pytest.mark.parametrize("text", [JAPANESE, JAPANESE[:12], "カタカナだけ", "あ、い。"])
@pytest.mark.parametrize("codec", ["cp932", "euc_jp", "iso2022_jp"])
def test_japanese_is_known_without_a_name(text: str, codec: str) -> None:
    assert decode(text.encode(codec), "text/plain") == text


@pytest.mark.parametrize(("text", "codec"), [(CHINESE, "gb18030"), (KOREAN, "cp949"), (FRENCH, "cp1252"), (RUSSIAN, "cp1251")])
def test_what_is_not_japanese_is_not_taken_for_it(text: str, codec: str) -> None:
    assert decode((text * 5).encode(codec), "") == text * 5


def test_a_few_odd_bytes_are_damage_among_utf8_and_characters_elsewhere() -> None:
    english = "The café said: “no”. " + "Plain words follow it. " * 100
    assert decode(english.encode("cp1252"), "text/plain") == english
    assert decode(JAPANESE.encode() + b"\xe6\x9c", "") == JAPANESE + "\ufffd"


def test_bytes_that_name_utf_16_in_ascii_are_not_in_it() -> None:
    html = b'<html><head><meta charset="utf-16"><title>x</title></head><p>caf\xc3\xa9</p>'
    assert decode(html, "text/html").endswith("<p>café</p>")
    assert decode(b'<?xml version="1.0" encoding="UTF-16"?><p>caf\xc3\xa9</p>', "").endswith("<p>café</p>")
    assert decode("<p>café</p>".encode("utf-16-le"), "text/html; charset=utf-16") == "<p>café</p>"


def test_html_is_markdown_without_its_menus() -> None:
    page = readable(article("On trees", f"Oaks are <b>old</b>, birches are not, as everybody knows. {TABLE}"), "text/html")
    assert page.title == "On trees"
    assert page.text.startswith("# On trees\n\nOaks are **old**")
    assert "Home" not in page.text
    assert "Imprint" not in page.text
    assert "| Kyoto | 1,463,723 |" in page.text


def test_a_page_with_hardly_any_text_is_given_whole() -> None:
    page = readable(b"<html><title>x</title><script>alert(1)</script><form><button>Send</button>", "text/html")
    assert "Send" in page.text
    assert "alert" not in page.text
    with pytest.raises(ToolError, match="no text of its own"):
        readable(b"<html><body><div id=app></div><script src=/app.js></script></body></html>", "text/html")


@pytest.mark.parametrize(
    "body", [b"<div>" * 50_000 + b"deep", b"<html><p>a<p>b</html", b"\xff\xfe", b"<!doctype html>" + b"<" * 5000]
)
def test_broken_html_breaks_nothing(body: bytes) -> None:
    try:
        assert readable(body, "text/html").text is not None
    except ToolError as error:
        assert "no text" in str(error)


@pytest.mark.parametrize(
    ("text", "codec", "label"),
    [
        (JAPANESE, "cp932", "Shift_JIS"),
        (JAPANESE, "euc_jp", "EUC-JP"),
        (JAPANESE, "iso2022_jp", "iso-2022-jp"),
        (CHINESE, "gb18030", "gb2312"),
        (CHINESE, "big5hkscs", "big5"),
        (KOREAN, "cp949", "euc-kr"),
        (FRENCH, "cp1252", "iso-8859-1"),
        (RUSSIAN, "cp1251", "windows-1251"),
        (RUSSIAN, "koi8-r", "KOI8-R"),
        (JAPANESE, "utf-16-le", "utf-16le"),
        (JAPANESE, "utf-8", "utf-8"),
    ],
)
def test_an_encoding_is_taken_from_where_it_is_said(text: str, codec: str, label: str) -> None:
    text = text if codec != "big5hkscs" else "軌跡是使用工具的代理的記錄"
    body = text.encode(codec)
    assert readable(body, f"text/plain; charset={label}").text == text
    assert readable(body, f'text/plain;charset="{label.upper()}"').text == text
    if codec != "utf-16-le":
        for head in (f'<meta charset="{label}">', f'<meta http-equiv=Content-Type content="text/html; charset={label}">'):
            page = f"<html><head>{head}<title>t</title></head><body><p>".encode() + body
            assert text in readable(page, "text/html").text
        xml = f'<?xml version="1.0" encoding="{label}"?><a>'.encode() + body + b"</a>"
        assert f"<a>{text}</a>" in readable(xml, "application/xml").text


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        (CHINESE, "gb18030"),
        (RUSSIAN, "cp1251"),
        (JAPANESE, "utf-16"),
        (FRENCH, "utf-8-sig"),
    ],
)
def test_an_encoding_that_nobody_names_is_found_out(text: str, codec: str) -> None:
    assert readable((text * 4).encode(codec), "text/plain").text == text * 4


def test_bytes_that_are_utf8_are_whatever_is_said() -> None:
    assert readable(JAPANESE.encode(), "text/plain; charset=iso-8859-1").text == JAPANESE
    assert readable(JAPANESE.encode() + b"\xff", "text/plain").text == JAPANESE + "\ufffd"
    # a codec of Python's that is none of the web's is not used
    assert readable("naïve \\x41".encode(), "text/plain; charset=unicode_escape").text == "naïve \\x41"


def test_text_is_as_it_is_but_for_control_characters() -> None:
    assert readable(b'{"a": [1,\r\n 2]}', "application/json").text == '{"a": [1,\n 2]}'
    assert readable(b"a\0b\x1b[31mc\td", "text/plain").text == "ab[31mc\td"
    assert readable(b"<rss><item/></rss>", "application/rss+xml").text == "<rss><item/></rss>"
    assert readable(b"x = 1", "application/octet-stream").text == "x = 1"
    assert readable(b"<!DOCTYPE html><p>hello there", "").text == "hello there"
    assert readable(b"", "text/html").text == ""
    assert len(readable(b"a" * (MAX_TEXT + 5), "text/plain").text) == MAX_TEXT


@pytest.mark.parametrize("packed", [False, True])
def test_a_pdf_is_read(packed: bool) -> None:
    page = readable(pdf("Hello trajectories", pages=3, packed=packed), "application/octet-stream")
    assert (page.title, page.text) == ("On trajectories", "\n\n".join(["Hello trajectories"] * 3))


def test_a_pdf_without_text_or_sense_says_so() -> None:
    with pytest.raises(ToolError, match="no text in it"):
        readable(pdf(""), "application/pdf")
    for body in (b"%PDF-1.4\n", b"%PDF-1.7\n" + bytes(range(256)) * 10, pdf("x")[:300]):
        with pytest.raises(ToolError, match="PDF"):
            readable(body, "application/pdf")


@pytest.mark.parametrize(
    ("body", "kind"), [(b"\x89PNG\r\n\x1a\n\0\0", "image/png"), (b"PK\x03\x04\0\0", "application/zip"), (b"\0\1", "")]
)
def test_what_has_no_text_is_refused_in_words(body: bytes, kind: str) -> None:
    with pytest.raises(ToolError, match=f"no text to read: {kind or 'unknown type'}, {len(body)} bytes"):
        readable(body, kind)


def test_a_page_that_takes_its_reader_too_long_or_too_much_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time limit at a second, which a page of 2 MB needs several times over."""
    monkeypatch.setattr(reader, "READ_SECONDS", 1)
    long = b"<html><body>" + b"".join(b"<p>Paragraph %d, <a href=/>a link</a> and more text.</p>" % n for n in range(40_000))

    async def scenario() -> None:
        services = Services(ToolSettings())
        ours = services.get(Reader)
        try:
            assert (await ours.read(b"warm", "text/plain", "")).text == "warm"
            with pytest.raises(ToolError, match="cannot be read within"):
                await ours.read(long, "text/html", "http://e.test/")
            pages = await asyncio.gather(*(ours.read(b"p%d" % number, "text/plain", "") for number in range(5)))
            assert [page.text for page in pages] == [f"p{number}" for number in range(5)]
            with pytest.raises(ToolError, match="no text to read"):
                await ours.read(b"\0", "image/png", "")
        finally:
            await services.close()

    asyncio.run(scenario())
