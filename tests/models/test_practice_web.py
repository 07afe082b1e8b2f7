"""The practice model with the toolsets beside terminal and file: the flows against played results, and with the real tools."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest
from support import REPOSITORY, kiseki, open_sandbox, read_rows, write_dataset

from kiseki.models.base import ChatRequest, ToolSchema
from kiseki.models.mock_server import MockServer
from kiseki.models.practice import PracticeModel
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.browser.needs import why_no_browser
from kiseki.tools.context import ToolContext
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_set_ups, load_tools
from kiseki.trajectory.types import Message

MOST_CALLS = 8
DEFAULT = ("web", "vision", "image_gen", "terminal", "file", "browser")
Play = Callable[[str, dict[str, Any]], Any]


def built_in(*toolsets: str) -> tuple[ToolSchema, ...]:
    return Toolbox(load_tools(toolsets)).schemas


async def reply(messages: Sequence[Message], tools: tuple[ToolSchema, ...], seed: int) -> Message:
    model = PracticeModel()
    encoded, _ = model.encode(ChatRequest(tuple(messages), tools, seed))
    answer, _ = await model.send(encoded)
    assert answer.message.reasoning.strip()
    return answer.message


class Story:
    """A whole rollout."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.answer = messages[-1].content
        self.calls = [(call.name, json.loads(call.arguments)) for each in messages for call in each.tool_calls]
        self.names = [name for name, _ in self.calls]


def converse(prompt: str, toolsets: Sequence[str], play: Play, seed: int = 1) -> Story:
    """A rollout in which `play(tool, arguments)` gives the results."""
    tools = built_in(*toolsets)
    messages = [Message("user", prompt)]
    for _ in range(MOST_CALLS):
        messages.append(asyncio.run(reply(messages, tools, seed)))
        if not messages[-1].tool_calls:
            return Story(messages)
        for call in messages[-1].tool_calls:
            result = play(call.name, json.loads(call.arguments))
            messages.append(Message("tool", json.dumps(result), tool_call_id=call.id, name=call.name))
    raise AssertionError(f"no answer within {MOST_CALLS} calls")


def rollout(prompt: str, toolsets: Sequence[str], settings: ToolSettings, seed: int = 1) -> Story:
    """A rollout with the real tools in a real sandbox. Every call has arguments that its tool takes."""

    async def run() -> Story:
        toolbox = Toolbox(load_tools(toolsets), set_ups=load_set_ups(toolsets))
        services = Services(settings, environ=os.environ)
        sandbox = await open_sandbox(SandboxSettings(backend="local", label="test-practice"))
        context = ToolContext(sandbox, services)
        messages = [Message("user", prompt)]
        try:
            await toolbox.open(context)
            for _ in range(MOST_CALLS):
                messages.append(await reply(messages, toolbox.schemas, seed))
                if not messages[-1].tool_calls:
                    return Story(messages)
                for call in messages[-1].tool_calls:
                    answer, ran = await toolbox.call(context, call)
                    assert not ran.invalid, (call, answer)
                    messages.append(answer)
        finally:
            await context.close()
            await services.close()
            await sandbox.close()
        raise AssertionError(f"no answer within {MOST_CALLS} calls")

    return asyncio.run(run())


# ---- search and read --------------------------------------------------------------------------------------------------

HITS = [
    {
        "title": "Herons",
        "url": "https://birds.example/herons",
        "snippet": "The grey heron stands still for an hour.",
        "position": 1,
    },
    {"title": "Waders", "url": "https://birds.example/waders", "snippet": "All waders have long legs.", "position": 2},
]
PAGES = {
    "https://birds.example/herons": "# Herons\n\nHerons live by water.\n\nA grey heron weighs two kilograms. It eats fish.",
    "https://birds.example/waders": "Waders have long legs. The grey heron is no wader, and weighs little.",
}


