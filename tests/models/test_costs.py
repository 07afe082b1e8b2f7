"""What a call is taken to have cost: by the endpoint, by the price, and where nobody says."""

from __future__ import annotations

from typing import Any

import pytest
from support import with_client

from kiseki.errors import PromptBudgetSpent
from kiseki.models.allowance import Allowance
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatReply, ChatRequest
from kiseki.models.mock_server import MockServer
from kiseki.models.prices import Price
from kiseki.trajectory.types import Message

PROMPT = (Message("user", "What time is it?"),)
BY_PRICE = 2 * 0.5 + 3 * 2.0


@pytest.mark.parametrize(
    ("said", "cost"),
    [({"cost": 0}, 0.0), ({"cost": 5.0}, 5.0), ({}, BY_PRICE), ({"cost": None}, BY_PRICE), ({"cost": "free"}, BY_PRICE)],
)
def test_the_price_says_only_what_the_endpoint_does_not(said: dict[str, Any], cost: float) -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, **said}
    with MockServer([{"turns": [{"content": "Noon.", "usage": usage}]}], report_cost=False) as server:
        reply = with_client(
            server.base_url, lambda client: client.complete(ChatRequest(PROMPT)), price=Price(input=0.5, output=2.0)
        )
    assert reply.call.usage.cost == cost


@pytest.mark.parametrize(("kind", "answered"), [("error_500", True), ("torn", False), ("reset", False)])
def test_a_try_that_may_have_cost_counts_for_the_prompt_s_budget(kind: str, answered: bool) -> None:
    """A call costs 1 dollar here: one is within the budget, another only if the first cost nothing for sure."""

    async def use(client: AskedModel) -> ChatReply:
        return await client.complete(ChatRequest(PROMPT, allowance=Allowance(1.5)))

    with MockServer([{"turns": [{"content": "Noon.", "fault": {"kind": kind, "times": 1}}]}]) as server:
        if answered:
            assert with_client(server.base_url, use, price=Price(request=1.0)).call.retries == 1
        else:
            with pytest.raises(PromptBudgetSpent, match=r"may cost \$1\.0000, and \$0\.5000 are left"):
                with_client(server.base_url, use, price=Price(request=1.0))
        assert server.stats()["calls"] == 1 + answered
