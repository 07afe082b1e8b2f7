"""A rollout's pages under `--web_record` and `--web_replay`: every request of theirs is answered here.

An answer belongs to the rollout that got it: what a site says depends on who is logged in, and on what was asked before. So its
key names the rollout, and the how-many-th equal request it is. What a server allows everybody to keep is kept once for all.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import msgspec

from kiseki.errors import SandboxError
from kiseki.tools.browser.proxy import REFUSED, Proxy
from kiseki.tools.web.store import Store

if TYPE_CHECKING:
    from playwright.async_api import APIResponse, Request, Route, WebSocketRoute

KIND = "browser"
FETCH_SECONDS = 20.0
MAX_BODY = 50_000_000
"""Bytes of a response that is kept: as much as of a file that goes into the sandbox."""
MAX_REDIRECTS = 5
"""Of what is no page of its own; those of pages are followed by the browser, which has bounds itself."""
MAX_REQUESTS = 20_000
"""Of one rollout: a page can ask for ever."""
_SHARED_TYPES = frozenset({"font", "image", "script", "stylesheet"})
_UNSHARED = re.compile(r"no-store|no-cache|private|max-age=0\b")
_OF_TRANSFER = frozenset({"connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding"})
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Response(msgspec.Struct, frozen=True):
    """As it is kept."""

    status: int
    """0 where there is none; the body says why."""
    headers: list[tuple[str, str]] = []
    body: bytes = b""


class Recorder:
    """One per rollout that records or replays."""

    def __init__(self, store: Store, proxy: Proxy | None, rollout: str) -> None:
        """`proxy`: knows why nothing came. `rollout`: its key."""
        self._store = store
        self._proxy = proxy
        self._rollout = rollout
        self._counts: Counter[str] = Counter()
        self.problem: SandboxError | None = None
        """Of the recording itself, which ends the rollout."""
        self.failures: dict[str, str] = {}
        """Address → why nothing came from there."""

    async def answer(self, route: Route) -> None:
        """Answer one request of a page. Never raises."""
        from playwright.async_api import Error

        try:
            response = await self._response(route)
            if response.status:
                await _fulfill(route, response)
            else:
                if len(self.failures) < MAX_REQUESTS:
                    self.failures[route.request.url] = response.body.decode()
                await route.abort()
        except SandboxError as error:
            self.problem = error
        except msgspec.DecodeError as error:
            self.problem = SandboxError(f"the recording holds what no browser wrote: {error}")
        except Error:
            pass  # the page is gone

    async def refuse_socket(self, socket: WebSocketRoute) -> None:
        """What is said over a WebSocket cannot be repeated, so there is none in a recording either."""
        await socket.close()

    async def _response(self, route: Route) -> Response:
        request = route.request
        body = hashlib.sha256(_without_boundary(request)).hexdigest() if request.post_data_buffer else ""
        what = (request.method, request.url, body)
        shared = msgspec.json.encode(("", *what, 0)).decode()
        may_share = request.method == "GET" and request.resource_type in _SHARED_TYPES
        kept = await self._store.get(KIND, shared) if may_share else None
        if kept is None:
            if self._counts.total() >= MAX_REQUESTS:
                return _failed(f"a rollout can make {MAX_REQUESTS:,} requests, and these were made")
            plain = msgspec.json.encode(what).decode()
            self._counts[plain] += 1
            own = msgspec.json.encode((self._rollout, *what, self._counts[plain])).decode()
            kept = await self._store.get(KIND, own)
        if kept is not None:
            return msgspec.msgpack.decode(kept, type=Response)
        if self._store.mode == "replay":
            return _failed(f"{request.url[:300]} is not in the recording that this run replays")
        response = await self._fetch(route)
        key = shared if may_share and _is_for_all(response) else own
        await self._store.put(KIND, key, msgspec.msgpack.encode(response))
        return response

    async def _fetch(self, route: Route) -> Response:
        """The server's answer, or why there is none that can be kept."""
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as TookTooLong

        follows = 0 if route.request.is_navigation_request() else MAX_REDIRECTS
        try:
            answer = await route.fetch(max_redirects=follows, timeout=FETCH_SECONDS * 1000)
            if int(answer.headers.get("content-length", "0")) > MAX_BODY:
                return _failed(f"the answer is larger than {MAX_BODY:,} bytes")
            body = await answer.body()
            await answer.dispose()
        except TookTooLong:
            return _failed(f"{route.request.url[:300]} did not answer within {FETCH_SECONDS:g} s")
        except (Error, ValueError):
            known = self._proxy.why(route.request.url) if self._proxy else ""
            return _failed(known or f"{route.request.url[:300]} does not answer")
        if REFUSED in answer.headers:
            return _failed(body.decode("utf-8", "replace"))
        if len(body) > MAX_BODY:
            return _failed(f"the answer is larger than {MAX_BODY:,} bytes")
        return _kept(answer, body)


def _failed(why: str) -> Response:
    return Response(0, body=why.encode())


def _kept(answer: APIResponse, body: bytes) -> Response:
    headers = [(each["name"], each["value"]) for each in answer.headers_array if each["name"].lower() not in _OF_TRANSFER]
    return Response(answer.status, headers, body)


async def _fulfill(route: Route, response: Response) -> None:
    headers: dict[str, str] = {}
    for name, value in response.headers:
        name = name.lower()
        joint = "\n" if name == "set-cookie" else ", "
        headers[name] = f"{headers[name]}{joint}{value}" if name in headers else value
    if response.status in _REDIRECTS and "location" in headers and route.request.is_navigation_request():
        # The request that a redirect leads to is not given to us: Playwright intercepts only the first of a chain
        target = urljoin(route.request.url, headers.pop("location"))
        page = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(target)}">'
        headers = {"content-type": "text/html; charset=utf-8"} | {k: v for k, v in headers.items() if k == "set-cookie"}
        await route.fulfill(status=200, headers=headers, body=page)
    else:
        await route.fulfill(status=response.status, headers=headers, body=response.body)


def _is_for_all(response: Response) -> bool:
    headers = {name.lower(): value.lower() for name, value in response.headers}
    control = headers.get("cache-control", "")
    return response.status == 200 and "max-age" in control and not _UNSHARED.search(control) and "set-cookie" not in headers


def _without_boundary(request: Request) -> bytes:
    """The body, the same each time: what stands between the parts of a form is drawn at random."""
    body = request.post_data_buffer or b""
    found = re.search(r"boundary=([\w'()+,./:=?-]+)", request.headers.get("content-type", ""))
    return body.replace(found[1].encode(), b"boundary") if found else body
