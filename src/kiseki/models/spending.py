"""What a run may spend, and the admission through which its model calls go."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kiseki.errors import UsageError
from kiseki.models.admission import Admission
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget, Need
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import PRACTICE, is_builtin
from kiseki.models.listing import PRICE_SECONDS, WINDOW_SECONDS, Listings
from kiseki.models.prices import Price, read_prices
from kiseki.models.rate_limit import RateLimit


def with_listed(model: ModelSettings, prices: str, in_dollars: Sequence[str]) -> ModelSettings:
    """The model's settings with its price, as `with_price` has it, and with its context window where that was not given and the
    endpoint lists it: one question for both. Blocks, briefly where only the window is wanted. Raises `UsageError`."""
    listings = Listings(PRICE_SECONDS if in_dollars or prices else WINDOW_SECONDS)
    priced = with_price(model, prices, in_dollars, listings)
    window = None if model.model == PRACTICE else model.context_length or listings.of(model).context_length
    return msgspec.structs.replace(priced, context_length=window)


def with_price(model: ModelSettings, prices: str, in_dollars: Sequence[str], listings: Listings | None = None) -> ModelSettings:
    """The model's settings with its price, where that is wanted: `prices` is the user's file ("": none), `in_dollars` the flags
    that set a limit in dollars. `listings`: what endpoints have answered before.

    Raises `UsageError` when such a limit needs a price in vain.
    """
    if not (in_dollars or prices):
        return model
    listings = listings or Listings()
    fallback = tuple(with_price(each, prices, in_dollars, listings) for each in model.fallback)
    price = find_price(model, prices, listings)
    if price is None and in_dollars:
        raise UsageError(
            f"--{in_dollars[0]}: the price of {model.model} is not known ({model.base_url}/models names none"
            + (f", {prices} has {', '.join(read_prices(prices)) or 'nothing'}" if prices else "")
            + "); give it in a file,"
            f" --prices=prices.yaml with a line '{model.model}: {{input: 3, output: 15}}' (US dollars per million tokens)"
        )
    return msgspec.structs.replace(model, price=price, fallback=fallback)


def find_price(model: ModelSettings, prices: str, listings: Listings | None = None) -> Price | None:
    """What the endpoint lists, else what the user's file says ("": none); None where neither does. `listings` as in `with_price`.
    Raises `UsageError` for a file that cannot be used."""
    from_file = read_prices(prices) if prices else {}
    if is_builtin(model.model):
        return Price()
    return (listings or Listings()).of(model).price or from_file.get(model.model)


def open_admission(
    model: ModelSettings,
    ceiling: int,
    *,
    max_cost: float | None,
    max_total_tokens: int | None,
    spent: Need,
    works: bool = False,
) -> Admission:
    """The admission of one session of a run. `ceiling`: calls at once at most. `spent`: by earlier sessions. `works`: the
    endpoint has answered calls of the run before (default: False)."""
    budget = Budget(
        max_cost=max_cost,
        max_tokens=max_total_tokens,
        price=model.price,
        reply_tokens=model.max_tokens,
        spent=spent,
    )
    return Admission(RateLimit(ceiling), Breaker(model.provider_patience, at_once=ceiling, works=works), budget)
