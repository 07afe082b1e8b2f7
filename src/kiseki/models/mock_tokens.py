"""Token ids of the mock server and the practice model: a token for each byte of the text, and two that mark where a message
begins and ends. Pure.

    <start>role\\nbody<end>\\n<start>assistant\\n  →  body<end>

A reply is rendered from what a client reads of it, a prompt from what the client sends back, by the same rules: the next prompt
begins with the ids of this one and of the reply to it, unless the client changed the message on the way (arguments that are no
JSON), or the server takes old reasoning out of its prompts (`MockConfig.strip_reasoning`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kiseki.models.mock_script import MockConfig
from kiseki.trajectory.reasoning import join_reasoning, native_reasoning, split_content, split_inline

START, END = 256, 257
"""The ids below are bytes."""
NOT_STREAMED = "return_token_ids is not supported with streaming on /v1/chat/completions."

_encode = msgspec.json.Encoder(order="sorted").encode


def add_tokens(answer: dict[str, Any], body: bytes, config: MockConfig, *, logprobs: bool) -> None:
    """Put the ids of a request's prompt and of the answer into it, where the server that is played puts them."""
    choice = answer["choices"][0]
    asked = msgspec.json.decode(body)
    prompt = prompt_ids(asked["messages"], asked.get("tools"), strip_reasoning=config.strip_reasoning)
    ids = reply_ids(choice["message"], whole=choice["finish_reason"] != "length")
    if config.ids_as == "sglang":
        choice |= {"prompt_token_ids": prompt, "response_token_ids": ids}
    else:
        answer["prompt_token_ids"] = prompt
        choice["token_ids"] = ids
    if logprobs:
        given = zip(ids, logprobs_of(ids), strict=True)
        choice["logprobs"] = {"content": [{"token": _text(each), "logprob": value} for each, value in given]}


def prompt_ids(messages: list[dict[str, Any]], tools: Any = None, *, strip_reasoning: bool = False) -> list[int]:
    """The prompt of a conversation, up to where the assistant begins."""
    ids: list[int] = []
    if tools:
        ids += [START, *b"tools\n", *_encode(tools), END, *b"\n"]
    for message in messages:
        rendered = _body(message, strip_reasoning=strip_reasoning)
        ids += [START, *str(message.get("role")).encode(), *b"\n", *rendered, END, *b"\n"]
    return [*ids, START, *b"assistant\n"]


def reply_ids(message: dict[str, Any], *, whole: bool = True) -> list[int]:
    """Those of a reply, up to its end mark where it is `whole`."""
    return [*_body(message, calling=True), *([END] if whole else [])]


def logprobs_of(ids: Sequence[int]) -> list[float]:
    """Of the tokens of a reply."""
    return [logprob(at, token) for at, token in enumerate(ids)]


def logprob(at: int, token: int) -> float:
    """Of the token at this place of a reply: any number will do, as long as it is the same each time."""
    return -((31 * token + at) % 97) / 97


def stream_tokens(choice: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    """Spread a choice's ids and logprobs over the choices of the chunks that carry it."""
    ids, logprobs = choice["token_ids"], choice.get("logprobs")
    for at, chunk in enumerate(chunks):
        start, end = (len(ids) * place // len(chunks) for place in (at, at + 1))
        chunk["token_ids"] = ids[start:end]
        if logprobs:
            chunk["logprobs"] = {"content": logprobs["content"][start:end]}


def _text(token: int) -> str:
    return {START: "<start>", END: "<end>"}.get(token) or bytes([token]).decode("latin-1")


def _body(message: dict[str, Any], *, strip_reasoning: bool = False, calling: bool = False) -> bytes:
    """What stands between the marks of a message. `calling`: it is a reply, so that its own calls may have cut a tag short."""
    calls = message.get("tool_calls") or ()
    content, reasoning = split_content(message.get("content"))
    if message.get("role") == "assistant":
        reasoning = join_reasoning(reasoning, native_reasoning(message))
        content, inline = split_inline(content, cut_short=calling and bool(calls), has_native=bool(reasoning))
        reasoning = "" if strip_reasoning else join_reasoning(reasoning, inline)
    lines = [f"<think>\n{reasoning}\n</think>"] if reasoning else []
    lines += [content] if content else []
    for call in calls:
        function = call["function"]
        lines.append(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>')
    return "\n".join(lines).encode()
