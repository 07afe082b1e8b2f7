"""Kinds of examples that `--drop` leaves out. Each is a function from an example to what was found, "" where nothing was.

`loops`: the same call (name and arguments as written) with the same result three times in a row, with no other call between; or a
text or reasoning of the model's that ends in a repetition: a unit of at most 50 words that stands at its end three times or more,
over at least 50 words, where at least 82 % of the words are those of one unit before. Words are as in `words.py`.

`refusals`: the final answer begins with a phrase of refusal (`_REFUSALS`: English, Chinese, French, German, Japanese, Spanish).
"I'm sorry, but I could not find the file" is none: the phrase has to refuse the task.

`truncated`: the last model call ended by its length, or the rollout did; or there is no final answer because of a limit: turns,
time, budget. Of rows that do not say how they ended, those that say `partial` and have no final answer.

`tool_errors`: a result of a tool is a failure, by the rule of the tool statistics (`trajectory/outcome.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from kiseki.exports.job import Drop
from kiseki.exports.steps import calls_with_results
from kiseki.exports.words import words
from kiseki.trajectory.example import Example, final_answer
from kiseki.trajectory.text import printable

REPEATED_CALLS = 3
UNIT_WORDS = 50
"""Of a repetition in a text, at most; and the words that it has to go over, at least."""
UNIT_TIMES = 3
AGREEMENT = 0.82
SHOWN = 80
"""Characters of what was found that a report has."""
_TAIL_CHARS = 20_000
"""Of a text, in which its last 150 words are looked for; longer words are no language."""

LENGTH = ("length", "max_tokens")
LIMITS = (*LENGTH, "max_turns", "timeout", "budget", "prompt_budget", "context_full")

_SORRY = (
    r"(?:(?:i'm|i am|we're) (?:very |so |really )?sorry|sorry|i apologi[sz]e|unfortunately|as an ai(?: \w+){0,3})[,.!]? (?:but )?"
)
_UNABLE = r"i (?:can't|cannot|can not|won't|will not|am not able to|am unable to)|i'm (?:not able|unable) to"
_TASKS = r"help (?:you )?with|help you|assist|comply|fulfil|engage in|participate in|do (?:that|this)\b"
_REFUSALS = re.compile(
    "|".join(
        [
            rf"(?:{_SORRY})?(?:{_UNABLE}) (?:{_TASKS})",
            rf"(?:{_SORRY})?i (?:must|have to) (?:respectfully )?(?:decline|refuse)\b",
            r"(?:申し訳(?:ありません|ございません)|すみません|ごめんなさい)(?:が|けど|けれども?)?[、,。]?\s*(?:その|この|ご)[^。\n]{0,40}"
            r"(?:お手伝い|お応え|応じ|対応)[^。\n]{0,10}(?:できません|できかねます)",
            r"(?:很抱歉|抱歉|对不起)[,，。]?\s*(?:但)?我?(?:不能|无法)(?:帮助|协助|满足|回答这|完成这个请求)",
            r"(?:es tut mir leid|tut mir leid|entschuldigung)[,.]? (?:aber )?(?:ich kann|dabei kann ich|ich darf) "
            r"[^.\n]{0,40}\bnicht\b[^.\n]{0,20}(?:helfen|unterstützen|nachkommen)",
            r"(?:je suis désolée?|désolée?)[,.]? (?:mais )?je ne (?:peux|puis) pas (?:vous aider|t'aider|répondre à cette)",
            r"lo siento[,.]? (?:pero )?no puedo (?:ayudar|asistir|cumplir)",
        ]
    ),
    re.IGNORECASE,
)
"""At the start of an answer, with straight apostrophes."""


def find_loops(example: Example) -> str:
    messages = example.messages
    before, times = ("", "", ""), 0
    for at, call, result in calls_with_results(example):
        if at < example.prompt_messages or result is None:
            continue
        step = (call.name, call.arguments, messages[result].content)
        times = times + 1 if step == before else 1
        before = step
        if times == REPEATED_CALLS:
            return f"{call.name} was called {times} times with the same result, in turn {at + 1} the last time"
    for at, message in enumerate(messages):
        if message.role == "assistant" and at >= example.prompt_messages:
            for text in (message.reasoning, message.content):
                if unit := repeated_suffix(text):
                    return f"turn {at + 1} ends in a repetition: {printable(unit, SHOWN)}"
    return ""


def repeated_suffix(text: str) -> str:
    """The unit in whose repetition a text ends, "" for one that does not."""
    last = words(text[-_TAIL_CHARS:])[-UNIT_WORDS * UNIT_TIMES :]
    for unit in range(1, UNIT_WORDS + 1):
        span = max(UNIT_WORDS, unit * UNIT_TIMES)
        if span > len(last):
            return ""
        if last[-1] != last[-1 - unit] and last[-2] != last[-2 - unit]:  # the very last word may be torn
            continue
        compared = range(len(last) - span + unit, len(last))
        if sum(last[at] == last[at - unit] for at in compared) >= AGREEMENT * len(compared):
            return " ".join(last[-unit:])
    return ""


def find_refusal(example: Example) -> str:
    answer = final_answer(example).lstrip(" \t\r\n*_#>\"'“").replace("’", "'")
    return printable(answer, SHOWN) if _REFUSALS.match(answer) else ""


def find_truncation(example: Example) -> str:
    if example.finish_reason in LENGTH:
        return f"finish reason {example.finish_reason}"
    if example.stop_reason in LENGTH or (example.stop_reason in LIMITS and not final_answer(example)):
        return f"stop reason {example.stop_reason}"
    unknown = example.partial and not example.stop_reason
    return "partial, without a final answer" if unknown and not final_answer(example) else ""


def find_tool_error(example: Example) -> str:
    if not example.failed:
        return ""
    first = min(example.failed)
    return f"turn {first + 1}: {printable(example.messages[first].content, SHOWN)}"


FINDERS: dict[Drop, tuple[str, Callable[[Example], str]]] = {
    "loops": ("loop", find_loops),
    "refusals": ("refusal", find_refusal),
    "truncated": ("truncated", find_truncation),
    "tool_errors": ("tool error", find_tool_error),
}
"""What the reports call each, and how it is found."""
