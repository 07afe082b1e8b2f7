"""The `image_gen` toolset: a text becomes an image in the sandbox."""

from __future__ import annotations

from typing import Any

from kiseki.errors import ToolError, UsageError
from kiseki.models.image_headers import image_kind, image_size
from kiseki.tools.context import ToolContext
from kiseki.tools.image_gen.api import Ratio
from kiseki.tools.image_gen.drawing import Drawer
from kiseki.tools.registry import tool
from kiseki.tools.results import save_file

TOTAL_SECONDS = 600.0
"""Only a net: a request, its tries and their pauses have limits of their own."""
AT_ONCE = 8
"""Images under way in a worker process: endpoints that draw take few at once."""
MAX_PROMPT = 20_000
"""Characters: GPT image models take 32,000, others fewer, and say so."""


@tool(toolset="image_gen", timeout=TOTAL_SECONDS, concurrency=AT_ONCE)
async def image_generate(context: ToolContext, prompt: str, aspect_ratio: Ratio = "landscape") -> dict[str, Any]:
    """Make an image from a description. It becomes a file in the sandbox; the result has its path, kind and size.

    Args:
        prompt: What is to be seen, and in which style, in as much detail as matters.
        aspect_ratio: landscape (wide), square or portrait (tall).
    """
    if not prompt.strip():
        raise ToolError("prompt is empty: describe what is to be seen")
    if len(prompt) > MAX_PROMPT:
        raise ToolError(f"prompt has {len(prompt):,} characters; {MAX_PROMPT:,} can be drawn from")
    try:
        drawer = context.services.get(Drawer)
    except UsageError as error:
        raise ToolError(str(error)) from error
    data = await drawer.draw(context, prompt, aspect_ratio)
    kind, (width, height) = image_kind(data), image_size(data)
    path = await save_file(context, data, "image", kind)
    return {"image": path, "format": kind, "bytes": len(data), "width": width, "height": height, "model": drawer.model}
