"""The `browser` toolset: web pages in a real Chromium, acted on by the refs of a snapshot.

All that a page does meanwhile (dialogs, new tabs, downloads) is answered at once and told in `events` of the next result. Every
wait is bounded below a minute; the tools' own timeout is a net for waits in a queue.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from kiseki.errors import ToolError
from kiseki.tools.browser import session as browsing
from kiseki.tools.browser.chromium import WAIT_SECONDS, Browsers
from kiseki.tools.browser.session import Session, reason, session_of
from kiseki.tools.browser.showing import EFFECT_BYTES, FULL_BYTES, SNAPSHOT_BYTES, effect, look, url_of
from kiseki.tools.context import ToolContext
from kiseki.tools.registry import tool
from kiseki.tools.results import Image
from kiseki.trajectory.text import cut_middle

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

CALL_SECONDS = WAIT_SECONDS + 300.0
MAX_URL = 8_000
"""Characters, as servers allow."""
MAX_TYPED = 100_000
"""Characters; a large text area's worth."""
MAX_IMAGES = 50
MAX_OPTIONS = 50
"""Of a list, that are named to a model that chose another."""
MAX_MESSAGES = 50
"""Of the console, the last ones."""
MAX_VALUE = 8_000
"""Bytes of what an expression gives: about 2,000 tokens."""
EVALUATE_SECONDS = 10.0
QUALITY = 80
"""Of a screenshot, in JPEG: a page of text is read without fault, at 100 to 200 kB."""
SCROLL_SHARE = 0.85
"""Of the view's height, so that a line or two of before stay."""

