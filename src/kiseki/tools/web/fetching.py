"""Fetches what web tools are told to, and nothing else: public addresses, within bounds of size, time and politeness.

Pages are hostile: where a redirect leads is judged as the first address was, what is unpacked is bounded as it comes, and nothing
goes out but the request (no cookies, no proxy, no credentials, no referrer). Equal fetches of a run are one (`store.py`).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from kiseki import __version__
from kiseki.errors import ToolError
from kiseki.models.base import NOT_HELD
from kiseki.tools.services import Services
from kiseki.tools.web import robots
from kiseki.tools.web.addresses import Guard
from kiseki.tools.web.store import Made, Store
from kiseki.tools.web.turns import Turns
from kiseki.tools.web.unpacking import Unpacked
from kiseki.trajectory.text import clean_text

AGENT = "kiseki"
"""In a robots.txt."""
HEADERS = {
    "User-Agent": f"Kiseki/{__version__} (fetches single pages for language models; honours robots.txt as {AGENT})",
    "Accept": "text/html,application/xhtml+xml,application/pdf,text/plain,application/json,application/xml;q=0.9,*/*;q=0.5",
    "Accept-Language": "en,*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}
FETCH_SECONDS = 30.0
"""For one page with all its redirects; turns at hosts are not counted."""
ROBOTS_SECONDS = 10.0
CONNECT_SECONDS = 10.0
MAX_REDIRECTS = 5
MAX_URL = 4_000
"""Characters; servers seldom take more than 8,000."""
AT_ONCE = 64
"""Connections of a worker process: bounds what it holds of pages that are on their way."""
CHUNK = 2**16
KNOWN_ROBOTS = 2_000
"""Sites whose rules are kept in memory."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAY_PASS = frozenset({408, 425, 429})
"""Answers of a moment, as all from 500 on are."""


class Fetched(msgspec.Struct, frozen=True):
    """What a server answered, whatever its status."""

    url: str
    """After redirects."""
    status: int
    content_type: str
    """As the server said it, with its parameters; "" when it did not."""
    body: bytes
    """Unpacked."""


class _Outcome(msgspec.Struct, frozen=True):
    """As it is kept."""

    fetched: Fetched | None = None
    error: str = ""


