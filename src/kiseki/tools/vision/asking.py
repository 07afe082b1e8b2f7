"""Which model looks at images, and how it is asked: `ask_about`, for `vision_analyze` and for the browser's screenshots.

The run's own model is asked as the agent asks it, through the run's admission and budget. Another one (`--vision_model`, or the
same at `--vision_base_url`) has an admission of its own in each worker process, wherever it is: its rate limit is its own, and
neither an outage nor a refused key of its may hold up or stop the run. Its money is the run's all the same: each call is
reserved in the run's budget at its worst case, by the model's own price where its endpoint lists one, else by that of the run's
model (nothing on one's own machine), and settled at what it took. Whatever it costs is in the call's notes too, and so in the
rollout's record and its own limit.

What a vision model cannot do is the tool's result, not the rollout's end; that the money is spent, or that the run was stopped,
goes through.
"""

from __future__ import annotations

import asyncio
import base64
import re
from urllib.parse import urlsplit

import msgspec

from kiseki.errors import BadRequest, ProviderError, RunStopped, ToolError, UsageError
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatClient, ChatReply, ChatRequest
from kiseki.models.budget import BYTES_PER_TOKEN, REPLY_TOKENS, worst_case
from kiseki.models.dialects.base import IMAGE_SIZE
from kiseki.models.factory import is_builtin, open_client, own_door
from kiseki.models.hosts import is_local
from kiseki.models.listing import Listings
from kiseki.models.prices import Price
from kiseki.tools.context import ToolContext
from kiseki.tools.paid import in_budget
from kiseki.tools.results import Image
from kiseki.tools.services import Services
from kiseki.tools.vision.needs import asks_run_model, vision_model
from kiseki.tools.vision.preparing import prepare
from kiseki.trajectory.text import shorten
from kiseki.trajectory.types import Message

MAX_QUESTION = 20_000
"""Characters."""
MAX_ANSWER = 20_000
"""Characters: about 5,000 tokens, more than any description of a picture needs."""
MAX_IMAGES = 8
"""Of one question: all of them are in memory at once, in base64."""
_SAW_NOTHING = re.compile(r"image|vision|visual|multi-?modal|modalit|content\b.*\bstring", re.IGNORECASE)
"""What endpoints say of a request with images to a model that takes none."""


class VisionModel:
    """The worker's model for images where that is not the run's own. A `Service`."""

    def __init__(self, services: Services) -> None:
        """Raises `UsageError` where there is none."""
        if services.model_settings is None:
            raise UsageError("no model can be asked here")
        self._run = services.model_settings
        self.settings = vision_model(services.settings, self._run, services.environ)
        self._client: ChatClient = open_client(self.settings)
        self._model: AskedModel | None = None
        self._priced: asyncio.Task[None] | None = None

    async def complete(self, context: ToolContext, request: ChatRequest) -> ChatReply:
        """One reply. Raises `ProviderError`, and `NotAdmitted` or `PromptBudgetSpent` when the call may not be made."""
        if self._run.price is not None:  # somebody counts
            self._priced = self._priced or asyncio.create_task(self._find_price())
            await asyncio.shield(self._priced)
        text = sum(len(each.content) for each in request.messages)
        tokens = (text + IMAGE_SIZE * len(request.images)) // BYTES_PER_TOKEN + 1
        worst = worst_case(self.settings.price or Price(), tokens, REPLY_TOKENS)
        async with in_budget(context, worst) as bill:
            if self._model is None:
                self._model = AskedModel(self._client, own_door(self.settings), self.settings)
            model = self._model
            try:
                reply = await model.complete(request, context.on_hold)
            except RunStopped as error:  # its own admission's word, not the run's
                if self._model is model:
                    self._model = None  # the next call finds an admission that knows of nothing
                bill.is_nothing()
                raise ProviderError(str(error)) from error
            except ProviderError as error:
                if not error.sent or error.status not in (0, 200):
                    bill.is_nothing()
                raise
            if reply.call.usage_reported:
                bill.is_usage(reply.call.usage, reply.call.usage.cost + reply.risked)
            return reply

    async def _find_price(self) -> None:
        settings = self.settings
        price = (await asyncio.to_thread(Listings().of, settings)).price
        own_machine = is_local(urlsplit(settings.base_url).hostname or "")
        self.settings = msgspec.structs.replace(settings, price=price or (Price() if own_machine else self._run.price))

    async def close(self) -> None:
        await self._client.close()


async def ask_about(context: ToolContext, images: list[Image], question: str) -> str:
    """What the vision model answers to a question about some images, of any kind and size. Raises `ToolError`."""
    return (await ask(context, images, question))[0]


async def ask(context: ToolContext, images: list[Image], question: str) -> tuple[str, str]:
    """The answer, and the id of the model that gave it. Raises `ToolError`, `NotAdmitted` and `PromptBudgetSpent`."""
    if not question.strip():
        raise ToolError("question is empty: say what you want to know about the image")
    if len(question) > MAX_QUESTION:
        raise ToolError(f"question has {len(question):,} characters; {MAX_QUESTION:,} can be asked")
    if not 0 < len(images) <= MAX_IMAGES:
        raise ToolError(f"{len(images)} images; 1 to {MAX_IMAGES} can be looked at together")
    shown = tuple([_data_uri(await prepare(context, each)) for each in images])
    request = ChatRequest((Message("user", question),), allowance=context.allowance, images=shown)
    services = context.services
    settings = services.model_settings
    name = services.settings.vision_model or (settings.model if settings else "")
    try:
        if services.model and settings and asks_run_model(services.settings, settings) and not is_builtin(settings.model):
            reply = await services.model.complete(request, context.on_hold)
        else:
            reply = await services.get(VisionModel).complete(context, request)
    except UsageError as error:
        raise ToolError(str(error)) from error
    except ProviderError as error:
        hint = "; --vision_model names one that can see" if _takes_no_images(error) else ""
        raise ToolError(f"the vision model {name} gave no answer: {error}{hint}") from error
    context.note().usage += reply.call.usage
    answer = shorten(reply.message.content.strip(), MAX_ANSWER)[0]
    if not answer:
        raise ToolError(f"the vision model {name} gave an empty answer (it ended with {reply.call.finish_reason or 'no reason'})")
    return answer, name


def _takes_no_images(error: ProviderError) -> bool:
    return isinstance(error, BadRequest) and _SAW_NOTHING.search(str(error)) is not None


def _data_uri(image: Image) -> str:
    return f"data:image/{image.format};base64,{base64.b64encode(image.data).decode()}"