_SCROLL = """(share) => {
  const canScroll = (e) => e.scrollHeight > e.clientHeight + 4;
  let box = document.scrollingElement ?? document.documentElement;
  if (!canScroll(box)) {
    for (let e = document.elementFromPoint(innerWidth / 2, innerHeight / 2); e; e = e.parentElement) {
      if (canScroll(e) && ['auto', 'scroll', 'overlay'].includes(getComputedStyle(e).overflowY)) { box = e; break; }
    }
  }
  const before = box.scrollTop;
  box.scrollBy({top: share * Math.min(box.clientHeight, innerHeight), behavior: 'instant'});
  return [before, box.scrollTop, box.clientHeight, box.scrollHeight].map(Math.round);
}"""
_IMAGES = """([most, longest]) => {
  const all = [...document.images];
  const short = (text) => text.startsWith('data:') ? text.slice(0, 30) + '…' : text.slice(0, longest);
  const first = all.slice(0, most).map((e) => ({
    src: short(e.currentSrc || e.src), alt: e.alt.slice(0, 300), width: e.naturalWidth, height: e.naturalHeight,
  }));
  return [all.length, first];
}"""
_SHOW_VALUE = """(value, most) => {
  if (value instanceof Node) value = value.outerHTML ?? value.textContent;
  let text;
  try { text = typeof value === 'function' ? undefined : JSON.stringify(value); } catch {}
  return (text ?? String(value)).slice(0, most);
}"""
_OPTIONS = "e => e.tagName === 'SELECT' ? [...e.options].slice(0, 10000).map((o) => [o.value, o.label]) : null"
_NAMED_KEYS = (
    *("Enter", "Tab", "Escape", "Backspace", "Delete", "Space", "Insert", "Home", "End", "PageUp", "PageDown"),
    *("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "Control", "Shift", "Alt", "Meta"),
)
_KEYS = {each.lower(): each for each in _NAMED_KEYS}
_KEYS |= {"esc": "Escape", "return": "Enter", "ctrl": "Control", "del": "Delete", "cmd": "Meta"}
_KEYS |= {"up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight"}
"""What models call keys, in lower case, and what Playwright does."""


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_navigate(context: ToolContext, url: str) -> dict[str, Any]:
    """Open a page in the browser. Gives its title and address and a snapshot: the page's elements as text, those that can be
    acted on with a ref such as @e12 for browser_click and browser_type. Refs are those of the latest result.

    Args:
        url: Address, http or https.
    """
    from playwright.async_api import Error

    address = _address(url)
    await _check(context.services.get(Browsers), address)
    async with session_of(context, opens=True) as session:
        end = time.monotonic() + browsing.NAVIGATION_SECONDS
        page, note = session.page, ""
        try:
            await page.goto(address, wait_until="commit", timeout=browsing.NAVIGATION_SECONDS * 1000)
            left = max(end - time.monotonic(), 0.1)
            await page.wait_for_load_state("domcontentloaded", timeout=left * 1000)
        except Error as error:
            note = await _why_not(session, page, address, error)
        _check_answer(session, page)
        await session.settle(0.5 if note else browsing.SETTLE_SECONDS)
        answer = await look(session, EFFECT_BYTES)
        return answer | _noted(answer, note)


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_snapshot(context: ToolContext, full: bool = False) -> dict[str, Any]:
    """Show the current page: its elements as text, those that can be acted on with a ref such as @e12. Of a long page it shows
    what is in view and what follows, as far as it fits.

    Args:
        full: Show much more, from the top of the page on.
    """
    async with session_of(context) as session:
        return await look(session, FULL_BYTES if full else SNAPSHOT_BYTES, whole=full)


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_click(context: ToolContext, ref: str) -> dict[str, Any]:
    """Click an element of the page. Gives what that changed.

    Args:
        ref: The element's ref in the latest result, such as @e12.
    """
    async with session_of(context) as session:
        target = await _target(session, ref)
        return await _acted(session, target.click(timeout=browsing.ACTION_SECONDS * 1000), ref)


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_type(context: ToolContext, ref: str, text: str) -> dict[str, Any]:
    """Fill a text field with text, in place of what is in it, or choose the option of that name in a list. Gives what that
    changed. To send a form, follow with browser_press Enter or a click on its button.

    Args:
        ref: The field's ref in the latest result, such as @e12.
        text: What the field is to hold.
    """
    if len(text) > MAX_TYPED:
        raise ToolError(f"the text has {len(text):,} characters; at most {MAX_TYPED:,} can be typed at once")
    async with session_of(context) as session:
        target = await _target(session, ref)
        limit = browsing.ACTION_SECONDS * 1000
        options = await session.ask(target.evaluate(_OPTIONS))
        if options is not None:
            if not any(text in each for each in options):
                there = ", ".join(repr(label[:100]) for _, label in options[:MAX_OPTIONS])
                raise ToolError(f"the list has no option {text[:100]!r}; it has: {there or 'none'}")
            return await _acted(session, target.select_option(text, timeout=limit), ref)
        return await _acted(session, target.fill(text, timeout=limit), ref)


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_scroll(context: ToolContext, direction: Literal["up", "down"]) -> dict[str, Any]:
    """Scroll the page by about one screen. Gives where it is then, and what is new on it.

    Args:
        direction: Where to.
    """
    async with session_of(context) as session:
        share = SCROLL_SHARE if direction == "down" else -SCROLL_SHARE
        before, now, height, total = await session.ask(session.page.evaluate(_SCROLL, share))
        await session.settle()
        answer = await effect(session, scrolled=True)
        edge = "" if now != before else "; it is the end" if direction == "down" else "; it is the top"
        return answer | {"scrolled_to": f"{now} to {now + height} of {total} pixels{edge}"}


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_back(context: ToolContext) -> dict[str, Any]:
    """Go back to the page before this one; a new tab without one is closed."""
    async with session_of(context) as session:
        page = session.page
        history = await session.devtools("Page.getNavigationHistory")
        earlier = [each["url"] for each in history["entries"][: history["currentIndex"]]]
        if earlier and earlier != ["about:blank"]:
            await page.go_back(wait_until="commit", timeout=browsing.NAVIGATION_SECONDS * 1000)
        elif len(page.context.pages) > 1:
            await page.close()
        else:
            raise ToolError("there is no page before this one")
        await session.settle()
        return await look(session, EFFECT_BYTES)


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_press(context: ToolContext, key: str) -> dict[str, Any]:
    """Press a key, where the focus is. Gives what that changed.

    Args:
        key: A key's name (Enter, Tab, Escape, ArrowDown, PageDown, a), or several held together, as in Control+A.
    """
    named = "+".join(_KEYS.get(each.lower(), each) for each in re.split(r"(?<=.)\+", key.strip()))
    async with session_of(context) as session:
        return await _acted(session, session.page.keyboard.press(named), "")


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_get_images(context: ToolContext) -> dict[str, Any]:
    """List the images of the current page, with address, alternative text and size in pixels."""
    async with session_of(context) as session:
        count, images = await session.ask(session.page.evaluate(_IMAGES, [MAX_IMAGES, 500]))
        answer: dict[str, Any] = {"url": await url_of(session, session.page), "images": images[:MAX_IMAGES]}
        if count > MAX_IMAGES:
            answer |= {"truncated": True, "note": f"the first {MAX_IMAGES} of {count:,} images"}
        return answer


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_vision(context: ToolContext, question: str) -> dict[str, Any]:
    """Look at the current page as it appears on the screen, and answer a question about it: for what a snapshot does not tell
    (pictures, charts, layout, a canvas).

    Args:
        question: What is to be found out.
    """
    from kiseki.tools.vision.asking import ask_about

    async with session_of(context) as session:
        taken = session.page.screenshot(type="jpeg", quality=QUALITY, timeout=EVALUATE_SECONDS * 1000, animations="disabled")
        picture = Image(await session.ask(taken, EVALUATE_SECONDS + 1), "jpeg", "screenshot")
    return {"answer": await ask_about(context, [picture], question), "image": picture}


@tool(toolset="browser", timeout=CALL_SECONDS)
async def browser_console(context: ToolContext, clear: bool = False, expression: str = "") -> dict[str, Any]:
    """Read what the page has written to its console, and its uncaught errors; and evaluate JavaScript in it.

    Args:
        clear: Forget the messages after this.
        expression: JavaScript to evaluate in the page first; a promise is waited for. Its value comes as JSON.
    """
    async with session_of(context) as session:
        page = session.page
        answer: dict[str, Any] = {}
        if expression.strip():
            answer["value"] = await _value(session, page, expression)
            await session.settle(1.0)
            page = session.page
        messages = [
            {"type": each.type, "text": each.text[: browsing.MAX_MESSAGE]}
            for each in await session.ask(page.console_messages(filter="all"))
        ]
        errors = [
            f"{each.name}: {each.message}"[: browsing.MAX_MESSAGE] for each in await session.ask(page.page_errors(filter="all"))
        ]
        answer |= {"messages": messages[-MAX_MESSAGES:], "errors": errors[-MAX_MESSAGES:]}
        if len(messages) > MAX_MESSAGES or len(errors) > MAX_MESSAGES:
            answer |= {"truncated": True, "note": f"the last {MAX_MESSAGES} of each"}
        if clear:
            await page.clear_console_messages()
            await page.clear_page_errors()
        if session.events:
            answer["events"], session.events = session.events, []
        return answer


# ---- navigation -----------------------------------------------------------------------------------------------------------


def _address(url: str) -> str:
    """Raises `ToolError` for what is no page on the web."""
    url = url.strip()
    if "://" not in url and not re.match(r"[a-z-]+:(?!\d)", url, re.IGNORECASE):
        url = f"https://{url}"
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if url == "about:blank":
        return url
    if not good:
        raise ToolError(f"{url[:300]!r} is no address of a web page: only http:// and https:// can be opened")
    if len(url) > MAX_URL:
        raise ToolError(f"the address has {len(url):,} characters; at most {MAX_URL:,} can be sent")
    return url


async def _check(browsers: Browsers, address: str) -> None:
    """Say at once, and in words, what the proxy would refuse. Raises `ToolError`."""
    parts = urlsplit(address)
    if parts.hostname and not browsers.recorded:  # else the request and what comes of it belong into the recording
        await browsers.guard.resolve(parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))


