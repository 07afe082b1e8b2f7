"""Prompt → flow: which family a prompt belongs to. No prompt is read beyond a bound, so a huge one costs little."""

from __future__ import annotations

import random
import re
from functools import lru_cache

from kiseki.models.practice.browser_flows import acting_flow, browser_flow
from kiseki.models.practice.conversions import conversion, dates
from kiseki.models.practice.file_flows import file_flow
from kiseki.models.practice.flows import solve
from kiseki.models.practice.functions import complete_function, read_request
from kiseki.models.practice.helper_flows import helper_flow
from kiseki.models.practice.numbers import arithmetic, number_list
from kiseki.models.practice.sequences import number_theory, sequence
from kiseki.models.practice.tables import csv_table, json_document
from kiseki.models.practice.task import Task
from kiseki.models.practice.texts import message, text_change, text_statistics
from kiseki.models.practice.tool_flows import SCANNED, named_tool, other
from kiseki.models.practice.view import Flow, Kit
from kiseki.models.practice.web_flows import question_flow, read_flow, search_flow
from kiseki.models.practice.words import word_problem

_KANA = re.compile(r"[ぁ-ゖァ-ヺ]")
_FAMILIES = (
    csv_table,
    json_document,
    text_statistics,
    sequence,
    number_theory,
    conversion,
    dates,
    message,
    text_change,
    number_list,
    arithmetic,
)
"""Asked in this order; the first that understands the prompt has it."""


def choose_flow(prompt: str, kit: Kit, draw: random.Random) -> Flow:
    """The flow for this prompt. Never raises, never yields more than eight turns."""
    text = prompt[:SCANNED]
    japanese = bool(_KANA.search(text))
    if named_tool(text, kit):
        return other(prompt, kit, draw, japanese)  # the user names a tool of theirs: that one is meant
    if request := _function_request(prompt[: 4 * SCANNED]):
        return complete_function(request, kit, draw, japanese)
    if len(prompt) > SCANNED:
        return other(prompt, kit, draw, japanese)
    if "####" not in text:
        for family in (helper_flow, acting_flow, read_flow, browser_flow, search_flow, file_flow):
            if flow := family(text, kit, draw, japanese):
                return flow
    if task := _task(text):
        return solve(task, kit, draw, japanese)
    if flow := question_flow(text, kit, draw, japanese):
        return flow
    return other(prompt, kit, draw, japanese)


_function_request = lru_cache(maxsize=256)(read_request)


@lru_cache(maxsize=256)
def _task(text: str) -> Task | None:
    """The task that a script can solve, None when the prompt is none. Cached: a rollout asks for the same at every turn."""
    if task := word_problem(text, asked_for=True):
        return task
    found = (family(text) for family in _FAMILIES)
    return next((task for task in found if task), None) or word_problem(text, asked_for=False)
