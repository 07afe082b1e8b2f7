"""From settings to a model that can be asked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kiseki.errors import UsageError
from kiseki.models.admission import UNLIMITED, Admission, Door, LocalDoor
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatClient, ChatModel
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings, api_mode_of, check_values, resolve_api_key
from kiseki.models.rate_limit import RateLimit
from kiseki.models.smollm2 import IGNORED, SMOLLM2, needs_server, open_alone, why_not_installed

BUILTIN_PREFIX = "builtin/"
PRACTICE = "builtin/practice"


def is_builtin(model: str) -> bool:
    """Whether the model comes with Kiseki: no endpoint of the user's, no key, no price."""
    return model.startswith(BUILTIN_PREFIX)


def with_api_key(settings: ModelSettings, environ: Mapping[str, str]) -> ModelSettings:
    """The settings with the key that their host needs. Raises `UsageError` when there is none."""
    if is_builtin(settings.model):
        return settings
    fallback = tuple(with_api_key(each, environ) for each in settings.fallback)
    key = resolve_api_key(settings.base_url, settings.api_key, environ)
    keyed = msgspec.structs.replace(settings, api_key=key, fallback=fallback)
    check_settings(keyed)
    return keyed


def ignored_flags(settings: ModelSettings) -> list[str]:
    """Flags that were given and that the built-in model takes no notice of."""
    if not is_builtin(settings.model):
        return []
    default = ModelSettings(settings.model)
    names = IGNORED if settings.model == SMOLLM2 else [each for each in settings.__struct_fields__ if each != "capture_tokens"]
    given = [name for name in names if getattr(settings, name) != getattr(default, name)]
    return ["--fallback_model" if name == "fallback" else f"--{name}" for name in given]


def takes_seed(settings: ModelSettings) -> bool:
    """Whether a seed reaches the model."""
    return is_builtin(settings.model) or open_dialect(settings).takes_seed


def check_settings(settings: ModelSettings) -> None:
    """Raise UsageError for whatever in `settings` cannot be used; call before any work starts."""
    check_values(settings)
    open_dialect(settings)
    for each in settings.fallback:
        check_model(each)


def check_model(settings: ModelSettings) -> None:
    """Raises `UsageError` for settings that cannot work, before anything is started or paid for."""
    if not is_builtin(settings.model):
        check_settings(settings)
    elif settings.model == SMOLLM2:
        check_values(settings)
        if why := why_not_installed():
            raise UsageError(why)
    elif settings.model != PRACTICE:
        raise UsageError(f"there is no built-in model {settings.model!r}; the built-in models are {PRACTICE} and {SMOLLM2}")


def open_model(settings: ModelSettings, door: Door | None = None) -> ChatModel:
    """The model behind `settings`; its heavy parts are imported only here. `door`: to the run's admission; default: its own."""
    door = door or own_door(settings)
    if not settings.fallback or settings.model == PRACTICE:
        return AskedModel(open_client(settings), door, settings)
    from kiseki.models.fallback import FallbackModel

    all_of_them = (settings, *settings.fallback)
    models = [
        AskedModel(
            open_client(each), door, each, elsewhere=each.base_url != settings.base_url, falls_back=each is not all_of_them[-1]
        )
        for each in all_of_them
    ]
    return FallbackModel([(each.model, model) for each, model in zip(all_of_them, models, strict=True)])


def own_door(settings: ModelSettings) -> Door:
    """To an admission of its own, with no ceiling and no budget."""
    return LocalDoor(Admission(RateLimit(UNLIMITED), Breaker(settings.provider_patience), Budget()))


def open_client(settings: ModelSettings) -> ChatClient:
    """The dialect's client behind `settings`."""
    if settings.model == PRACTICE:
        from kiseki.models.practice import PracticeModel

        return PracticeModel(capture_tokens=settings.capture_tokens)
    if settings.model == SMOLLM2 and needs_server(settings):
        return open_alone(settings, open_client)
    from kiseki.models.client import HttpClient

    check_values(settings)
    client = HttpClient(settings, open_dialect(settings))
    mode = settings.tool_call_mode
    if mode == "auto":
        from kiseki.models.text_tools.auto import AutoTools

        return AutoTools(client, reads_text=api_mode_of(settings) == "chat")
    if mode == "native":
        return client
    from kiseki.models.text_tools.client import TextTools

    return TextTools(client, mode)
