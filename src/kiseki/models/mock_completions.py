"""The mock server's `/generate`: token ids in, ids and logprobs out, as the vLLM server that comes with Atropos has it.

The prompt's text is read as ChatML with Hermes' tags (`<tools>`, `<tool_call>`, `<tool_response>`, `<think>`), the script answers
as it would a chat request, and the reply is written with the same tags. The tokenizer is a folder with a `tokenizer.json`
(`MockConfig.tokenizer`), since ids mean nothing without one.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import msgspec

from kiseki.errors import UsageError
from kiseki.models.mock_script import BODY_FAULTS, Fault
from kiseki.models.mock_state import Answer, MockState, error_answer
from kiseki.models.mock_tokens import logprob

END = "<|im_end|>"
MARGIN = 1_000_000
"""Tokens that the chat answer may have; what the request allows is cut here, where tokens are counted as they are."""

_TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_encode = msgspec.json.Encoder().encode


class AskedPrompt(msgspec.Struct):
    prompt_token_ids: list[int]


class AskedGenerate(msgspec.Struct):
    """What the server reads of a request."""

    prompt: AskedPrompt
    n: int = 1
    max_tokens: int = 16
    """The default is vLLM's."""


_decode_asked = msgspec.json.Decoder(AskedGenerate).decode


@functools.lru_cache(maxsize=4)
def open_tokenizer(folder: str) -> Any:
    """The tokenizer of `folder`. Raises UsageError where it cannot be had."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError("a tokenizer needs the tokenizers library: pip install 'kiseki[tokenizers]'") from None
    try:
        return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    except Exception as error:  # the library raises bare Exceptions
        raise UsageError(f"--tokenizer {folder}: {error}") from None


def answer_generate(state: MockState, headers: dict[str, str], body: bytes) -> Answer:
    """The answer to one request, with its faults; counts it as a chat request."""
    folder = state.config.tokenizer
    try:
        asked = chat_body(body, folder)
    except msgspec.DecodeError as error:
        return error_answer(Fault("bad_request"), 400, "invalid_request_error", str(error))
    answer = state.answer_chat(headers, asked)
    if answer.status == 200 and answer.fault not in BODY_FAULTS:
        answer.body = generate_answer(body, answer.body, folder)
    return answer


def chat_body(body: bytes, folder: str) -> bytes:
    """The request as one for a chat completion. Raises msgspec.DecodeError where it is none."""
    ids = _decode_asked(body).prompt.prompt_token_ids
    text = open_tokenizer(folder).decode(ids, skip_special_tokens=False)
    messages: list[dict[str, Any]] = []
    tools: list[Any] = []
    for role, content in _TURN.findall(text):
        if role == "system" and (found := _TOOLS.search(content)):
            tools = [_decode_tool(line) for line in found[1].splitlines()]
        if results := _RESPONSE.findall(content):
            messages += [{"role": "tool", "content": each} for each in results]
        else:
            messages.append({"role": role, "content": content})
    return _encode({"messages": messages, "tools": tools, "max_tokens": MARGIN})


def generate_answer(body: bytes, chat_answer: bytes, folder: str) -> bytes:
    """The answer to the request, from the one to `chat_body` of it."""
    asked = _decode_asked(body)
    choice = msgspec.json.decode(chat_answer)["choices"][0]
    whole = choice["finish_reason"] != "length"
    ids = open_tokenizer(folder).encode(_text(choice["message"]) + END * whole, add_special_tokens=False).ids
    finish = "stop" if whole and len(ids) <= asked.max_tokens else "length"
    ids = ids[: asked.max_tokens]
    logprobs = [[{str(each): logprob(at, each)}] for at, each in enumerate(ids)]
    return _encode({"token_ids": [ids] * asked.n, "logprobs": [logprobs] * asked.n, "finish_reasons": [finish] * asked.n})


def _decode_tool(line: str) -> Any:
    tool = msgspec.json.decode(line)
    return tool if "function" in tool else {"type": "function", "function": tool}


def _text(message: dict[str, Any]) -> str:
    """A reply as the model would write it, up to its end."""
    reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
    parts = [f"<think>\n{reasoning}\n</think>\n\n"] if reasoning else []
    parts.append(message.get("content") or "")
    for call in message.get("tool_calls") or ():
        function = call["function"]
        parts.append(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}\n</tool_call>')
    head, *calls = parts if not reasoning else [parts[0] + parts[1], *parts[2:]]
    return "\n".join([*([head] if head else []), *calls])
