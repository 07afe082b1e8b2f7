"""What `kiseki models check` said, and scripts of mock servers that can all of it."""

from __future__ import annotations

import json
from collections.abc import Callable

BLUE = {"name": "look_up_code", "arguments": {"colour": "blue"}}
RED = {"name": "look_up_code", "arguments": {"colour": "red"}}
THINKS = "All but nine run away, so nine are left."
LEGS = {"match": "How many legs", "turns": [{"content": '{"legs_counted": 4}'}]}
READY = {"match": "ready", "turns": [{"content": "ready"}]}
PARALLEL = {"match": "blue and red", "turns": [{"tool_calls": [BLUE, RED]}]}
LOOP = {"match": "colour blue", "turns": [{"tool_calls": [BLUE]}, {"content": "It is {{last_tool_result}}."}]}
SHEEP = {"match": "sheep", "turns": [{"content": "9", "reasoning": THINKS}]}
ALL = [PARALLEL, LOOP, SHEEP, LEGS, READY]


class Found:
    """What the command said with --json."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.err = status, err
        self.report = json.loads(out)
        self.checks = {each["check"]: each for each in self.report["checks"]}
        self.works = {each["check"]: each["works"] for each in self.report["checks"]}

    def words(self, check: str) -> str:
        return str(self.checks[check]["words"])


Check = Callable[..., Found]
