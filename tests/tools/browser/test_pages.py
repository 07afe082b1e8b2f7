"""What pages do, and what the model gets to see of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from tools.browser.playing import Browsing, Site, Tab, html

from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_model
from kiseki.models.mock_server import MockServer
from kiseki.tools import results
from kiseki.tools.browser import session, showing, tools


def test_a_form_is_filled_and_sent(browse: Browsing) -> None:
    form = """<title>Order</title><h1>Order</h1><form action=/done><label>Name <input name=name value=old></label>
        <label>Colour <select name=colour><option>red<option>blue</select></label>
        <label>Note <textarea name=note></textarea></label><input type=checkbox name=gift aria-label=Gift>
        <button>Send</button></form>"""

    async def done(request: web.Request) -> web.Response:
        return html(f"<title>Done</title><p>{sorted(request.query.items())}")

    async def scenario(tab: Tab, site: Site) -> None:
        answer = await tab.open("/")
        assert (answer["title"], answer["url"]) == ("Order", f"{site.root}/")
        assert '- heading "Order" [level=1]\n' in tab.shown
        name, send = tab.ref('textbox "Name"'), tab.ref('button "Send"')
        note, gift, colour = tab.ref('textbox "Note"'), tab.ref('checkbox "Gift"'), tab.ref('combobox "Colour"')
        await tab("type", ref=name, text="Zoë & Søn")
        assert "Zoë & Søn" in tab.shown and "Send" not in tab.shown  # only what changed
        await tab("type", ref=note, text="two\nlines")
        assert "blue" in (await tab("type", ref=colour, text="blue"))["changes"]
        assert "no option 'green'; it has: 'red', 'blue'" in await tab.error("type", ref=colour, text="green")
        await tab("click", ref=gift)
        assert "[checked]" in tab.shown
        assert "cannot be filled" in await tab.error("type", ref=gift, text="x")
        answer = await tab("click", ref=send)
        assert answer["title"] == "Done"
        assert "[('colour', 'blue'), ('gift', 'on'), ('name', 'Zoë & Søn'), ('note', 'two\\\\r\\\\nlines')]" in tab.shown
        assert "no element" in await tab.error("click", ref=send)
        answer = await tab("back")
        assert answer["title"] == "Order"
        await tab("click", ref=tab.ref('textbox "Name"'))
        assert (await tab("press", key="enter"))["title"] == "Done"
        assert "Unknown key" in await tab.error("press", key="Nonsense")

    browse(scenario, home=form, done=done)


def test_a_single_page_application_shows_its_states(browse: Browsing) -> None:
    page = """<title>App</title><nav><a href=/two id=link>Two</a></nav><ul><li>kept</ul><main id=main>one</main><script>
        link.onclick = async (e) => { e.preventDefault(); history.pushState({}, '', '/two'); main.textContent = 'loading';
          const r = await fetch('/data');
          setTimeout(async () => { main.textContent = await r.text(); document.title = 'Two' }, 100) };
        onpopstate = () => { main.textContent = 'one again' }</script>"""

    async def data(request: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return web.Response(text="two, from the server")

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        answer = await tab("click", ref=tab.ref('link "Two"'))
        assert (answer["title"], answer["url"]) == ("Two", f"{site.root}/two")
        assert "two, from the server" in tab.shown
        answer = await tab("back")
        assert answer["url"] == f"{site.root}/" and "one again" in tab.shown

    browse(scenario, home=page, data=data)


def test_scrolling_loads_more_and_shows_it(browse: Browsing) -> None:
    page = """<title>Feed</title><div id=feed></div><script>let n = 0;
        const more = () => { for (let i = 0; i < 20; i++) { const p = document.createElement('p'); p.style.height = '60px';
          p.textContent = `post ${++n}.`; feed.append(p) } };
        more(); onscroll = () => { if (n < 40 && innerHeight + scrollY > document.body.scrollHeight - 200) more() }</script>"""
    inner = "<div style='height:600px;overflow:auto'><div style='height:3000px'>tall</div></div>"

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        assert "post 20." in tab.shown and "post 21." not in tab.shown
        await tab("scroll", direction="down")
        assert "post 21." in tab.shown and "post 20." not in tab.shown  # only what is new
        for _ in range(5):
            answer = await tab("scroll", direction="down")
        assert "the end" in answer["scrolled_to"]
        answer = await tab("scroll", direction="up")
        assert "the" not in answer["scrolled_to"]
        await tab.open("/inner")
        assert (await tab("scroll", direction="down"))["scrolled_to"] == "510 to 1110 of 3000 pixels"
        await tab("scroll", direction="up")
        assert "the top" in (await tab("scroll", direction="up"))["scrolled_to"]

    browse(scenario, home=page, inner=inner)


def test_a_new_tab_becomes_the_current_page_until_it_is_closed(browse: Browsing) -> None:
    page = "<title>Home</title><a href=/pop target=_blank>Open</a> <button onclick=\"window.open('/pop')\">Script</button>"
    pop = "<title>Pop</title><button onclick=window.close()>Close</button>"

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        link = tab.ref('link "Open"')
        answer = await tab("click", ref=link)
        assert answer["title"] == "Pop" and "new tab" in answer["events"][0]
        answer = await tab("back")
        assert answer["title"] == "Home" and "closed" in answer["events"][0]
        await tab("click", ref=tab.ref('button "Script"'))
        answer = await tab("click", ref=tab.ref('button "Close"'))
        assert answer["title"] == "Home"

    browse(scenario, home=page, pop=pop)


def test_pages_that_open_ever_more_pages_are_stopped(browse: Browsing) -> None:
    page = "<title>Home</title><button onclick=\"for (let i = 0; i < 12; i++) window.open('/')\">Many</button>"

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        answer = await tab("click", ref=tab.ref('button "Many"'))
        assert answer.get("title") == "Home", answer
        assert any("closed at once" in each for each in answer["events"])
        assert len(answer["events"]) <= session.MAX_EVENTS
        opened = (await tab("console", expression="1"))["value"]
        assert opened == "1"

    browse(scenario, home=page)


def test_dialogs_are_answered_and_told(browse: Browsing) -> None:
    page = """<title>Home</title><p id=said></p><button onclick="alert('hello')">A</button>
        <button onclick="said.textContent = confirm('sure?')">C</button>
        <button onclick="said.textContent = prompt('name?', 'nobody')">P</button><a href=/next>Next</a>
        <button onclick="onbeforeunload = (e) => e.preventDefault()">Guard</button>
        <button onclick="for (let i = 0; i < 23; i++) alert(i)">Storm</button>"""

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        buttons = {name: tab.ref(f'button "{name}"') for name in ("A", "C", "P", "Guard", "Storm")}
        link = tab.ref('link "Next"')
        assert "'hello'" in (await tab("click", ref=buttons["A"]))["events"][0]
        answer = await tab("click", ref=buttons["C"])
        assert "'sure?'" in answer["events"][0] and "true" in tab.shown
        answer = await tab("click", ref=buttons["P"])
        assert "'name?'" in answer["events"][0] and "nobody" in tab.shown
        assert len((await tab("click", ref=buttons["Storm"]))["events"]) == session.MAX_EVENTS
        await tab("click", ref=buttons["Guard"])
        answer = await tab("click", ref=link)
        assert answer["title"] == "Next" and "leave" in answer["events"][0]

    browse(scenario, home=page, next="<title>Next</title>")


def test_downloads_go_into_the_sandbox(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "<title>Home</title><a href=/file>Get</a><a href=/large>Large</a>"

    async def file(request: web.Request) -> web.Response:
        headers = {"Content-Disposition": 'attachment; filename="../..//etc/pass wd.tar.gz"'}
        return web.Response(body=bytes(range(256)), headers=headers)

    async def large(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 2_000, headers={"Content-Disposition": "attachment; filename=large.bin"})

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        link, larger = tab.ref('link "Get"'), tab.ref('link "Large"')
        event = (await tab("click", ref=link))["events"][0]
        path = event.split()[1]
        assert path.endswith("wd.tar-1.gz") and "/home/" in path and "/etc/" not in path
        assert (await tab.context.sandbox.read_file(path)) == bytes(range(256))
        answer = await tab("navigate", url=f"{site.root}/file")
        assert answer["title"] == "Home" and "downloaded" in answer["events"][0]
        monkeypatch.setattr("kiseki.tools.browser.downloads.MAX_FILE_BYTES", 1_000)
        assert "dropped: it has 2,000 bytes" in (await tab("click", ref=larger))["events"][0]

    assert results.MAX_FILE_BYTES > 1_000
    browse(scenario, home=page, file=file, large=large)


def test_a_page_that_never_loads_costs_a_bounded_wait(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "NAVIGATION_SECONDS", 1.0)
    monkeypatch.setattr(session, "ACTION_SECONDS", 1.0)
    over = asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        await over.wait()
        return html("late")

    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        await response.write(b"<title>Half</title><p>the first part")
        await over.wait()
        return response

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        never_link, image_link = tab.ref('link "Never"'), tab.ref('link "Image"')
        assert "did not answer within 1 s" in await tab.error("navigate", url=f"{site.root}/never")
        assert (await tab("snapshot"))["title"] == "Home"
        answer = await tab("click", ref=never_link)
        assert answer["title"] == "Home" and "did not answer" in answer["events"][0]
        assert (await tab("click", ref=image_link))["title"] == "Image"
        answer = await tab.open("/half")
        assert "the first part" in tab.shown and "still loading" in answer["note"]
        assert (await tab.open("/"))["title"] == "Home"
        over.set()

    home = "<title>Home</title><a href=/never>Never</a> <a href=/image>Image</a>"
    browse(scenario, home=home, never=never, half=half, image="<title>Image</title><img src=/never>text")


def test_a_page_that_hangs_is_closed(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((session, "ACTION_SECONDS"), (session, "ANSWER_SECONDS"), (showing, "SNAPSHOT_SECONDS")):
        monkeypatch.setattr(module, name, 1.0)
    monkeypatch.setattr(tools, "EVALUATE_SECONDS", 0.5)

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        assert "did not come to an end" in await tab.error("console", expression="new Promise(() => 0)")
        assert (await tab("console", expression="6 * 7"))["value"] == "42"
        assert "does not respond" in await tab.error("click", ref=tab.ref('button "Hang"'))
        assert "no page is open" in await tab.error("snapshot")
        await tab.open("/")
        assert "does not respond" in await tab.error("console", expression="while (true);")
        await tab.open("/")

    browse(scenario, home="<title>Home</title><button onclick='while (true);'>Hang</button>")


def test_frames_and_shadow_trees_are_part_of_the_page(browse: Browsing) -> None:
    page = """<title>Home</title><iframe src=/inner></iframe><div id=host></div><script>
        host.attachShadow({mode: 'open'}).innerHTML =
          '<button onclick="this.textContent = `was pressed`">Shadow</button>'</script>"""
    inner = "<button onclick=\"this.textContent = 'was clicked'\">Inner</button>"

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        ref = tab.ref('button "Inner"')
        await tab("click", ref=tab.ref('button "Shadow"'))
        assert "was pressed" in tab.shown
        await tab("click", ref=ref)
        assert "was clicked" in tab.shown and "iframe" in tab.shown

    browse(scenario, home=page, inner=inner)


def test_a_huge_page_fits_the_budget(browse: Browsing) -> None:
    page = "<title>Huge</title><ul>" + "".join(f"<li><a href=/{n}>item {n}.</a> more words" for n in range(1_500)) + "</ul>"

    async def scenario(tab: Tab, site: Site) -> None:
        answer = await tab.open("/")
        assert len(answer["snapshot"].encode()) <= showing.EFFECT_BYTES and answer["truncated"]
        answer = await tab("snapshot")
        assert showing.SNAPSHOT_BYTES - 200 < len(answer["snapshot"].encode()) <= showing.SNAPSHOT_BYTES
        assert "item 0." in answer["snapshot"] and "lines below; scroll" in answer["note"]
        await tab("console", expression="scrollTo(0, 15000)")
        answer = await tab("snapshot")
        assert "item 0." not in answer["snapshot"] and "out of view above" in answer["note"]
        first = answer["snapshot"].partition("item ")[2].partition(".")[0]
        assert 500 < int(first) < 1_500
        assert answer["snapshot"].startswith("- list")  # what the elements are in
        await tab("scroll", direction="down")
        assert f"item {first}." not in tab.shown and f"item {int(first) + 60}." in tab.shown
        answer = await tab("snapshot", full=True)
        assert "item 0." in answer["snapshot"]
        assert showing.FULL_BYTES - 200 < len(answer["snapshot"].encode()) <= showing.FULL_BYTES

    browse(scenario, home=page)


def test_what_is_gone_or_covered_cannot_be_clicked(browse: Browsing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ACTION_SECONDS", 0.5)
    page = """<title>Home</title><button id=gone>Gone</button><button>Covered</button><button disabled>Off</button>
        <div style="position:fixed;inset:0">over all</div>"""

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        gone, covered, off = (tab.ref(f'button "{name}"') for name in ("Gone", "Covered", "Off"))
        assert "intercepts pointer events" in await tab.error("click", ref=covered)
        assert "not enabled" in await tab.error("click", ref=off)
        await tab("console", expression="gone.remove()")
        assert "take a new browser_snapshot" in await tab.error("click", ref=gone)
        assert "no element '@e999'" in await tab.error("click", ref="@e999")
        assert "no element" in await tab.error("type", ref="button", text="x")

    browse(scenario, home=page)


def test_the_console_is_read_and_written(browse: Browsing) -> None:
    page = """<title>Home</title><p id=p>text</p><script>console.log('one', {a: 1}); console.error('two');
        for (let i = 0; i < 300; i++) console.info(`n${i}`.padEnd(3000));
        setTimeout(() => { throw new Error('lost') })</script>"""

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        answer = await tab("console")
        assert len(answer["messages"]) == tools.MAX_MESSAGES and answer["truncated"]
        assert answer["messages"][-1]["type"] == "info" and len(answer["messages"][-1]["text"]) <= session.MAX_MESSAGE
        assert answer["errors"] == ["Error: lost"]
        await tab("console", clear=True)
        values: dict[str, Any] = {
            "console.warn('three'); [1, {a: null}]": '[1,{"a":null}]',
            "p": '"<p id=\\"p\\">text</p>"',
            "undefined": "undefined",
            "let x = 2; x + 1": "3",
            "Promise.resolve('later')": '"later"',
            "window": None,
        }
        for expression, value in values.items():
            answer = await tab("console", expression=expression)
            assert value is None or answer["value"] == value
        assert answer["messages"] == [{"type": "warning", "text": "three"}] and answer["errors"] == []
        assert "ReferenceError: nothing is not defined" in await tab.error("console", expression="nothing.at.all")
        assert "SyntaxError" in await tab.error("console", expression="(")
        answer = await tab("console", expression="'é'.repeat(1e6)")
        assert len(answer["value"].encode()) < tools.MAX_VALUE + 200
        answer = await tab("console", expression="location.href = '/next'; 1")
        assert (await tab("snapshot"))["title"] == "Next"

    browse(scenario, home=page, next="<title>Next</title>")


def test_a_strict_content_policy_is_no_obstacle(browse: Browsing) -> None:
    async def page(request: web.Request) -> web.Response:
        answer = html("<title>Strict</title><button>B</button>")
        answer.headers["Content-Security-Policy"] = "default-src 'none'; sandbox"
        return answer

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        assert tab.ref('button "B"')
        assert (await tab("console", expression="1 + 1"))["value"] == "2"

    browse(scenario, home=page)


def test_images_are_listed(browse: Browsing) -> None:
    page = "<title>Home</title>" + "".join(f"<img src=/{n}.png alt='picture {n}'>" for n in range(60))
    page += "<img src='data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7'>"

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        answer = await tab("get_images")
        assert len(answer["images"]) == tools.MAX_IMAGES and "of 61 images" in answer["note"]
        assert answer["images"][0] == {"src": f"{site.root}/0.png", "alt": "picture 0", "width": 0, "height": 0}

    browse(scenario, home=page)


def test_a_question_about_the_page_goes_to_the_vision_model(browse: Browsing) -> None:
    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        answer = await tab("vision", question="What is there?")
        assert "JPEG, 1280 x 720 pixels" in answer["answer"]
        path = answer["image"]["image"]
        assert (await tab.context.sandbox.read_file(path)).startswith(b"\xff\xd8")

    with MockServer() as server:
        settings = ModelSettings("m", server.base_url, max_retries=0)
        services = browse.worker.services
        before = services.model, services.model_settings
        try:
            services.model, services.model_settings = open_model(settings), settings
            browse(scenario, home="<title>Home</title><h1>Large</h1>")
        finally:
            services.model, services.model_settings = before


def test_rollouts_share_nothing(browse: Browsing) -> None:
    async def home(request: web.Request) -> web.Response:
        return html(f"<title>Home</title><p>cookie: {request.cookies.get('who', 'none')}")

    async def scenario(tab: Tab, site: Site) -> None:
        await tab.open("/")
        await tab("console", expression="document.cookie = 'who=first'; localStorage.who = 'first'; 1")
        await tab.open("/")
        assert "cookie: first" in tab.shown
        async with browse.worker.rollout("other") as other:
            await other.open("/")
            assert "cookie: none" in other.shown
            assert (await other("console", expression="localStorage.length"))["value"] == "0"
        assert (await tab("console", expression="localStorage.who"))["value"] == '"first"'

    browse(scenario, home=home)


@pytest.mark.parametrize(
    "url",
    [
        *("file:///etc/passwd", "chrome://version", "view-source:http://example.org", "javascript:alert(1)", "data:text/html,x"),
        *("ftp://example.org/", "http://", "http://[::1", "http://a:99999/", "blob:http://x/1", ""),
    ],
)
def test_only_web_pages_can_be_opened(browse: Browsing, url: str) -> None:
    async def scenario(tab: Tab, site: Site) -> None:
        assert "is no address of a web page" in await tab.error("navigate", url=url)

    browse(scenario)


def test_nothing_works_before_a_page_is_open(browse: Browsing) -> None:
    async def scenario(tab: Tab, site: Site) -> None:
        for name, arguments in (("snapshot", {}), ("click", {"ref": "@e1"}), ("back", {}), ("console", {})):
            assert "browser_navigate opens one" in await tab.error(name, **arguments)
        await tab.open("/")
        assert "no page before" in await tab.error("back")
        assert (await tab("snapshot"))["title"] == "Home"
        answer = await tab("navigate", url=f"{site.root}/none")
        assert answer["status"] == 404

    browse(scenario, home="<title>Home</title>")
