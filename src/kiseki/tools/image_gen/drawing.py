"""Asks an image endpoint, whichever API it has: keys, tries, money, and the way from its answer to the image's bytes.

Money: an image is reserved in the run's budget, and in the rollout's own, at `ASSUMED_COST`, and counts there as that unless the
endpoint says what it cost (OpenRouter does), also when no answer came. In the record stands only what an endpoint said. On one's
own machine it is free.

A request that was sent and got no answer is not sent again: the image may have been drawn and paid for.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from kiseki.errors import (
    BadRequest,
    BadResponse,
    ProviderError,
    ProviderTimeout,
    ProviderUnreachable,
    ToolError,
)
from kiseki.models.budget import Need
from kiseki.models.client import CONNECT_SECONDS, DNS_SECONDS, ERROR_BYTES, proxy_for, read_body
from kiseki.models.dialects.base import EXCERPT_CHARS, excerpt
from kiseki.models.failures import error_of_status
from kiseki.models.hosts import OPENROUTER, host_of, is_local
from kiseki.models.image_headers import image_kind
from kiseki.models.retry import Retries
from kiseki.tools.context import ToolContext
from kiseki.tools.endpoint_keys import is_fal, key_for
from kiseki.tools.image_gen import fal, openai, openrouter
from kiseki.tools.image_gen.api import Drawn, Ratio
from kiseki.tools.image_gen.needs import choose_endpoint
from kiseki.tools.paid import Bill, in_budget
from kiseki.tools.results import MAX_FILE_BYTES
from kiseki.tools.services import Services
from kiseki.trajectory.text import clean_text

if TYPE_CHECKING:
    import aiohttp

CALL_SECONDS = 120.0
"""For one image: slow models take a minute."""
MAX_RETRIES = 3
PATIENCE = 60.0
"""Seconds for which a call may be turned away (429, 503), and that are waited at once at most."""
MAX_ANSWER = MAX_FILE_BYTES * 4 // 3 + 1_000_000
"""Bytes: the largest image in base64, and what stands around it."""
ASSUMED_COST = 0.10
"""US dollars for one image where nobody says: gpt-image-1 takes 0.04 to 0.25, by its quality, others 0.003 to 0.08."""
ASSUMED_TOKENS = 4_500
"""Of one image: gpt-image-1 takes 1,056 to 6,240, Gemini 1,290 to 2,520, others none."""
_REFUSAL = re.compile(r"safety|moderation|content[_ ]policy|content checker|flagged|prohibited|sensitive|nsfw", re.IGNORECASE)
_DATA_URI = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)


class Drawer:
    """The worker's image endpoint. A `Service`."""

    def __init__(self, services: Services) -> None:
        """Raises `UsageError` where there is none."""
        self._base_url = choose_endpoint(services.settings, services.environ).rstrip("/")
        self._key = key_for(self._base_url, services.model_settings, services.environ)
        is_openrouter = not is_fal(self._base_url) and host_of(self._base_url) is OPENROUTER
        self._api = fal.API if is_fal(self._base_url) else openrouter.API if is_openrouter else openai.API
        self.model = services.settings.image_model or self._api.default_model
        own_machine = is_local(urlsplit(self._base_url).hostname or "")
        self._assumed = Need() if own_machine else Need(ASSUMED_COST, ASSUMED_TOKENS)
        self._url = self._base_url + self._api.path(self.model)
        self._proxy = proxy_for(self._url)
        self._session: aiohttp.ClientSession | None = None
        self._rng = random.Random()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def draw(self, context: ToolContext, prompt: str, ratio: Ratio) -> bytes:
        """An image, of whatever kind. Raises `ToolError`, `NotAdmitted` and `PromptBudgetSpent`."""
        body = msgspec.json.encode(self._api.body(self.model, prompt, ratio))
        with context.allowance.holding() as held:
            held.set(self._assumed.cost, "an image")
            async with in_budget(context, self._assumed) as bill:
                try:
                    drawn = await self._drawn(context, body, bill)
                finally:
                    context.allowance.spend(bill.cost)
        context.note().usage += drawn.usage
        return await self._bytes_of(context, drawn)

    async def _drawn(self, context: ToolContext, body: bytes, bill: Bill) -> Drawn:
        """What the endpoint answers, and on the bill what it costs. Raises `ToolError`."""
        try:
            drawn = self._api.read(await self._ask(context, body))
        except ProviderError as error:
            if not error.sent or error.status not in (0, 200):
                bill.is_nothing()
            words = self._shown(str(error))
            if isinstance(error, BadRequest) and _REFUSAL.search(words):
                raise ToolError(f"{self.model} refuses to draw this: {words}") from error
            raise ToolError(f"the image model {self.model} gave no image: {words}") from error
        bill.is_usage(drawn.usage, drawn.usage.cost if drawn.cost_reported else self._assumed.cost)
        return drawn

    async def _ask(self, context: ToolContext, body: bytes) -> dict[str, Any]:
        """The answer's JSON. Raises `ProviderError`, tries already made."""
        retries = Retries(MAX_RETRIES, PATIENCE, self._rng)
        while True:
            try:
                return await self._post(body)
            except ProviderError as error:
                unanswered = error.sent and error.status in (0, 200)
                delay = None if unanswered else retries.next_delay(error, probe=False)
                if delay is None or delay > PATIENCE:
                    raise
            with context.on_hold:
                await asyncio.sleep(delay)

    async def _post(self, body: bytes) -> dict[str, Any]:
        import aiohttp

        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"{self._api.scheme} {self._key}"
        session, clock = self._open(), time.time
        try:
            post = session.post(self._url, data=body, headers=headers, proxy=self._proxy, allow_redirects=False)
            async with post as response:
                if response.status != 200:
                    raise error_of_status(response.status, response.headers, await read_body(response, ERROR_BYTES), clock())
                answer = await read_body(response, MAX_ANSWER, more=BadResponse("The answer is too large.", status=200))
        except TimeoutError as error:
            raise ProviderTimeout(f"no answer from {self._url} within {CALL_SECONDS:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise ProviderUnreachable(f"no connection to {self._url}: {error}", sent=False) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ProviderUnreachable(f"the connection to {self._url} was lost: {error}") from error
        try:
            decoded = msgspec.json.decode(answer, type=dict[str, Any])
        except msgspec.DecodeError:
            raise BadResponse(f"the answer is no JSON object: {excerpt(answer)}", status=200) from None
        if inside := decoded.get("error"):  # an error in an answer that says 200, as OpenRouter gives it
            code = inside.get("code") if isinstance(inside, dict) else None
            raise error_of_status(code if type(code) is int and 400 <= code < 600 else 400, {}, answer[:ERROR_BYTES], clock())
        return decoded

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=DNS_SECONDS),
                timeout=aiohttp.ClientTimeout(total=CALL_SECONDS, sock_connect=CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "kiseki"},
            )
        return self._session

    async def _bytes_of(self, context: ToolContext, drawn: Drawn) -> bytes:
        image, words = drawn.image, clean_text(drawn.words)[:EXCERPT_CHARS]
        if drawn.refused or not image:
            if words or drawn.refused:
                raise ToolError(f"{self.model} drew nothing: {words or 'the content filter stopped it'}")
            raise ToolError(f"{self.model} drew nothing and does not say why; other words may help")
        if image.startswith(("http://", "https://")):
            data = await self._fetched(context, image)
        elif head := _DATA_URI.match(image):
            text = image[head.end() :]
            data = _decoded(text) if head[0].lower().endswith(";base64,") else unquote_to_bytes(text)
        else:
            data = _decoded(image)
        if not image_kind(data):
            raise ToolError(f"{self.model} gave {len(data):,} bytes that are no image")
        return data

    async def _fetched(self, context: ToolContext, url: str) -> bytes:
        """From the endpoint itself, which is trusted with the key already; anything else as the web tools fetch."""
        if urlsplit(url)[:2] != urlsplit(self._base_url)[:2]:
            from kiseki.tools.web.fetching import Fetcher

            fetcher = context.services.get(Fetcher)
            fetched = await fetcher.fetch(url, max_bytes=MAX_FILE_BYTES, timeout=CALL_SECONDS, on_hold=context.on_hold)
            status, data = fetched.status, fetched.body
        else:
            import aiohttp

            too_large = BadResponse(f"the image has more than {MAX_FILE_BYTES:,} bytes")
            try:
                async with self._open().get(url, proxy=self._proxy, allow_redirects=False) as response:
                    status, data = response.status, await read_body(response, MAX_FILE_BYTES, more=too_large)
            except (aiohttp.ClientError, OSError, BadResponse) as error:
                raise ToolError(f"the image that {self.model} drew cannot be fetched: {error}") from error
        if status != 200:
            raise ToolError(f"the image that {self.model} drew cannot be fetched: HTTP status {status}")
        return data

    def _shown(self, words: str) -> str:
        """`words` without the key, then cut."""
        return (words.replace(self._key, "***") if self._key else words)[:EXCERPT_CHARS]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=False)
    except binascii.Error as error:
        raise ToolError(f"the image model's answer holds no valid base64: {error}") from None
