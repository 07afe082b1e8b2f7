"""Bodies for "complete this function": a small set of common patterns by name and docstring, else the simplest that type-fits."""

from __future__ import annotations

import random
import re

_PATTERNS_TEXT = r"""
1 | vowels?.{0,40}remov|remov.{0,40}vowel|without vowels | keep every letter that is no vowel
    return ''.join(letter for letter in {0} if letter.lower() not in 'aeiou')
1 | count.{0,40}vowel|vowels?.{0,20}count | count the letters that are vowels
    return sum(letter in 'aeiouAEIOU' for letter in {0})
1 | distinct characters | a set of the lower-cased letters has each of them once
    return len(set({0}.lower()))
1 | is_palindrome|(?:test|check|whether|true if).{0,60}palindrome | compare it with its reverse
    return {0} == {0}[::-1]
2 | sorted unique common|common elements | the intersection of two sets, sorted
    return sorted(set({0}) & set({1}))
1 | sorted unique|unique elements | a set drops doubles, `sorted` orders
    return sorted(set({0}))
2 | closer to each other | after sorting only neighbours can be close
    ordered = sorted({0})
    return any(b - a < {1} for a, b in zip(ordered, ordered[1:]))
2 | below.{0,20}threshold | every one of them must be below
    return all(each < {1} for each in {0})
1 | decimal part|fractional part | the remainder by one is the part behind the point
    return {0} % 1.0
1 | below_zero|falls below zero | keep a running balance
    balance = 0
    for change in {0}:
        balance += change
        if balance < 0:
            return True
    return False
1 | mean absolute deviation | the mean distance from the mean
    mean = sum({0}) / len({0})
    return sum(abs(each - mean) for each in {0}) / len({0})
2 | intersperse|between every two consecutive | put the delimiter before every element but the first
    result = []
    for at, each in enumerate({0}):
        if at:
            result.append({1})
        result.append(each)
    return result
1 | sum and a product|sum_product | a sum of nothing is 0, a product of nothing 1
    product = 1
    for each in {0}:
        product *= each
    return sum({0}), product
1 | rolling maximum | carry the largest so far
    result = []
    for each in {0}:
        result.append(max(each, result[-1]) if result else each)
    return result
2 | \bxor\b | equal bits give 0, different ones 1
    return ''.join('0' if a == b else '1' for a, b in zip({0}, {1}))
1 | longest (?:one|string|word) | `max` by length gives the first of equals
    return max({0}, key=len, default=None)
2 | greatest common divisor|\bgcd\b | Euclid's algorithm
    while {1}:
        {0}, {1} = {1}, {0} % {1}
    return {0}
1 | all prefixes | every slice from the start
    return [{0}[:end] for end in range(1, len({0}) + 1)]
1 | string_sequence|space-delimited numbers | join 0 up to and with the number
    return ' '.join(str(each) for each in range({0} + 1))
2 | contain.{0,20}substring | keep those that contain it
    return [each for each in {0} if {1} in each]
2 | start with a given prefix|by.{0,10}prefix | keep those that start with it
    return [each for each in {0} if each.startswith({1})]
1 | only for integers|filter_integers | keep what is an int
    return [each for each in {0} if isinstance(each, int)]
1 | only positive numbers | keep what is above zero
    return [each for each in {0} if each > 0]
1 | concatenate list of strings | join them with nothing between
    return ''.join({0})
1 | length of (?:a |the )?(?:given )?(?:string|text|list)|strlen | `len` says it
    return len({0})
1 | flip lowercase|swap.?case | `swapcase` does that
    return {0}.swapcase()
1 | (?:return|find) (?:the )?(?:max|maximum|largest) (?:element|number|value) (?:in|of) | `max` says it
    return max({0})
1 | largest number that divides | go down from below the number to its first divisor
    for each in range({0} - 1, 0, -1):
        if {0} % each == 0:
            return each
    return 1
1 | list of prime factors|factorize | divide by each divisor as often as it goes
    factors, divisor = [], 2
    while {0} > 1:
        while {0} % divisor == 0:
            factors.append(divisor)
            {0} //= divisor
        divisor += 1
    return factors
1 | length is a prime | the length must have no divisor up to its root
    n = len({0})
    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))
1 | is_prime|true if (?:a|the) given number is prime | no divisor up to the root
    return {0} > 1 and all({0} % d for d in range(2, int({0} ** 0.5) + 1))
1 | n-?th fibonacci | walk the sequence from its start
    first, second = 0, 1
    for _ in range({0}):
        first, second = second, first + second
    return first
1 | \bfactorial of | multiply up
    result = 1
    for each in range(2, {0} + 1):
        result *= each
    return result
1 | remove all elements that occur more | keep what is there once
    return [each for each in {0} if {0}.count(each) == 1]
2 | add two numbers|sum of (?:the )?two | add them
    return {0} + {1}
1 | incremented by 1 | add one to each
    return [each + 1 for each in {0}]
1 | three distinct elements.{0,40}sum to zero | try every three of them
    from itertools import combinations
    return any(sum(three) == 0 for three in combinations({0}, 3))
1 | two distinct elements.{0,40}sum to zero | try every two of them
    from itertools import combinations
    return any(sum(two) == 0 for two in combinations({0}, 2))
2 | area of a triangle|triangle_area | half of base times height
    return {0} * {1} / 2
1 | monotonic | it equals itself sorted, one way or the other
    return {0} == sorted({0}) or {0} == sorted({0}, reverse=True)
1 | derivative | each coefficient times its power, the constant gone
    return [at * each for at, each in enumerate({0})][1:]
1 | \bmedian\b | the middle of the sorted list
    ordered = sorted({0})
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
2 | same characters | compare the sets of letters
    return set({0}) == set({1})
1 | return.{0,30}\breversed?\b | a slice with step -1
    return {0}[::-1]
1 | sum of (?:its|the) digits | add up the digits
    return sum(int(digit) for digit in str(abs({0})))
1 | sums? (?:all )?numbers from 1 to | Gauss's formula
    return {0} * ({0} + 1) // 2
"""


