"""What one rollout may spend, also by calls side by side."""

from __future__ import annotations

import pytest

from kiseki.errors import PromptBudgetSpent
from kiseki.models.allowance import Allowance


def test_what_is_under_way_counts_at_its_worst() -> None:
    allowance = Allowance(1.0)
    with allowance.holding() as one, allowance.holding() as other:
        one.set(0.6)
        with pytest.raises(PromptBudgetSpent, match=r"an image may cost \$0\.5000, and \$0\.4000 are left for it"):
            other.set(0.5, "an image")
        other.set(0.4)
        one.set(0.2)  # less again
        allowance.spend(0.1)
        assert allowance.left() == pytest.approx(0.3)
    assert allowance.left() == pytest.approx(0.9)


def test_a_hold_that_fails_gives_back_what_it_had() -> None:
    allowance = Allowance(1.0)
    with pytest.raises(PromptBudgetSpent), allowance.holding() as held:
        held.set(0.5)
        held.set(1.5)
    assert allowance.left() == 1.0


def test_without_a_limit_there_is_always_something_left() -> None:
    allowance = Allowance()
    with allowance.holding() as held:
        held.set(1e9)
        assert allowance.left() is None
