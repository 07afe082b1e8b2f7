"""Patterns for `grep -E`: the lines that a real grep finds are those that Python's `re` finds; what it cannot find is refused."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import warnings

import pytest

from kiseki.errors import ToolError
from kiseki.tools.posix_regex import posix_regex

LINES = [
    *(
        "alpha",
        "foo",
        "food",
        "foo;",
        "foo;\r",
        "foo \r",
        "foo\r",
        "",
        "\r",
        "x\r",
        "a",
        "aa",
        "aaab",
        "b",
        "5",
        "5\r",
        "a5",
        "x o",
    ),
    *(
        "  def f(x):",
        "\tdef g(",
        "axxb",
        "HeLLo",
        "hello there",
        "ababc",
        "xy",
        "xa",
        "a.b@c.de",
        "foo()",
        "todo: x",
        "<a>",
        '"ab"',
    ),
    *(
        "[x]",
        "]",
        "[",
        "^",
        "-",
        "a-z",
        "\\",
        "\\d",
        "A",
        "a|b",
        "${x}",
        "{foo}",
        "a{2}",
        "+",
        ".",
        "/",
        "!",
        ",",
        "a/b",
        "#",
        "$",
    ),
    *("}", "a}", ")", "_", "  ", "a1b", "^x", "x^", "[12]", "caf\u00e9", "\u65e5\u672c", "\u3072\u3089", "a\tb"),
]
PATTERNS = [
    *(
        "alpha",
        r"\d+",
        r"\bfoo\b",
        r"\Bo",
        r"^\s*def\s+\w+\(",
        "a.*?b",
        "a??b",
        "a+?b",
        "a{2,}?b",
        "a{,2}b",
        "(?i)HELLO",
        "(?im)e$",
    ),
    *(
        "(?:ab)+c",
        "(?P<n>x)y",
        "(?<n>x)y",
        "(a|)b",
        "()",
        "^(foo|bar)$",
        "todo|fixme",
        r"\Aa",
        r"a\Z",
        "^$",
        "^.{3}$",
        ";$",
        "x$",
    ),
    *(r"\S+$", r"\s$", r"\W$", r"\D$", "[^;]$", "[^#]$", r"[\t ]+$", "^.$", "foo.$", r"\t", r"\x41", r"\x{41}", "\u00e9$"),
    *(
        r"[^\x00-\x7f]",
        r"[\x00-\x1f]",
        "[+--]",
        "[!-/]",
        r"[a\-z]",
        r"[\]-a]",
        "[[-a]",
        "[%-~]",
        "[\u00e0-\u00ff]$",
        "[@-\u00ff]$",
        "[\u3041-\u3096]",
        r"\u00e9",
    ),
    *(
        "[]a]",
        "[^]]",
        r"[^\]]",
        r"[\[\]]",
        r"[\]\[^-]",
        "[[]",
        "[a[.]",
        "[.]",
        r"[\^]",
        "[^^]",
        "[-^]",
        "[$]",
        r"[\\/]",
        r"[\w.-]+@\w",
    ),
    *(r"[\s\S]x", r"[\Sx]", r"[\d\D]x", r"[^\W]5", r"[^\s]", r"[a-c\d]", r"\[\d+\]", "<[^>]+>", r'"\w+"', r"foo\(\)", r"a\|b"),
    *(r"\$\{", r"\{", "{foo}", "}", "a}", r"\)", r"\.", r"\\", r"\\d", r"\^", r"\/", r"\#", r"\-"),
]
REFUSED = {
    "a(b": "a ( has no )",
    "a)b": "the ) at position 1 has no (",
    "[a": "the [ at position 0 has no ]",
    "[": "the [ at position 0 has no ]",
    "*a": "there is nothing to repeat at position 0",
    "a|+": "there is nothing to repeat at position 2",
    "[z-a]": "z-a is no range",
    "a\\": "it ends with a backslash",
    r"\ud800": r"there is no character \ud800",
    r"a\x0ab": "the search goes line by line",
    r"a\x00b": "the search goes line by line",
    "a(?=b)": "has no lookahead (?=…)",
    "a(?!b)": "has no lookahead (?!…)",
    "(?<=a)b": "has no lookbehind (?<=…)",
    "(?>a)b": "has no atomic groups (?>…)",
    "a*+b": "has no possessive repeats",
    "(?x)a": "has no group such as that at position 0",
    "a(?i)b": "has no group such as that at position 1",
    r"(a)\1": r"has no \1",
    r"\p{L}": r"has no \p",
    r"[^\W\d]": r"has no [^…] with a class such as \W in it",
}


def of_ascii(pattern: str) -> bool:
    """A static busybox takes text for bytes, so that characters of several are neither one nor letters to it."""
    return pattern.isascii() and pattern not in (r"\W$", "^.{3}$", r"\u00e9")


@pytest.mark.parametrize("program", ["grep", "busybox"])
def test_grep_finds_the_same_lines(program: str) -> None:
    path = shutil.which(program)
    if path is None:
        if os.environ.get("KISEKI_REQUIRE_ENGINES"):
            pytest.fail(f"{program} is not installed, and KISEKI_REQUIRE_ENGINES is set")
        pytest.skip(f"{program} is not installed")
    for pattern in PATTERNS:
        if program == "busybox" and not of_ascii(pattern):
            continue
        regex, ignore_case = posix_regex(pattern)
        options = ["-anEi" if ignore_case else "-anE", "-e", regex]
        argv = [path, *(["grep"] if program == "busybox" else []), *options]
        text = "".join(f"{line}\n" for line in LINES).encode()
        done = subprocess.run(argv, input=text, capture_output=True, env={"LC_ALL": "C.UTF-8"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # sets that may mean more one day
            python = re.compile(re.sub(r"\\x\{(\d+)\}|\(\?<n>", r"A" if "x{" in pattern else "(", pattern))
        expected = [f"{number}:{line}" for number, line in enumerate(LINES, 1) if python.search(line.removesuffix("\r"))]
        assert done.stdout.decode().split("\n")[:-1] == expected, (pattern, regex)
        assert done.stderr == b""


def test_words_have_edges_as_in_grep() -> None:
    assert posix_regex(r"\<a\>") == (r"\<a\>", False)


def test_names_of_classes_are_kept() -> None:
    assert posix_regex("[[:alpha:]_]+") == ("[[:alpha:]_]+", False)
    assert posix_regex("[^[:digit:]]") == ("[^[:digit:]\r]", False)


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_cannot_be_said_is_refused(pattern: str) -> None:
    with pytest.raises(ToolError) as refused:
        posix_regex(pattern)
    assert REFUSED[pattern] in str(refused.value)
    assert repr(pattern) in str(refused.value) or "line by line" in str(refused.value)
