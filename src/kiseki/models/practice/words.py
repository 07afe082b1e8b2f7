"""Word problems: the numbers in the order of the story, each with an operation by the words around it.

This is a heuristic and its answers are often wrong; the answer says so. The script shows every step with the words that it
was taken from, so that a reader sees why.
"""

from __future__ import annotations

import re

from kiseki.models.practice.task import Mistake, Task, doubt

_SPELLED = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100, "dozen": 12,
}  # fmt: skip
_FACTORS = {"half": 0.5, "twice": 2, "double": 2, "doubled": 2, "thrice": 3, "triple": 3, "tripled": 3, "quarter": 0.25}
_NUMBER = re.compile(
    r"\$?(?P<digits>\d[\d,]{0,14}(?:\.\d{1,6})?)(?:/(?P<below>\d{1,4}))?(?P<percent>\s?(?:%|percent))?"
    rf"|\b(?P<word>{'|'.join([*_SPELLED, *_FACTORS])})\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.;!?])\s+")
_CLAUSE = re.compile(r",\s+(?!\d)|\s+(?:and|but|then|while|if)\s+")
_RATE = re.compile(
    r"\b(?:each|per|every|apiece|a piece|daily|a day|a week|a month|a year|an hour|a minute|costs?|worth|times)\b|(?:at|for) \$|/"
)
_HOLDS = re.compile(r"\b(?:with|of|holds?|contains?)\b")
_SPAN = re.compile(r"\s?(?:hours?|days?|weeks?|months?|years?|minutes?|times)\b")
_AWAY = re.compile(
    r"\b(?:eats?|ate|gave|gives?|spent|spends?|lost|loses?|sold|sells?|used?|uses|less|fewer|away|leaves?|left|broke|took|takes"
    r"|donat\w{1,5}|return\w{0,5}|minus|paid|pays?|died|removed?|discount|off)\b"
)
_MORE = re.compile(r"\b(?:more|increas\w{1,5}|raise\w{0,2}|tip|tax|fee|interest)\b")
_SHARE = re.compile(r"\b(?:split|shared?|divided?|equally|among|average|evenly)\b")
_ASKS = re.compile(r"how (?:many|much|far|long|old)\b|what (?:is|was) the (?:total|cost|price)\b|いくつ|いくら|何[個人円本枚匹]")
_INSTRUCTION = re.compile(r"\n(?:Use|Give|Answer|Put|End|Finish) |(?:Give|Put|End|Write) [^\n]{0,80}####")
_MOST_STEPS = 12


def word_problem(text: str, *, asked_for: bool) -> Task | None:
    """A task for a word problem. `asked_for`: only when the prompt wants the answer as `#### <number>`."""
    marked = "####" in text
    if marked is not asked_for:
        return None
    story = _INSTRUCTION.split(text, maxsplit=1)[0]
    if not marked and not _ASKS.search(story.lower()):
        return None
    steps = _steps(story)
    if not steps or (not marked and len(steps) < 2 and "*" not in steps[0][1]):
        return None
    lines = [f"total {operation} {amount}" for operation, amount, _ in steps]
    value = 0.0
    for operation, amount, _ in steps:
        value = _apply(value, operation, amount)
    listing = "\n".join(f"{line}  # {words}" for line, (_, _, words) in zip(lines, steps, strict=True))
    source = (
        f"# One step per quantity of the story, the operation chosen by keywords\n{listing}\nresult = round(total, 2)\n"
        "print(int(result) if result == int(result) else result)\n"
    )
    shown = _shown(value)
    return Task(
        understood="solve a word problem",
        script="solve.py",
        source=source,
        answer="Step by step, as the script has it, the result is {out}.",
        answer_ja="計算の結果は {out} です。",
        own_mistakes=tuple(_mistakes(lines, shown)),
        in_head=shown,
        suspicious=lambda output: "" if output == shown else doubt(output, value),
        check=f"""awk 'BEGIN {{ {"; ".join(lines)}; printf "%.12g\\n", total }}'""",
        check_why="I let awk do the same steps, to be sure of the arithmetic at least.",
        agrees=_near,
        last_line="#### {out}" if marked else "",
        caveat="This is a keyword heuristic of the practice model, not an understanding of the story: it can well be wrong.",
    )


