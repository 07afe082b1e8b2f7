"""Whether a model's endpoint can do what rollouts need: one tiny call for each thing, made by the client that runs use.

Owns the order of the checks, their bounds, and which settings follow from them. What each asks, and what its answer means, is
`checks.py`'s; the screen is the command's. A check that fails keeps the endpoint's own words, and the others go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from kiseki.errors import AuthError, ProviderError, ProviderTimeout, ProviderUnreachable, UsageError
from kiseki.models import checks
from kiseki.models.base import ChatClient, ChatReply, ChatRequest
from kiseki.models.checks import Answer, State
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import is_builtin, open_client
from kiseki.models.fallback import is_gone
from kiseki.models.listing import Listings
from kiseki.models.prices import Price
from kiseki.trajectory.types import ModelCall, Usage

CALL_SECONDS = 120.0
"""One call at most: the first one may have to wait until a local server has loaded the model."""
ALL_SECONDS = 600.0
"""All calls together: what is left then is not tried."""
MAX_TOKENS, MOST_THINKING = 2048, 4096
"""Of a reply, where the user says nothing: a short answer and the thinking before it; and where an effort is asked for."""
TRIES = 2
LONGEST_WAIT = 20.0
"""Seconds that the endpoint may ask us to wait before the second try."""
MODES = ("native", "auto", "json", "hermes")
"""Ways to call tools, in the order in which they are tried after the user's own. `native` comes before `auto`, which would hide
why the API's own way does not work."""

FILTER_OFF = "--reasoning_filter=off"

Question = Callable[["Asker"], Awaitable[Answer]]


class Checked(msgspec.Struct, frozen=True):
    """One thing that was tried."""

    what: str
    state: State
    words: str
    """What was seen, or why it does not work."""
    calls: int = 0
    usage: Usage = Usage()
    """Of those calls that were answered."""
    cost_known: bool = False
    """Whether the endpoint reported the cost of each."""
    seconds: float = 0.0


class Report(msgspec.Struct, frozen=True):
    """What came of all checks."""

    checks: tuple[Checked, ...]
    tools: str
    """How the model calls tools, in words; "" where no way works."""
    changed: dict[str, Any]
    """Fields of `ModelSettings` that have to be others than the user's, for this endpoint."""
    needed: tuple[str, ...]
    """Why, a line each; also of `filter_off`."""
    filter_off: bool = False
    """Whether rows would have no reasoning, though it is not switched off: `kiseki batch` discards such rows by default."""
    gone: tuple[str, ...] = ()
    """Of the models that are gone, a line each with the one that was checked in its place."""


class Asker:
    """Makes the calls of the checks, each bounded, and counts those of the present one. Belongs to one event loop."""

    def __init__(self, settings: ModelSettings) -> None:
        self.settings = settings
        self.asked = 0
        self.calls: list[ModelCall] = []
        self.reasoned = False
        """Whether any of these replies had text of reasoning."""
        self._clients: list[tuple[ModelSettings, ChatClient]] = []  # settings have no hash: a body is a dict

    async def __call__(self, request: ChatRequest, **changes: object) -> ChatReply:
        """One reply, with the settings changed so. Raises `ProviderError`, and `UsageError` where the host has no field for
        a setting."""
        client = self._client(msgspec.structs.replace(self.settings, **changes))
        encoded, _ = client.encode(request)
        self.asked += 1
        for tries_left in reversed(range(TRIES)):
            try:
                reply, _ = await client.send(encoded)
            except ProviderError as error:
                wait = error.retry_after or 1.0
                slow = isinstance(error, ProviderTimeout)
                if not (error.retryable and tries_left) or slow or wait > LONGEST_WAIT:
                    raise
                await asyncio.sleep(wait)
            else:
                self.calls.append(reply.call)
                self.reasoned = self.reasoned or bool(reply.message.reasoning)
                return reply
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        for _, client in self._clients:
            await client.close()

    def _client(self, settings: ModelSettings) -> ChatClient:
        for known, client in self._clients:
            if known == settings:
                return client
        client = open_client(settings)
        self._clients.append((settings, client))
        return client


def bounded(settings: ModelSettings) -> ModelSettings:
    """As the user has them, with a bound of time and tokens, and no other model that answers in place of this one."""
    most = MOST_THINKING if settings.reasoning_effort not in ("", "none") else MAX_TOKENS
    return msgspec.structs.replace(
        settings,
        call_timeout=min(settings.call_timeout, CALL_SECONDS),
        stream_timeout=min(settings.stream_timeout, CALL_SECONDS),
        max_tokens=settings.max_tokens or most,
        fallback=(),
    )


async def check(settings: ModelSettings, begins: Callable[[str], None] = lambda what: None) -> Report:
    """Make all checks; `begins` is told of each before its first call.

    Where the model is gone, the first fallback model that is not is checked in its place. Raises `UsageError` where the endpoint
    takes no call with this key or has none of the models, `ProviderError` where it cannot be reached or does not answer.
    """
    checking = _Checking(Asker(bounded(settings)), begins)
    try:
        fallback = await _find_model(checking, settings.fallback)
        await _find_transport(checking)
        tools = await _find_tools(checking)
        await _look_at_the_rest(checking)
        for each in fallback:
            await _check_fallback(checking, each)
        found = (checking.changed, tuple(checking.needed), checking.filter_off, tuple(checking.gone))
        return Report(tuple(checking.done), tools, *found)
    finally:
        await checking.ask.close()


