"""One rollout's browser: its context, the page that the model is on, and what happens there beside what the model does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kiseki.errors import ToolError
from kiseki.tools.browser.chromium import Browsers, Lease, turn
from kiseki.tools.browser.downloads import keep_download
from kiseki.tools.browser.recording import Recorder
from kiseki.tools.browser.snapshot import Line
from kiseki.tools.context import ToolContext

if TYPE_CHECKING:
    from playwright.async_api import Dialog, Download, FileChooser, Frame, Page, Request, Response

T = TypeVar("T")

NAVIGATION_SECONDS = 15.0
"""Until a page has answered and its text is there."""
SETTLE_SECONDS = 5.0
"""For what a page does after that, or after an action."""
QUIET_SECONDS = 0.3
"""Without a request: what an action led to is over. Scripts like to wait a little."""
COMMIT_SECONDS = 0.5
"""Between the end of an answer and the page that it is; a file, or no content, is none."""
LONG_REQUEST_SECONDS = 3.0
"""A request that takes longer waits for news, and so would whoever waits for it."""
ACTION_SECONDS = 5.0
"""Until an element can be clicked or typed into."""
ANSWER_SECONDS = 5.0
"""For anything else that a page is asked."""
EVENT_SECONDS = 1.0
"""Between a call that fails because a page or the browser is gone, and the event that tells it: milliseconds."""
OPEN_SECONDS = 20.0
"""For an empty page."""
MAX_PAGES = 8
"""Of one rollout at once; a page can open as many as it likes."""
MAX_EVENTS = 20
"""That are told with one result."""
MAX_REQUESTS = 1_000
"""Under way at once, that are waited for."""
MAX_MESSAGE = 500
"""Characters of a dialog's text, a title and the like."""
FREE_DIALOGS = 20
"""Between two results; after them each waits `DIALOG_SECONDS`, so that a page full of them keeps nobody busy."""
DIALOG_SECONDS = 0.5
LOST = "the browser crashed, and its pages, cookies and logins with it: open a page again with browser_navigate"
_WAITED_FOR = frozenset({"document", "fetch", "script", "stylesheet", "xhr"})
_STATE_KEY = "browser"


class Seen(NamedTuple):
    """A page as it was shown."""

    url: str = ""
    refs: frozenset[str] = frozenset()
    lines: Sequence[Line] = ()
    """All of them, shown or not; none where they were too many."""


