"""Families about a few numbers: arithmetic, statistics and sorting of a list, number theory, conversions."""

from __future__ import annotations

import ast
import math
import operator
import re
import statistics
from collections.abc import Callable
from typing import Any

from kiseki.models.practice.task import Mistake, Task, doubt, same_words

_NUMBER = r"-?\d{1,30}(?:\.\d{1,20})?"
_WORDS = {
    "to the power of": "**", "raised to": "**", "multiplied by": "*", "divided by": "/", "times": "*", "plus": "+", "minus": "-",
    "×": "*", "÷": "/", "^": "**", "足す": "+", "引く": "-", "掛ける": "*", "かける": "*", "割る": "/", "−": "-",
}  # fmt: skip
_EXPRESSION = re.compile(
    r"(?<![\w.])[-(\s]{0,12}\d[\d.]{0,30}(?:\s{0,3}(?:\*\*|//|[-+*/%()])[-+*/%()\s]{0,20}\d[\d.]{0,30}\){0,12})+"
)
_BETWEEN = tuple(
    (re.compile(rf"\b{words} (\d{{1,15}}(?:\.\d{{1,9}})?) {link} (\d{{1,15}}(?:\.\d{{1,9}})?)", re.IGNORECASE), sign)
    for words, link, sign in (
        ("multiply", "(?:by|and|with)", "*"), ("product of", "and", "*"),
        ("divide", "by", "/"), ("difference between", "and", "-"),
    )
)  # fmt: skip
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


def evaluate(expression: str) -> int | float | None:
    """The value of plain arithmetic, None when it has none or would be huge."""

    def value(node: ast.AST) -> int | float:
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return node.value  # type: ignore[return-value]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and (apply := _OPERATORS.get(type(node.op))):
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Pow) and (abs(right) > 200 or abs(left) > 10**6):
                raise ValueError("too large")
            result = apply(left, right)
            if isinstance(result, int | float) and abs(result) < 10**200:
                return result
        raise ValueError("not plain arithmetic")

    try:
        return value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None


def arithmetic(text: str) -> Task | None:
    """ "What is 17 * 23", "(3 + 4) x 12", "12% of 250"."""
    if match := re.search(r"(?<![\d.])(\d[\d.]{0,15})\s?(?:%|percent) of (\d[\d,.]{0,15}\d|\d)", text):
        return _expression(f"{match[2].replace(',', '')} * {match[1].rstrip('.')} / 100", f"{match[1]}% of {match[2]}")
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    for pattern, sign in _BETWEEN:
        plain = pattern.sub(rf"\1 {sign} \2", plain)
    for word, sign in _WORDS.items():
        plain = plain.replace(word, f" {sign} " if word.isascii() and word.isalpha() else sign)
    plain = re.sub(r"(?<=\d)\s*[xX]\s*(?=\d)", " * ", plain)
    best = max((match[0].strip() for match in _EXPRESSION.finditer(plain)), key=len, default="")
    best = best[: len(best)] if best.count("(") == best.count(")") else best.strip("() ")
    best = re.sub(r"\s*(\*\*|//|[-+*/%])\s*", r" \1 ", best).replace("( ", "(").strip()
    return _expression(best, best) if best else None


def _expression(expression: str, shown: str) -> Task | None:
    result = evaluate(expression)
    if result is None:
        return None
    own: list[Mistake] = []
    parts = re.fullmatch(r"(\d+) ([-+*]) (\d+)", expression)
    exact = isinstance(result, int)
    if parts:
        first, sign, second = parts.groups()
        names = {"*": ("product", "+"), "+": ("total", "-"), "-": ("difference", "+")}
        name, wrong = names[sign]
        line = f"{name} = first {sign} second"
        source = f"# {shown}\nfirst = {first}\nsecond = {second}\n{line}\nprint({name})\n"
        own.append(
            Mistake(line, f"{name} = first {wrong} second", "", f"The script has `{wrong}` where it should have `{sign}`.")
        )
    else:
        source = f"# {shown}\nvalue = {expression}\nprint(value)\n"
        if "*" in expression and "**" not in expression:
            bad = expression.replace("*", "+", 1)
            why = "I typed `+` where the expression has `*`."
            own.append(Mistake(f"value = {expression}", f"value = {bad}", "", why))

    def suspicious(output: str) -> str:
        try:
            got = float(output)
        except ValueError:
            return f"the output is no number: {output[:60]!r}"
        if abs(got - result) <= 1e-9 * max(1.0, abs(result)):
            return ""
        if exact and got == int(got):
            return f"{output} cannot be right: {shown} must end in the digit {abs(int(result)) % 10} and be near {_round(result)}"
        return f"{output} cannot be right: {shown} must be near {_round(result)}"

    whole = exact and "**" not in expression and "/" not in expression and abs(result) < 2**62
    return Task(
        understood=f"work out {shown}",
        script="calc.py",
        source=source,
        answer=f"{shown} = {{out}}",
        answer_ja=f"{shown} = {{out}} です。",
        own_mistakes=tuple(own),
        in_head=str(result),
        suspicious=suspicious,
        check=f"echo $(( {expression} ))"
        if whole
        else f"""awk 'BEGIN {{ printf "%.10g\\n", {expression.replace("**", "^")} }}'""",
        check_why="The shell can do the same sum, so I compare.",
        agrees=_close,
        without_python=f"echo $(( {expression} ))" if whole else "",
    )


