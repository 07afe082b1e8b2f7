"""`image_generate` against the mock server, which draws in the three dialects: OpenAI's, OpenRouter's and fal's."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from PIL import Image
from tools.pictures import Rollout, in_rollout

from kiseki.errors import BudgetSpent, PromptBudgetSpent
from kiseki.models import retry
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_images import IMAGE_COST
from kiseki.models.mock_server import MockServer
from kiseki.tools.image_gen import drawing, fal, openai, openrouter
from kiseki.tools.image_gen.api import Drawn
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolsets import why_unavailable

KEYS = {"FAL_KEY": "fal-0123-ffff", "OPENROUTER_API_KEY": "sk-or-v1-0123-rrrr", "OPENAI_API_KEY": "sk-0123-oooo"}
MODEL = ModelSettings("m", "http://127.0.0.1:9/v1")
Scenario = Callable[[Rollout], Awaitable[None]]


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Plays a scenario with an endpoint at a remote host, which is a mock server all the same: it is the proxy. Gives what the
    server says in the end."""

    def use(base_url: str, scenario: Scenario, config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        settings = ToolSettings(image_base_url=base_url, image_model=more.pop("image_model", ""))
        with MockServer(record=20, **(config or {})) as server:
            monkeypatch.setenv("http_proxy", server.root_url)
            in_rollout(scenario, MODEL, settings, environ=KEYS, **more)
            return server.stats(log=True)

    return use


def local(scenario: Scenario, config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    with MockServer(record=20, **(config or {})) as server:
        settings = ToolSettings(image_base_url=server.base_url, image_model=more.pop("image_model", ""))
        in_rollout(scenario, MODEL, settings, **more)
        return server.stats(log=True)


async def check_file(rollout: Rollout, answer: dict[str, Any], size: tuple[int, int]) -> None:
    data = await rollout.context.sandbox.read_file(answer["image"])
    image = Image.open(io.BytesIO(data))
    image.load()
    assert image.size == (answer["width"], answer["height"]) == size
    assert (answer["format"], answer["bytes"]) == ("png", len(data))


SIZES = {
    "http://api.openai.com/v1": ((1536, 1024), (1024, 1024), (1024, 1536)),
    "http://openrouter.ai/api/v1": ((1344, 768), (1024, 1024), (768, 1344)),
    "http://fal.run": ((1024, 576), (1024, 1024), (576, 1024)),
}
MODELS = ("gpt-image-1", "google/gemini-2.5-flash-image", "fal-ai/flux/schnell")


@pytest.mark.parametrize(("base_url", "model"), list(zip(SIZES, MODELS, strict=True)))
def test_each_dialect_draws_into_the_sandbox(remote: Any, base_url: str, model: str) -> None:
    async def scenario(rollout: Rollout) -> None:
        for ratio, size in zip(("landscape", "square", "portrait"), SIZES[base_url], strict=True):
            answer = await rollout.draw("a fox", aspect_ratio=ratio)
            assert answer["model"] == model
            await check_file(rollout, answer, size)

    stats = remote(base_url, scenario)
    assert stats["images_made"] == 3
    headers = stats["log"][0]["headers"]
    assert headers["host"] == base_url.split("/")[2]
    assert headers["authorization"] == "..." + {"gpt": "oooo", "goo": "rrrr", "fal": "ffff"}[model[:3]]


def test_what_goes_out(remote: Any) -> None:
    async def scenario(rollout: Rollout) -> None:
        await rollout.draw("a fox", aspect_ratio="square")

    def body(base_url: str, **more: Any) -> Any:
        return remote(base_url, scenario, **more)["log"][0]["body"]

    assert body("http://api.openai.com/v1") == {"model": "gpt-image-1", "prompt": "a fox", "n": 1, "size": "1024x1024"}
    asked = {
        "messages": [{"role": "user", "content": "a fox"}],
        "image_config": {"aspect_ratio": "1:1"},
        "usage": {"include": True},
    }
    flux = "black-forest-labs/flux.2-pro"
    assert body("http://openrouter.ai/api/v1") == {**asked, "model": MODELS[1], "modalities": ["image", "text"]}
    assert body("http://openrouter.ai/api/v1", image_model=flux) == {**asked, "model": flux, "modalities": ["image"]}
    fal_body = {"prompt": "a fox", "image_size": "square_hd", "num_images": 1, "sync_mode": True}
    assert body("http://fal.run", image_model="fal-ai/flux-2") == fal_body


def test_an_address_on_the_endpoint_itself_is_fetched() -> None:
    async def scenario(rollout: Rollout) -> None:
        await check_file(rollout, await rollout.draw(), (1792, 1024))

    local(scenario, image_model="dall-e-3")


def test_money_is_what_the_endpoint_says(remote: Any) -> None:
    async def scenario(rollout: Rollout) -> None:
        await rollout.draw()
        assert rollout.run is not None
        cost = rollout.run.usage.cost
        assert cost > 0 and rollout.admission.budget.cost == pytest.approx(cost)
        assert rollout.admission.budget.reserved_cost == 0.0

    remote("http://openrouter.ai/api/v1", scenario)
    remote("http://api.openai.com/v1", scenario)


def test_images_side_by_side_do_not_count_on_the_same_dollar(remote: Any) -> None:
    async def scenario(rollout: Rollout) -> None:
        results = await asyncio.gather(*(rollout.draw() for _ in range(8)), return_exceptions=True)
        drawn = [each for each in results if not isinstance(each, BaseException)]
        assert len(drawn) == 2 and {type(each) for each in results if each not in drawn} == {PromptBudgetSpent}
        assert rollout.context.allowance.left() == pytest.approx(0.05)

    remote("http://fal.run", scenario, allowance=0.25)


def test_money_that_nobody_tells_of_is_assumed(remote: Any) -> None:
    async def scenario(rollout: Rollout) -> None:
        await rollout.draw()
        assert rollout.run is not None and rollout.run.usage.cost == 0.0
        assert rollout.admission.budget.cost == drawing.ASSUMED_COST
        with pytest.raises(PromptBudgetSpent):  # the rollout's 0.15 are spent, too
            await rollout.draw()

    remote("http://fal.run", scenario, allowance=0.15)

    async def once(rollout: Rollout) -> None:
        await rollout.draw()
        with pytest.raises(BudgetSpent):
            await rollout.draw()

    remote("http://fal.run", once, budget=Budget(max_cost=0.15))

    async def at_home(rollout: Rollout) -> None:
        await rollout.draw()
        assert rollout.admission.budget.cost == 0.0

    local(at_home, {"report_cost": False}, budget=Budget(max_cost=0.01))


def test_a_passing_failure_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "BASE_SECONDS", 0.0)
    monkeypatch.setattr(retry, "LIMITED_BASE_SECONDS", 0.0)

    async def scenario(rollout: Rollout) -> None:
        await check_file(rollout, await rollout.draw(), (1536, 1024))
        assert rollout.admission.budget.cost == pytest.approx(IMAGE_COST)

    for kind in ("error_503", "error_500", "rate_limit", "error_in_200"):
        stats = local(scenario, {"fail_after": 1, "fail_for": 2, "fail_kind": kind, "retry_after": 0.0})
        assert (stats["calls"], stats["images_made"]) == (3, 1)


FAILING = {
    "auth": "gave no image: HTTP 401: Incorrect API key provided: Bearer ***.",
    "content_filter": "refuses to draw this: HTTP 400: Your request was rejected by the safety system.",
    "not_json": "the answer is no JSON object: upstream says: all is well",
    "torn": "the connection to http://api.openai.com/v1/images/generations was lost",
    "reset": "was lost",
    "empty": "drew nothing and does not say why",
    "bad_request": "gave no image: HTTP 400: Invalid value",
}


@pytest.mark.parametrize(("kind", "words"), FAILING.items())
def test_what_fails_is_a_result_and_asked_once(remote: Any, kind: str, words: str) -> None:
    async def scenario(rollout: Rollout) -> None:
        error = (await rollout.draw())["error"]
        assert words in error and not any(key in error for key in KEYS.values())
        budget = rollout.admission.budget
        assert (budget.cost > 0) == (kind in ("not_json", "torn", "reset", "empty"))  # it may have been drawn
        assert not rollout.admission.breaker.stopped

    assert remote("http://api.openai.com/v1", scenario, {"faults": {kind: 1.0}})["calls"] == 1


def test_an_endpoint_that_is_not_there_or_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "BASE_SECONDS", 0.0)
    monkeypatch.setattr(retry, "LIMITED_BASE_SECONDS", 0.0)
    monkeypatch.setattr(drawing, "CALL_SECONDS", 0.2)

    async def slow(rollout: Rollout) -> None:
        assert "no answer from" in (await rollout.draw())["error"]

    async def gone(rollout: Rollout) -> None:
        assert "no connection to http://127.0.0.1:9/v1/images/generations" in (await rollout.draw())["error"]

    assert local(slow, {"faults": {"stall": 1.0}})["calls"] == 1
    in_rollout(gone, MODEL, ToolSettings(image_base_url="http://127.0.0.1:9/v1"))


