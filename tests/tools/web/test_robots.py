"""What a robots.txt forbids (the examples of RFC 9309 among others)."""

from __future__ import annotations

import pytest

from kiseki.tools.web.robots import parse

RULES = """\ufeff
# a comment
User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/
Disallow: /publications/secret # comment

User-agent: foobot
User-agent: Kiseki/1.0
Disallow: /
Allow: /example/page.html
Allow: /example/allowed.gif
Disallow: /x?q=
Crawl-delay: 10
Allow: /\u65e5\u672c

Sitemap: http://e.test/sitemap.xml
User-agent: bazbot
Disallow: /example/page.html

User-agent: quxbot
Disallow:
"""


@pytest.mark.parametrize(
    ("agent", "path", "allowed"),
    [
        ("other", "/", True),
        ("other", "/a.gif", False),
        ("other", "/a.gif?x", True),
        ("other", "/example/page.html", False),
        ("other", "/publications/a", True),
        ("other", "/publications/secret", False),
        ("kiseki", "/a.gif", False),
        ("kiseki", "/example/page.html", True),
        ("kiseki", "/example/allowed.gif", True),
        ("kiseki", "/%E6%97%A5%E6%9C%AC/x", True),
        ("kiseki", "/", False),
        ("bazbot", "/example/page.html", False),
        ("bazbot", "/example/", True),
        ("quxbot", "/example/", True),
    ],
)
def test_the_longest_rule_of_the_right_group_counts(agent: str, path: str, allowed: bool) -> None:
    assert parse(RULES, agent).allows(path) is allowed


def test_of_two_rules_that_are_equally_long_the_one_that_allows_counts() -> None:
    assert parse("User-agent: *\nDisallow: /a\nAllow: /a", "kiseki").allows("/a")
    assert parse("User-agent: *\rAllow: /a\rDisallow: /a", "kiseki").allows("/a")


@pytest.mark.parametrize("text", ["", "<html>not found</html>", "Disallow: /", "User-agent: other\nDisallow: /", "\0\0:\0"])
def test_what_says_nothing_to_us_forbids_nothing(text: str) -> None:
    assert parse(text, "kiseki").allows("/page")


def test_a_pattern_made_to_take_for_ever_does_not() -> None:
    """As a regular expression it would run into the test's timeout."""
    rules = parse(f"User-agent: *\nDisallow: /{'*a' * 1000}b$", "kiseki")
    assert rules.allows("/" + "a" * 4000)
