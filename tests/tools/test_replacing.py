"""Replacing a passage that a model quoted: what is tolerated, what is refused, and that nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kiseki.errors import ToolError
from kiseki.tools.replacing import replace_text

PYTHON = "def f(x):\n\tif x:\n\t\treturn 1\n\n\treturn 2\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "expected", "how"),
    [
        ("one two one", "two", "2", "one 2 one", ""),
        ("a\u2028b\0c</tool_call>\x1b[0m", "c</tool_call>", "", "a\u2028b\0\x1b[0m", ""),
        ("a  \nb\nc\n", "a\nb\n", "a\nB\n", "a  \nB\nc\n", "trailing whitespace"),
        ("a\r\nb\r\nc\r\n", "a\nb\n", "a\nX\nY\n", "a\r\nX\r\nY\r\nc\r\n", "line endings"),
        ("a\r\nb\r\nc\r\n", "b", "X\nY", "a\r\nX\r\nY\r\nc\r\n", ""),
        ("ab\r\ncd\r\n", "b\nc", "B\nC", "aB\r\nCd\r\n", "line endings"),
        ("a\nb\n", "a\r\nb", "a\r\nc", "a\nc\n", "line endings"),
        (PYTHON, "if x:\n    return 1\n", "if x:\n    return 3\n", PYTHON.replace("1", "3"), "indentation"),
        (
            PYTHON,
            "    if x:\n        return 1\n",
            "    if x:\n        if y:\n            return 1\n",
            "def f(x):\n\tif x:\n\t\tif y:\n\t\t\treturn 1\n\n\treturn 2\n",
            "indentation",
        ),
        ("    a\n    b\n", "  a\n  b\n", "  a\nc\n", "    a\n  c\n", "indentation"),
        ("x = “hi”\ny = 1\n", 'x = "hi"\ny = 1', 'x = "hi"\ny = 2', "x = “hi”\ny = 2\n", "typographic signs"),
        ("x  =  1 # a\ny\n", "x = 1 # a\ny", "x = 1 # a\nz", "x  =  1 # a\nz\n", "the amount of whitespace"),
        ("say('a')\nb\n", "say('a')\\nb", "say('c')\\nb", "say('c')\nb\n", "escape sequences"),
        ('print("a\\n")\nb\n', 'print("a\\n")', 'print("c\\n")', 'print("c\\n")\nb\n', ""),
        ("aa\nbb\ncc\n", "2|bb\n3|cc\n", "2|bb\n3|dd\n", "aa\nbb\ndd\n", "line numbers"),
        ("a\nb", "a\nb ", "c", "c", "trailing whitespace"),
    ],
)
def test_finds_what_was_meant(text: str, old: str, new: str, expected: str, how: str) -> None:
    result = replace_text(text, old, new)
    assert (result.text, result.count, result.how) == (expected, 1, how)


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        ("a", "", "b", "old_string is empty"),
        ("a", "a", "a", "old_string and new_string are the same"),
        ("x\ny\nx\nx\n", "x", "z", "found 3 times (lines 1, 3, 4)"),
        ("x  \ny\nx\t\ny\n", "x\ny\n", "z\n", "found 2 times when ignoring trailing whitespace (lines 1, 3)"),
        ("a\na\na\n", "a\na\n", "b\n", "found 2 times (lines 1, 2)"),
        ("a \na \na \n", "a\na", "b\n", "found 2 times when ignoring trailing whitespace (lines 1, 2)"),
        ("one\nkind of thing\ntwo\n", "kind of a thing\ntwo\n", "q", "The closest lines are:\n2|kind of thing\n3|two"),
        ("alpha\n", "omega 9\n", "alpha", "new_string is there already, at line 1"),
        ("alpha\n", "12 + 34 / x", "q", "nor anything like it"),
        ("if a:\n    b\n  c\n", "if a:\n  b\n  c\n", "q", "is not in the file"),  # indentation that does not map
        ("\n \n", "\t\t", "q", "is not in the file"),  # only whitespace: never by tolerance
    ],
)
def test_says_why_not(text: str, old: str, new: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        replace_text(text, old, new)
    assert message in str(caught.value)


def test_replaces_all_when_told() -> None:
    result = replace_text("x = 1\nif a:\n    x = 1\n", "x = 1", "y = 2", replace_all=True)
    assert (result.text, result.count) == ("y = 2\nif a:\n    y = 2\n", 2)


def test_a_change_that_tolerance_swallows_is_refused() -> None:
    with pytest.raises(ToolError, match="leaves the file as it is"):
        replace_text("a\r\nb\r\n", "a\nb\n", "a\r\nb\n")


LINES = st.lists(st.text(st.sampled_from("ab \tc“\"{'\u2028"), max_size=6), min_size=1, max_size=8)


@given(st.text(max_size=60), st.text(min_size=1, max_size=6), st.text(max_size=60), st.text(max_size=6))
def test_an_exact_unique_match_is_plain_replacement(before: str, old: str, after: str, new: str) -> None:
    text = before + old + after
    assume(text.find(old) == text.rfind(old) and old != new and "\r" not in text + new)
    assert replace_text(text, old, new).text == text.replace(old, new)


def test_equal_lines_keep_their_own_bytes() -> None:
    """Two lines that differ only in whitespace, quoted alike: the change between them must not swap them."""
    text = "a \n\na\n\n"
    assert replace_text(text, "a\n\na\n", "a\nNEW\na\n").text == "a \nNEW\na\n\n"


def _blurred(line: str, how: int) -> str:
    return [line, line.rstrip(" \t") + "  ", "  " + line, line.replace("“", '"'), line.strip(" \t")][how]


@given(LINES, st.data(), st.sampled_from(["\n", "\r\n"]))
def test_tolerance_never_changes_untouched_lines(lines: list[str], data: st.DataObject, ending: str) -> None:
    """A passage quoted with whitespace errors, of which one line is changed: all other lines keep their bytes."""
    first = data.draw(st.integers(0, len(lines) - 1))
    last = data.draw(st.integers(first, len(lines) - 1))
    changed = data.draw(st.integers(first, last))
    how = data.draw(st.integers(0, 4))
    quoted = [_blurred(line, how) for line in lines[first : last + 1]]
    wanted = list(quoted)
    wanted[changed - first] = quoted[changed - first] + "NEW"
    text = "".join(line + ending for line in lines)
    try:
        result = replace_text(text, "\n".join(quoted), "\n".join(wanted))
    except ToolError:
        return  # not unique, or indentation that does not map: refusing is always right
    after = result.text.split(ending)
    if result.how in ("", "line endings"):  # the passage may have been found elsewhere, inside a line, but only once
        assert result.text.count("NEW") == 1 and len(result.text) == len(text) + 3
        return
    # Which line it is does not matter here: where two lines differ only in whitespace, the quote may fit the other one better.
    assert len(after) == len(lines) + 1
    differing = [there for here, there in zip([*lines, ""], after, strict=True) if here != there]
    assert len(differing) == 1 and "NEW" in differing[0]