def birds(name: str, arguments: dict[str, Any]) -> Any:
    if name == "web_search":
        return {"results": HITS}
    return {"results": [{"url": url, "title": "Page", "content": PAGES[url]} for url in arguments["urls"]]}


def test_search_then_read_then_quote_with_its_source() -> None:
    story = converse("Search the web for how much a grey heron weighs, and tell me.", ["web"], birds)
    assert story.names == ["web_search", "web_extract"]
    assert story.calls[0][1]["query"] == "how much a grey heron weighs"
    assert story.calls[1][1] == {"urls": ["https://birds.example/herons"]}
    assert "> A grey heron weighs two kilograms." in story.answer
    assert "https://birds.example/herons" in story.answer


@pytest.mark.parametrize(
    ("prompt", "query"),
    [
        ("What does the corpus say about water clocks?", "water clocks"),
        ("Use web_search to find out who built the first one.", "who built the first one"),
        ("Look up the equation of time.", "the equation of time"),
        ("According to our documents, when was H4 built?", "when was H4 built"),
        ("Who invented the anchor escapement? Name the source.", "Who invented the anchor escapement"),
        ("コーパスで和時計について検索してください。", "和時計"),
        ("資料によると、万年時計はいつ完成しましたか？", "万年時計はいつ完成しましたか"),
        ("浅草の鐘を調べてください。", "浅草の鐘"),
    ],
)
def test_what_is_searched_for(prompt: str, query: str) -> None:
    story = converse(prompt, ["web"], birds)
    assert story.calls[0] == ("web_search", {"query": query, "limit": story.calls[0][1]["limit"]})


def test_a_page_that_cannot_be_read_is_said_and_the_next_one_taken() -> None:
    def play(name: str, arguments: dict[str, Any]) -> Any:
        return {"error": "HTTP 403 Forbidden"} if arguments.get("urls") == [HITS[0]["url"]] else birds(name, arguments)

    story = converse("Search for grey heron.", ["web"], play)
    assert story.names == ["web_search", "web_extract", "web_extract"]
    assert "403" in story.answer and "The grey heron is no wader" in story.answer

    def never(name: str, arguments: dict[str, Any]) -> Any:
        return birds(name, arguments) if name == "web_search" else {"error": "HTTP 403 Forbidden"}

    story = converse("Search for grey heron.", ["web"], never)
    assert "own snippet" in story.answer and "stands still" in story.answer


def test_a_search_without_a_reader_quotes_the_snippet() -> None:
    story = converse("Search for grey heron.", ["search"], birds)
    assert story.names == ["web_search"]
    assert "stands still" in story.answer and "https://birds.example/herons" in story.answer


def test_nothing_found_and_a_failed_search_are_said() -> None:
    story = converse("Search for when did the heron arrive.", ["web"], lambda *_: {"results": []})
    assert [arguments["query"] for _, arguments in story.calls] == ["when did the heron arrive", "the heron arrive"]
    assert "found nothing" in story.answer
    story = converse("Search for heron.", ["web"], lambda *_: {"error": "brave: quota exceeded"})
    assert "quota exceeded" in story.answer


def test_addresses_are_read_with_what_failed_named() -> None:
    def play(name: str, arguments: dict[str, Any]) -> Any:
        good, bad = arguments["urls"]
        return {
            "results": [*birds(name, {"urls": [good]})["results"], {"url": bad, "title": "", "content": "", "error": "HTTP 404"}]
        }

    story = converse("Summarise https://birds.example/herons and https://gone.example/x.", ["web"], play)
    assert story.calls == [("web_extract", {"urls": ["https://birds.example/herons", "https://gone.example/x"]})]
    assert "Herons live by water." in story.answer
    assert "https://gone.example/x could not be read: HTTP 404" in story.answer


# ---- browser ----------------------------------------------------------------------------------------------------------

