"""Chat templates of strangers: what has no end, or fills the memory, is stopped and told."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor.cases import examined, messages, rows_of

from kiseki.doctor.confined import Confined, TemplateStopped
from kiseki.doctor.examine import Order, examine
from kiseki.doctor.templates import Template, TemplateRaised
from kiseki.errors import UsageError

ENDLESS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
DOUBLES = "{% set all = namespace(x='ten letters') %}{% for i in range(50) %}{% set all.x = all.x ~ all.x %}{% endfor %}"


def confined(text: str, folder: Path) -> Confined:
    return Confined(Template("mine", text), folder, seconds=1, megabytes=256)


def test_it_renders_and_says_what_the_template_raises(tmp_path: Path) -> None:
    render = confined("{{ messages[0].content }} {{ tools[0].n }} {{ more }}", tmp_path)
    try:
        assert render([{"content": "größer\n"}], [{"n": 10**30}], {"more": "x"}) == f"größer\n {10**30} x"
        with pytest.raises(TemplateRaised, match="UndefinedError: "):
            render([], [], {})
        assert render([{"content": "again"}], [{}], {}) == "again  "
    finally:
        render.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ENDLESS, "runs for more than 1 s"),
        (DOUBLES, "more than 256 MB"),
        ("{{ messages[0].content * 10**9 }}", "more than 256 MB"),
        ("{{ '%3000000000d' % messages | length }}", "more than 256 MB"),
    ],
)
def test_what_has_no_end_is_stopped(tmp_path: Path, text: str, why: str) -> None:
    render = confined(text, tmp_path)
    try:
        with pytest.raises(TemplateStopped, match=why):
            render([{"content": "x"}], None, {})
    finally:
        render.close()


def test_what_cannot_be_compiled_in_bounds(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mine cannot be compiled: it runs for more than 1 s"):
        confined("{{ 7 ** (7 ** 12) }}", tmp_path)
    with pytest.raises(UsageError, match="mine is no Jinja template"):
        confined("{% for %}", tmp_path)


@pytest.mark.parametrize(
    "text", ["{{ ().__class__.__bases__ }}", "{% include '/etc/passwd' %}", "{{ cycler.__init__.__globals__ }}"]
)
def test_it_gets_nowhere(tmp_path: Path, text: str) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text(text)
    assert rows_of(examined(tmp_path, [messages()], template=str(template))["template raises"]) == [1]


def test_the_rest_of_the_examination_goes_on_without_it(tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text("{{ 'x' * 10**10 if messages | length > 5 else messages }}{{ tools }}")
    longer = messages(1)
    longer["messages"] += [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": ""}]
    told = examined(tmp_path, [messages(), longer, longer], template=str(template))
    assert (rows_of(told["template has no end"]), told["template has no end"].severity) == ([2], "lost")
    assert rows_of(told["empty assistant turn"]) == [2, 3]
    (check,) = [
        each for each in examine(Order((tmp_path / "rows.jsonl",), template=str(template))).findings.checks if "mine" in each.name
    ]
    assert check.count == 2
