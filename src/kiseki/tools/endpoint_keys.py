"""Keys for the endpoints that tools ask beside the run's own: another vision model, an image model."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from kiseki.errors import UsageError
from kiseki.models.endpoints import ModelSettings, resolve_api_key
from kiseki.models.factory import is_builtin
from kiseki.models.hosts import host_of

FAL_KEY = "FAL_KEY"


def is_fal(base_url: str) -> bool:
    name = urlsplit(base_url).hostname or ""
    return name == "fal.run" or name.endswith(".fal.run")


def key_for(base_url: str, model: ModelSettings | None, environ: Mapping[str, str]) -> str:
    """The key for `base_url`: the run's own where it is the same host, else the environment's; "" where none is needed.

    Raises `UsageError`, without a full stop, for what is no http(s) URL, or where no key is to be had.
    """
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{base_url!r} is not an http:// or https:// URL")
    if model is not None and not is_builtin(model.model) and urlsplit(model.base_url).netloc == parts.netloc and model.api_key:
        return model.api_key
    names = (FAL_KEY,) if is_fal(base_url) else host_of(base_url).keys
    try:
        key = environ.get(FAL_KEY, "").strip() if is_fal(base_url) else resolve_api_key(base_url, "", environ)
    except UsageError:
        key = ""
    if not key and names:
        raise UsageError(f"no API key for {parts.hostname}; {' or '.join(names)} in the environment is one")
    return key
