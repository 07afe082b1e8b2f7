"""Which dialect speaks to an endpoint."""

from __future__ import annotations

from kiseki.models.dialects.base import Dialect
from kiseki.models.endpoints import ModelSettings, api_mode_of


def open_dialect(settings: ModelSettings) -> Dialect:
    """The dialect that `settings` name. Raises UsageError for settings that it, or the host, has no field for."""
    mode = api_mode_of(settings)
    if mode == "anthropic":
        from kiseki.models.dialects.anthropic import AnthropicDialect

        return AnthropicDialect(settings)
    if mode == "responses":
        from kiseki.models.dialects.responses import ResponsesDialect

        return ResponsesDialect(settings)
    from kiseki.models.dialects.chat import ChatDialect

    return ChatDialect(settings)
