"""Whether there is a model that can be shown images, and which."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kiseki.errors import UsageError
from kiseki.models.endpoints import OPENROUTER_URL, ModelSettings
from kiseki.models.factory import check_settings, is_builtin
from kiseki.tools.endpoint_keys import key_for
from kiseki.tools.needs import missing_packages
from kiseki.tools.settings import ToolSettings

CALL_SECONDS = 180.0
"""For one request to a model that only looks: its answer is short."""
PATIENCE = 60.0
"""Seconds for which it may turn a call away: a rollout can go on without, and waits no longer."""
MAX_RETRIES = 3


def asks_run_model(settings: ToolSettings, model: ModelSettings) -> bool:
    """Whether the model that looks at images is the run's own."""
    return _at_same_place(settings, model) and settings.vision_model in ("", model.model)


def _at_same_place(settings: ToolSettings, model: ModelSettings) -> bool:
    return not settings.vision_base_url or settings.vision_base_url.rstrip("/") == model.base_url.rstrip("/")


def vision_model(settings: ToolSettings, model: ModelSettings, environ: Mapping[str, str]) -> ModelSettings:
    """The model that looks at images, with its key, where that is not the run's. At the run's own place the API and the extra
    body are the run's; what else the flags say of its model (its reasoning, its providers) does not hold for this one. Raises
    `UsageError`, without a full stop."""
    base_url = settings.vision_base_url or (OPENROUTER_URL if is_builtin(model.model) else model.base_url)
    as_the_run = _at_same_place(settings, model) and not is_builtin(model.model)
    made = ModelSettings(
        settings.vision_model or model.model,
        base_url,
        api_mode=model.api_mode if as_the_run else "auto",
        extra_body=model.extra_body if as_the_run else {},
        call_timeout=CALL_SECONDS,
        provider_patience=PATIENCE,
        max_retries=MAX_RETRIES,
    )
    if is_builtin(made.model):
        raise UsageError(f"{made.model} cannot see; --vision_model names a model that can")
    try:
        made = msgspec.structs.replace(made, api_key=key_for(base_url, model, environ))
        check_settings(made)
    except UsageError as error:
        raise UsageError(f"--vision_base_url: {str(error).removesuffix('.')}") from error
    return made


def why_no_vision(settings: ToolSettings, model: ModelSettings | None, environ: Mapping[str, str]) -> str:
    """Why images cannot be looked at, "" when they can. Whether the run's own model sees is known only when it is asked."""
    if model is not None and (is_builtin(model.model) or not asks_run_model(settings, model)):
        try:
            vision_model(settings, model, environ)
        except UsageError as error:
            return str(error)
    return missing_packages("PIL")