def test_prompts_have_bounds() -> None:
    async def scenario(rollout: Rollout) -> None:
        assert "prompt is empty" in (await rollout.draw(" "))["error"]
        assert "can be drawn from" in (await rollout.draw("x" * 30_000))["error"]
        assert "wrong values" in (await rollout.draw(aspect_ratio="round"))["error"]

    assert local(scenario)["calls"] == 0


def test_what_models_say_instead_of_drawing() -> None:
    said = openrouter.API.read({"choices": [{"message": {"content": "I cannot draw that."}, "finish_reason": "stop"}]})
    assert (said.image, said.words, said.refused) == ("", "I cannot draw that.", True)
    stopped = openrouter.API.read({"choices": [{"message": {"content": None}, "native_finish_reason": "IMAGE_SAFETY"}]})
    assert (stopped.words, stopped.refused) == ("IMAGE_SAFETY", True)
    assert fal.API.read({"images": [{"url": "https://x/black.png"}], "has_nsfw_concepts": [True]}).refused


NO_SHAPE: list[dict[str, Any]] = [
    {},
    {"data": [], "choices": {}, "images": [1], "usage": []},
    {"data": [{"b64_json": 3}], "choices": [{"message": []}], "images": [{"url": None}], "usage": {"input_tokens": "x"}},
]


