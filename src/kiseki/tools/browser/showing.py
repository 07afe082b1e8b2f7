"""How a page is shown to the model: all of it that fits, or what an action has changed on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiseki.errors import ToolError
from kiseki.tools.browser import snapshot
from kiseki.tools.browser.session import MAX_MESSAGE, Seen, Session

if TYPE_CHECKING:
    from playwright.async_api import Page

SNAPSHOT_BYTES = 24_000
"""About 6,000 tokens."""
FULL_BYTES = 60_000
EFFECT_BYTES = 12_000
"""Of what is shown after each action: about 3,000 tokens."""
SNAPSHOT_SECONDS = 10.0
"""A page with 40,000 elements takes 3."""
MAX_COMPARED = 5_000
"""Lines of a snapshot that are kept for the next one to be compared with."""
MAX_URL = 2_000
"""Characters."""
_SCHEMES = frozenset({"http", "https", "about", "blob", "chrome-error"})


async def look(session: Session, limit: int = SNAPSHOT_BYTES, *, whole: bool = False) -> dict[str, Any]:
    """The page as it is now, in `limit` bytes. `whole`: also what is scrolled out of view at the top."""
    return await _show(session, limit, whole=whole)


async def effect(session: Session, *, scrolled: bool = False) -> dict[str, Any]:
    """What an action led to: of a page that was shown already only what is new on it. `scrolled`: of one that is too long to be
    shown at once, what is in view is new."""
    return await _show(session, EFFECT_BYTES, changes=True, scrolled=scrolled)


async def url_of(session: Session, page: Page) -> str:
    """Where it is, in its own words: what the browser tells of a navigation can come after the page that it led to."""
    return str(await session.answer_or(page.url, page.evaluate("location.href")))[:MAX_URL]


async def _show(
    session: Session, limit: int, *, whole: bool = False, changes: bool = False, scrolled: bool = False
) -> dict[str, Any]:
    if session.loading:
        await session.settle()
    page = session.page
    await _leave_forbidden(page)
    url = await url_of(session, page)
    answer: dict[str, Any] = {"title": (await session.answer_or("", page.title()))[:MAX_MESSAGE], "url": url}
    if session.status >= 400:
        answer["status"] = session.status
    before, lines = session.seen, await _take(session, page)
    refs = frozenset(line.ref for line in lines if line.ref)
    session.seen = Seen(url, refs, lines if len(lines) <= MAX_COMPARED else ())
    too_long = snapshot.size(lines) > limit
    same = changes and _document(url) == _document(before.url) and not (scrolled and too_long)
    new = snapshot.changed(before.lines, lines) if same else None
    if new is not None:
        cut = snapshot.fit(new, limit)
        answer["changes"] = cut.text or "nothing that a snapshot shows"
    else:
        if not whole and too_long and await session.answer_or(False, page.evaluate("scrollY > 0")):
            lines = await _take(session, page, boxes=True)
        cut = snapshot.fit(lines, limit)
        answer["snapshot"] = cut.text or "(the page is empty)"
    if cut.above or cut.below:
        answer["truncated"] = True
        above = f"{cut.above:,} lines scrolled out of view above, " if cut.above else ""
        more = "" if whole else "; scroll, or use browser_snapshot with full=true"
        answer["note"] = f"not shown: {above}{cut.below:,} lines below{more}"
    session.dialogs = 0
    if session.events:
        answer["events"], session.events = session.events, []
    return answer


async def _take(session: Session, page: Page, *, boxes: bool = False) -> list[snapshot.Line]:
    from playwright.async_api import Error

    try:
        taken = page.aria_snapshot(mode="ai", boxes=boxes, timeout=SNAPSHOT_SECONDS * 1000)
        return snapshot.read(await session.ask(taken, SNAPSHOT_SECONDS + 1))
    except (Error, TimeoutError) as error:
        if page.is_closed() or session.lost:
            raise
        if not await session.responds():
            raise await session.stuck() from error
        text = await session.answer_or("", page.evaluate("(document.body?.innerText ?? '').slice(0, 60000)"))
        if text:
            session.tell("there is no snapshot of this page, which is too large or changes too fast; this is its text")
        return [snapshot.Line(0, each) for each in str(text)[:FULL_BYTES].splitlines() if each.strip()]


def _document(url: str) -> str:
    return url.partition("#")[0]


async def _leave_forbidden(page: Page) -> None:
    """Pages cannot lead there, as far as is known."""
    if urlsplit(page.url).scheme not in _SCHEMES:
        await page.close()
        raise ToolError(f"pages of the kind {urlsplit(page.url).scheme}: cannot be opened; the page was closed")
