"""What a run may spend, and through which admission its model calls go."""

from __future__ import annotations

import msgspec

from kiseki.batch.config import BatchConfig
from kiseki.errors import UsageError
from kiseki.ledger.ledger import Ledger
from kiseki.models.admission import Admission
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget, Need
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import is_builtin
from kiseki.models.prices import Price, listed_price, read_prices
from kiseki.models.rate_limit import RateLimit


def with_price(config: BatchConfig, model: ModelSettings) -> ModelSettings:
    """The model's settings with its price, where that is wanted. Raises `UsageError` when a budget needs one in vain."""
    in_dollars = [name for name in ("max_cost", "max_cost_per_prompt") if getattr(config, name) is not None]
    if not (in_dollars or config.prices):
        return model
    from_file = read_prices(config.prices) if config.prices else {}
    if is_builtin(model.model):
        price: Price | None = Price()
    else:
        price = listed_price(model.base_url, model.api_key, model.model) or from_file.get(model.model)
    if price is None and in_dollars:
        raise UsageError(
            f"--{in_dollars[0]}: the price of {model.model} is not known ({model.base_url}/models names none"
            + (f", {config.prices} has {', '.join(from_file) or 'nothing'}" if config.prices else "")
            + "); give it in a file,"
            f" --prices=prices.yaml with a line '{model.model}: {{input: 3, output: 15}}' (US dollars per million tokens)"
        )
    return msgspec.structs.replace(model, price=price)


def open_admission(config: BatchConfig, model: ModelSettings, ledger: Ledger, ceiling: int, *, works: bool) -> Admission:
    """The admission of this session: its budget knows what earlier ones have spent, `ceiling` is the calls at once at most,
    `works` whether rollouts of the run were done before."""
    budget = Budget(
        max_cost=config.max_cost,
        max_tokens=config.max_total_tokens,
        price=model.price,
        reply_tokens=model.max_tokens,
        spent=Need(*ledger.spent()),
    )
    breaker = Breaker(model.provider_patience, at_once=ceiling, works=works)
    return Admission(RateLimit(ceiling), breaker, budget)