class Session:
    """Made by `session_of`."""

    def __init__(self, browsers: Browsers, context: ToolContext) -> None:
        self.lock = asyncio.Lock()
        """One call at a time."""
        self.events: list[str] = []
        """What has happened since the last result."""
        self.seen = Seen()
        """What the model was shown last."""
        self.recorder: Recorder | None = None
        """None where nothing is recorded or replayed."""
        self.browsers = browsers
        self._context = context
        self._lease: Lease | None = None
        self._page: Page | None = None
        self.asked_for = ""
        """The address of the last page that was asked for, redirects followed."""
        self.status = 0
        """That it answered with."""
        self._requests: dict[Request, float] = {}
        self._navigation: Request | None = None
        """For a page that is not there yet."""
        self.dialogs = 0
        """Since the last result."""
        self._downloads: set[asyncio.Task[None]] = set()

    # ---- life -------------------------------------------------------------------------------------------------------------

    @property
    def page(self) -> Page:
        """The one that the model is on. Raises `ToolError` when there is none."""
        if self._page is None or self._page.is_closed():
            why, self.events = "; ".join(self.events[-2:]), []
            raise ToolError(f"{why or 'no page is open'}: browser_navigate opens one")
        return self._page

    @property
    def lost(self) -> bool:
        """Whether the browser is gone that all of it was in."""
        return self._lease is not None and self._lease.lost

    @property
    def downloading(self) -> bool:
        return bool(self._downloads)

    @property
    def loading(self) -> bool:
        """Whether a page was asked for that has not answered."""
        return self._navigation is not None and _is_of_page(self._navigation)

    async def start(self) -> None:
        """Have a page. Raises `SandboxError`, `ToolError`."""
        if self._lease is None:
            self._lease = await self.browsers.open(self._context.on_hold)
            browser = self._lease.context
            browser.set_default_timeout(ANSWER_SECONDS * 1000)
            browser.on("page", self._on_page)
            browser.on("request", self._on_request)
            browser.on("response", self._on_response)
            browser.on("requestfinished", self._on_request_end)
            browser.on("requestfailed", self._on_request_end)
            if self.browsers.recorded:
                self.recorder = Recorder(self.browsers.store, self.browsers.proxy, self._context.rollout.key)
                await browser.route("**/*", self.recorder.answer)
                await browser.route_web_socket("**/*", self.recorder.refuse_socket)
        if self._page is None or self._page.is_closed():
            try:
                async with turn(self.browsers.turns, self._context.on_hold), asyncio.timeout(OPEN_SECONDS):
                    self._page = await self._lease.context.new_page()
            except TimeoutError:
                raise ToolError(f"the browser opened no page within {OPEN_SECONDS:g} s: it is very busy; try again") from None

    async def close(self) -> None:
        for task in self._downloads:
            task.cancel()
        self._page = None
        lease, self._lease = self._lease, None
        if lease:
            await lease.close()

    def check_recording(self) -> None:
        """Raises what ended it."""
        if self.recorder and self.recorder.problem:
            raise self.recorder.problem

    async def check(self) -> bool:
        """Whether all is as it was; False, once, when the browser was lost meanwhile."""
        if self.lost:
            await self.close()
            self.seen, self.events, self._requests = Seen(), [], {}
            return False
        return True

    async def hear_of(self, error: Exception) -> bool:
        """Whether a page or the browser is gone by what `error` says; if so, wait until that is known here too."""
        if not any(words in str(error) for words in ("been closed", "crashed", "onnection closed")):
            return False
        page, end = self._page, time.monotonic() + EVENT_SECONDS
        while not self.lost and page is self._page and page is not None and not page.is_closed():
            if time.monotonic() > end:
                if self._lease:
                    await self._lease.ask_after()
                break
            await asyncio.sleep(0.02)
        return True

    # ---- what happens in pages --------------------------------------------------------------------------------------------

    def tell(self, event: str) -> None:
        """Have this told with the next result."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(event if len(event) <= MAX_MESSAGE else f"{event[:MAX_MESSAGE]}…")

    def _on_page(self, page: Page) -> None:
        if self._lease and len(self._lease.context.pages) > MAX_PAGES:
            self.tell(f"the page opened another one, which was closed at once: {MAX_PAGES} are open already")
            page.on("dialog", self._on_dialog)
            _in_background(page.close())
            return
        page.on("dialog", self._on_dialog)
        page.on("download", self._on_download)
        page.on("filechooser", self._on_file_chooser)
        page.on("close", self._on_close)
        page.on("crash", self._on_crash)
        page.on("framenavigated", self._on_frame)
        if self._page is not None and not self._page.is_closed():
            self.tell("a new tab opened and is now the current page; browser_back closes it")
        self._page = page

    def _on_close(self, page: Page, what: str = "the page was closed") -> None:
        if page is self._page and self._lease:
            left = [each for each in self._lease.context.pages if not each.is_closed() and each is not page]
            self._page = left[-1] if left else None
            self.tell(what + ("; the one before it is the current page again" if left else ""))

    def _on_crash(self, page: Page) -> None:
        self._on_close(page, "the page crashed")
        _in_background(page.close())

    async def _on_dialog(self, dialog: Dialog) -> None:
        self.dialogs += 1
        if dialog.type == "prompt":
            self.tell(f"the page asked (prompt): {dialog.message!r}; the answer was its default, {dialog.default_value!r}")
        elif dialog.type != "beforeunload":
            self.tell(f"the page said ({dialog.type}): {dialog.message!r}; it was accepted")
        else:
            self.tell("the page asked whether to leave it; it was left")
        if self.dialogs > FREE_DIALOGS:
            await asyncio.sleep(DIALOG_SECONDS)
        with contextlib.suppress(Exception):  # its page may be gone
            await (dialog.accept(dialog.default_value) if dialog.type == "prompt" else dialog.accept())

    async def _on_file_chooser(self, chooser: FileChooser) -> None:
        self.tell("the page asked for a file to upload; none was given: files cannot be uploaded")

    def _on_download(self, download: Download) -> None:
        async def keep() -> None:
            self.tell(await keep_download(self._context, download))

        task = asyncio.ensure_future(keep())
        self._downloads.add(task)
        task.add_done_callback(self._downloads.discard)

    def _on_request(self, request: Request) -> None:
        if request.resource_type in _WAITED_FOR and len(self._requests) < MAX_REQUESTS:
            self._requests[request] = time.monotonic()

        if request.is_navigation_request() and _is_of_page(request):
            self._navigation, self.asked_for, self.status = request, request.url, 0

    def _on_response(self, response: Response) -> None:
        if response.request is self._navigation:
            self.status = response.status

    def _on_request_end(self, request: Request) -> None:
        self._requests.pop(request, None)
        if request is self._navigation:  # its page comes now, if it is one
            asyncio.get_running_loop().call_later(COMMIT_SECONDS, self._on_arrival, request)

    def _on_frame(self, frame: Frame) -> None:
        if frame.parent_frame is None:
            self._on_arrival(self._navigation)

    def _on_arrival(self, request: Request | None) -> None:
        if request is self._navigation:
            self._navigation = None

    # ---- waiting ----------------------------------------------------------------------------------------------------------

    async def ask(self, answer: Coroutine[Any, Any, T], seconds: float = ANSWER_SECONDS) -> T:
        """What the page answers. Raises `ToolError` when it does not in time: one that is busy for ever is closed."""
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            if await self.responds():
                raise
            raise await self.stuck() from None

    async def responds(self) -> bool:
        """Whether the page does anything at all."""
        from playwright.async_api import Error

        if self.loading:
            await self.stop_loading()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.page.evaluate("1")
            return True
        except (TimeoutError, ToolError):
            return False
        except Error:
            return not self.page.is_closed()

    async def stuck(self) -> ToolError:
        """Close a page that does not respond: it uses a processor for as long as it is open. Returns what to raise."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self.page.close()
        self.events.clear()
        return ToolError("the page does not respond any more and was closed: its script is busy; go on with browser_navigate")

    async def settle(self, seconds: float = 0.0) -> None:
        """Wait until the page asks for nothing more, for a moment, `seconds` (default: `SETTLE_SECONDS`) at most; longer for
        another page that it leads to."""
        start = quiet = time.monotonic()
        end = start + (seconds or SETTLE_SECONDS)
        while (now := time.monotonic()) < (start + NAVIGATION_SECONDS if self.loading else end):
            if now - quiet >= QUIET_SECONDS and not self.loading:
                break
            await asyncio.sleep(0.05)
            # those of before do not count: they wait for news
            if self._downloads or any(start - 1 < at and now - at < LONG_REQUEST_SECONDS for at in self._requests.values()):
                quiet = now
        if self.loading:
            self.tell(f"{self.asked_for} did not answer within {NAVIGATION_SECONDS:g} s")
            await self.stop_loading()
        if self._page is not None and not self._page.is_closed():
            with contextlib.suppress(Exception):
                left = max(end - time.monotonic(), 0.1)
                await self._page.wait_for_load_state("domcontentloaded", timeout=left * 1000)

    async def devtools(self, method: str) -> dict[str, Any]:
        """What the browser, not the page, answers to a command of the DevTools protocol."""
        async with asyncio.timeout(ANSWER_SECONDS):
            connection = await self.page.context.new_cdp_session(self.page)
            answer: dict[str, Any] = await connection.send(method)
            await connection.detach()
            return answer

    async def stop_loading(self) -> None:
        """Give up a page that does not answer: until then, the one before it does not either."""
        self._navigation = None
        with contextlib.suppress(Exception):
            await self.devtools("Page.stopLoading")

    async def answer_or(self, otherwise: T, answer: Coroutine[Any, Any, T]) -> T:
        """What the page answers, or `otherwise` where it does not. Raises `ToolError` as `ask` does."""
        from playwright.async_api import Error

        try:
            return await self.ask(answer)
        except (Error, TimeoutError):
            return otherwise


