"""One model call, free of any API dialect: what the agent asks and what it gets."""

from __future__ import annotations

from typing import Protocol

import msgspec

from kiseki.trajectory.types import Message, ModelCall


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool as the model is told of it."""

    name: str
    description: str
    parameters: msgspec.Raw
    """JSON schema (an object) of the arguments, as JSON text."""


class ChatRequest(msgspec.Struct, frozen=True):
    """One model call."""

    messages: tuple[Message, ...]
    """Everything sent, ephemeral system prompt and prefill included."""
    tools: tuple[ToolSchema, ...] = ()
    seed: int | None = None


class ChatReply(msgspec.Struct, frozen=True):
    """What the model said, and what is to be recorded of the call."""

    message: Message
    """Role `assistant`, reasoning taken out of the content; call ids as the model gave them ("" where it gave none)."""
    call: ModelCall


class ChatModel(Protocol):
    """A model that can be asked. Safe for many concurrent calls on one event loop."""

    async def complete(self, request: ChatRequest) -> ChatReply:
        """One reply. Raises `ProviderError` (retries already spent)."""
        ...

    async def close(self) -> None: ...
