"""OpenAI's image API, and all that copy it (platform.openai.com/docs/api-reference/images/create)."""

from __future__ import annotations

from typing import Any

from kiseki.tools.image_gen.api import Drawn, ImageApi, Ratio, first_of, text_of, usage_of

_SIZES: dict[str, dict[Ratio, str]] = {
    "dall-e-2": {"landscape": "1024x1024", "square": "1024x1024", "portrait": "1024x1024"},
    "dall-e-3": {"landscape": "1792x1024", "square": "1024x1024", "portrait": "1024x1792"},
    "": {"landscape": "1536x1024", "square": "1024x1024", "portrait": "1024x1536"},
}
"""By the beginning of the model's id."""


def _body(model: str, prompt: str, ratio: Ratio) -> dict[str, Any]:
    # no response_format: GPT image models refuse it and always give base64, others give one or the other, and both can be read
    sizes = next(sizes for start, sizes in _SIZES.items() if model.startswith(start))
    return {"model": model, "prompt": prompt, "n": 1, "size": sizes[ratio]}


def _read(answer: dict[str, Any]) -> Drawn:
    image = first_of(answer.get("data"))
    usage, reported = usage_of(answer.get("usage"), "input_tokens", "output_tokens")
    return Drawn(text_of(image.get("b64_json")) or text_of(image.get("url")), usage=usage, cost_reported=reported)


API = ImageApi("gpt-image-1", lambda model: "/images/generations", _body, _read)
