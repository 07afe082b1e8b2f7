"""Bytes of lines that readers stumble over."""

from __future__ import annotations

import pytest

from kiseki.doctor.lines import read_line, refusal


@pytest.mark.parametrize(
    ("line", "torn", "kind"),
    [
        (b'{"a": "b', True, "torn last line"),
        (b'{"a": "b', False, "not JSON"),
        (b"\0" * 40, False, "NUL bytes"),
        (b'{"a": "\xff"}', False, "invalid UTF-8"),
        (b'["a"]', False, "not an object"),
        (b"null", False, "not an object"),
        (b'{"a": "\\ud83d"}', False, "lone surrogate"),
        (b'{"a": NaN}', False, "NaN"),
        (b'{"a": {"b": 1, "b": 2}}', False, "duplicate keys"),
        (b'{"a" : 1, "a" : 2}', False, "duplicate keys"),
        ('{"a": "b\u2028c"}'.encode(), False, "line separators in text"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, False, "nested too deep"),
        (b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}", False, "nested too deep"),
        (b'{"a": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", False, "nested too deep"),
    ],
)
def test_what_is_wrong_with_a_line(line: bytes, torn: bool, kind: str) -> None:
    _, problems = read_line(line, torn=torn)
    assert [each.kind for each in problems] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": "\\ud83d\\ude00"}',
        b'{"a": "quoted \\"b\\": 1 and \\"b\\": 2"}',
        b'{"a": {"b": 1}, "c": {"b": 2}}',
        b'{"a": "\\u2028"}',
        b'{"a": 123456789012345678901234567890}',
        b'{"a":' * 64 + b"1" + b"}" * 64,
    ],
)
def test_a_line_that_is_whole(line: bytes) -> None:
    row, problems = read_line(line, torn=True)
    assert row is not None and not problems


def test_what_can_be_read_of_a_line_is_judged_further() -> None:
    row, _ = read_line(b'{"a": "\\ud83d", "b": NaN}', torn=False)
    assert row == {"a": "\ufffd", "b": None}


def test_what_is_not_json_lines_at_all() -> None:
    assert "iconv -f UTF-16" in refusal('{"a": 1}\n'.encode("utf-16"))
    for first in (b"[", b"[{", b'[{"a": 1},\n', b'[{"a": 1}, {"a": 2}]', b'\xef\xbb\xbf [{"a": 1}]\n'):
        assert "jq -c '.[]'" in refusal(first)
    for first in (b'{"a": 1}\n', b"[1, 2]\n", b"\n", b'{"a": [{'):
        assert refusal(first) == ""
