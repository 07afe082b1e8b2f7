"""Summaries from a model: asked for until one is usable, within the row's time and tries and the job's limits.

One admission for the whole job (`models/admission.py`) bounds the requests at once, keeps to the endpoint's limits, waits out its
outages and watches the budget. What is decided here is only what a usable summary is, and how often a row asks for one.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kiseki.compress.config import TEMPERATURE, CompressionConfig
from kiseki.compress.summary import Answer, Ask, Spending, read_summary, shorter_request, tokens_wanted
from kiseki.errors import NotAdmitted, ProviderError, UsageError
from kiseki.models.admission import Admission, LocalDoor
from kiseki.models.base import ChatModel, ChatRequest
from kiseki.models.budget import Need
from kiseki.models.calls import is_limited
from kiseki.models.deadline import Deadline
from kiseki.models.endpoints import ModelSettings, resolve_api_key
from kiseki.models.factory import PRACTICE, check_model, is_builtin, open_model
from kiseki.models.hosts import host_of
from kiseki.models.rate_limit import LONGEST_ASKED
from kiseki.models.smollm2 import SLOTS
from kiseki.models.spending import open_admission, with_price
from kiseki.trajectory.text import printable
from kiseki.trajectory.types import Message, Usage

REPLY_TOKENS = 2
"""Times the target that a reply may have: a summary somewhat too long is still of use."""
REASONING_TOKENS = 4_000
"""What the reply may have for reasoning besides: most hosts count it as part of the reply."""
CALLS_PER_TIMEOUT = 2
"""Requests without an answer that fit into a row's time."""
CAP_SECONDS = 30.0
"""Of a wait before a row asks again."""
ERROR_CHARS = 300
"""Of one failure's words in an error."""
WITHOUT_MODEL = "--strategy=ladder needs no model"

Count = Callable[[str], int]


class Summarizer:
    """For any number of rows at once. Belongs to one event loop; `close` it there."""

    def __init__(self, model: ChatModel, admission: Admission, config: CompressionConfig, count: Count) -> None:
        self._model = model
        self._admission = admission
        self._config = config
        self._count = count
        self._limit = _reply_tokens(config)
        self._rng = random.Random()
        self._calls = self._errors = 0
        self._usage = Usage()

    @property
    def spending(self) -> Spending:
        usage = self._usage
        return Spending(self._calls, self._errors, usage.prompt_tokens, usage.completion_tokens, usage.cost)

    @property
    def spent(self) -> Need:
        """For the next session's budget: what earlier ones and this one took, calls without an answer at their worst."""
        return self._admission.budget.at_worst

    async def ask(self, ask: Ask) -> Answer:
        """The summary, or why there is none: whatever the endpoint does is an answer.

        A row makes `1 + max_retries` requests at most, for whatever reason: the endpoint failed, the reply was unusable, or the
        row has no room for it. The last of these is asked for once more, and the shorter one is taken, however long it is. Not
        counted are requests that were turned away (429, 503) or were made for all others during an outage. The row's time stands
        still while it waits: to be let in, or before it asks again.
        """
        row = _Row()
        deadline = Deadline(self._config.per_trajectory_timeout)
        try:
            async with deadline.running():
                await self._ask_until_usable(ask, row, deadline)
        except TimeoutError:
            if not deadline.expired():
                raise
            row.failures.append(f"not done within the {self._config.per_trajectory_timeout:g} s that a trajectory may take")
        except NotAdmitted as error:
            row.calls -= 1
            row.refusal = str(error)
        finally:
            self._calls += row.calls
            self._errors += row.errors
        return row.answer()

    async def close(self) -> None:
        self._admission.close()
        await self._model.close()

    async def _ask_until_usable(self, ask: Ask, row: _Row, deadline: Deadline) -> None:
        config = self._config
        wanted = tokens_wanted(ask.room, config)
        text = ask.request
        for number in range(config.max_retries + 1):
            try:
                summary, tokens = await self._ask_once(text, ask.region_tokens, row, deadline)
            except _Unusable as problem:
                row.failures.append(str(problem))
                if problem.final or row.summary or number == config.max_retries:
                    return
                jittered = self._rng.uniform(0.0, min(CAP_SECONDS, config.retry_delay * 2.0**number))
                with deadline:
                    await asyncio.sleep(max(problem.wait, jittered))
                too_long = problem.too_long
            else:
                enough = tokens <= ask.room or wanted > ask.room or row.summary
                row.keep(summary, tokens)
                if enough:
                    return
                too_long = True
            if too_long:
                text = shorter_request(ask.request, wanted)

    async def _ask_once(self, text: str, region_tokens: int, row: _Row, deadline: Deadline) -> tuple[str, int]:
        """A summary that makes the row smaller, and its tokens. Raises `_Unusable`."""
        row.calls += 1
        try:
            reply = await self._model.complete(ChatRequest((Message("user", text),), again=row.calls > 1), deadline)
        except ProviderError as error:
            final = not error.retryable or is_limited(error)  # turned away for as long as there is patience
            raise _Unusable(str(error), wait=min(error.retry_after or 0.0, LONGEST_ASKED), final=final) from error
        self._usage += reply.call.usage
        finish = reply.call.finish_reason
        if finish == "length":
            raise _Unusable(f"the reply did not fit into {self._limit:,} tokens, its reasoning included", too_long=True)
        if finish == "content_filter":
            raise _Unusable("the endpoint's content filter stopped the reply")
        if reply.message.tool_calls:
            raise _Unusable("the reply is a tool call")
        try:
            summary = read_summary(reply.message.content)
        except ValueError as error:
            raise _Unusable(str(error)) from error
        tokens = self._count(summary)
        if tokens >= region_tokens:
            raise _Unusable("the reply is no shorter than the turns that it stands for", too_long=True)
        return summary, tokens