FORM = """
- heading "Sign in"
- textbox "E-mail" [@e1]
- textbox "Password" [ref=e2]
- button "Sign in" [@e3]
- link "Help" [@e4] url=/h
"""


def test_a_form_is_filled_in_by_the_refs_of_the_snapshot() -> None:
    def play(name: str, arguments: dict[str, Any]) -> Any:
        if name == "browser_navigate":
            return {"title": "Login", "url": arguments["url"], "snapshot": FORM}
        if name == "browser_click":
            return {
                "title": "Home",
                "url": "https://x.example/home",
                "snapshot": '- heading "Welcome, Ada"\n- text: 3 new messages',
            }
        return {"title": "Login", "url": "https://x.example/", "changes": f'- textbox "x" [@{arguments["ref"]}]: typed'}

    story = converse("Open https://x.example/ and log in as ada@x.example with the password s3cret.", ["browser"], play)
    assert story.calls == [
        ("browser_navigate", {"url": "https://x.example/"}),
        ("browser_type", {"ref": "@e1", "text": "ada@x.example"}),
        ("browser_type", {"ref": "e2", "text": "s3cret"}),
        ("browser_click", {"ref": "@e3"}),
    ]
    assert "Welcome, Ada / 3 new messages" in story.answer
    assert "https://x.example/home" in story.answer


@pytest.mark.parametrize(
    ("prompt", "calls"),
    [
        ('Go to https://x.example. Type "tea" into the E-mail field, then click Help.',
         [("type", "@e1", "tea"), ("click", "@e4", "")]),
        ("Visit https://x.example, fill in the password field with hunter2 and press the Sign in button.",
         [("type", "e2", "hunter2"), ("click", "@e3", "")]),
        ("https://x.example を開いて、「Password」に「abc」と入力し、「Sign in」をクリックしてください。",
         [("type", "e2", "abc"), ("click", "@e3", "")]),
        ("Click on the \"Help\" link at https://x.example and tell me what it says.", [("click", "@e4", "")]),
        ("Open https://x.example and tell me what is there.", []),
    ],
)  # fmt: skip
def test_what_is_done_on_a_page(prompt: str, calls: list[tuple[str, str, str]]) -> None:
    story = converse(prompt, ["browser"], lambda *_: {"title": "T", "url": "https://x.example/", "snapshot": FORM})
    done = [(name.removeprefix("browser_"), each["ref"], each.get("text", "")) for name, each in story.calls[1:]]
    assert done == calls


def test_what_is_not_on_a_page_is_said_with_what_is() -> None:
    page = {"title": "T", "url": "https://x.example/", "snapshot": FORM}
    story = converse("Open https://x.example and click the Buy button.", ["browser"], lambda *_: page)
    assert story.names == ["browser_navigate"]
    assert "no button or link named “Buy”" in story.answer and "“Sign in”, “Help”" in story.answer


def test_a_stale_ref_is_looked_up_again_and_a_failure_told() -> None:
    failures = ["there is no @e3 any more: take a new snapshot", "the button is covered by another element"]

    def play(name: str, arguments: dict[str, Any]) -> Any:
        if name == "browser_click":
            return {"error": failures.pop(0)}
        return {"title": "T", "url": "https://x.example/", "snapshot": FORM}

    story = converse("Open https://x.example and click Help.", ["browser"], play)
    assert story.names == ["browser_navigate", "browser_click", "browser_snapshot", "browser_click"]
    assert "covered by another element" in story.answer
    story = converse("Open https://x.example and click Help.", ["browser"], lambda *_: {"error": "ERR_CONNECTION_REFUSED"})
    assert "could not be opened: ERR_CONNECTION_REFUSED" in story.answer


