"""`vision_analyze` against the mock server, which says what kind and size the image that it got has."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tools.pictures import Rollout, in_rollout, noise, picture

from kiseki.errors import BudgetSpent, PromptBudgetSpent
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_server import MockServer
from kiseki.models.prices import Price
from kiseki.tools.context import ToolContext
from kiseki.tools.results import Image as Shown
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolsets import why_unavailable
from kiseki.tools.vision import loading, preparing
from kiseki.tools.vision.asking import MAX_IMAGES, ask_about

KEY = "sk-or-v1-0123456789abcdef"


def saw(kind: str, width: int, height: int) -> dict[str, str]:
    return {"answer": f"I see 1 image: {kind}, {width} x {height} pixels.", "model": "m"}


def looking(scenario: Any, settings: ToolSettings | None = None, config: dict[str, Any] | None = None, **more: Any) -> None:
    """Play it with a mock server as the run's model."""
    with MockServer(**(config or {})) as server:
        in_rollout(scenario, ModelSettings("m", server.base_url, max_retries=0), settings or ToolSettings(), **more)


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return picture("JPEG", (64, 48), exif=exif)


def test_every_kind_arrives_as_what_models_take() -> None:
    seen = {
        ("PNG", 64, 48): picture("PNG"),
        ("JPEG", 64, 48): picture("JPEG"),
        ("PNG", 2048, 410): picture("PNG", (5000, 1000)),
        ("JPEG", 1024, 2048): picture("JPEG", (1500, 3000)),
        ("JPEG", 48, 64): turned(),
    }
    others = [
        picture("GIF", save_all=True, append_images=[Image.new("RGB", (64, 48), "red")]),
        picture("WEBP"),
        picture("BMP"),
        picture("TIFF", mode="CMYK"),
        picture("PNG", mode="I;16"),
    ]

    async def scenario(rollout: Rollout) -> None:
        for (kind, width, height), data in seen.items():
            assert await rollout.look_at(data) == saw(kind, width, height)
        for data in others:
            assert await rollout.look_at(data) == saw("PNG", 64, 48)
        assert await rollout.look_at(picture("JPEG", mode="CMYK")) == saw("JPEG", 64, 48)

    looking(scenario)


def test_what_is_too_large_to_send_is_packed_tighter() -> None:
    data = noise("PNG", 1500)
    assert len(data) > preparing.MAX_SENT

    async def scenario(rollout: Rollout) -> None:
        assert await rollout.look_at(data) == saw("JPEG", 1500, 1500)

    looking(scenario)


def test_every_way_to_name_an_image() -> None:
    data = picture()

    async def scenario(rollout: Rollout) -> None:
        await rollout.context.sandbox.write_file("~x/my picture.png", data)
        home = (await rollout.context.sandbox.exec("printf %s \"$HOME\"; cp '~x/my picture.png' ~/p.png", timeout=30)).output
        text = base64.b64encode(data).decode()
        quoted = "".join(f"%{byte:02x}" for byte in data)
        for name in (
            "./~x/my picture.png",
            "~/p.png",
            f"{home}/p.png",
            f"file://{home}/p%2Epng",
            f"data:image/png;base64,{text}",
            f"data:;base64,{text.rstrip('=')}",
            f"data:image/png,{quoted}",
        ):
            assert await rollout.look(name) == saw("PNG", 64, 48)

    looking(scenario)


def test_a_url_is_fetched_as_web_tools_fetch() -> None:
    with MockServer() as server:
        url = f"{server.root_url}/images/00000000-30x20.png"

        async def allowed(rollout: Rollout) -> None:
            assert await rollout.look(url) == saw("PNG", 30, 20)
            assert "HTTP status 404" in (await rollout.look(f"{server.root_url}/none.png"))["error"]

        async def refused(rollout: Rollout) -> None:
            assert "error" in await rollout.look(url)

        in_rollout(allowed, ModelSettings("m", server.base_url), ToolSettings(web_allow=("127.0.0.1",)))
        before = server.stats()["images_shown"]
        in_rollout(refused, ModelSettings("m", server.base_url), ToolSettings())
        assert server.stats()["images_shown"] == before == 1


