"""Reasoning is found wherever a server puts it, and an answer that merely talks about tags keeps them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.trajectory.reasoning import join_reasoning, native_reasoning, split_content, split_inline, text_of


def inline(content: str, *, cut_short: bool = False, has_native: bool = False) -> tuple[str, str]:
    return split_inline(content, cut_short=cut_short, has_native=has_native)


@pytest.mark.parametrize(
    ("content", "answer", "reasoning"),
    [
        ("<think>a</think>b", "b", "a"),
        ("<think>\na\n</think>\n\nb", "b", "a"),
        ("\n <think>a</think> b\n", "b\n", "a"),
        ("<thinking>a</thinking>b", "b", "a"),
        ("<thought>a</thought>b", "b", "a"),
        ("A <thought>a</thought>b", "A <thought>a</thought>b", ""),
        ("<think></think>b", "b", ""),
        ("<think>\n\n</think>\n\nb", "b", ""),
        ("<think>a</think><think>b</think>c", "c", "a\n\nb"),
        ("<think>a</think>", "", "a"),
        ("a</think>b", "b", "a"),
        ("a\n</think>\n\nb", "b", "a"),
        ("</think>\nb", "b", ""),
        ("<think>use `</think>` to end</think>b", "b", "use `</think>` to end"),
        ("<think>```\n</think>\n```\ndone</think>b", "b", "```\n</think>\n```\ndone"),
        ("<think>```\nopen fence</think>b", "b", "```\nopen fence"),
        ("<REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>\nb", "b", "a"),
        ("b <REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>c", "b c", "a"),
        ("<think>x</think><REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>b", "b", "x\n\na"),
    ],
)
def test_inline_reasoning_is_taken_out(content: str, answer: str, reasoning: str) -> None:
    assert inline(content) == (answer, reasoning)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "plain",
        "1 < 2",
        "The tag <think> opens it.",
        "Then write </think> and answer.",
        "It ends with </think>, always.",
        "R1 writes <think>…</think> before its answer.",
        "Use `</think>` to end it.",
        'The marker "</think>" ends it.',
        "```xml\n<think>a</think>\n```",
        "```\nreasoning</think>\n```",
        "`<think>a</think>` is how it looks",
        "Write `<REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>` first",
        "<think>never closed, yet finished",
        "<b>bold</b>",
    ],
)
def test_a_tag_that_is_talked_about_stays(content: str) -> None:
    assert inline(content) == (content, "")


def test_a_block_without_end_is_reasoning_only_where_the_reply_was_cut_short() -> None:
    assert inline("<think>a b", cut_short=True) == ("", "a b")
    assert inline("<think>a b") == ("<think>a b", "")
    assert inline("<REASONING_SCRATCHPAD>a b", cut_short=True) == ("", "a b")
    assert inline("<REASONING_SCRATCHPAD>a b") == ("<REASONING_SCRATCHPAD>a b", "")


def test_a_lone_closing_tag_is_text_where_the_server_already_took_the_reasoning_out() -> None:
    assert inline("a</think>b", has_native=True) == ("a</think>b", "")


@pytest.mark.parametrize(
    ("fields", "reasoning"),
    [
        ({"reasoning": "a"}, "a"),
        ({"reasoning_content": " a\n"}, "a"),
        ({"thinking": "a"}, "a"),
        ({"thinking": ["a", "b"]}, "ab"),
        ({"thinking": [{"type": "thinking", "thinking": "a"}]}, "a"),
        ({"reasoning": {"content": "a"}}, "a"),
        ({"reasoning_details": [{"type": "reasoning.text", "text": "a"}, {"type": "reasoning.summary", "summary": "b"}]}, "ab"),
        ({"reasoning_details": [{"type": "reasoning.encrypted", "data": "xxx"}]}, ""),
        ({"reasoning": "a", "reasoning_content": "a", "reasoning_details": [{"text": "a"}]}, "a"),
        ({"reasoning": "", "reasoning_content": "b"}, "b"),
        ({"reasoning": None}, ""),
        ({}, ""),
    ],
)
def test_native_reasoning_under_every_name(fields: dict[str, Any], reasoning: str) -> None:
    assert native_reasoning(fields) == reasoning


def test_content_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "a"}]},
        {"type": "text", "text": "b"},
        {"type": "output_text", "text": "c"},
        {"type": "refusal", "refusal": "d"},
        "e",
    ]
    assert split_content(parts) == ("bcde", "a")
    assert split_content(None) == ("", "")
    assert split_content("x") == ("x", "")
    assert text_of(3) == ""


def test_join_keeps_each_part_once() -> None:
    assert join_reasoning("a", "", "b", "a") == "a\n\nb"


PLAIN = st.text(st.characters(blacklist_characters="<`~\"'‘’“”「」『』", blacklist_categories=["Cs"]))


@given(PLAIN, PLAIN)
def test_what_is_between_the_tags_comes_out_whole(reasoning: str, answer: str) -> None:
    assert inline(f"<think>{reasoning}</think>{answer}") == (answer.lstrip(), reasoning.strip())
    assert inline(f"{reasoning}\n</think>\n\n{answer}") == (answer.lstrip(), reasoning.strip())


PIECES = st.sampled_from(["<think>", "</think>", "`", "```", "\n", "a", " ", "<", '"', "<REASONING_SCRATCHPAD>"])


@given(st.lists(PIECES).map("".join), st.booleans())
def test_nothing_is_invented(content: str, cut_short: bool) -> None:
    rest, reasoning = inline(content, cut_short=cut_short)
    assert len(rest) + len(reasoning.replace("\n\n", "")) <= len(content)
    if "</think>" not in content and not cut_short:
        assert rest == content
