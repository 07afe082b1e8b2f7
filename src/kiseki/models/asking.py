"""A dialect's client as a `ChatModel`: every call waits to be let in, is tried again when that may help, and is accounted for.

A reply's `started` and `seconds` are those of the request that was answered; failed ones before it are counted in `retries`, and
the time before it in `waited`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from kiseki.errors import ProviderError, RateLimited
from kiseki.models.admission import Admitted, Ask, Door
from kiseki.models.base import NOT_HELD, ChatClient, ChatReply, ChatRequest
from kiseki.models.budget import BYTES_PER_TOKEN, REPLY_TOKENS, Need, worst_case
from kiseki.models.calls import DROPPED, NOT_SENT, end_of_error, end_of_reply, is_limited
from kiseki.models.endpoints import ModelSettings
from kiseki.models.retry import Retries


class AskedModel:
    """A `ChatModel`. `close` it on the event loop where it was used."""

    def __init__(
        self,
        client: ChatClient,
        door: Door,
        settings: ModelSettings,
        *,
        elsewhere: bool = False,
        falls_back: bool = False,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`elsewhere`: the endpoint is not the one that the door's admission is of; then only the budget is asked. `falls_back`:
        another model is asked where this one fails."""
        self.client = client
        self._elsewhere = elsewhere
        self._falls_back = falls_back
        self._turned_away_since: float | None = None
        """When calls began to be turned away, without one that was answered since."""
        self._door = door
        self._settings = settings
        self._rng = rng or random.Random()
        self._sleep = sleep

    async def complete(self, request: ChatRequest, on_hold: AbstractContextManager[Any] = NOT_HELD) -> ChatReply:
        if self._is_turned_away():  # and is asked again after a while: that is to be seen anew
            self._turned_away_since = None
        encoded, size = self.client.encode(request)
        tokens = size // BYTES_PER_TOKEN + 1
        risked = 0.0  # what tries without an answer may have cost
        retries = Retries(self._settings.max_retries, self._settings.provider_patience, self._rng)
        began = time.perf_counter()
        with request.allowance.holding() as held:
            while True:
                worst = self._worst_case(tokens)
                held.set(worst.cost)
                again = request.again or retries.made > 0
                ask = Ask(tokens, again, worst if self._elsewhere else None, self._settings.price)
                key, admitted = self._door.ask(ask)
                end = NOT_SENT
                try:
                    if not admitted.done():
                        with on_hold:
                            await self._wait(admitted)
                    probe = admitted.result().probe
                    end, waited = DROPPED, time.perf_counter() - began
                    reply, rate = await self.client.send(encoded)
                    reply = self._priced(reply, retries.made, waited, risked)
                    end = end_of_reply(reply, rate, wants_tokens=self._settings.capture_tokens)
                    request.allowance.spend(reply.call.usage.cost)
                    self._turned_away_since = None
                    return reply
                except ProviderError as error:
                    end = end_of_error(error, falls_back=self._falls_back)
                    risk = 0.0 if end.known else worst.cost
                    risked += risk
                    request.allowance.spend(risk)
                    delay = retries.next_delay(error, probe=probe)
                    if is_limited(error) and self._turned_away_since is None:
                        self._turned_away_since = time.perf_counter()
                    if delay is None or self._is_turned_away():
                        raise
                finally:
                    self._door.leave(key, end)
                held.set(0.0)
                with on_hold:
                    await self._sleep(delay)

    async def _wait(self, admitted: asyncio.Future[Admitted]) -> None:
        """Until it is let in. Raises `RateLimited` where another model is asked when that takes too long."""
        while not admitted.done():
            if self._is_turned_away():
                raise RateLimited("the endpoint has turned every call away for too long", sent=False)
            await asyncio.wait({admitted}, timeout=self._settings.provider_patience if self._falls_back else None)

    def _is_turned_away(self) -> bool:
        """Whether another model is to be asked, since the endpoint has turned every call away for as long as one has patience."""
        since = self._turned_away_since
        return self._falls_back and since is not None and time.perf_counter() - since >= self._settings.provider_patience

    async def close(self) -> None:
        await self.client.close()

    def _worst_case(self, prompt_tokens: int) -> Need:
        """Its cost 0.0 where no price is known."""
        price, reply_tokens = self._settings.price, self._settings.max_tokens or REPLY_TOKENS
        return worst_case(price, prompt_tokens, reply_tokens) if price else Need(0.0, prompt_tokens + reply_tokens)

    def _priced(self, reply: ChatReply, retries: int, waited: float, risked: float) -> ChatReply:
        """The reply with what it took to get it, and with its cost where only the price says it."""
        call = msgspec.structs.replace(reply.call, retries=retries, waited=round(waited, 3))
        if self._settings.price is not None and not call.cost_reported:
            usage = msgspec.structs.replace(call.usage, cost=self._settings.price.of_usage(call.usage))
            call = msgspec.structs.replace(call, usage=usage)
        return ChatReply(reply.message, call, risked, reply.notice)
