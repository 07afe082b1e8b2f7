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
from kiseki.models.endpoints import ModelSettings, check_settings, resolve_api_key
from kiseki.models.rate_limit import RateLimit

BUILTIN_PREFIX = "builtin/"
PRACTICE = "builtin/practice"


def is_builtin(model: str) -> bool:
    """Whether the model comes with Kiseki: no endpoint, no key."""
    return model.startswith(BUILTIN_PREFIX)


def with_api_key(settings: ModelSettings, environ: Mapping[str, str]) -> ModelSettings:
    """The settings with the key that their host needs. Raises `UsageError` when there is none."""
    if is_builtin(settings.model):
        return settings
    keyed = msgspec.structs.replace(settings, api_key=resolve_api_key(settings.base_url, settings.api_key, environ))
    check_settings(keyed)
    return keyed


def ignored_flags(settings: ModelSettings) -> list[str]:
    """Flags that were given and that the built-in model takes no notice of."""
    default = ModelSettings(settings.model)
    return [
        f"--{name}"
        for name in settings.__struct_fields__
        if is_builtin(settings.model) and name != "capture_tokens" and getattr(settings, name) != getattr(default, name)
    ]


def check_model(settings: ModelSettings) -> None:
    """Raises `UsageError` for settings that cannot work, before anything is started or paid for."""
    if not is_builtin(settings.model):
        check_settings(settings)
    elif settings.model != PRACTICE:
        raise UsageError(f"there is no built-in model {settings.model!r}; the built-in model is {PRACTICE}")


def open_model(settings: ModelSettings, door: Door | None = None) -> ChatModel:
    """The model behind `settings`; its heavy parts are imported only here. `door`: to the run's admission; default: its own."""
    return AskedModel(open_client(settings), door or own_door(settings), settings)


def own_door(settings: ModelSettings) -> Door:
    """To an admission of its own, with no ceiling and no budget."""
    return LocalDoor(Admission(RateLimit(UNLIMITED), Breaker(settings.provider_patience), Budget()))


def open_client(settings: ModelSettings) -> ChatClient:
    """The dialect's client behind `settings`."""
    if is_builtin(settings.model):
        from kiseki.models.practice import PracticeModel

        return PracticeModel(capture_tokens=settings.capture_tokens)
    from kiseki.models.openai_chat import OpenAIChat

    return OpenAIChat(settings)
