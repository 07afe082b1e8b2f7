"""Several models asked one after the other: the run's own, and those that are asked where it is gone or refuses.

- Gone: it has not answered before, and the endpoint says that there is no such model. With 404 or 410 it is not asked again, in
  words alone for `AWAY_SECONDS`.
- It refuses: the endpoint does not take the request, or ends the reply as filtered. The next request goes to it all the same.
- It fails, and its retries are spent: for `AWAY_SECONDS` it is not asked. That it turns calls away is a failure only when it has
  turned away every one for as long as the user has patience.

A key that is not taken, which stops a run, and a conversation that is too long, for which the agent has a policy, are no reason.
What a filtered reply took is kept with the reply that is taken in the end (`ModelCall.refused`); where no other model answers, it
is the reply. `ModelCall.fallback` names the model that answered, where it is not the run's own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from kiseki.errors import AuthError, BadRequest, ContextLengthExceeded, NotAdmitted, PromptBudgetSpent, ProviderError
from kiseki.models.asking import AskedModel
from kiseki.models.base import NOT_HELD, ChatReply, ChatRequest, Encoded
from kiseki.models.dialects.base import EXCERPT_CHARS
from kiseki.trajectory.types import Message, Usage

ANSWERED_BY = "answered_by"
"""Key in `provider_fields`: the model that gave them. Signatures and the like mean nothing to another one."""
REFUSED = "content_filter"
GONE = (404, 410)
AWAY_SECONDS = 60.0
"""Long enough that an outage costs few calls their retries, and short enough that little of a run is another model's after it."""
_NO_MODEL = re.compile(
    r"model[^.]{0,80}(?:not[ _]found|does(?:n't| not) exist|no longer|decommissioned|deprecated|retired|unknown|not available)"
    r"|(?:no such|unknown|invalid|unsupported) model|not a valid model|no endpoints found|model_not_found|model_not_available",
    re.IGNORECASE,
)


class FallbackModel:
    """A `ChatModel`. `close` it on the event loop where it was used."""

    def __init__(self, models: Sequence[tuple[str, AskedModel]], clock: Callable[[], float] = time.monotonic) -> None:
        """`models`: by their ids, two at least, in the order in which they are asked."""
        self._models = models
        self._clock = clock
        self._away_until = [0.0] * len(models)
        self._answered = [False] * len(models)

    async def complete(self, request: ChatRequest, on_hold: AbstractContextManager[Any] = NOT_HELD) -> ChatReply:
        refused: list[tuple[int, ChatReply]] = []
        failed: list[str] = []
        last = len(self._models) - 1
        for at, (name, model) in enumerate(self._models):
            if at < last and self._clock() < self._away_until[at]:
                continue
            # what a dialect keeps of messages that it has encoded is of no use to another
            encoded = request.encoded if at == 0 else Encoded()
            own = msgspec.structs.replace(request, messages=_for(name, request.messages), encoded=encoded)
            try:
                reply = await model.complete(own, on_hold)
            except (ProviderError, NotAdmitted, PromptBudgetSpent) as error:
                falls_back = isinstance(error, ProviderError) and not isinstance(error, AuthError | ContextLengthExceeded)
                if falls_back and at < last:
                    self._note(at, error)
                    failed.append(f"{name}: {error}")
                    continue
                if refused:
                    break
                if failed and falls_back:
                    error.args = (f"{name}: {error} (before it, {'; '.join(failed)})"[: EXCERPT_CHARS * 2],)
                raise
            self._answered[at] = True
            if reply.call.finish_reason == REFUSED and at < last:
                refused.append((at, reply))
                continue
            return self._taken(at, reply, refused)
        return self._taken(*refused[-1], refused[:-1])

    async def close(self) -> None:
        for _, model in self._models:
            await model.close()

    def _note(self, at: int, error: Exception) -> None:
        assert isinstance(error, ProviderError)
        if error.retryable:
            self._away_until[at] = self._clock() + AWAY_SECONDS
        elif not self._answered[at]:  # else a prompt, or a router, may have brought about what is said
            if error.status in GONE:
                self._away_until[at] = float("inf")
            elif is_gone(error):
                self._away_until[at] = self._clock() + AWAY_SECONDS

    def _taken(self, at: int, reply: ChatReply, refused: Sequence[tuple[int, ChatReply]]) -> ChatReply:
        name, message = self._models[at][0], reply.message
        if message.provider_fields:
            message = msgspec.structs.replace(message, provider_fields={**message.provider_fields, ANSWERED_BY: name})
        took = sum((each.call.usage for _, each in refused), Usage())
        call = msgspec.structs.replace(reply.call, fallback=name if at else "", refused=took)
        return ChatReply(message, call, reply.risked + sum(each.risked for _, each in refused))


def is_gone(error: ProviderError) -> bool:
    """Whether the endpoint says that it has no such model, by the status or in words."""
    return error.status in GONE or (isinstance(error, BadRequest) and _NO_MODEL.search(str(error)) is not None)


def _for(name: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages as one model gets them: without what another wants back of its own."""
    if all(each.provider_fields.get(ANSWERED_BY, name) == name for each in messages):
        return messages
    return tuple(
        each if each.provider_fields.get(ANSWERED_BY, name) == name else msgspec.structs.replace(each, provider_fields={})
        for each in messages
    )
