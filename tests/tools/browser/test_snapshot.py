"""Playwright's snapshots, made shorter."""

from __future__ import annotations

from kiseki.tools.browser.snapshot import changed, fit, read

RAW = """\
- generic [active] [ref=e1]:
  - banner [ref=e2]:
    - generic [ref=e3]:
      - link "A \\"quoted\\" [ref=e9] name" [ref=e4] [cursor=pointer]:
        - /url: https://example.org/
  - 'heading "One: two" [level=1] [ref=e5]'
  - 'button "It''s: [x]" [ref=e6]': go
  - generic [ref=e7] [cursor=pointer]: clickable
  - generic [ref=e8]:
    - text: words
    - textbox "Name" [ref=e10]:
      - /placeholder: yours
      - text: typed
  - iframe [ref=e11]:
    - checkbox [checked] [ref=f1e2]"""


def test_only_what_can_be_acted_on_keeps_a_ref() -> None:
    lines = read(RAW)
    assert "\n".join(line.shown for line in lines).splitlines() == [
        "- banner",
        '  - link "A \\"quoted\\" [ref=e9] name" [@e4] url=https://example.org/',
        '- heading "One: two" [level=1]',
        "- button \"It''s: [x]\" [@e6]: go",
        "- generic [@e7]: clickable",
        "- text: words",
        '- textbox "Name" [@e10] placeholder=yours',
        "  - text: typed",
        "- iframe",
        "  - checkbox [checked] [@f1e2]",
    ]
    assert [line.ref for line in lines if line.ref] == ["e4", "e6", "e7", "e10", "f1e2"]


def test_a_change_is_shown_with_what_it_is_in() -> None:
    before = read(RAW)
    now = read(RAW.replace("typed", "typed more").replace("[active] [ref=e1]", "[ref=e1]"))
    assert [line.shown for line in changed(before, now) or []] == [
        '- textbox "Name" [@e10] placeholder=yours',
        "  - text: typed more",
    ]
    assert changed(before, before) == []
    assert changed([], now) is None


def test_what_is_out_of_view_above_gives_way() -> None:
    raw = """\
- list [ref=e1] [box=0,-500,100,900]:
  - listitem [ref=e2] [box=0,-500,100,20]: gone
  - listitem [ref=e3] [box=0,-20,100,20]:
    - text: gone too
  - listitem [ref=e4] [box=0,-10,100,20]: half
  - group [ref=e5] [box=0,-90,100,20]:
    - button "Sticks out" [ref=e6] [box=0,5,10,10]
  - listitem [ref=e7] [box=0,50,100,20]: below"""
    cut = fit(read(raw), 80)
    assert cut.text.splitlines() == ["- list", "  - listitem: half", "  - group", '    - button "Sticks out" [@e6]']
    assert (cut.above, cut.below) == (3, 1)


def test_long_texts_are_shortened() -> None:
    (line,) = read(f'- button "{"n" * 5_000}" [ref=e1]: {"é" * 5_000}')
    assert line.ref == "e1" and len(line.text) < 2_200 and "4,000 more characters" in line.text
