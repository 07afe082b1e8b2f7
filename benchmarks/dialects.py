"""CPU per model call of the whole engine in each API, beside the chat API, answers whole and streamed.

As in `calls`: the same conversations with the mock server in a process of its own, small and large runs turn by turn, the median
of the rounds, the ratio taken round by round.
"""

from __future__ import annotations

from statistics import median

from benchmarks.calls import CALLS, CONCURRENCY, LARGE, SMALL, TOOL_TURNS, engine_ms
from benchmarks.child import run_child
from benchmarks.figures import Figure, Result
from kiseki.models.mock_server import MockServer

DIALECTS = ("chat", "anthropic", "responses")
"""The first is what the others are compared with."""
ROUNDS = 3
MOST = 2.0
"""Times the chat API's CPU that another may cost."""


def main() -> Result:
    figures = []
    with MockServer(process=True, turns=TOOL_TURNS) as server:
        for stream in (False, True):
            rounds = [
                {
                    dialect: engine_ms(
                        [
                            run_child(
                                "engine:run",
                                base_url=server.base_url,
                                rollouts=rollouts,
                                concurrency=CONCURRENCY,
                                api_mode=dialect,
                                stream=stream,
                            )
                            for rollouts in (SMALL, LARGE)
                        ]
                    )
                    for dialect in DIALECTS
                }
                for _ in range(ROUNDS)
            ]
            chat = median(each[DIALECTS[0]] for each in rounds)
            for dialect in DIALECTS:
                named = f"{dialect}, streamed" if stream else dialect
                ratio = median(each[dialect] / each[DIALECTS[0]] for each in rounds)
                of_chat = dialect != DIALECTS[0]
                figures.append(
                    Figure(
                        named,
                        median(each[dialect] for each in rounds),
                        "ms",
                        floor=chat if of_chat else None,
                        ratio=ratio if of_chat else None,
                        ratio_goal=MOST if of_chat else None,
                    )
                )
    return Result(
        title=f"dialects: CPU per model call ({CALLS} calls a rollout, {CONCURRENCY} rollouts at once, {ROUNDS} rounds)",
        floor="the chat API",
        figures=figures,
    )
