"""A rollout's model as Atropos serves it: our `ChatModel` over its `ManagedServer`, which keeps the tokens that were sampled.

The managed server renders the conversation with the tokenizer's chat template, sends token ids, and keeps each sequence as a
node: its tokens, their mask and their logprobs. A prompt whose text begins with a node's whole text goes on with that node's
tokens, so that earlier turns stay what was sampled. A template gives no such prompt by itself: it writes calls and reasoning in
its own way. So a turn's text is kept in its message (`SAMPLED`), the calls in it are read here, and the next prompt is the text
of the sequence so far with what the template puts after the turn: it is asked about the same conversation with a mark in the
turn's place. `tool_choice="none"` is how the managed server is told to put the tools into the prompt, and to leave the text and
its finish reason as they are.

Where the template does not leave the mark as it is, its own prompt is taken. The managed server then begins another node, in
which the earlier turns are part of the prompt. `sequence` is the node of the conversation's last reply: every token in it was
sampled after exactly the tokens before it, or is masked.

Of the managed server (atroposlib 0.4) this uses three methods that are not public: how it renders, finds the node that a prompt
goes on with, and makes ids of it. It reads them before it first waits, so what is put in their place is not seen by others.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from kiseki.errors import BadRequest, BadResponse, PromptBudgetSpent, ProviderError
from kiseki.formats.hermes import read_gpt
from kiseki.models.base import NOT_HELD, ChatReply, ChatRequest, ToolSchema
from kiseki.models.dialects.chat import encode_tools
from kiseki.trajectory.reasoning import split_inline
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, ModelCall, ToolCall, Usage

MASKED = -100
"""In a mask, what no loss falls on."""
SAMPLED = "sampled"
"""Key in `provider_fields`: the text of a turn as it must go back, with what the template had begun it with."""
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Special tokens in some tokenizers, and a part of the text all the same."""
_BEGUN = re.compile(r"<think>\s*(?:</think>\s*)?\Z")
"""What some templates put before the reply's first token."""


class Node(Protocol):
    """A sequence of the managed server's; all three lists have one entry per token."""

    full_text: str
    tokens: list[int]
    masked_tokens: list[int]
    """The token's id where it was sampled, else `MASKED`."""
    logprobs: list[float]
    """Natural logarithm where it was sampled, else 1.0."""


class Sampling(msgspec.Struct, frozen=True):
    """How replies are sampled."""

    temperature: float
    top_p: float
    max_tokens: int | None
    """Per reply; None for what is left."""
    max_sequence: int
    """Tokens of the whole conversation."""