class Fetcher:
    """A worker's."""

    def __init__(self, services: Services) -> None:
        self._store = services.get(Store)
        self._guard = Guard(services.settings.web_allow)
        self._turns = Turns()
        self._session: aiohttp.ClientSession | None = None
        self._robots: dict[str, robots.Robots] = {}

    async def fetch(
        self,
        url: str,
        *,
        max_bytes: int,
        timeout: float = FETCH_SECONDS,
        on_hold: AbstractContextManager[Any] = NOT_HELD,
    ) -> Fetched:
        """GET `url`. `max_bytes`: of the body, unpacked. `timeout`: seconds, without the wait for a turn at the host, in which
        `on_hold` is entered.

        Raises `ToolError`: no http(s) address, a private one, forbidden by robots.txt, no answer in time, too large, …; and
        `SandboxError` where a recording fails.
        """
        target = read_url(url)
        request = msgspec.json.encode({"url": str(target), "max_bytes": max_bytes}, order="sorted").decode()

        async def make(begun: Callable[[], None]) -> Made:
            return await self._make(target, max_bytes, timeout, begun)

        return _read(await self._store.once("fetch", request, make, on_hold, what=str(target)))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _make(
        self, target: URL, max_bytes: int, timeout: float, begun: Callable[[], None], *, for_robots: bool = False
    ) -> Made:
        try:
            fetched = await self._follow(target, max_bytes, timeout, begun, for_robots)
        except ToolError as error:
            return Made(msgspec.msgpack.encode(_Outcome(error=str(error))), failed=True)
        return Made(msgspec.msgpack.encode(_Outcome(fetched)), may_pass(fetched.status))

    async def _follow(self, target: URL, max_bytes: int, timeout: float, begun: Callable[[], None], for_robots: bool) -> Fetched:
        left, clock = timeout, asyncio.get_running_loop().time
        for _ in range(MAX_REDIRECTS + 1):
            host, port = target.raw_host or "", target.port or 0
            named = self._guard.is_named(host, port, await self._guard.resolve(host, port))
            if not (named or for_robots):
                await self._check_robots(target)
            async with nullcontext() if named else self._turns.at(host):
                begun()
                started = clock()
                try:
                    async with asyncio.timeout(left):
                        found = await self._get(target, max_bytes, cut=for_robots)
                except (aiohttp.ClientError, OSError, ValueError) as error:  # a TimeoutError is an OSError
                    raise ToolError(f"{target.host}: {_words(error, timeout)}") from error
                left -= clock() - started
            if isinstance(found, Fetched):
                return found
            target = found
        raise ToolError(f"{target.host}: more than {MAX_REDIRECTS} redirects")

    async def _get(self, target: URL, max_bytes: int, *, cut: bool) -> Fetched | URL:
        """One request: its answer, or where it redirects to. `cut`: take what comes first of a body that is too large."""
        async with self._open_session().get(target, allow_redirects=False) as response:
            location = response.headers.get("Location", "")
            if response.status in _REDIRECTS and location:
                return read_url(location, target)
            length = response.content_length
            if not cut and length is not None and length > max_bytes:
                raise ToolError(f"{target} has {length:,} bytes, more than the {max_bytes:,} that are read")
            unpacked = Unpacked(response.headers.get("Content-Encoding", ""), max_bytes)
            async for chunk in response.content.iter_chunked(CHUNK):
                if not unpacked.add(chunk):
                    if cut:
                        break
                    raise ToolError(f"{target} has more than the {max_bytes:,} bytes that are read")
            content_type = clean_text(response.headers.get("Content-Type", ""))
            return Fetched(str(target), response.status, content_type[:200], unpacked.data())

    async def _check_robots(self, target: URL) -> None:
        """Raises `ToolError` where the site's robots.txt forbids the page, or cannot be had."""
        origin = target.origin()
        rules = self._robots.get(str(origin))
        if rules is None:
            place = origin.with_path("/robots.txt")

            async def make(begun: Callable[[], None]) -> Made:
                return await self._make(place, robots.MAX_BYTES, ROBOTS_SECONDS, begun, for_robots=True)

            answer = _read(await self._store.once("robots", str(place), make))
            if may_pass(answer.status):
                raise ToolError(
                    f"{target.host}: its robots.txt cannot be read (HTTP {answer.status}), so its pages are left alone"
                )
            # 4xx: there are no rules (RFC 9309)
            text = answer.body.decode("utf-8", "replace") if answer.status == 200 else ""
            rules = robots.parse(text, AGENT)
            if len(self._robots) >= KNOWN_ROBOTS:
                self._robots.clear()
            self._robots[str(origin)] = rules
        if not rules.allows(target.raw_path_qs):
            raise ToolError(f"{target.host} does not allow programs to fetch this page (robots.txt)")

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(resolver=_Resolver(self._guard), use_dns_cache=False, limit=AT_ONCE)
            self._session = aiohttp.ClientSession(
                connector=connector,
                headers=HEADERS,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


class _Resolver(AbstractResolver):
    """So that what is connected to is what the guard let through. (Addresses never come here; the guard saw them before.)"""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        found = await self._guard.resolve(host, port)
        kinds = [(each, socket.AF_INET6 if ":" in each else socket.AF_INET) for each in found]
        return [
            ResolveResult(hostname=host, host=each, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for each, kind in kinds
            if family in (socket.AF_UNSPEC, kind)
        ]

    async def close(self) -> None:
        pass


def read_url(text: str, base: URL | None = None) -> URL:
    """An address that can be fetched, without its fragment; relative to `base`. Raises `ToolError`."""
    shown = text.strip()[:300]
    if len(text) > MAX_URL:
        raise ToolError(f"the address has more than {MAX_URL:,} characters: {shown}…")
    try:
        url = URL(text.strip())
        url = (base.join(url) if base is not None else url).with_fragment(None)
        scheme, host, port = url.scheme, url.raw_host, url.port
    except (ValueError, TypeError) as error:
        raise ToolError(f"{shown!r} is no address of a page: {error}") from error
    if scheme not in ("http", "https"):
        raise ToolError(f"{shown!r} is no address of a page; only http:// and https:// are fetched")
    if not host or not port:
        raise ToolError(f"{shown!r} is no address of a page: it names no host")
    if url.raw_user is not None or url.raw_password is not None:
        raise ToolError("an address with a user name or password in it is not fetched")
    return url


def may_pass(status: int) -> bool:
    """Whether the same request may be answered otherwise in a while."""
    return status >= 500 or status in _MAY_PASS


def _read(response: bytes) -> Fetched:
    outcome = msgspec.msgpack.decode(response, type=_Outcome)
    if outcome.fetched is None:
        raise ToolError(outcome.error)
    return outcome.fetched


def _words(error: Exception, timeout: float) -> str:
    """Why there is no answer: the same words each time, so without ports and addresses of the moment."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
        return "no secure connection can be made (its certificate or TLS is not valid)"
    if isinstance(error, aiohttp.ServerTimeoutError):
        return f"no connection within {CONNECT_SECONDS:g} seconds"
    if isinstance(error, TimeoutError):
        return f"no whole answer within {timeout:g} seconds"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection can be made"
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError):
        return "the server closed the connection"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer ended before it was whole"
    if isinstance(error, aiohttp.ClientResponseError):
        return "what answers does not speak HTTP as it should"
    return f"cannot be fetched ({type(error).__name__})"