def _round(value: float) -> str:
    digits = max(0, len(str(abs(int(value)))) - 1)
    return f"{round(value, -digits) if digits else round(value, 1):g}"


def _close(check: str, output: str) -> bool:
    try:
        return math.isclose(float(check), float(output), rel_tol=1e-6)
    except ValueError:
        return False


_SORT, _MEAN, _SUM = ("sorted(numbers)", "sort the numbers"), ("sum(numbers) / len(numbers)", "average"), ("sum(numbers)", "sum")
_MAX, _MIN = ("max(numbers)", "largest of the numbers"), ("min(numbers)", "smallest of the numbers")
_LIST_WORDS = {
    r"\bsort(?:ed)?\b(?! out)|並べ": _SORT,
    r"\baverage\b|\bmean\b|平均": _MEAN,
    r"\bmedian\b|中央値": ("statistics.median(numbers)", "median"),
    r"\bsum\b|\badd\b|\btotal\b|合計": _SUM,
    r"\blargest\b|\bbiggest\b|\bmaximum\b|最大": _MAX,
    r"\bsmallest\b|\bminimum\b|最小": _MIN,
}
_BEYOND = re.compile(r"\b(?:squares?|cubes?|products?|digits|weighted|pairs?|differences?)\b")
"""Words that make a list question another one than it seems."""
_RUN_OF_NUMBERS = re.compile(
    rf"(?<![\d.]){_NUMBER}(?:(?:\s{{0,3}}[,;、]\s{{0,3}}(?:and\s{{1,3}})?|\s{{1,3}}and\s{{1,3}}|\s{{1,3}}|と){_NUMBER})+"
)


def number_list(text: str) -> Task | None:
    """ "Sort these numbers: 5, 3, 9", "the average of 2, 4 and 9"."""
    lower = text.lower()
    found = [(match.start(), kind) for pattern, kind in _LIST_WORDS.items() if (match := re.search(pattern, lower))]
    runs = [match[0] for match in _RUN_OF_NUMBERS.finditer(re.sub(r"(?<=\d),(?=\d)", ", ", text))]
    if not found or not runs or _BEYOND.search(lower):
        return None
    numbers = [_number(each) for each in re.findall(r"-?\d+(?:\.\d+)?", max(runs, key=len))]
    if not 2 <= len(numbers) <= 500:
        return None
    expression, noun = min(found)[1]
    what = noun if noun.startswith("sort") else f"find the {noun}"
    falling = expression == "sorted(numbers)" and re.search(
        r"descend|decreas|largest first|high(?:est)? to low|降順|大きい順", lower
    )
    if falling:
        expression, what = "sorted(numbers, reverse=True)", "sort the numbers, largest first"
    is_sort = "sorted" in expression
    value: Any
    if is_sort:
        value = " ".join(str(each) for each in sorted(numbers, reverse=bool(falling)))
    elif "median" in expression:
        value = statistics.median(numbers)
    else:
        value = max(numbers) if "max" in expression else min(numbers) if "min" in expression else sum(numbers)
        value = value / len(numbers) if "len(" in expression else value
    imports = "import statistics\n" if "statistics" in expression else ""
    line = f"result = {expression}"
    source = f"# {what[0].upper()}{what[1:]}\n{imports}numbers = {numbers}\n{line}\nprint({'*' if is_sort else ''}result)\n"
    own = []
    if is_sort:
        bad = "result = sorted(numbers, key=str)" if not falling else "result = sorted(numbers)"
        why = "`key=str` compares them as words, not as numbers." if not falling else "I forgot `reverse=True`."
        own.append(Mistake(line, bad, "", why))
    elif "len(" in expression:
        own.append(Mistake(line, "result = sum(numbers) / (len(numbers) - 1)", "", "I divided by one less than the count."))

    def suspicious(output: str) -> str:
        if output.split() == str(value).split():
            return ""
        if is_sort:
            return f"the order is not right: {output[:80]}"
        return doubt(output, value)

    rendered = " ".join(str(each) for each in numbers)
    order = "sort -gr" if falling else "sort -g"
    awk = {
        "sum(numbers)": '{ s += $1 } END { printf "%.12g\\n", s }',
        "max(numbers)": "NR == 1 || $1 > m { m = $1 } END { print m }",
        "min(numbers)": "NR == 1 || $1 < m { m = $1 } END { print m }",
        "sum(numbers) / len(numbers)": '{ s += $1; n++ } END { printf "%.12g\\n", s / n }',
    }.get(expression, "")
    check = f"printf '%s\\n' {rendered} | {order} | xargs" if is_sort else f"printf '%s\\n' {rendered} | awk '{awk}'"
    if "median" in expression:
        middle = "{ a[NR] = $1 } END { print (a[int((NR + 1) / 2)] + a[int((NR + 2) / 2)]) / 2 }"
        check = f"printf '%s\\n' {rendered} | sort -g | awk '{middle}'"
    return Task(
        understood=what,
        script="sort_numbers.py" if is_sort else "stats.py",
        source=source,
        answer=("Sorted: {out}" if is_sort else f"The {noun} is {{out}}."),
        answer_ja="並べ替えると {out} になります。" if is_sort else "答えは {out} です。",
        own_mistakes=tuple(own),
        in_head=str(value),
        suspicious=suspicious,
        check=check,
        check_why="I compare with what the shell makes of them.",
        agrees=same_words if is_sort else _close,
        without_python=check,
    )


def _number(text: str) -> int | float:
    return float(text) if "." in text else int(text)
