"""Whether there is an endpoint that draws, and which."""

from __future__ import annotations

from collections.abc import Mapping

from kiseki.errors import UsageError
from kiseki.models.endpoints import ModelSettings
from kiseki.tools.endpoint_keys import key_for
from kiseki.tools.settings import ToolSettings

KEYS = {
    "https://fal.run": "FAL_KEY",
    "https://openrouter.ai/api/v1": "OPENROUTER_API_KEY",
    "https://api.openai.com/v1": "OPENAI_API_KEY",
}
"""Where images are asked for when nothing says otherwise: the first whose key is in the environment."""


def choose_endpoint(settings: ToolSettings, environ: Mapping[str, str]) -> str:
    """The API base that images are asked from, "" where there is none."""
    if settings.image_base_url:
        return settings.image_base_url
    return next((url for url, key in KEYS.items() if environ.get(key, "").strip()), "")


def why_no_images(settings: ToolSettings, model: ModelSettings | None, environ: Mapping[str, str]) -> str:
    """Why no image can be drawn, "" when one can."""
    base_url = choose_endpoint(settings, environ)
    if not base_url:
        return f"one of {', '.join(KEYS.values())} in the environment, or --image_base_url, says where images are made"
    try:
        key_for(base_url, model, environ)
    except UsageError as error:
        return f"--image_base_url: {error}"
    return ""