@contextmanager
def guest_book() -> Iterator[str]:
    """A form whose answer greets by name."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("<form method=post><label>Your name <input name=n></label><button>Send</button></form>")

        def do_POST(self) -> None:
            name = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["n"][0]
            self._answer(f"<h1>Welcome, {name}</h1><p>You are visitor 7.</p>")

        def _answer(self, html: str) -> None:
            body = f"<!DOCTYPE html><title>Guest book</title>{html}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_form_in_a_real_browser() -> None:
    if why := why_no_browser(ToolSettings(), None, os.environ):
        if os.environ.get("KISEKI_REQUIRE_ENGINES"):
            pytest.fail(why)
        pytest.skip(why)
    with guest_book() as host:
        prompt = f'Open http://{host}/, type "Ada" into the "Your name" field, click Send and tell me what the page says then.'
        story = rollout(prompt, ["browser"], ToolSettings(web_allow=(host,)))
    assert story.names == ["browser_navigate", "browser_type", "browser_click"]
    assert "Welcome, Ada" in story.answer and "You are visitor 7." in story.answer


# ---- images -----------------------------------------------------------------------------------------------------------


def test_an_image_is_drawn_and_looked_at() -> None:
    def play(name: str, arguments: dict[str, Any]) -> Any:
        return {"image": {"image": "/home/a/image-1.png"}} if name == "image_generate" else {"answer": "A red fox in snow."}

    story = converse("Draw a wide picture of a fox in the snow, and tell me what it shows.", ["vision", "image_gen"], play)
    assert story.calls[0] == ("image_generate", {"prompt": "a fox in the snow", "aspect_ratio": "landscape"})
    assert story.calls[1][1]["image_url"] == "/home/a/image-1.png"
    assert "/home/a/image-1.png" in story.answer and "A red fox in snow." in story.answer
    blind = converse("狐の絵を描いてください。", ["image_gen"], play)
    assert blind.calls == [("image_generate", {"prompt": "狐"})]
    assert "no tool to look" in blind.answer
    refused = converse("Generate an image of a fox", ["image_gen"], lambda *_: {"error": "content policy"})
    assert "content policy" in refused.answer


@pytest.mark.parametrize(
    ("prompt", "image", "question"),
    [
        ("What colour is the car in photos/car.jpg?", "photos/car.jpg", "What colour is the car in the image?"),
        ("Look at https://x.example/a.png?w=3 and describe it.", "https://x.example/a.png?w=3", "What does this image show?"),
        ("Describe the image at https://x.example/i/77.", "https://x.example/i/77", "What does this image show?"),
        ("画像 /tmp/a.webp に何が写っていますか？", "/tmp/a.webp", "画像 に何が写っていますか？"),
    ],
)
def test_an_image_is_looked_at(prompt: str, image: str, question: str) -> None:
    story = converse(prompt, ["vision", "web", "browser"], lambda *_: {"answer": "A blue car."})
    assert story.calls == [("vision_analyze", {"image_url": image, "question": question})]
    assert "A blue car." in story.answer
    failed = converse(prompt, ["vision"], lambda *_: {"error": "no such file"})
    assert "no such file" in failed.answer


# ---- delegation, memory, skills ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "arguments"),
    [
        ("Do these in parallel:\n1. What is 2 + 3?\n2. Reverse the string \"abc\".\n- Is 7 prime?",
         {"tasks": [{"goal": "What is 2 + 3?"}, {"goal": 'Reverse the string "abc".'}, {"goal": "Is 7 prime?"}]}),
        ("Delegate to a sub-agent: What is 17 * 23?", {"goal": "What is 17 * 23?"}),
        ("Side by side: sort 3, 1, 2; what is 7 factorial?",
         {"tasks": [{"goal": "sort 3, 1, 2"}, {"goal": "what is 7 factorial?"}]}),
        ("サブエージェントに任せてください：17 × 23 を計算；「軌跡」を逆にする",
         {"tasks": [{"goal": "17 × 23 を計算"}, {"goal": "「軌跡」を逆にする"}]}),
    ],
)  # fmt: skip
def test_what_is_handed_on(prompt: str, arguments: dict[str, Any]) -> None:
    def play(name: str, given: dict[str, Any]) -> Any:
        goals = [each["goal"] for each in given.get("tasks", [given])]
        return {"results": [{"goal": goal, "outcome": "completed", "answer": f"did {goal}"} for goal in goals]}

    story = converse(prompt, ["delegation", "terminal", "file"], play)
    assert story.calls == [("delegate_task", arguments)]
    for each in arguments.get("tasks", [arguments]):
        assert f"did {each['goal']}" in story.answer
    failed = converse(prompt, ["delegation"], lambda *_: {"error": "too many sub-agents"})
    assert "too many sub-agents" in failed.answer


def test_sub_agents_of_the_practice_model_do_their_parts(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": 'Do these in parallel:\n- What is 17 * 23?\n- Reverse the string "abc".'}])
    (tmp_path / "d.yaml").write_text("delegation: 100\nterminal: 100\nfile: 100\n")
    kiseki(
        *("batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", "--model=builtin/practice"),
        *("--distribution=d.yaml", "--engine=inprocess"),
        cwd=tmp_path,
    )
    (row,) = read_rows(tmp_path / "data" / "r" / "trajectories.jsonl")
    answer = row["conversations"][-1]["value"]
    assert "391" in answer and "cba" in answer


def test_memory_and_skills_with_the_real_tools(tmp_path: Path) -> None:
    story = rollout("Remember that my favourite bird is the heron.", ["memory"], ToolSettings())
    assert story.names == ["memory", "memory"]
    assert "reading it back shows it" in story.answer and "my favourite bird is the heron" in story.answer
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "MEMORY.md").write_text("The mill is closed on Mondays.\n")
    story = rollout("What do you remember?", ["memory"], ToolSettings(memory_dir=str(tmp_path / "memory")))
    assert "- The mill is closed on Mondays." in story.answer
    for name in ("bread-baking", "tide-tables"):
        (tmp_path / "skills" / name).mkdir(parents=True)
        head = f"---\nname: {name}\ndescription: All about {name}.\n---\n"
        (tmp_path / "skills" / name / "SKILL.md").write_text(f"{head}First read the {name} scroll.\n")
    settings = ToolSettings(skills_dir=str(tmp_path / "skills"))
    story = rollout("Which skills do you have? Use the tide tables skill.", ["skills"], settings)
    assert story.calls == [("skills_list", {}), ("skill_view", {"name": "tide-tables"})]
    assert "All about bread-baking." in story.answer and "First read the tide-tables scroll." in story.answer
    assert "no skills" in rollout("Which skills are there?", ["skills"], ToolSettings()).answer


@pytest.mark.parametrize("prompt", ["私の好きな鳥は鷺だと覚えてください。", 'Store "tea is at five" in your memory.'])
def test_what_cannot_be_remembered_is_said(prompt: str) -> None:
    story = converse(prompt, ["memory"], lambda *_: {"error": "memory is full"})
    assert "memory is full" in story.answer
    story = converse(prompt, ["memory"], lambda *_: {"entries": ["something else"]})
    assert "did not show it" in story.answer


# ---- all of them ------------------------------------------------------------------------------------------------------


def test_prompts_of_other_families_go_as_they_do_without_these_tools() -> None:
    with_all, without = built_in(*DEFAULT, "delegation", "memory", "skills"), built_in("terminal", "file")
    for line in (REPOSITORY / "examples" / "prompts.jsonl").read_text("utf-8").splitlines():
        messages = [Message("user", json.loads(line)["prompt"])]
        assert asyncio.run(reply(messages, with_all, 3)) == asyncio.run(reply(messages, without, 3))


PROMPTS = (
    "Search for herons.",
    "Read https://x.example/a and https://x.example/b",
    'Open https://x.example, type "a" into the b field and click c, then click d, then click e, then click f, then click g.',
    "Draw a picture of a fox.",
    "Look at a.png. What is it?",
    "In parallel: a b; c d",
    "Remember that tea is at five.",
    "What do you remember?",
    "Which skills are there?",
    "What is it?",
)
RESULTS: tuple[Any, ...] = (
    {},
    {"error": "no"},
    {"results": None},
    {"results": [None, {"url": 3}, {"url": "x"}]},
    {"results": [{"url": "https://x.example", "title": "\ud800", "snippet": "s", "content": "# \n\n---"}]},
    {"snapshot": '- textbox [@e1]\n- button "c" [@e2]\n- link "d\\"e" [ref=f1e3]: x\n   - - -\n\x00', "title": 4},
    {"snapshot": "(the page is empty)", "changes": 3, "events": [None, "x"]},
    {"image": {"image": {"image": {"image": {"image": "deep"}}}}},
    {"skills": [{"name": ""}, {"name": "x"}, 3], "entries": [1]},
    "text",
    ["list"],
)


@pytest.mark.parametrize("result", RESULTS, ids=range(len(RESULTS)))
def test_any_result_ends_in_an_answer(result: Any) -> None:
    for prompt in PROMPTS:
        for toolsets in ((*DEFAULT, "delegation", "memory", "skills"), ("web", "browser"), ("vision", "image_gen"), ("search",)):
            assert converse(prompt, toolsets, lambda *_: result).answer.strip()


HOSTILE = (
    "search for " * 500,
    "what " + " " * 5_000 + "?",
    "delegate\n" + "\n" * 5_000 + "and\n - \t" * 50,
    'open https://a type "' + "a " * 2_500,
    "click on the " * 400 + "https://a",
    '"a" ' * 1_200 + "log in as https://a",
    "あ" * 5_900,
    "私のことを" * 1_100 + "検索",
    "「a」" * 1_900 + "開 https://a",
    "make a b c " * 500,
    "remember " * 600,
    "data:image/png;base64," * 250 + " image",
    "a/" * 2_900 + "?",
    "https://" + "a" * 5_900,
    "Search for </tool_call> <think> \\ \" ' $(id) \u202e\u2028 {out}.",
)


@pytest.mark.parametrize("prompt", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_prompts_and_results_end_in_an_answer(prompt: str) -> None:
    blank = " " * 50_000
    page = {
        "snapshot": f'- button "{blank}\n- {blank}\n{"- link " * 5_000}',
        "results": [{"url": "u", "content": "\n " * 50_000 + "x"}],
    }
    for result in ({"error": "no"}, page):
        assert converse(prompt, (*DEFAULT, "delegation", "memory", "skills"), lambda *_, given=result: given).answer.strip()


def test_the_example_of_an_image_with_a_mock_endpoint(tmp_path: Path) -> None:
    """The practice model draws and looks by an image and a vision model of the mock server."""
    rows = (json.loads(line) for line in (REPOSITORY / "examples" / "web_prompts.jsonl").read_text("utf-8").splitlines())
    write_dataset(tmp_path / "p.jsonl", [row for row in rows if "image" in row.get("tags", ())])
    (tmp_path / "d.yaml").write_text("image_gen: 100\nvision: 100\n")
    with MockServer() as server:
        kiseki(
            *("batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", "--model=builtin/practice"),
            *(f"--image_base_url={server.base_url}", "--vision_model=mock", f"--vision_base_url={server.base_url}"),
            *("--distribution=d.yaml", "--engine=inprocess"),
            cwd=tmp_path,
            OPENAI_API_KEY="k",
        )
    (row,) = read_rows(tmp_path / "data" / "r" / "trajectories.jsonl")
    answer = row["conversations"][-1]["value"]
    assert row["tool_stats"]["image_generate"]["success"] == row["tool_stats"]["vision_analyze"]["success"] == 1
    assert "artifacts/" in answer and "PNG" in answer
    assert msgspec.json.encode(row).find(b"base64,") < 0