def _mistakes(lines: list[str], shown: str) -> list[Mistake]:
    """Slips in one step: a wrong sign, a digit lost. Only those that change the result."""
    found = []
    for line in lines[1:]:
        for good, bad, why in (
            (" *= ", " += ", "That step has to multiply; I had typed `+=`."),
            (" -= ", " += ", "That step takes away; I had typed `+=`."),
            (" += ", " -= ", "That step adds; I had typed `-=`."),
        ):
            if good in line and lines.count(line) == 1:
                wrong = [each.replace(good, bad) if each is line else each for each in lines]
                if _shown(_run(wrong)) != shown:
                    found.append(Mistake(f"{line}  #", f"{line.replace(good, bad)}  #", "", why))
    if " * " in lines[0]:
        found.append(
            Mistake(f"{lines[0]}  #", f"{lines[0].replace(' * ', ' + ', 1)}  #", "", "So many of so many: that multiplies.")
        )
    return found


def _steps(story: str) -> list[tuple[str, str, str]]:
    """(operation on the total, amount as Python text, the words it was taken from), in the order of the story."""
    steps: list[tuple[str, str, str]] = []
    rate_seen = False
    for sentence in _SENTENCE.split(story):
        for clause in _CLAUSE.split(sentence):
            lower = clause.lower()
            rate = bool(_RATE.search(lower))
            plain: list[str] = []
            span = False
            for match in _NUMBER.finditer(clause):
                number, factor = _read(match, lower)
                factor = factor or bool(re.match(r"\s?times (?:as|more|that|the)\b", lower[match.end() : match.end() + 14]))
                if factor and steps and not plain:
                    steps.append(("*=", number, _words(clause)))
                else:
                    plain.append(number)
                    span = bool(_SPAN.match(lower, match.end()))
            if len(plain) > 1 and (rate or _HOLDS.search(lower)):
                plain = [" * ".join(plain)]
            for number in plain:
                alone = len(plain) == 1 and "*" not in number
                operation = "+="
                if not steps:
                    operation = "="
                elif alone and _SHARE.search(lower) and float(number):
                    operation = "/="
                elif alone and (rate or (span and (rate_seen or "?" in sentence))):
                    operation = "*="
                elif _AWAY.search(lower):
                    operation = "-="
                steps.append((operation, number, _words(clause)))
            rate_seen = rate_seen or rate
            if len(steps) >= _MOST_STEPS:
                return steps[:_MOST_STEPS]
    return steps


def _read(match: re.Match[str], clause: str) -> tuple[str, bool]:
    """The number of a match as Python text, and whether it is a factor by itself: a share, "half", "twice"."""
    if word := (match["word"] or "").lower():
        return (f"{_FACTORS[word]:g}", True) if word in _FACTORS else (str(_SPELLED[word]), False)
    digits = match["digits"].replace(",", "")
    if match["percent"]:
        share = float(digits) / 100
        if _MORE.search(clause):
            share = 1 + share
        elif _AWAY.search(clause):
            share = max(0.0, 1 - share)
        return f"{share:.6g}", True
    if (below := match["below"]) and int(below):
        return f"{float(digits) / int(below):.6g}", True
    return (digits if "." in digits else str(int(digits))), False


def _words(clause: str) -> str:
    """The clause as a comment: one line of plain characters."""
    return re.sub(r"[^\w $%.,'/-]", "", " ".join(clause[:160].split()))[:60].strip()


def _run(lines: list[str]) -> float:
    total = 0.0
    for line in lines:
        _, operation, amount = line.split(" ", 2)
        total = _apply(total, operation, amount)
    return total


def _apply(total: float, operation: str, amount: str) -> float:
    number = 1.0
    for factor in amount.split(" * "):
        number *= float(factor)
    if operation == "/=":
        return total / number
    return {"=": number, "+=": total + number, "-=": total - number, "*=": total * number}[operation]


def _shown(value: float) -> str:
    value = round(value, 2)
    return str(int(value)) if value == int(value) else str(value)


def _near(check: str, output: str) -> bool:
    try:
        return abs(float(check) - float(output)) <= max(0.006, abs(float(output)) * 1e-6)
    except ValueError:
        return False
