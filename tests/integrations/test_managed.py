"""What a rollout's model makes of sampled text, and of sequences that a trainer could not use."""

from __future__ import annotations

import msgspec
import pytest

from kiseki.integrations.managed import chat_message, read_reply, why_not_exact
from kiseki.trajectory.types import Message, ToolCall


class Sequence(msgspec.Struct):
    """As the managed server keeps one: two tokens of prompt, two sampled ones."""

    full_text: str
    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float]


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "calls"),
    [
        ("Seven.", "", "Seven.", ()),
        ("<think>\nI add.\n</think>\n\nSeven.", "I add.", "Seven.", ()),
        (
            '<think>\nBoth.\n</think>\n\nLook:\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
            '<tool_call>{"name": "b", "arguments": {}}</tool_call>',
            "Both.",
            "Look:",
            (ToolCall("", "a", '{"x": 1}'), ToolCall("", "b", "{}")),
        ),
        ("<tool_call>\nnot json\n</tool_call>", "", "<tool_call>\nnot json\n</tool_call>", ()),
        ("a <\\think> b", "", "a <think> b", ()),
    ],
)
def test_a_sampled_turn_is_read_by_its_tags_and_goes_back_letter_for_letter(
    text: str, reasoning: str, content: str, calls: tuple[ToolCall, ...]
) -> None:
    message = read_reply(text, cut_short=False)
    assert (message.reasoning, message.content, message.tool_calls) == (reasoning, content, calls)
    assert chat_message(message) == {"role": "assistant", "content": text}


def test_reasoning_that_was_cut_short_is_reasoning() -> None:
    message = read_reply("<think>\nI have not", cut_short=True)
    assert (message.reasoning, message.content) == ("I have not", "")


def test_a_call_in_the_prompt_is_written_with_tags() -> None:
    message = Message("assistant", "Look:", tool_calls=(ToolCall("c", "a", '{"x": 1}'),))
    written = 'Look:\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>'
    assert chat_message(message) == {"role": "assistant", "content": written}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"logprobs": [1.0, 1.0, -0.5, 1.0]}, "1 of 2 sampled tokens have no logprob"),
        ({"logprobs": [1.0]}, "4 tokens, 4 in the mask, 1 logprobs"),
        ({"masked_tokens": [-100] * 4}, "no token of it was sampled"),
        ({"masked_tokens": [-100, -100, 3, 5]}, "its mask names other tokens than it has"),
    ],
)
def test_only_a_sequence_with_all_that_training_needs_is_exact(changed: dict[str, list[float]], why: str) -> None:
    whole = Sequence("abcd", [1, 2, 3, 4], [-100, -100, 3, 4], [1.0, 1.0, -0.5, 0.0])
    assert why_not_exact(msgspec.structs.replace(whole, **changed)) == why