class _Checking:
    """What was found so far."""

    def __init__(self, ask: Asker, begins: Callable[[str], None]) -> None:
        self.ask = ask
        self.done: list[Checked] = []
        self.changed: dict[str, Any] = {}
        self.needed: list[str] = []
        self.first: ModelCall | None = None
        """The first call that was answered."""
        self.answers_whole = False
        """Whether replies come that are not streamed."""
        self.tools_reasoned = False
        """Whether there was text of reasoning in the turns of the tool loop."""
        self.filter_off = False
        self.gone: list[str] = []
        self._begins = begins
        self._over = time.monotonic() + ALL_SECONDS

    def change(self, name: str, value: Any, why: str) -> None:
        """From here on this is the setting."""
        self.ask.settings = msgspec.structs.replace(self.ask.settings, **{name: value})
        self.changed[name] = value
        self.needed.append(why)

    async def run(self, what: str, question: Question, ask: Asker | None = None) -> Answer:
        """One check. `ask`: where another model is asked."""
        ask = ask or self.ask
        ask.asked, ask.calls, ask.reasoned = 0, [], False
        self._begins(what)
        began = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._over - began)):
                answer = await question(ask)
        except TimeoutError:
            answer = Answer("untried", f"the time for all checks ({ALL_SECONDS:g} s) was over")
        except ProviderError as error:
            answer = Answer("no", str(error), error=error)
        except UsageError as error:  # the host has no field for it
            answer = Answer("untried", str(error))
        self.first = self.first or next(iter(ask.calls), None)
        usage = sum((call.usage for call in ask.calls), Usage())
        known = bool(ask.calls) and all(call.cost_reported for call in ask.calls)
        seconds = time.monotonic() - began
        self.done.append(Checked(what, answer.state, answer.words, ask.asked, usage, known, seconds))
        return answer


async def _find_model(checking: _Checking, fallback: Sequence[ModelSettings]) -> Sequence[ModelSettings]:
    """Ask the model, and where it is gone, the next ones until one is not. Returns the fallback models that are left."""
    plain = await checking.run("plain", checks.plain)
    for each in fallback:
        if not isinstance(plain.error, ProviderError) or not is_gone(plain.error):
            break
        words = str(plain.error).rstrip(".")
        checking.gone.append(f"{checking.ask.settings.model} is gone ({words}): {each.model} is checked in its place")
        await checking.ask.close()
        checking.ask = Asker(bounded(each))
        plain = await checking.run(f"plain, {each.model}", checks.plain)
    _stop_if_useless(plain.error)
    checking.answers_whole = plain.state != "no"
    return fallback[len(checking.gone) :]


async def _find_transport(checking: _Checking) -> None:
    """Whether replies come streamed, whole or both."""
    streamed = await checking.run("streaming", checks.streaming)
    wanted, works = checking.ask.settings.stream, {False: checking.answers_whole, True: streamed.state != "no"}
    if not works[wanted] and works[not wanted]:
        why = "no --stream, since that is refused" if wanted else "--stream, since only streamed replies come"
        checking.change("stream", not wanted, why)


async def _find_tools(checking: _Checking) -> str:
    """How tools can be called, in words, with the settings for it; "" where they cannot."""
    ask, given = checking.ask, checking.ask.settings
    own = given.tool_call_mode
    for mode in dict.fromkeys(MODES if own == "auto" else (own, *MODES)):
        ask.settings = msgspec.structs.replace(given, tool_call_mode=mode)
        found = await checking.run(f"tools, {mode}", checks.tools)
        if found.state in ("yes", "partly"):
            checking.tools_reasoned = ask.reasoned
            if (own, mode) == ("auto", "native"):
                ask.settings = given
            elif mode != own:
                checking.change("tool_call_mode", mode, f"--tool_call_mode={mode}, since tools are not called as above")
            await checking.run("parallel tools", checks.parallel_tools)
            return found.detail
    ask.settings = given
    return ""


async def _look_at_the_rest(checking: _Checking) -> None:
    run, settings = checking.run, checking.ask.settings
    reasoning = await run("reasoning", checks.reasoning)
    none = reasoning.state == "no" and reasoning.error is None
    switched_off = settings.reasoning_disabled or settings.reasoning_effort == "none"
    if (none or reasoning.state == "partly") and not (checking.tools_reasoned or switched_off):
        checking.filter_off = True
        hint = "" if settings.reasoning_effort else ", unless --reasoning_effort brings some"
        checking.needed.append(f"{FILTER_OFF}, since no text of reasoning came, and rows without any are discarded{hint}")
    nothing = _said(Answer("untried", "there is none to switch off"))
    await run("no reasoning", nothing if none else checks.no_reasoning)
    await run("json", checks.json_mode)
    await run("seed", checks.seed)
    await run("token ids", checks.token_ids)
    await run("prompt cache", checks.prompt_cache)
    listing = Listings().of(settings)
    price = Price() if is_builtin(settings.model) else listing.price
    await run("usage and cost", _said(checks.usage_and_cost(checking.first, price)))
    await run("context length", _said(checks.context_length(settings.context_length, listing.context_length)))


async def _check_fallback(checking: _Checking, settings: ModelSettings) -> None:
    ask = Asker(msgspec.structs.replace(bounded(settings), **checking.changed))
    try:
        await checking.run(f"fallback {settings.model}", checks.tools, ask)
    finally:
        await ask.close()


def _said(answer: Answer) -> Question:
    """For what needs no call of its own."""

    async def question(ask: Asker) -> Answer:
        return answer

    return question


def _stop_if_useless(error: Exception | None) -> None:
    """Where no other call can fare better than the plainest one."""
    if isinstance(error, AuthError):
        raise UsageError(f"{error}; the key comes from --api_key or the environment") from error
    if isinstance(error, ProviderError) and is_gone(error):
        raise UsageError(f"{error}; --model or --base_url names what is not there") from error
    if isinstance(error, ProviderUnreachable | ProviderTimeout):
        raise error