def _read_patterns(text: str) -> list[tuple[int, str, str, str]]:
    """(number of parameters, what name and docstring must say, thought, body with {0}, {1} for the parameters)."""
    found = []
    for entry in re.split(r"\n(?=\d )", text.strip("\n")):
        head, body = entry.split("\n", 1)
        arity, rest = head.split(" | ", 1)
        pattern, thought = rest.rsplit(" | ", 1)
        found.append((int(arity), pattern.strip(), thought.strip(), body.rstrip() + "\n"))
    return found


_PATTERNS = _read_patterns(_PATTERNS_TEXT)
_SIMPLEST = {"bool": "return False", "int": "return 0", "float": "return 0.0", "str": "return ''", "None": "return None"}


CANDIDATES: dict[int, tuple[str, ...]] = {
    1: (
        "len({0})", "sum({0})", "max({0})", "min({0})", "sorted({0})", "sorted({0}, reverse=True)", "sorted({0}, key=len)",
        "{0}[::-1]", "list(set({0}))", "sorted(set({0}))", "len(set({0}))", "{0} == {0}[::-1]", "str({0})[::-1]", "{0} * 2",
        "{0} ** 2", "{0} % 2 == 0", "{0} % 2 == 1", "abs({0})", "bin({0})[2:]", "{0}.upper()", "{0}.lower()", "{0}.title()",
        "{0}.split()", "len({0}.split())", "' '.join({0}.split()[::-1])", "' '.join(w[::-1] for w in {0}.split())",
        "sum(map(int, str(abs({0}))))", "sum(n * n for n in {0})", "sum(n for n in {0} if n % 2 == 0)",
        "sum(n for n in {0} if n % 2 == 1)", "[n for n in {0} if n % 2 == 0]", "[n for n in {0} if n > 0]",
        "sum(ord(c) for c in {0} if c.isupper())", "sum(c.isupper() for c in {0})", "sum(c in 'aeiouAEIOU' for c in {0})",
        "''.join(c for c in {0} if c.isalpha())", "int(round(float({0})))", "list(range({0}))", "list(range(1, {0} + 1))",
        "{0} > 0 and {0} & ({0} - 1) == 0", "sorted({0}, key=lambda n: (sum(map(int, str(abs(n)))), n))",
        "sorted({0}, key=lambda n: (bin(n).count('1'), n))", "len({0}) > 0 and all(n > 0 for n in {0})",
    ),
    2: (
        "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} // {1}", "{0} % {1}", "{0} ** {1}", "max({0}, {1})",
        "min({0}, {1})", "{0} == {1}", "sorted({0}) == sorted({1})", "set({0}) == set({1})", "[n for n in {0} if n in {1}]",
        "[n for n in {0} if n not in {1}]", "sorted(set({0}) & set({1}))", "sorted(set({0}) | set({1}))", "{0}.count({1})",
        "{0}[{1}]", "{0}[:{1}]", "{0}[{1}:]", "{0} in {1}", "{1} in {0}", "[n for n in {0} if n > {1}]",
        "[n for n in {0} if n < {1}]", "sum({0}) <= {1}",
        "sum({0}) == {1}", "sorted({0})[-{1}:]", "sum(n for n in {0}[:{1}] if len(str(n)) <= 2)",
        "{0}.split({1})", "{1}.join({0})", "abs({0} - {1})", "[a + b for a, b in zip({0}, {1})]",
        "[abs(a - b) for a, b in zip({0}, {1})]", "sum(a == b for a, b in zip({0}, {1}))", "bin(round(({0} + {1}) / 2))",
    ),
}  # fmt: skip
"""Expressions worth trying, by number of parameters, when no pattern is known."""