def _check_answer(session: Session, page: Page) -> None:
    """The proxy's own answer is no page. Raises `ToolError`."""
    proxy = session.browsers.proxy
    if proxy and page.url.startswith("http:") and (why := proxy.why(page.url)):
        raise ToolError(why)


async def _why_not(session: Session, page: Page, address: str, error: Exception) -> str:
    """What to note about a page that is not all there. Raises `ToolError` when nothing of it is."""
    from playwright.async_api import TimeoutError as PageTimeout

    text = str(error)
    if "Download is starting" in text or session.downloading:
        return "that is a file, which is downloaded; the page stays as it was"
    if "interrupted by another navigation" in text:  # also by Chromium's own page about what failed before; ours goes on
        return ""
    if isinstance(error, PageTimeout):
        if session.loading:
            await session.stop_loading()
            raise ToolError(f"{address[:300]} did not answer within {browsing.NAVIGATION_SECONDS:g} s") from error
        return f"the page was still loading after {browsing.NAVIGATION_SECONDS:g} s; this is what is there"
    asked_for = session.asked_for or address
    proxy, recorder = session.browsers.proxy, session.recorder
    why = recorder.failures.get(asked_for) if recorder else proxy.why(asked_for) if proxy else ""
    raise ToolError(why or reason(error)) from error