def bomb() -> bytes:
    """A small file that says that it is of 40,000 by 40,000 pixels."""
    data = bytearray(picture())
    data[16:24] = (40_000).to_bytes(4) * 2
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (b"<?xml version='1.0'?>\n<svg xmlns='x'/>", "an SVG drawing"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b"%PDF-1.7", "a PDF document"),
        (b"plain text", "a file of another kind"),
        (picture("JPEG", (640, 480))[:700], "the JPEG image is torn or broken"),
        (picture("PNG")[:60], "the PNG image is torn or broken"),
        (picture("PNG")[:30], "the PNG image is torn or broken: cannot identify image file"),
        (picture("TIFF")[:40], "the TIFF image is torn or broken"),
        (bomb(), "40,000 x 40,000 pixels"),
    ],
)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_what_is_no_image_is_said(data: bytes, words: str) -> None:
    async def scenario(rollout: Rollout) -> None:
        assert words in (await rollout.look_at(data))["error"]

    looking(scenario)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone.png", "no such file: gone.png"),
        ("/", "is a folder"),
        (" ", "image_url is empty"),
        ("ftp://example.org/a.png", "ftp:// cannot be read"),
        ("file://host/a.png", "names a file in the sandbox"),
        ("data:image/png;base64", "has no comma"),
        ("data:image/png;base64,!!", "no valid base64"),
        (f"file://{Path(__file__)}/../none", "no such file"),
    ],
)
def test_what_cannot_be_loaded_is_said(name: str, words: str) -> None:
    async def scenario(rollout: Rollout) -> None:
        assert words in (await rollout.look(name))["error"]

    looking(scenario)


def test_an_image_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "MAX_BYTES", 1000)

    async def scenario(rollout: Rollout) -> None:
        assert "1,000" in (await rollout.look_at(bytes(1001)))["error"]
        assert "more than" in (await rollout.look("data:image/png;base64," + "A" * 2000))["error"]

    looking(scenario)


def test_questions_have_bounds() -> None:
    async def scenario(rollout: Rollout) -> None:
        await rollout.context.sandbox.write_file("it", picture())
        assert "question is empty" in (await rollout.look("it", " "))["error"]
        assert "can be asked" in (await rollout.look("it", "x" * 30_000))["error"]
        images = [Shown(picture())] * 2
        assert (await ask_about(rollout.context, images, "?")).startswith("I see 2 images")
        with pytest.raises(Exception, match="1 to 8"):
            await ask_about(rollout.context, images * MAX_IMAGES, "?")

    looking(scenario)


def test_long_and_empty_answers() -> None:
    turns = [{"content": "long " * 20_000}, {"content": "", "reasoning": "hm", "finish_reason": "length"}]
    script = [{"match": "long", "turns": turns[:1]}, {"match": "none", "turns": turns[1:]}]

    async def scenario(rollout: Rollout) -> None:
        await rollout.context.sandbox.write_file("it", picture())
        assert len((await rollout.look("it", "long"))["answer"]) < 21_000
        assert "an empty answer (it ended with length)" in (await rollout.look("it", "none"))["error"]

    looking(scenario, config={"script": script})


def test_another_model_has_its_own_place_key_and_money() -> None:
    model = ModelSettings("m", "http://127.0.0.1:9/v1", price=Price(1e-6, 1e-6))
    with MockServer(price=(5.0, 10.0), report_cost=False, list_prices=True, models=("sees",)) as server:

        async def scenario(rollout: Rollout) -> None:
            answer = await rollout.look_at(picture())
            assert answer["model"] == "sees"
            assert rollout.run is not None
            usage, budget = rollout.run.usage, rollout.admission.budget
            assert usage.cost == pytest.approx(usage.prompt_tokens * 5e-6 + usage.completion_tokens * 10e-6)
            assert budget.cost == pytest.approx(usage.cost) and budget.tokens == usage.prompt_tokens + usage.completion_tokens
            assert (budget.reserved_cost, budget.reserved_tokens, rollout.admission.limit.in_flight) == (0.0, 0, 0)

        in_rollout(scenario, model, ToolSettings(vision_model="sees", vision_base_url=server.base_url))


def test_the_runs_own_model_is_asked_through_the_run() -> None:
    async def scenario(rollout: Rollout) -> None:
        await rollout.look_at(picture())
        assert rollout.run is not None and rollout.run.usage.completion_tokens > 0
        assert rollout.admission.budget.tokens == rollout.run.usage.prompt_tokens + rollout.run.usage.completion_tokens

    looking(scenario)


@pytest.mark.parametrize("own", [True, False])
def test_money_that_is_spent_ends_the_rollout(own: bool) -> None:
    settings = ToolSettings() if own else ToolSettings(vision_model="other")
    budget = Budget(max_tokens=100, reply_tokens=10)

    async def scenario(rollout: Rollout) -> None:
        with pytest.raises(BudgetSpent):
            await rollout.look_at(picture())

    looking(scenario, settings, budget=budget)


