"""What each consumer's documentation and converter ask of a row, as checks that need nothing of it installed. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kiseki.doctor.as_read import AXOLOTL_ROLES
from kiseki.doctor.conversations import not_alternating
from kiseki.doctor.findings import Problem
from kiseki.doctor.turns import RESPONSE, Conversation, Turn
from kiseki.trajectory.json_rows import decode_row

Rule = Callable[[dict[str, Any], Conversation, "dict[str, str]"], Iterator[Problem]]
"""(row, its conversation, the tags of a dataset_info.json beside the file) → what the consumer would stumble over."""

NAMES = {
    "trl": "TRL",
    "axolotl": "axolotl",
    "llamafactory": "LLaMA-Factory",
    "swift": "ms-swift",
    "verl": "verl",
    "openai": "OpenAI fine-tuning",
    "atif": "ATIF",
    "atropos": "Atropos",
}
_SWIFT_ROLES = {"system", "user", "human", "assistant", "gpt", "bot", "function_call", "tool_call", "tool", "tool_response"}
_SWIFT_ROLES |= {"observation", "observations", "function_response"}
_FACTORY_TAGS = {
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}
_FACTORY_MESSAGES = {"user", "assistant", "tool", "system", "function"}
_FORM = "not in this consumer's form"
_DROPPED = "dropped by the consumer"
_RAISES = "the consumer's code raises"
_OTHERWISE = "column the consumer reads differently"


def _trl(row: dict[str, Any], conversation: Conversation, tags: dict[str, str]) -> Iterator[Problem]:
    if isinstance(row.get(conversation.column), str):
        yield Problem(_FORM, f"{conversation.column} is text, not a list of messages")
    if conversation.column not in ("messages", "conversations"):
        yield Problem(_FORM, f"the column is {conversation.column}, not messages")
    yield from _unmapped(conversation, {"system", "developer", "user", "assistant", "tool"})
    if "prompt" in row and "completion" not in row:
        yield Problem(
            _OTHERWISE, "a column prompt makes it look for completion beside it (KeyError): leave it out", severity="lost"
        )
    if "chat_template_kwargs" in row and not isinstance(row["chat_template_kwargs"], dict):
        yield Problem(_RAISES, "chat_template_kwargs is no object")
    yield from _tools_text(row)
    yield from _wrapped(conversation)


def _axolotl(row: dict[str, Any], conversation: Conversation, tags: dict[str, str]) -> Iterator[Problem]:
    yield from _unmapped(conversation, set(AXOLOTL_ROLES))
    yield from _tools_text(row)
    yield from _wrapped(conversation)


def _llamafactory(row: dict[str, Any], conversation: Conversation, tags: dict[str, str]) -> Iterator[Problem]:
    turns = conversation.turns
    if conversation.sharegpt:
        known = {_FACTORY_TAGS[name]: name for name in _FACTORY_TAGS} | {
            tags[name]: name for name in tags if name in _FACTORY_TAGS
        }
        yield from _unmapped(conversation, set(known))
        for turn in turns:
            if known.get(turn.named) == "function_tag" and not turn.calls:
                yield Problem(_RAISES, f"turn {turn.at} has to be a call's JSON, after a think block at most; preparation stops")
        strict = True
    else:
        yield from _unmapped(conversation, _FACTORY_MESSAGES)
        for turn in turns:
            if turn.calls and turn.text.strip():
                yield Problem(_DROPPED, f"the text beside calls, turn {turn.at}")
            if turn.reasoning and turn.raw.get("reasoning_content"):
                yield Problem(_DROPPED, f"reasoning_content, turn {turn.at}")
        strict = False
    tools = row.get("tools")
    if tools is not None and not isinstance(tools, str):
        yield Problem(_FORM, "tools is no text: it wants the list as JSON text")
    if isinstance(tools, str) and tools.strip() == "[]":
        yield Problem(_OTHERWISE, 'tools is "[]", which gives an empty tool prompt: leave it empty', severity="note")
    if strict and (found := not_alternating(turns, joined=False, strict=True)) and turns[-1].role != "tool":
        yield Problem("alternation broken", found)
    yield from _wrapped(conversation)


def _swift(row: dict[str, Any], conversation: Conversation, tags: dict[str, str]) -> Iterator[Problem]:
    yield from _unmapped(conversation, _SWIFT_ROLES)
    for turn in conversation.turns:
        if turn.raw.get("reasoning_content"):
            yield Problem(_DROPPED, f"reasoning_content, turn {turn.at}: it has to be a think block in the content")
        if "content" in turn.raw and turn.raw["content"] is None and not turn.calls:
            yield Problem(_FORM, f"turn {turn.at} has no content: the row is left out with a line in the log")
    yield from _tools_text(row)
    yield from _wrapped(conversation)


def _verl(row: dict[str, Any], conversation: Conversation, tags: dict[str, str]) -> Iterator[Problem]:
    if conversation.column != "messages":
        yield Problem(_FORM, f"the column is {conversation.column}, not messages")
    elif isinstance(row["messages"], str):
        yield Problem(_FORM, "messages is text, not a list")
    if isinstance(row.get("tools"), str):
        yield Problem(_RAISES, "tools is text: it wants a list")
    yield from _unmapped(conversation, {"system", "user", "assistant", "tool"})
    yield from _wrapped(conversation)


def _openai(row: dict[str, Any], conversation: Conversation, tags: dict[str, str]) -> Iterator[Problem]:
    if conversation.sharegpt or conversation.column != "messages" or isinstance(row["messages"], str):
        yield Problem(_FORM, "it wants a column messages, a list of messages with role and content")
        return
    if isinstance(row.get("tools"), str):
        yield Problem(_FORM, "tools is text: it wants a list")
    yield from _unmapped(conversation, {"system", "developer", "user", "assistant", "tool"})
    for turn in conversation.turns:
        if any(not call.id for call in turn.calls):
            yield Problem(_FORM, f"turn {turn.at} has a call without an id")
        if turn.role == "tool" and not any(turn.results):
            yield Problem(_FORM, f"turn {turn.at} has no tool_call_id")
        if turn.reasoning and turn.raw.get("reasoning_content"):
            yield Problem(_FORM, f"turn {turn.at} has reasoning_content, which the API does not know")


def _atropos(row: dict[str, Any], conversation: Conversation, tags: dict[str, str]) -> Iterator[Problem]:
    if conversation.sharegpt:
        for turn in conversation.turns:
            if turn.named not in ("human", "gpt", "system"):
                yield Problem("role not mapped", f"{turn.named} (KeyError in its role map), turn {turn.at}")


def check_scored(row: dict[str, Any]) -> Iterator[Problem]:
    """A group of token ids, masks and scores, as Atropos takes it."""
    tokens, masks, scores = (row.get(name) for name in ("tokens", "masks", "scores"))
    if not (isinstance(tokens, list) and isinstance(masks, list) and isinstance(scores, list)):
        yield Problem(_FORM, "tokens, masks and scores have to be lists")
        return
    if not tokens and row.get("conversation"):
        yield Problem("no token ids")
        return
    if not len(tokens) == len(masks) == len(scores):
        yield Problem(_FORM, f"{len(tokens)} sequences, {len(masks)} masks, {len(scores)} scores")
        return
    for number, (ids, mask) in enumerate(zip(tokens, masks, strict=True), 1):
        if not (isinstance(ids, list) and isinstance(mask, list)) or len(ids) != len(mask):
            yield Problem(_FORM, f"sequence {number} and its mask are not of one length")
        elif any(each not in (-100, token) for each, token in zip(mask, ids, strict=True)):
            yield Problem(_FORM, f"the mask of sequence {number} has what is neither -100 nor the token")
        elif all(each == -100 for each in mask):
            yield Problem("nothing to train on", f"sequence {number}")


RULES: dict[str, Rule] = {
    "trl": _trl,
    "axolotl": _axolotl,
    "llamafactory": _llamafactory,
    "swift": _swift,
    "verl": _verl,
    "openai": _openai,
    "atropos": _atropos,
}


def _unmapped(conversation: Conversation, known: set[str]) -> Iterator[Problem]:
    first: dict[str, Turn] = {}
    for turn in conversation.turns:
        if turn.role and turn.named not in known:  # a role that nobody knows is told elsewhere
            first.setdefault(turn.named, turn)
    for named, turn in first.items():
        yield Problem("role not mapped", f"{named}, turn {turn.at}")


def _wrapped(conversation: Conversation) -> Iterator[Problem]:
    """ShareGPT's tool turns with Hermes tags; those of chat messages are wrong for everybody, and told there."""
    for turn in conversation.turns:
        if conversation.sharegpt and turn.role == "tool" and turn.text.lstrip().startswith(RESPONSE):
            yield Problem("wrapped result", f"turn {turn.at}")
            return


def _tools_text(row: dict[str, Any]) -> Iterator[Problem]:
    tools = row.get("tools")
    if isinstance(tools, str) and tools.strip():
        try:
            decode_row(tools.encode())
        except ValueError as error:
            yield Problem(_RAISES, f"tools is {error}")