class _Unusable(Exception):
    """A request that gave no usable summary."""

    def __init__(self, words: str, *, too_long: bool = False, wait: float = 0.0, final: bool = False) -> None:
        """`wait`: seconds that the endpoint asked for. `final`: asking again is in vain."""
        super().__init__(words)
        self.too_long = too_long
        self.wait = wait
        self.final = final


class _Row:
    """How asking for one row's summary goes."""

    def __init__(self) -> None:
        self.calls = 0
        self.failures: list[str] = []
        self.refusal = ""
        """Why a request was not made."""
        self.summary = ""
        """The shortest so far."""
        self._tokens = 0

    @property
    def errors(self) -> int:
        return min(len(self.failures), self.calls)

    def keep(self, summary: str, tokens: int) -> None:
        if not self.summary or tokens < self._tokens:
            self.summary, self._tokens = summary, tokens

    def answer(self) -> Answer:
        return Answer(self.summary, "" if self.summary else self._error(), self.calls, self.errors)

    def _error(self) -> str:
        counted = Counter(printable(words, ERROR_CHARS) for words in self.failures)
        listed = [words if times == 1 else f"{words} ({times} times)" for words, times in counted.items()]
        listed += [self.refusal] if self.refusal else []
        if not self.calls:
            return f"no summary was asked for: {self.refusal}"
        return f"no summary after {self.calls} request{'s' * (self.calls != 1)}: {'; '.join(listed)}"


def open_summarizer(
    config: CompressionConfig,
    environ: Mapping[str, str],
    count: Count,
    *,
    max_cost: float | None = None,
    max_total_tokens: int | None = None,
    prices: str = "",
    spent: Need = Need(),  # noqa: B008  (frozen)
    provider_patience: float = 300.0,
    on_change: Callable[[str], None] = lambda words: None,
) -> Summarizer:
    """The job's summariser; to be opened for the first row that needs one, since it wants a key.

    `count`: tokens of a text, as the rows are counted. `max_cost` (US dollars), `max_total_tokens`: what the summaries of all
    sessions may take (default: no limit), `spent` what earlier sessions did. `prices`: the user's file. `provider_patience`:
    seconds for which the endpoint may turn a row away, or fail every call, before that counts. `on_change` gets what slows the
    job down, in words.

    Raises `UsageError` where the key or a price is missing, or the settings cannot work.
    """
    model = with_price(_settings(config, environ, provider_patience), prices, () if max_cost is None else ("max_cost",))
    at_once = min(SLOTS, config.max_concurrent_requests) if is_builtin(config.model) else config.max_concurrent_requests
    admission = open_admission(model, at_once, max_cost=max_cost, max_total_tokens=max_total_tokens, spent=spent)
    admission.changed = lambda change: on_change(change.detail)
    return Summarizer(open_model(model, LocalDoor(admission)), admission, config, count)


def check_summarizer(config: CompressionConfig, environ: Mapping[str, str]) -> None:
    """Raises `UsageError` where `open_summarizer` would for the settings alone: before long work that ends in summaries."""
    _settings(config, environ, provider_patience=300.0)


def _reply_tokens(config: CompressionConfig) -> int:
    return config.summary_target_tokens * REPLY_TOKENS + (0 if is_builtin(config.model) else REASONING_TOKENS)


def _settings(config: CompressionConfig, environ: Mapping[str, str], provider_patience: float) -> ModelSettings:
    if config.model == PRACTICE:
        raise UsageError(f"{config.model} is no language model and writes no summaries (summarization.model); {WITHOUT_MODEL}")
    settings = ModelSettings(
        config.model,
        config.base_url,
        "" if is_builtin(config.model) else _key(config, environ),
        max_tokens=_reply_tokens(config),
        call_timeout=config.per_trajectory_timeout / CALLS_PER_TIMEOUT,
        provider_patience=provider_patience,
        max_retries=0,  # a row's tries are counted here
    )
    check_model(settings)
    return _with_temperature(settings, config.temperature)


def _with_temperature(settings: ModelSettings, temperature: float | None) -> ModelSettings:
    """The default is left out where the model's API takes none. Raises `UsageError` for any other that is not taken."""
    warm = msgspec.structs.replace(settings, temperature=temperature)
    try:
        check_model(warm)
    except UsageError as error:
        if temperature == TEMPERATURE:
            return settings
        words = str(error).replace("--temperature", "summarization.temperature")
        raise UsageError(f"{words} With null, none is sent.") from error
    return warm


def _key(config: CompressionConfig, environ: Mapping[str, str]) -> str:
    """The key: of the variable that the user names, else of the host's own. Raises `UsageError` where there is none."""
    variable = config.api_key_env
    if variable:
        if not (key := environ.get(variable, "").strip()):
            raise UsageError(f"the environment variable {variable} is not set; set it to the API key. {WITHOUT_MODEL}")
        return key
    variables = " or ".join(host_of(config.base_url).keys)
    try:
        return resolve_api_key(config.base_url, "", environ)
    except UsageError:
        host = urlsplit(config.base_url).hostname
        raise UsageError(
            f"no API key for {host}: set {variables}, or name its variable with api_key_env. {WITHOUT_MODEL}"
        ) from None


def ask_now(ask: Ask, config: CompressionConfig, count: Count, **limits: Any) -> Answer:
    """One summary, also where an event loop is running already. `limits`: `max_cost`, `max_total_tokens`, `prices`."""

    async def once() -> Answer:
        summarizer = open_summarizer(config, os.environ, count, **limits)
        try:
            return await summarizer.ask(ask)
        finally:
            await summarizer.close()

    with ThreadPoolExecutor(1) as thread:  # this one may have a loop
        return thread.submit(asyncio.run, once()).result()
