"""Percentiles of many values, by nearest rank."""

from __future__ import annotations

from collections.abc import Sequence

PERCENTILES = (50, 90, 99)


def percentiles(values: Sequence[float], *, with_max: bool = False) -> dict[str, float]:
    """`{"p50": …}`, three decimals; with `max` where that is wanted. None of nothing."""
    ranked = sorted(values)
    if not ranked:
        return {}
    found = {f"p{percent}": round(ranked[-(-len(ranked) * percent // 100) - 1], 3) for percent in PERCENTILES}
    return found | ({"max": round(ranked[-1], 3)} if with_max else {})
