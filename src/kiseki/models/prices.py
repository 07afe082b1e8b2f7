"""What a token costs: as the endpoint's list of models says (OpenRouter's, and those that copy it), else as a user's YAML says.

What a call did cost is the provider's own figure wherever it reports one (`usage.cost`); prices are for budgets, which must
know before a call, and for endpoints that report no cost.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec

from kiseki.errors import UsageError
from kiseki.trajectory.types import Usage

MILLION = 1e6


class Price(msgspec.Struct, frozen=True):
    """US dollars."""

    input: float = 0.0
    """Per prompt token."""
    output: float = 0.0
    """Per reply token, reasoning included."""
    cached_input: float | None = None
    """Per prompt token that came from the provider's cache. Default: as `input`."""
    request: float = 0.0
    """Per call."""
    cache_write: float | None = None
    """Per prompt token that was put into the provider's cache. Default: as `input`."""

    def of(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0) -> float:
        cached = self.input if self.cached_input is None else self.cached_input
        written = self.input if self.cache_write is None else self.cache_write
        fresh = max(0, prompt_tokens - cached_tokens - cache_write_tokens)  # some count the cached ones apart
        prompt = fresh * self.input + cached_tokens * cached + cache_write_tokens * written
        return self.request + prompt + completion_tokens * self.output

    def of_usage(self, usage: Usage) -> float:
        return self.of(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.cache_write_tokens)


class _FilePrice(msgspec.Struct, forbid_unknown_fields=True):
    """One model in a user's file: US dollars per million tokens."""

    input: float
    output: float
    cached_input: float | None = None
    request: float = 0.0
    cache_write: float | None = None


def read_prices(path: str) -> dict[str, Price]:
    """A YAML file: model id → `{input, output, cached_input, cache_write, request}`, US dollars per million tokens
    (`request`: per call).

    Raises `UsageError` for a file that cannot be used.
    """
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
        content = {name: _file_price(name, each) for name, each in msgspec.convert(yaml.safe_load(text), dict[str, Any]).items()}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prices: cannot read {path}: {error}") from error
    except (yaml.YAMLError, ValueError, msgspec.ValidationError) as error:  # ValueError: a date that is none
        words = " ".join(str(error).split())
        raise UsageError(f"--prices {path}: {words}; a line looks like 'my/model: {{input: 3, output: 15}}'") from error
    prices = {}
    for model, each in content.items():
        cached, written = (None if it is None else it / MILLION for it in (each.cached_input, each.cache_write))
        price = Price(each.input / MILLION, each.output / MILLION, cached, each.request, written)
        if not _is_usable(price):
            raise UsageError(f"--prices {path}: a price of {model} is not a number of 0 or more")
        prices[model] = price
    return prices


def _file_price(model: str, fields: Any) -> _FilePrice:
    try:
        return msgspec.convert(fields, _FilePrice)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{model}: {error}") from error


def price_of(pricing: Any) -> Price | None:
    """What the endpoint's list says of a model, in OpenRouter's shape: `{"prompt": "0.000003", …}` (openrouter.ai/docs, "List
    available models": US dollars per token, as text). None where it is no usable price."""
    if not isinstance(pricing, dict):
        return None
    try:
        price = Price(
            input=float(pricing["prompt"]),
            output=float(pricing["completion"]),
            cached_input=_optional(pricing.get("input_cache_read")),
            request=float(pricing.get("request") or 0.0),
            cache_write=_optional(pricing.get("input_cache_write")),
        )
    except (KeyError, TypeError, ValueError):
        return None
    # -1 is what a router says whose price depends on the model that it picks
    return price if _is_usable(price) else None


def _is_usable(price: Price) -> bool:
    parts = (price.input, price.output, price.cached_input or 0.0, price.cache_write or 0.0, price.request)
    return all(math.isfinite(each) and each >= 0 for each in parts)


def _optional(value: Any) -> float | None:
    return None if value in (None, "") else float(value)
