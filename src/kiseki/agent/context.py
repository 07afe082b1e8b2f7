"""The context window of one conversation: how full it is before each model call, and what is sent when it is full. Pure, no I/O.

Owns what of the conversation is sent; the `Trace` keeps it whole. How many tokens the next call will have is what the last one
that reported its usage had, prompt and completion, with an estimate of what has come since, and room for the reply. Where that
passes the window, or the endpoint says that the conversation is too long, the policy decides:

- `stop`: the conversation ends.
- `truncate_tool_outputs`: the oldest tool results are sent without their middle, as many as it takes to get `SLACK` below the
  window, since each cut makes the server's prefix cache useless; then they are cut shorter still; then the results of the last
  turn. Where nothing is left to cut, the conversation ends.

A cut stays: a result is never sent whole again, so that the calls after it share their prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from kiseki.models.base import Encoded, ToolSchema
from kiseki.models.budget import BYTES_PER_TOKEN, REPLY_TOKENS
from kiseki.trajectory.types import ContextCut, Message, ModelCall

OnContextFull = Literal["stop", "truncate_tool_outputs"]
ON_CONTEXT_FULL: tuple[OnContextFull, ...] = ("stop", "truncate_tool_outputs")

REPLY_SHARE = 4
"""One part in so many of a window is kept for the reply at most, where no `max_tokens` says how long that may be: `REPLY_TOKENS`
would be half of a small window."""
SLACK = 0.2
"""Of the window, that a cut leaves free."""
REFUSED = 0.9
"""Of the tokens that the endpoint refused by our count: what we take the window for from then on."""
KEPT = (1000, 200)
"""Characters that are left of an old result, first and then where that is not enough."""
LEAST_GAIN = 100
"""Characters; the mark takes almost as many."""
MESSAGE_BYTES = 16
"""For what a chat template puts around a message."""
TELLING_BYTES = 1000
"""Of tool results, from which on the tokens that they took say what a byte of such text takes, and not what the template adds."""
LEAST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 1.0, 6.0
"""What is believed of that: no tokenizer takes more than a token a byte, and prose has four or five bytes a token."""
CAUTION = 0.9
"""Of the bytes that a token had in the last results: the next may be denser. Where they are denser by more, the endpoint refuses,
which costs nothing."""


class Window(msgspec.Struct, frozen=True):
    """What a conversation has to keep to."""

    tokens: int | None = None
    """Prompt and reply together. Default: not known, so that only the endpoint can say when it is full."""
    reply: int | None = None
    """Tokens of a reply at most. Default: not said."""
    on_full: OnContextFull = "stop"


NO_WINDOW = Window()


class Context:
    """Of one conversation."""

    def __init__(self, opening: Sequence[Message], tools: Sequence[ToolSchema], window: Window = NO_WINDOW) -> None:
        """`opening`: what is sent before the conversation's own messages, and never cut."""
        self.cuts: dict[tuple[int, int], ContextCut] = {}
        """By call and message; `ContextCut.message` counts the conversation's own messages here."""
        self.encoded = Encoded()
        """For `ChatRequest.encoded`: another list after each cut."""
        self._opening = tuple(opening)
        self._window = window
        self._limit = window.tokens
        self._fixed = sum(map(_size, opening)) + sum(map(_schema_size, tools))
        self._whole: list[Message] = []
        self._sent: list[Message] = []
        self._sizes: list[int] = []
        """Bytes of each in `_sent`."""
        self._calls = 0
        # what the last reported usage says of: tokens, how many of `_sent` they are, bytes of those that were cut since
        self._known, self._counted, self._removed = 0, 0, 0
        self._bytes_per_token = 0.0  # of tool results, by the last that tell; 0 before
        self._keeps_reasoning = True

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the next call is sent, as of the last `has_room`."""
        return (*self._opening, *self._sent)

    def heard(self, call: ModelCall) -> None:
        """The call with these `messages` was answered; its reply is the next message."""
        self._calls += 1
        usage = call.usage
        if call.usage_reported and usage.prompt_tokens > 0:
            if self._counted and not self._removed:
                self._learn(usage.prompt_tokens - self._known, sum(self._sizes[self._counted :]))
            self._known = usage.prompt_tokens + usage.completion_tokens
            if not self._keeps_reasoning:
                self._known -= min(usage.reasoning_tokens, usage.completion_tokens)
            self._counted, self._removed = len(self._sent) + 1, 0

    def _learn(self, tokens: int, size: int) -> None:
        """From a call that had so many more tokens than the one before and its reply, and so many more bytes."""
        if tokens < 0:
            self._keeps_reasoning = False
        elif tokens and size >= TELLING_BYTES:
            self._bytes_per_token = min(max(size / tokens, LEAST_BYTES_PER_TOKEN), MOST_BYTES_PER_TOKEN)

    def has_room(self, messages: Sequence[Message]) -> bool:
        """Whether the conversation, now with these messages of its own, can be sent; what must be cut for it is cut.

        Of the first call nobody can say: there is nothing to cut, and the endpoint's own words are the better ones.
        """
        for message in messages[len(self._whole) :]:
            self._whole.append(message)
            self._sent.append(message)
            self._sizes.append(_size(message))
        if self._limit is None or not self._calls or self._fits(self._limit):
            return True
        return self._cut(self._limit)

    def refused(self) -> bool:
        """The endpoint says that `messages` are too long. Whether they can be sent now that they are cut."""
        limit = int(REFUSED * (self._prompt_tokens() + (self._window.reply or 0)))
        self._limit = limit if self._limit is None else min(self._limit, limit)
        return self._cut(self._limit)

    def _prompt_tokens(self) -> float:
        """Of the next call, rather too many: new bytes count for more tokens than those that were taken away."""
        new = sum(self._sizes[self._counted :])
        if not self._counted:
            return (self._fixed + new) / BYTES_PER_TOKEN
        seen = self._bytes_per_token
        return self._known + new / (seen * CAUTION if seen else BYTES_PER_TOKEN) - self._removed / max(seen, BYTES_PER_TOKEN)

    def _fits(self, limit: int, slack: float = 0.0) -> bool:
        room = self._window.reply or min(REPLY_TOKENS, limit // REPLY_SHARE)
        return self._prompt_tokens() + room <= limit * (1 - slack)

    def _cut(self, limit: int) -> bool:
        """Whether the conversation fits when all is cut that may be."""
        if self._window.on_full == "stop":
            return False
        last_turn = max(at for at, each in enumerate(self._whole) if each.role == "assistant")
        results = [at for at, each in enumerate(self._whole) if each.role == "tool"]
        old = [at for at in results if at < last_turn]
        for kept in KEPT:
            for at in old:
                if self._fits(limit, SLACK):
                    return True
                self._shorten(at, kept)
            if self._fits(limit):
                return True
        new = [at for at in results if at > last_turn]
        kept = max((len(self._whole[at].content) for at in new), default=0)
        while kept > KEPT[-1] and not self._fits(limit):
            kept = max(kept // 2, KEPT[-1])
            for at in new:
                self._shorten(at, kept)
        return self._fits(limit)

    def _shorten(self, at: int, kept: int) -> None:
        """Send the message with so many characters of it, where that is less than what is sent now."""
        whole, half = self._whole[at], kept // 2
        missing = len(whole.content) - 2 * half
        if missing <= LEAST_GAIN or len(self._sent[at].content) <= kept + LEAST_GAIN:
            return
        mark = f"\n[... {missing:,} of {len(whole.content):,} characters left out here: the context window is full ...]\n"
        message = msgspec.structs.replace(whole, content=whole.content[:half] + mark + whole.content[-half:])
        size = _size(message)
        if at < self._counted:
            self._removed += self._sizes[at] - size
        self._sent[at], self._sizes[at] = message, size
        self.encoded = Encoded()
        self.cuts[self._calls, at] = ContextCut(self._calls, at, 2 * half, len(whole.content))


def _size(message: Message) -> int:
    """Bytes of its text, as far as it may be sent back."""
    size = MESSAGE_BYTES + _bytes(message.content) + _bytes(message.reasoning)
    return size + sum(MESSAGE_BYTES + _bytes(call.name) + _bytes(call.arguments) for call in message.tool_calls)


def _schema_size(schema: ToolSchema) -> int:
    return _bytes(schema.name) + _bytes(schema.description) + len(bytes(schema.parameters))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
