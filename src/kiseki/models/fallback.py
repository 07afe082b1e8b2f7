"""Several models asked one after the other: the run's own, and those that are asked where it is gone or refuses.

A model is gone where its endpoint says that there is none of that name (404, 410, or in words): it is not asked again. It refuses
where the endpoint does not take the request, or ends the reply as filtered. What fails otherwise falls back too, when its retries
are spent; only a key that is not taken, a conversation that is too long and a spent budget do not, since the next model would
meet the same. Each reply's `ModelCall.fallback` names the model, where it is not the run's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from kiseki.errors import AuthError, BadRequest, ContextLengthExceeded, ProviderError
from kiseki.models.asking import AskedModel
from kiseki.models.base import NOT_HELD, ChatReply, ChatRequest
from kiseki.trajectory.types import Message, Usage

ANSWERED_BY = "answered_by"
"""Key in `provider_fields`: the model that gave them. Signatures and the like mean nothing to another one."""
REFUSED = "content_filter"
_NO_MODEL = re.compile(
    r"model[^.]{0,80}(?:not[ _]found|does(?:n't| not) exist|no longer|decommissioned|deprecated|retired|unknown|not available)"
    r"|(?:no such|unknown|invalid|unsupported) model|not a valid model|no endpoints found|model_not_found|model_not_available",
    re.IGNORECASE,
)


class FallbackModel:
    """A `ChatModel`. `close` it on the event loop where it was used."""

    def __init__(self, models: Sequence[tuple[str, AskedModel]]) -> None:
        """`models`: by their ids, two at least, in the order in which they are asked."""
        self._models = models
        self._gone: set[int] = set()

    async def complete(self, request: ChatRequest, on_hold: AbstractContextManager[Any] = NOT_HELD) -> ChatReply:
        refused = Usage()
        risked = 0.0
        last = len(self._models) - 1
        for at, (name, model) in enumerate(self._models):
            if at in self._gone and at < last:
                continue
            # what a dialect keeps of messages that it has encoded is of no use to another
            encoded = request.encoded if at == 0 else []
            own = msgspec.structs.replace(request, messages=_for(name, request.messages), encoded=encoded)
            try:
                reply = await model.complete(own, on_hold)
            except ProviderError as error:
                if at == last or isinstance(error, AuthError | ContextLengthExceeded):
                    raise
                if is_gone(error):
                    self._gone.add(at)
                continue
            if at < last and reply.call.finish_reason == REFUSED:
                refused += reply.call.usage
                risked += reply.risked
                continue
            break
        call = msgspec.structs.replace(reply.call, fallback=name if at else "", refused=refused)
        return ChatReply(_signed(name, reply.message), call, reply.risked + risked)

    async def close(self) -> None:
        for _, model in self._models:
            await model.close()


def is_gone(error: ProviderError) -> bool:
    """Whether the endpoint says that it has no such model."""
    return error.status in (404, 410) or (isinstance(error, BadRequest) and _NO_MODEL.search(str(error)) is not None)


def _for(name: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages as one model gets them: without what another wants back of its own."""
    if all(each.provider_fields.get(ANSWERED_BY, name) == name for each in messages):
        return messages
    return tuple(
        msgspec.structs.replace(each, provider_fields={}) if each.provider_fields.get(ANSWERED_BY, name) != name else each
        for each in messages
    )


def _signed(name: str, message: Message) -> Message:
    if not message.provider_fields:
        return message
    return msgspec.structs.replace(message, provider_fields={**message.provider_fields, ANSWERED_BY: name})