@pytest.mark.parametrize("answer", NO_SHAPE)
def test_answers_of_no_shape_hold_no_image(answer: dict[str, Any]) -> None:
    for api in (openai.API, openrouter.API, fal.API):
        assert api.read(answer) == Drawn()


def test_it_must_be_an_image() -> None:
    script = [{"turns": [{"content": "", "message": {"images": [{"image_url": {"url": "data:image/png;base64,aGVsbG8="}}]}}]}]

    async def scenario(rollout: Rollout) -> None:
        assert "5 bytes that are no image" in (await rollout.draw())["error"]

    with MockServer(script=script) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", server.root_url)
        in_rollout(scenario, MODEL, ToolSettings(image_base_url="http://openrouter.ai/api/v1"), environ=KEYS)


def test_an_address_elsewhere_is_fetched_as_web_tools_fetch() -> None:
    url = "http://127.0.0.1:9/picture.png"
    script = [{"turns": [{"content": "", "message": {"images": [{"image_url": {"url": url}}]}}]}]

    async def scenario(rollout: Rollout) -> None:
        assert "127.0.0.1" in (await rollout.draw())["error"]

    with MockServer(script=script) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", server.root_url)
        in_rollout(scenario, MODEL, ToolSettings(image_base_url="http://openrouter.ai/api/v1"), environ=KEYS)


def test_what_it_needs_is_said_before_the_run() -> None:
    def why(environ: dict[str, str] | None = None, base_url: str = "", model: ModelSettings = MODEL) -> str:
        return why_unavailable("image_gen", ToolSettings(image_base_url=base_url), model, environ or {})

    assert "FAL_KEY, OPENROUTER_API_KEY, OPENAI_API_KEY in the environment, or --image_base_url" in why()
    assert all(why({name: key}) == "" for name, key in KEYS.items())
    assert why(base_url="http://127.0.0.1:1/v1") == ""
    assert "no API key for fal.run; FAL_KEY in the environment" in why(base_url="https://fal.run")
    assert "OPENROUTER_API_KEY" in why(base_url="https://openrouter.ai/api/v1")
    keyed = ModelSettings("m", "https://openrouter.ai/api/v1", api_key="k")
    assert why(base_url="https://openrouter.ai/api/v1", model=keyed) == ""
    assert "is not an http:// or https:// URL" in why(base_url="here")