class ManagedModel:
    """A `ChatModel` for one rollout. Sub-agents of it may ask at the same time; their sequences are not its `sequence`."""

    def __init__(self, managed: Any, tokenizer: Any, opening: Sequence[Message], sampling: Sampling) -> None:
        """`managed`: a `ManagedServer` that has a tool parser (any: what it parses is not used). `opening`: what the rollout's
        own conversation begins with."""
        self._managed = managed
        self._render = managed._convert_messages_to_prompt
        self._opening = tuple(opening)
        self._sampling = sampling
        self._ends = tuple(sorted(set(tokenizer.all_special_tokens) - set(TAGS), key=len, reverse=True))
        self._tools: dict[int, tuple[tuple[ToolSchema, ...], list[Any]]] = {}
        self._mark = f"SAMPLED-{secrets.token_hex(8)}"  # no result can have it
        self._end = ""
        """The marks with which the last reply of the sequence ended."""
        self.sequence: Node | None = None
        self.rewritten = False
        """Whether the template changed earlier turns, so that these are not in what is trained."""

    async def complete(self, request: ChatRequest, on_hold: AbstractContextManager[Any] = NOT_HELD) -> ChatReply:
        """Raises `PromptBudgetSpent` where the sequence has no room for another token, `BadRequest` where the chat template does
        not take the conversation, `ProviderError` for all that the server does."""
        messages = [chat_message(each) for each in request.messages]
        tools = self._decoded(request.tools)
        own = request.messages[: len(self._opening)] == self._opening
        prompt = self._prompt(messages, tools, self.sequence if own else None)
        length = len(self._managed._compute_input_ids(prompt, self._managed._find_extending_node(prompt)))
        room = self._sampling.max_sequence - length
        if room < 1:
            most = self._sampling.max_sequence
            raise PromptBudgetSpent(f"the conversation has {length:,} tokens, of {most:,} (max_token_length)")
        self._managed._convert_messages_to_prompt = lambda *_, **__: prompt
        started, clock = time.time(), time.perf_counter()
        try:
            answer = await self._managed.chat_completion(
                messages=messages,
                tools=tools,
                tool_choice="none",
                n=1,
                max_tokens=min(room, self._sampling.max_tokens or room),
                temperature=self._sampling.temperature,
                top_p=self._sampling.top_p,
            )
        except Exception as error:  # whatever its clients raise, retries already spent
            raise ProviderError(f"the inference server gave no reply: {_words(error)}") from error
        seconds = time.perf_counter() - clock
        sampled, finish = answer.choices[0].message.content or "", answer.choices[0].finish_reason or ""
        node = self._node(prompt + sampled)
        said = self._without_end(sampled)
        if own:
            self.rewritten |= self.sequence is not None and node.tokens[: len(self.sequence.tokens)] != self.sequence.tokens
            self.sequence, self._end = node, sampled.removeprefix(said)
        begun = _BEGUN.search(prompt)
        text = (begun[0] if begun else "") + said
        usage = Usage(prompt_tokens=length, completion_tokens=len(node.tokens) - length)
        call = ModelCall(started, seconds, finish, usage, model=str(answer.model or ""), response_id=str(answer.id or ""))
        return ChatReply(read_reply(text, cut_short=finish == "length"), call)

    async def close(self) -> None:
        """Nothing: the managed server is its caller's."""

    def _decoded(self, tools: tuple[ToolSchema, ...]) -> list[Any]:
        """By identity: the same tuple is sent on every turn. The entry keeps it alive, so ids stay unique."""
        if id(tools) not in self._tools:
            self._tools[id(tools)] = (tools, msgspec.json.decode(encode_tools(tools)))
        return self._tools[id(tools)][1]

    def _prompt(self, messages: list[dict[str, Any]], tools: list[Any], before: Node | None) -> str:
        """The text of the next prompt, which goes on with `before` where that can be. Raises `BadRequest`."""
        try:
            if before is not None:
                last = max(at for at, each in enumerate(messages) if each["role"] == "assistant")
                marked = [*messages[:last], {"role": "assistant", "content": self._mark}, *messages[last + 1 :]]
                _, found, after = self._render(marked, tools=tools).rpartition(self._mark)
                if found:
                    return f"{before.full_text}{after.removeprefix(self._end)}"
            return str(self._render(messages, tools=tools))
        except Exception as error:  # a template is a program, and may raise anything
            why = f"the tokenizer's chat template does not take the conversation: {_words(error)}"
            raise BadRequest(why, sent=False) from error

    def _node(self, text: str) -> Node:
        for node in reversed(self._managed.get_state()["nodes"]):
            if node.full_text == text:
                found: Node = node
                return found
        raise BadResponse("the managed server kept no sequence for its own reply")

    def _without_end(self, text: str) -> str:
        """`text` without the tokens that ended it: the template writes them itself."""
        while end := next((each for each in self._ends if text.endswith(each)), ""):
            text = text.removesuffix(end)
        return text


def read_reply(text: str, *, cut_short: bool) -> Message:
    """A sampled turn as a message: reasoning, text and calls as its tags say. `cut_short`: it ended at a token limit."""
    clean = clean_text(text)
    rest, reasoning = split_inline(clean, cut_short=cut_short, has_native=False)
    _, content, calls = read_gpt(rest)
    return Message("assistant", content, reasoning, calls, provider_fields={SAMPLED: text})


def chat_message(message: Message) -> dict[str, Any]:
    """A message as the template gets it: `role` and `content`; of results, what they answer too."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "name": message.name, "content": message.content}
    content = message.provider_fields.get(SAMPLED)
    if content is None:
        content = "\n".join([*([message.content] if message.content else []), *map(_call_text, message.tool_calls)])
    return {"role": message.role, "content": content}


def _call_text(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {msgspec.json.encode(call.name).decode()}, "arguments": {call.arguments}}}\n</tool_call>'


def why_not_exact(node: Node) -> str:
    """What a sequence lacks, that it could be trained on; "" for none."""
    if not len(node.tokens) == len(node.masked_tokens) == len(node.logprobs):
        return f"{len(node.tokens)} tokens, {len(node.masked_tokens)} in the mask, {len(node.logprobs)} logprobs"
    sampled = [at for at, token in enumerate(node.masked_tokens) if token != MASKED]
    if not sampled:
        return "no token of it was sampled"
    if any(node.masked_tokens[at] != node.tokens[at] for at in sampled):
        return "its mask names other tokens than it has"
    if missing := sum(node.logprobs[at] > 0.0 for at in sampled):  # how the managed server fills up what the server did not give
        return f"{missing} of {len(sampled)} sampled tokens have no logprob"
    return ""


def _words(error: BaseException) -> str:
    """The innermost error of a retrying client's, on one line."""
    attempt = getattr(error, "last_attempt", None)
    while attempt is not None and (inner := attempt.exception()) is not None:
        error, attempt = inner, getattr(inner, "last_attempt", None)
    return " ".join(f"{type(error).__name__}: {error}".removesuffix(": ").split())[:500]