@contextlib.asynccontextmanager
async def session_of(context: ToolContext, *, opens: bool = False) -> AsyncIterator[Session]:
    """This rollout's session, for one call. `opens`: have a page, should there be none.

    What goes wrong in it comes out as `ToolError`, but for `SandboxError`.
    """
    from playwright.async_api import Error

    session = context.state.get(_STATE_KEY)
    if session is None:
        session = context.state[_STATE_KEY] = Session(context.services.get(Browsers), context)
        context.on_close(session.close)
    assert isinstance(session, Session)
    async with turn(session.lock, context.on_hold):
        try:
            if not await session.check():
                if not opens:
                    raise ToolError(LOST)
                session.tell("the browser crashed before this: cookies and logins are lost")
            if opens:
                await session.start()
            async with turn(session.browsers.turns, context.on_hold):
                yield session
            session.check_recording()
        except (Error, TimeoutError) as error:
            session.check_recording()
            await session.hear_of(error)
            if not await session.check():
                raise ToolError(LOST) from error
            raise ToolError(reason(error) if session.page else "") from error  # a page that is gone says so


def reason(error: BaseException) -> str:
    """What a model can use of an error of Playwright's: without the name of the function, and the log's essence."""
    if isinstance(error, TimeoutError):
        return "the page did not answer in time"
    first, _, log = str(error).partition("\n")
    first = re.sub(r"^[A-Z]\w*\.\w+: ", "", first)
    why = [line.strip(" -") for line in log.splitlines() if "intercepts pointer events" in line or " is not " in line]
    return f"{first}{f' ({why[-1]})' if why else ''}"[:MAX_MESSAGE]


def _is_of_page(request: Request) -> bool:
    """Whether it is for a page that is open, not for a frame in one, nor for one that is only being made."""
    with contextlib.suppress(Exception):  # of that the frame is not known
        return request.frame.parent_frame is None and not request.frame.page.is_closed()
    return False


def _in_background(work: Coroutine[Any, Any, None]) -> None:
    async def quietly() -> None:
        with contextlib.suppress(Exception):
            await work

    task = asyncio.ensure_future(quietly())
    _background.add(task)
    task.add_done_callback(_background.discard)


_background: set[asyncio.Task[None]] = set()