def _noted(answer: dict[str, Any], note: str) -> dict[str, Any]:
    if not note:
        return {}
    return {"note": f"{note}; {answer['note']}" if "note" in answer else note}


# ---- actions --------------------------------------------------------------------------------------------------------------


async def _target(session: Session, ref: str) -> Locator:
    """The element of a ref. Raises `ToolError` when there is none."""
    page, name = session.page, ref.strip().removeprefix("@")
    if name not in session.seen.refs:
        raise ToolError(f"there is no element {ref[:50]!r} in the latest snapshot; browser_snapshot shows which refs there are")
    target = page.get_by_ref(name)
    if await session.ask(target.count()) == 0:
        raise ToolError(f"the element {ref} is gone from the page: take a new browser_snapshot")
    return target


async def _acted(session: Session, action: Any, ref: str) -> dict[str, Any]:
    """Do it, and show what it led to."""
    from playwright.async_api import Error
    from playwright.async_api import TimeoutError as PageTimeout

    page = session.page
    try:
        await session.ask(action, browsing.ACTION_SECONDS * 2)
    except PageTimeout as error:
        if not session.loading:  # a click is not over before the page that it leads to has answered
            if not await session.responds():
                raise await session.stuck() from error
            raise ToolError(f"nothing was done with {ref} within {browsing.ACTION_SECONDS:g} s: {reason(error)}") from error
    except Error as error:
        await session.hear_of(error)
        if session.lost or not page.is_closed():  # a page that closes itself is what the action led to
            raise
    await session.settle()
    return await effect(session)


async def _value(session: Session, page: Page, expression: str) -> str:
    from playwright.async_api import Error

    try:
        handle = await session.ask(page.evaluate_handle(expression), EVALUATE_SECONDS)
        shown = await session.ask(handle.evaluate(_SHOW_VALUE, MAX_VALUE * 2))
    except TimeoutError:
        raise ToolError(f"the expression did not come to an end within {EVALUATE_SECONDS:g} s") from None
    except Error as error:
        if page.is_closed() or await session.hear_of(error):
            raise
        raise ToolError(f"the expression failed: {reason(error)}") from error
    data = str(shown).encode("utf-8", "replace")
    return cut_middle(data, MAX_VALUE).decode("utf-8", "replace") if len(data) > MAX_VALUE else data.decode()