def test_a_rollouts_own_limit_holds() -> None:
    with MockServer(list_prices=True, models=("other",)) as server:
        model = ModelSettings("m", server.base_url, price=Price(1e-6, 1e-6))

        async def scenario(rollout: Rollout) -> None:
            with pytest.raises(PromptBudgetSpent):
                await rollout.look_at(picture())

        for settings in (ToolSettings(), ToolSettings(vision_model="other")):
            in_rollout(scenario, model, settings, allowance=0.0001)
        assert server.stats()["calls"] == 0


@pytest.mark.parametrize("kind", ["auth", "error_500", "no_vision", "torn"])
def test_a_vision_endpoint_that_fails_is_a_result(kind: str) -> None:
    """And nothing of the run's: neither its breaker nor its budget."""
    with MockServer(faults={kind: 1.0}) as server:
        model = ModelSettings("m", "http://127.0.0.1:9/v1", api_key=KEY)
        settings = ToolSettings(vision_model="sees", vision_base_url=server.base_url)

        async def scenario(rollout: Rollout) -> None:
            for _ in range(3):  # a refused key is no reason to stop for good
                words = (await rollout.look_at(picture()))["error"]
                assert words.startswith("the vision model sees gave no answer: ") and KEY not in words
            assert (kind == "no_vision") == ("--vision_model" in words)
            assert not rollout.admission.breaker.stopped
            assert rollout.admission.budget.reserved_tokens == 0
            assert (rollout.admission.budget.unknown.tokens > 0) == (kind == "torn")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kiseki.tools.vision.needs.MAX_RETRIES", 0)
            in_rollout(scenario, model, settings)


def test_the_key_goes_only_where_it_belongs() -> None:
    with MockServer(record=2) as server:
        elsewhere = server.base_url.replace("127.0.0.1", "localhost")

        async def scenario(rollout: Rollout) -> None:
            assert "answer" in await rollout.look_at(picture())

        model = ModelSettings("m", server.base_url, api_key=KEY)
        in_rollout(scenario, model, ToolSettings(vision_model="other"))
        in_rollout(scenario, model, ToolSettings(vision_base_url=elsewhere))
        first, second = (each["headers"].get("authorization", "") for each in server.stats(log=True)["log"])
    assert first.endswith(KEY[-4:]) and not second


@pytest.mark.parametrize(
    ("host", "as_the_run"),
    [("", True), ("localhost", False)],
)
def test_another_model_at_the_run_s_own_place_is_asked_as_the_run_s_is(host: str, as_the_run: bool) -> None:
    with MockServer(record=1) as server:
        elsewhere = server.base_url.replace("127.0.0.1", host) if host else ""

        async def scenario(rollout: Rollout) -> None:
            assert "answer" in await rollout.look_at(picture())

        model = ModelSettings("m", f"{server.base_url}/", api_mode="anthropic", extra_body={"top_k": 3})
        in_rollout(scenario, model, ToolSettings(vision_model="other", vision_base_url=elsewhere))
        (asked,) = server.stats(log=True)["log"]
    assert ("anthropic-version" in asked["headers"]) is ("top_k" in asked["body"]) is as_the_run


def test_what_it_needs_is_said_before_the_run() -> None:
    run, practice = ModelSettings("m", "https://example.org/v1", api_key=KEY), ModelSettings("builtin/practice")
    router = "https://openrouter.ai/api/v1"

    def why(model: ModelSettings, environ: dict[str, str] | None = None, **settings: Any) -> str:
        return why_unavailable("vision", ToolSettings(**settings), model, environ or {})

    assert why(run) == why(run, vision_model="v") == why(run, {"OPENROUTER_API_KEY": "k"}, vision_base_url=router) == ""
    assert "OPENROUTER_API_KEY in the environment" in why(run, vision_base_url=router)
    assert "builtin/practice cannot see" in why(practice)
    assert "builtin/practice cannot see" in why(run, vision_model="builtin/practice")
    assert "OPENROUTER_API_KEY" in why(practice, vision_model="v")
    assert why(practice, {"OPENROUTER_API_KEY": "k"}, vision_model="v") == ""
    assert "is not an http:// or https:// URL" in why(run, vision_base_url="here")
    of_run = ModelSettings("builtin/smollm2", router, api_mode="anthropic", extra_body={"model": 1})
    assert why(of_run, {"OPENROUTER_API_KEY": "k"}, vision_model="v") == "", (
        "what is the built-in model's is none of OpenRouter's"
    )
    assert "user name" in why(run, vision_base_url="http://a:b@localhost/v1")


def test_without_a_model_there_is_an_answer_too() -> None:
    async def scenario() -> None:
        with pytest.raises(Exception, match="no model can be asked here"):
            await ask_about(ToolContext(None), [Shown(picture())], "?")

    asyncio.run(scenario())