def attempt(name: str, parameters: tuple[str, ...], returns: str, doc: str) -> tuple[str, str, bool]:
    """(body, indented by four, with its line end; the thought behind it; whether a pattern was known)."""
    text = f"{name} {' '.join(doc[:1500].lower().split())}"
    for arity, pattern, thought, body in _PATTERNS:
        if arity == len(parameters) and re.search(pattern, text):
            return body.format(*parameters), f"This I know how to do: {thought}.", True
    if parameters and "sort" in text:
        return f"    return sorted({parameters[0]})\n", "I know no pattern for this one; it speaks of sorting, so I sort.", False
    simplest = _SIMPLEST.get(returns, "")
    if not simplest and (returns.lower().startswith(("list", "typing.list")) or "list" in doc[:400].lower()):
        simplest = "return []"
    elif not simplest and (re.search(r"\btrue\b|\bfalse\b", text) or name.startswith(("is_", "has_", "check_"))):
        simplest = "return True"
    elif not simplest:
        simplest = f"return {parameters[0]}" if "string" in text and parameters else "return 0"
    return (
        f"    {simplest}\n",
        f"I know no pattern for this. The simplest body that could fit is `{simplest}`; a run will tell.",
        False,
    )


_SLIPS = (
    ("return max(", "return mx(", "`mx` is a typing slip for `max`."),
    ("sorted(set(", "sort(set(", "The function is `sorted`, not `sort`."),
    ("[::-1]", "[::1]", "The step must be -1."),
    (" + 1)", ")", "The range ends one too early."),
    (" < ", " > ", "The comparison is the wrong way round."),
    ("''.join(", "' '.join(", "The parts must be joined without a space."),
    ("result *= ", "result += ", "That must multiply."),
    ("product *= ", "product += ", "That must multiply."),
    ("range(2, ", "range(1, ", "1 divides everything; the range starts at 2."),
    ("    return result", "    return reslt", "`reslt` is a typing slip for `result`."),
    ("    from itertools import combinations\n", "", "`combinations` was never imported."),
    (".lower()", ".lower", "The brackets of the call to `lower` are missing."),
    ("return len(", "return length(", "The function is `len`."),
    ("return sum(", "return summ(", "`summ` is a typing slip for `sum`."),
    ("isinstance(each, int)", "isinstance(int, each)", "The value comes first, the type second."),
    (" == 1", " == 0", "It must be there exactly once, not never."),
    (" > 0", " < 0", "The comparison is the wrong way round."),
)


def slip(body: str, draw: random.Random) -> tuple[str, str] | None:
    """A body with one real mistake, and the insight that mends it; None when the body has nothing to get wrong."""
    found = [(body.replace(good, bad), why) for good, bad, why in _SLIPS if body.count(good) == 1]
    return draw.choice(found) if found else None
