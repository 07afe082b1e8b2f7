"""One model call, free of any API dialect: what the agent asks and what it gets."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec

from kiseki.models.allowance import Allowance
from kiseki.trajectory.types import Message, ModelCall

NO_LIMIT = Allowance()
NOT_HELD: AbstractContextManager[Any] = nullcontext()


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool as the model is told of it."""

    name: str
    description: str
    parameters: msgspec.Raw
    """JSON schema (an object) of the arguments, as JSON text."""


class Encoded(list[bytes]):
    """What a client keeps of the messages of one conversation that it has already sent, in their order."""

    in_text = False
    """It was made of messages that tell the tools in their text (`text_tools.auto`)."""


class ChatRequest(msgspec.Struct, frozen=True):
    """One model call."""

    messages: tuple[Message, ...]
    """Everything sent, ephemeral system prompt and prefill included."""
    tools: tuple[ToolSchema, ...] = ()
    seed: int | None = None
    allowance: Allowance = NO_LIMIT
    """What pays for this call. Default: no limit."""
    encoded: Encoded = msgspec.field(default_factory=Encoded)
    """The same for every call of a conversation to one model, as long as it only grows: what is kept here is not made anew on
    each turn. Default: empty."""
    images: tuple[str, ...] = ()
    """Shown with the last message, which is the user's: `data:` URIs, in order. Default: none."""
    json_schema: msgspec.Raw = msgspec.Raw(b"")
    """The answer's text must be JSON of this schema, where the host can hold it to one. Default: any text."""
    again: bool = False
    """The caller has asked this before, in vain: it goes ahead of others, and does not speak for an outage. Default: False."""


class RateInfo(msgspec.Struct, frozen=True):
    """What an answer's `x-ratelimit-*` headers say is left, and for how long. None where they do not say."""

    requests_left: float | None = None
    requests_reset: float | None = None
    """Seconds until there are as many requests as there can be."""
    tokens_left: float | None = None
    tokens_reset: float | None = None


class ChatReply(msgspec.Struct, frozen=True):
    """What the model said, and what is to be recorded of the call."""

    message: Message
    """Role `assistant`, reasoning taken out of the content; call ids as the model gave them ("" where it gave none)."""
    call: ModelCall
    risked: float = 0.0
    """US dollars that tries before it may have cost, of which nobody said what they did."""
    notice: str = ""
    """What the run is to be told once. Default: nothing."""


class ChatModel(Protocol):
    """A model that can be asked. Safe for many concurrent calls on one event loop."""

    async def complete(self, request: ChatRequest, on_hold: AbstractContextManager[Any] = NOT_HELD) -> ChatReply:
        """One reply. Raises `ProviderError` (retries already spent), and `NotAdmitted` or `PromptBudgetSpent` when the call
        is not made at all. `on_hold` is entered while it waits to be let in, so that such a wait counts against nobody."""
        ...

    async def close(self) -> None: ...


class ChatClient(Protocol):
    """What one dialect does: one request, one answer. Who may ask, when, and how often is not its business."""

    def encode(self, request: ChatRequest) -> tuple[Any, int]:
        """The request as `send` takes it, any number of times, and its size in bytes of text, whatever its images are."""
        ...

    async def send(self, encoded: Any) -> tuple[ChatReply, RateInfo | None]:
        """One try. The second part is what the endpoint says is left of its limits. Raises `ProviderError`."""
        ...

    async def close(self) -> None: ...
