"""Quality filters: which done rollouts a view leaves out, and why. A filter reads the ledger's facts; it never runs a model."""

from __future__ import annotations

NO_REASONING = "no_reasoning"
UNKNOWN_TOOL = "unknown_tool"
EMPTY = "empty"
REASONS = (NO_REASONING, UNKNOWN_TOOL, EMPTY)


def discard_reason(*, assistant_turns: int, reasoning_turns: int, has_unknown_tools: bool, reasoning_filter: bool) -> str:
    """Why a done rollout is discarded, "" when it is kept.

    `empty`: the model said nothing; `no_reasoning`: no assistant turn has any (with the filter on); `unknown_tool`: a call
    to a name that is no tool of the run, so the row would teach calling what does not exist.
    """
    if assistant_turns == 0:
        return EMPTY
    if reasoning_filter and reasoning_turns == 0:
        return NO_REASONING
    return UNKNOWN_TOOL if has_unknown_tools else ""
