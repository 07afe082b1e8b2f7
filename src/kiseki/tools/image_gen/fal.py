"""fal's text-to-image models, asked directly and not through its queue (fal.ai/docs, "Synchronous requests")."""

from __future__ import annotations

from typing import Any

from kiseki.tools.image_gen.api import Drawn, ImageApi, Ratio, first_of, text_of

_SIZES: dict[Ratio, str] = {"landscape": "landscape_16_9", "square": "square_hd", "portrait": "portrait_16_9"}


def _body(model: str, prompt: str, ratio: Ratio) -> dict[str, Any]:
    # sync_mode: the image itself comes, where the model can do that, and not an address
    return {"prompt": prompt, "image_size": _SIZES[ratio], "num_images": 1, "sync_mode": True}


def _read(answer: dict[str, Any]) -> Drawn:
    flagged = answer.get("has_nsfw_concepts")
    if isinstance(flagged, list) and flagged[:1] == [True]:  # then the image is black
        return Drawn(words="its safety checker flagged the image", refused=True)
    return Drawn(text_of(first_of(answer.get("images")).get("url")))


API = ImageApi("fal-ai/flux/schnell", lambda model: f"/{model.strip('/')}", _body, _read, scheme="Key")
