"""The token sequences of an example, for the formats that write ids: those that the server sampled (`ModelCall.tokens`), or,
where `Options.retokenize` names a tokenizer and there are none, new ones.

New ones are made the way the server made its own: for each reply the conversation before it is rendered with the template's
generation prompt, the reply is what the next rendering adds up to the end-of-turn token, and a rendering that does not begin with
the one before starts another sequence. Ids of the parts have to be the ids of the whole text, else the example is refused. What
was sampled may still have been cut otherwise into tokens, or have had blanks that the template does not keep.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kiseki.formats.columns import call_object
from kiseki.formats.format import Options, Unfit
from kiseki.trajectory.example import Example, trained
from kiseki.trajectory.hugging_face import load_tokenizer, one_line
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.sharegpt import is_json_object
from kiseki.trajectory.token_trace import Piece, Segment, segments
from kiseki.trajectory.tokens import find_tokenizer
from kiseki.trajectory.types import Message

UNCAPTURED = "no token ids"
WAY_OUT = "run with --capture_tokens, or --retokenize TOKENIZER makes them anew, which may differ from what was sampled"


class TokenSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence; lists other than `prompt` are as long as `response`."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    """1 for ids that the model sampled and that are to be trained on, else 0."""
    logprobs: list[float]
    """Of the ids with mask 1 where `has_logprobs`; 0.0 elsewhere."""
    has_logprobs: bool
    retokenized: bool
    messages: int
    """How many of the example's messages it holds; all of them in the last sequence of the example, what followed its last reply
    included."""


def sequences_of(example: Example, options: Options) -> list[TokenSequence]:
    """Those with something to train on, in order, at least one. Raises `Unfit`, and `UsageError` for a tokenizer that cannot be
    used."""
    replies = [at for at in range(example.prompt_messages, len(example.messages)) if example.messages[at].role == "assistant"]
    captured = segments(example.calls)
    if captured and len(example.calls) != len(replies):
        raise Unfit("calls and messages differ", f"{len(example.calls)} model calls, {len(replies)} assistant messages")
    if captured:
        found = captured
    elif options.retokenize:
        found = _retokenized(example, replies, options.retokenize)
    else:
        raise Unfit(UNCAPTURED, WAY_OUT)
    wanted = set(trained(example))
    *others, last = (_sequence(each, replies, wanted, retokenized=not captured) for each in found)
    whole = msgspec.structs.replace(last, messages=len(example.messages))
    made = [each for each in (*others, whole) if any(each.mask)]
    if not made:
        raise Unfit("nothing to train on")
    return made


def _sequence(segment: Segment, replies: Sequence[int], wanted: set[int], *, retokenized: bool) -> TokenSequence:
    response: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    known, messages = True, 0
    for piece in segment.pieces:
        count = len(piece.ids)
        at = None if piece.call is None else replies[piece.call]
        messages = messages if at is None else at + 1
        on = at in wanted
        known = known and (not on or len(piece.logprobs) == count)
        response += piece.ids
        mask += [int(on)] * count
        logprobs += piece.logprobs if on and len(piece.logprobs) == count else [0.0] * count
    return TokenSequence(
        prompt=list(segment.prompt),
        response=response,
        mask=mask,
        logprobs=logprobs if known else [0.0] * len(response),
        has_logprobs=known,
        retokenized=retokenized,
        messages=messages,
    )


def _retokenized(example: Example, replies: Sequence[int], asked: str) -> list[Segment]:
    if not replies:
        raise Unfit("nothing to train on")
    if any(message.images for message in example.messages):
        raise Unfit("images", "a text tokenizer has no ids for them")
    opened = _open(asked)
    texts: list[list[tuple[str, int | None]]] = []
    so_far = ""
    for number, at in enumerate(replies):
        prompt = _render(opened, example.messages[:at], example.tools, reply_next=True)
        whole = _render(opened, example.messages[: at + 1], example.tools, reply_next=False)
        if not whole.startswith(prompt):
            raise Unfit("the template changes replies", f"message {at + 1} does not follow its own generation prompt")
        said = _until_end(whole[len(prompt) :], opened.eos_token)
        if texts and prompt.startswith(so_far):
            texts[-1].append((prompt[len(so_far) :], None))
        else:
            texts.append([(prompt, None)])
        texts[-1].append((said, number))
        so_far = prompt + said
    return [_encoded(opened, each) for each in texts]


def _encoded(opened: Any, texts: Sequence[tuple[str, int | None]]) -> Segment:
    pieces = [Piece(_ids(opened, text), call) for text, call in texts]
    if [each for piece in pieces for each in piece.ids] != list(_ids(opened, "".join(text for text, _ in texts))):
        raise Unfit("tokens across turns", "the ids of the parts are not those of the whole text")
    return Segment(pieces[0].ids, tuple(piece for piece in pieces[1:] if piece.ids))


def _ids(opened: Any, text: str) -> tuple[int, ...]:
    return tuple(opened.encode(text, add_special_tokens=False))


def _until_end(said: str, end: str | None) -> str:
    """A reply without what the template puts after the token that ends it, which no model samples."""
    at = said.rfind(end) if end else -1
    return said[: at + len(end)] if end and at >= 0 else said


@functools.lru_cache(maxsize=2)
def _open(asked: str) -> Any:
    found = find_tokenizer(asked, chat_template=True, warn=lambda words: None)
    return load_tokenizer(Path(found.source), found.trust_remote_code)


def _render(opened: Any, messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, reply_next: bool) -> str:
    """The text of a conversation. Arguments are objects, which most templates want; text for those that refuse objects."""
    for as_objects in (True, False):
        rows = [_message(each, as_objects) for each in messages]
        try:
            text: str = opened.apply_chat_template(
                rows, tools=list(tools) or None, tokenize=False, add_generation_prompt=reply_next
            )
            return text
        except Exception as error:  # a template is code: it raises its own errors, and any of Python's
            refusal = one_line(error)
    raise Unfit("the template refuses it", refusal)


def _message(message: Message, as_objects: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [call_object(call) for call in message.tool_calls]
        for each in row["tool_calls"] if as_objects else ():
            each["function"]["arguments"] = _decoded(each["function"]["arguments"])
    if message.role == "tool":
        row |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return row


def _decoded(arguments: str) -> Any:
    """The object; the text as it is where it is none, as it was sampled."""
    return decode_row(arguments.encode()) if is_json_object(arguments) else arguments
