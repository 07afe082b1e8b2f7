"""Pictures, and a rollout whose tools look at them or draw them: with a model, and the run's admission where it counts."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from PIL import Image
from support import FakeTime, open_sandbox

from kiseki.models.admission import Admission, LocalDoor
from kiseki.models.allowance import Allowance
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_model
from kiseki.models.rate_limit import RateLimit
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.context import ToolContext
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_tools
from kiseki.trajectory.types import ToolCall, ToolRun


def picture(kind: str = "PNG", size: tuple[int, int] = (64, 48), mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind, **options)
    return buffer.getvalue()


def noise(kind: str, side: int, **options: Any) -> bytes:
    """One that does not get smaller by packing it."""
    buffer = io.BytesIO()
    Image.effect_noise((side, side), 90).convert("RGB").save(buffer, kind, **options)
    return buffer.getvalue()


class Rollout:
    """Its tools. Calling it calls one and gives the result's JSON."""

    def __init__(self, context: ToolContext, admission: Admission) -> None:
        self.context = context
        self.admission = admission
        self.toolbox = Toolbox(load_tools(["vision", "image_gen"]))
        self.run: ToolRun | None = None
        """Of the last call."""

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        call = ToolCall("c", name, msgspec.json.encode(arguments).decode())
        message, self.run = await self.toolbox.call(self.context, call)
        answer = msgspec.json.decode(message.content)
        assert isinstance(answer, dict) and self.run.ok == ("error" not in answer)
        return answer

    async def look(self, image_url: str, question: str = "What is it?") -> dict[str, Any]:
        return await self("vision_analyze", image_url=image_url, question=question)

    async def look_at(self, data: bytes) -> dict[str, Any]:
        """At a file with this content."""
        await self.context.sandbox.write_file("it", data)
        return await self.look("it")

    async def draw(self, prompt: str = "a fox", **arguments: Any) -> dict[str, Any]:
        return await self("image_generate", prompt=prompt, **arguments)


def in_rollout(
    scenario: Callable[[Rollout], Awaitable[None]],
    model: ModelSettings,
    settings: ToolSettings,
    *,
    environ: Mapping[str, str] = {},
    budget: Budget | None = None,
    allowance: float | None = None,
) -> None:
    """Play it, with the run's model and admission. `budget`: default one that counts and never ends."""

    async def play() -> None:
        time = FakeTime()
        budgeted = budget or Budget(price=model.price)
        admission = Admission(RateLimit(100), Breaker(300.0), budgeted, clock=time.clock, later=time.later)
        door = LocalDoor(admission)
        asked = open_model(model, door)
        services = Services(settings, asked, model, door, environ)
        sandbox = await open_sandbox(SandboxSettings(backend="local", label="picture-tests"))
        context = ToolContext(sandbox, services, allowance=Allowance(allowance))
        try:
            await scenario(Rollout(context, admission))
        finally:
            await sandbox.close()
            await services.close()
            admission.close()
            await asked.close()

    asyncio.run(play())
