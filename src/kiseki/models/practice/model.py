"""`PracticeModel`: the practice policy behind the `ChatClient` protocol.

Stateless: a call replays the prompt's flow over the assistant turns and tool results that are in the request, and the flow's
next turn is the reply. The prompt is the last user message; what comes after it is the policy's own work. The seed must
therefore stay the same over a rollout; should the conversation not be what the policy would have said (another seed, another
model's turns), it answers from the results that are there.

Usage is an estimate: UTF-8 bytes / 4 of everything sent, and of reasoning, text and calls in the reply. Cost is 0.
"""

from __future__ import annotations

import random
import time
from hashlib import blake2b

import msgspec

from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.dialects.chat import encode_tools, wire_message
from kiseki.models.hosts import LOCAL
from kiseki.models.mock_tokens import logprobs_of, prompt_ids, reply_ids
from kiseki.models.practice.recognise import choose_flow
from kiseki.models.practice.view import Kit, Result, Turn, brief, read_result
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import CallTokens, Message, ModelCall, ToolCall, Usage

MODEL_NAME = "builtin/practice"
MAX_CALLS = 8
"""Model calls per prompt, the answer included: works within the default 10 turns."""


class PracticeModel:
    """A `ChatClient` that needs nothing. Never raises; always answers by its eighth call."""

    def __init__(self, *, capture_tokens: bool = False) -> None:
        """`capture_tokens`: give ids, a token for each byte (`mock_tokens`), so that formats with ids can be tried."""
        self._capture_tokens = capture_tokens

    def encode(self, request: ChatRequest) -> tuple[ChatRequest, int]:
        """The request as it is; its size without that of the tools."""
        return request, sum(len(message.content) for message in request.messages)

    async def send(self, encoded: ChatRequest) -> tuple[ChatReply, None]:
        request = encoded
        started, clock = time.time(), time.perf_counter()
        turn = next_turn(request)
        calls = tuple(
            ToolCall(f"call_{len(request.messages)}_{index}", call.tool, msgspec.json.encode(call.arguments).decode())
            for index, call in enumerate(turn.calls)
        )
        message = Message(role="assistant", content=turn.text, reasoning=turn.reasoning, tool_calls=calls)
        call = ModelCall(
            started=started,
            seconds=time.perf_counter() - clock,
            finish_reason="tool_calls" if calls else "stop",
            usage=estimate_usage(request, message),
            model=MODEL_NAME,
            tokens=_tokens(request, message) if self._capture_tokens else None,
        )
        return ChatReply(message, call), None

    async def close(self) -> None:
        """Nothing is held."""


def next_turn(request: ChatRequest) -> Turn:
    """What the policy does next."""
    messages = request.messages
    start = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), -1)
    prompt = clean_text(messages[start].content) if start >= 0 else ""
    draw = _draw(prompt, request.seed)
    flow = choose_flow(prompt, _kit(request.tools), draw)
    turn = next(flow)
    for number, (said, results) in enumerate(_rounds(messages[start + 1 :]), 1):
        expected = [call.tool for call in turn.calls]
        if [call.name for call in said.tool_calls] != expected or not results:
            return _from_results(results)
        turn = flow.send(results)
        if number >= MAX_CALLS - 1 and turn.calls:
            return _from_results(results)
    return turn if turn.reasoning else msgspec.structs.replace(turn, reasoning="I can answer now.")


_kits: dict[tuple[tuple[str, str, bytes], ...], Kit] = {}
_MOST_KITS = 64
"""Toolset draws of a run: a few; more than that only in tests."""


def _kit(tools: tuple[ToolSchema, ...]) -> Kit:
    """The `Kit` of these tools: the same in every call of a run, and reading schemas costs as much as all the rest."""
    key = tuple((each.name, each.description, bytes(each.parameters)) for each in tools)
    if key not in _kits:
        if len(_kits) >= _MOST_KITS:
            _kits.clear()
        _kits[key] = Kit(tools)
    return _kits[key]


def _draw(prompt: str, seed: int | None) -> random.Random:
    """The dice of this rollout: the same for the same prompt and seed, in every process."""
    digest = blake2b(prompt.encode("utf-8", "replace"), digest_size=8, key=str(seed).encode()[:64])
    return random.Random(int.from_bytes(digest.digest()))


def _rounds(messages: tuple[Message, ...]) -> list[tuple[Message, list[Result]]]:
    """Each assistant turn with the results of its calls, in the order of the calls."""
    rounds: list[tuple[Message, list[Result]]] = []
    for at, message in enumerate(messages):
        if message.role != "assistant":
            continue
        answers: dict[str, Message] = {}
        loose: list[Message] = []
        for answer in messages[at + 1 :]:
            if answer.role != "tool":
                break
            answers.setdefault(answer.tool_call_id, answer)
            loose.append(answer)
        results = []
        for index, call in enumerate(message.tool_calls):
            # by id, else by place: ids may have been repaired on the way
            found = answers.get(call.id) or (loose[index] if index < len(loose) else None)
            results.append(read_result(call.name, found.content if found else ""))
        rounds.append((message, results))
    return rounds


def _from_results(results: list[Result]) -> Turn:
    """The way out where the conversation is not the policy's own, or has no room left: report what the last results say."""
    if not results:
        return Turn("There is nothing new to work with, so I say so.", text="I have no further results to report.")
    told = "\n".join(
        f"- {each.name}: {'error: ' + brief(each.error) if each.error else brief(each.output, 400)}" for each in results
    )
    return Turn(
        "I stop here and report what the last tool calls gave, without guessing further.",
        text=f"This is as far as I got. The last tool results were:\n{told}",
    )


def _tokens(request: ChatRequest, reply: Message) -> CallTokens:
    prompt = prompt_ids(
        [wire_message(each, LOCAL) for each in request.messages], msgspec.json.decode(encode_tools(request.tools))
    )
    completion = reply_ids(wire_message(reply, LOCAL))
    return CallTokens(tuple(prompt), tuple(completion), tuple(logprobs_of(completion)))


def estimate_usage(request: ChatRequest, reply: Message) -> Usage:
    """UTF-8 bytes / 4, rounded up."""
    sent = sum(_size(each) for each in request.messages)
    sent += sum(len(each.name) + _bytes(each.description) + len(bytes(each.parameters)) for each in request.tools)
    return Usage(
        prompt_tokens=-(-sent // 4),
        completion_tokens=-(-_size(reply) // 4),
        reasoning_tokens=_bytes(reply.reasoning) // 4,
    )


def _size(message: Message) -> int:
    size = _bytes(message.content) + _bytes(message.reasoning)
    for call in message.tool_calls:
        size += _bytes(call.name) + _bytes(call.arguments)
    return size


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
