"""The `vision` toolset: a question about an image, answered by a model that sees."""

from __future__ import annotations

from typing import Any

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.registry import tool
from kiseki.tools.results import Image
from kiseki.tools.vision.asking import ask
from kiseki.tools.vision.loading import load

CALL_SECONDS = 7200.0
"""Only a net: loading and decoding have limits of their own, and a model call takes as long as any of the rollout's."""

AT_ONCE = 16
"""Calls at once in a worker: each holds an image of up to 20 MB, and its base64 while the model looks at it."""


@tool(toolset="vision", timeout=CALL_SECONDS, concurrency=AT_ONCE)
async def vision_analyze(context: ToolContext, image_url: str, question: str) -> dict[str, Any]:
    """Look at an image and answer a question about it. PNG, JPEG, GIF (its first frame), WebP, BMP and TIFF up to 20 MB.

    Args:
        image_url: An http(s) URL, a path in the sandbox (also as file://) or a data: URI.
        question: What you want to know about the image, as exactly as you can say it.
    """
    if not image_url.strip():
        raise ToolError("image_url is empty")
    answer, model = await ask(context, [Image(await load(context, image_url.strip()))], question)
    return {"answer": answer, "model": model}
