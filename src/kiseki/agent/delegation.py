"""Sub-agents of a rollout: conversations of their own in its sandbox, on its time and money, kept as children of the call that
started them."""

from __future__ import annotations

import msgspec

from kiseki.agent.conversation import Conversation, Ending
from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
from kiseki.errors import BadRequest, ToolError
from kiseki.models.base import ChatModel
from kiseki.tools.context import SubTask, ToolContext
from kiseki.tools.toolbox import is_cancelled
from kiseki.trajectory.types import Message, Prompt, Record, RolloutSpec

MAX_SUB_AGENTS = 10
"""Per rollout, over all of its calls: each may cost as much as a rollout."""
DELEGATION = "delegation"
"""The toolset that no sub-agent has: one level is what a deadline and a budget for the whole rollout can carry."""
SYSTEM = (
    "You are a sub-agent: another agent has given you the task below and waits for your answer. Work on your own, nobody can be"
    " asked. You share its machine, its files and its shell, perhaps with other sub-agents at work. Your last message is all that"
    " it gets to see of your work: say there what you did and what you found."
)


class SubAgents:
    """Those of one rollout; `run` is its context's `delegate`."""

    def __init__(self, spec: RolloutSpec, settings: RolloutSettings, model: ChatModel, tools: ToolsOfRollout) -> None:
        self._spec = spec
        self._settings = settings
        self._model = model
        self._tools = tools
        self._started = 0

    async def run(self, context: ToolContext, task: SubTask) -> Record:
        """Run one to its end; `context` is that of the call that wants it, whose notes get its record.

        A conversation that the endpoint refuses (too long, most likely) is a failed record. Raises `ToolError` for toolsets
        that the rollout does not have and beyond `MAX_SUB_AGENTS`, and whatever else would end a rollout.
        """
        tools = self._tools.subset(self._toolsets(task))
        if self._started == MAX_SUB_AGENTS:
            raise ToolError(f"this task has had its {MAX_SUB_AGENTS} sub-agents; do the rest yourself")
        self._started += 1
        conversation = Conversation(self._child(task, tools.toolsets), self._settings, tools)
        own = context.for_sub_agent()
        conversation.sandbox = own.sandbox.describe() if own.has_sandbox and tools.needs_sandbox else {}
        tools.toolbox.attach(own)
        notes = context.note()

        def cut_off(reason: str) -> Record:
            return conversation.record(conversation.cut_off(reason))

        def keep(ending: Ending) -> Record:
            record = conversation.record(ending)
            notes.running.remove(cut_off)
            notes.children.append(record)
            return record

        notes.running.append(cut_off)
        try:
            ending = await conversation.run(self._model, own, ())
        except BaseException as error:
            if is_cancelled(error):  # the rollout ends, and knows why: it asks `cut_off` for the record
                raise
            record = keep(conversation.break_off(error, out_of_time=False))
            if not isinstance(error, BadRequest):
                raise
        else:
            record = keep(ending)
        await own.close()
        return record

    def _toolsets(self, task: SubTask) -> tuple[str, ...]:
        """In the rollout's order, so that equal subsets are one."""
        there = [name for name in self._tools.toolsets if name != DELEGATION]
        if unknown := [name for name in task.toolsets if name not in there]:
            raise ToolError(f"a sub-agent cannot have {', '.join(unknown)}; the toolsets are: {', '.join(there) or 'none'}")
        return tuple(name for name in there if name in (task.toolsets or there))

    def _child(self, task: SubTask, toolsets: tuple[str, ...]) -> RolloutSpec:
        text = f"{task.goal}\n\n{task.context}" if task.context.strip() else task.goal
        messages = (Message(role="system", content=SYSTEM), Message(role="user", content=text))
        prompt: Prompt = msgspec.structs.replace(self._spec.prompt, messages=messages)
        return msgspec.structs.replace(self._spec, key=f"{self._spec.key}/{self._started}", prompt=prompt, toolsets=toolsets)
