"""OpenRouter's image models: a chat request with the modality `image` (openrouter.ai/docs, "Image Generation")."""

from __future__ import annotations

from typing import Any

from kiseki.tools.image_gen.api import Drawn, ImageApi, Ratio, dict_of, first_of, text_of, usage_of

_RATIOS: dict[Ratio, str] = {"landscape": "16:9", "square": "1:1", "portrait": "9:16"}
_ONLY_IMAGES = ("black-forest-labs/", "sourceful/", "bytedance-seed/", "recraft/")
"""Beginnings of the ids of models that write no text, and take only requests that want none."""


def _body(model: str, prompt: str, ratio: Ratio) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "modalities": ["image"] if model.startswith(_ONLY_IMAGES) else ["image", "text"],
        "image_config": {"aspect_ratio": _RATIOS[ratio]},
        "usage": {"include": True},
    }


def _read(answer: dict[str, Any]) -> Drawn:
    choice = first_of(answer.get("choices"))
    message = dict_of(choice.get("message"))
    url = text_of(dict_of(first_of(message.get("images")).get("image_url")).get("url"))
    usage, reported = usage_of(answer.get("usage"), "prompt_tokens", "completion_tokens")
    words = text_of(message.get("content")) or text_of(message.get("refusal")) or text_of(choice.get("native_finish_reason"))
    # without an image it is the model that says why
    refused = not url and bool(words or choice.get("finish_reason") == "content_filter")
    return Drawn(url, words, refused, usage, reported)


API = ImageApi("google/gemini-2.5-flash-image", lambda model: "/chat/completions", _body, _read)
