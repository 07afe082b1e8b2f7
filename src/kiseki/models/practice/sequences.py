"""Families about whole numbers that follow a rule: sequences, number theory, conversions, dates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from itertools import count, islice

import msgspec

from kiseki.models.practice.task import Mistake, Task, doubt


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _fibonacci() -> Iterator[int]:
    first, second = 0, 1
    while True:
        yield first
        first, second = second, first + second


_PRIME = "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))\n\n\n"
_KINDS: dict[str, tuple[str, Callable[[], Iterator[int]], str, str]] = {
    # pattern: (name, the numbers, the script's way to the next number `n`, helper code)
    r"primes?(?: numbers?)?|素数": ("prime numbers", lambda: (n for n in count(2) if _is_prime(n)), "if is_prime(n)", _PRIME),
    r"squares?(?: numbers?)?|平方数": ("square numbers", lambda: (n * n for n in count(1)), "n ** 2", ""),
    r"cubes?(?: numbers?)?|立方数": ("cube numbers", lambda: (n**3 for n in count(1)), "n ** 3", ""),
    r"even numbers?|偶数": ("even numbers", lambda: count(2, 2), "2 * n", ""),
    r"odd numbers?|奇数": ("odd numbers", lambda: count(1, 2), "2 * n - 1", ""),
    r"triangular numbers?|三角数": ("triangular numbers", lambda: (n * (n + 1) // 2 for n in count(1)), "n * (n + 1) // 2", ""),
    r"powers? of (?:2|two)": ("powers of two", lambda: (2**n for n in count(0)), "2 ** (n - 1)", ""),
    r"factorials?": ("factorials", lambda: (math.factorial(n) for n in count(1)), "math.factorial(n)", "import math\n"),
    r"fibonacci(?: numbers?)?|フィボナッチ数?": ("Fibonacci numbers", _fibonacci, "", ""),
}
_MOST = 120
"""Numbers asked for at most: the policy works them out in its head, and that must stay cheap."""


def sequence(text: str) -> Task | None:
    """ "Write a script that prints the first 10 primes", "primes below 50", "the sum of the first 5 squares"."""
    lower = text.lower()
    for pattern, (name, numbers, formula, helper) in _KINDS.items():
        first = re.search(rf"(?:first|最初の)\s*(\d+)\s*(?:個の)?\s*(?:{pattern})|(?:{pattern})を(?:最初の)?(\d+)個", lower)
        below = re.search(rf"(?:{pattern})\b[^.\d]{{0,30}}?\b(?:below|under|less than|up to|smaller than)\s+(\d+)", lower)
        if first:
            how_many = int((first[1] or first[2])[:9])
            if not 1 <= how_many <= _MOST:
                return None
            found = list(islice(numbers(), how_many))
            return _sequence_task(name, f"the first {how_many} {name}", found, _first(name, formula, helper, how_many), lower)
        if below and formula and name != "factorials":
            limit = int(below[1][:9])
            if limit > 1000:
                return None
            inclusive = "up to" in below[0]
            found = []
            for number in numbers():
                if number > limit or (number == limit and not inclusive):
                    break
                found.append(number)
            if not found:
                return None
            source = _below(name, formula, helper, limit + inclusive)
            return _sequence_task(name, f"the {name} {'up to' if inclusive else 'below'} {limit}", found, source, lower)
    return _fizzbuzz(lower)


def _first(name: str, formula: str, helper: str, how_many: int) -> str:
    if name == "prime numbers":
        return (
            f"# The first {how_many} {name}\n{helper}found = []\nn = 2\nwhile len(found) < {how_many}:\n    {formula}:\n"
            "        found.append(n)\n    n += 1\n"
        )
    if not formula:
        return (
            f"# The first {how_many} {name}\nfound = [0, 1]\nwhile len(found) < {how_many}:\n"
            "    found.append(found[-1] + found[-2])\n" + (f"found = found[:{how_many}]\n" if how_many < 2 else "")
        )
    return f"# The first {how_many} {name}\n{helper}found = []\nfor n in range(1, {how_many} + 1):\n    found.append({formula})\n"


def _below(name: str, formula: str, helper: str, limit: int) -> str:
    if name == "prime numbers":
        loop = f"for n in range(2, {limit}):\n    {formula}:\n        found.append(n)\n"
    else:
        loop = f"n = 1\nwhile {formula} < {limit}:\n    found.append({formula})\n    n += 1\n"
    return f"# The {name} below {limit}\n{helper}found = []\n{loop}"


def _sequence_task(name: str, what: str, found: list[int], source: str, lower: str) -> Task:
    summed = bool(re.search(r"\bsum\b|add up|合計|の和", lower))
    value = str(sum(found)) if summed else " ".join(map(str, found))
    source += "print(sum(found))\n" if summed else "print(*found)\n"
    own = []
    for good, bad, why in (
        (f"range(1, {len(found)} + 1)", f"range(1, {len(found)})", "`range` leaves out its end, so the last one is missing."),
        (f"while len(found) < {len(found)}:", f"while len(found) < {len(found) - 1}:", "The loop stops one too early."),
        ("range(2, int(n ** 0.5) + 1)", "range(2, int(n ** 0.5))", "The divisors must go up to the root itself."),
        ("found.append(found[-1] + found[-2])", "found.append(found[-1] + found[-1])", "I added the last number to itself."),
        ("n ** 2", "n * 2", "`n * 2` doubles; a square is `n ** 2`."),
    ):
        if good in source and _would_differ(good, found):
            own.append(Mistake(good, bad, "", why))

    def suspicious(output: str) -> str:
        if output.split() == value.split():
            return ""
        got = output.split()
        if summed:
            return f"{output[:40]} is not the sum of {found[0]} + … + {found[-1]}"
        if len(got) != len(found):
            return f"{len(got)} numbers came out and there should be {len(found)}"
        wrong = next((at for at, each in enumerate(got) if each != str(found[at])), 0)
        return f"{got[wrong]} is none of {what}" if got[wrong] not in value.split() else f"{got[wrong]} is out of place"

    return Task(
        understood=f"{'add up' if summed else 'print'} {what}",
        script=name.split()[0].lower() + ("_sum" if summed else "") + ".py",
        source=source,
        answer=f"The sum of {what} is {{out}}." if summed else f"Here are {what}: {{out}}",
        answer_ja="合計は {out} です。" if summed else "結果は {out} です。",
        own_mistakes=tuple(own),
        in_head=value,
        suspicious=suspicious,
        check="" if summed else f"python3 {name.split()[0].lower()}.py | wc -w",
        check_why=f"There should be {len(found)} of them; `wc -w` counts.",
        agrees=lambda check, output: check.strip() == str(len(output.split())),
        without_python=_seq(name, found) if not summed else "",
    )


def _would_differ(good: str, found: list[int]) -> bool:
    """Whether the mistake shows: square roots only from 4 on, doubles only from the third number on."""
    return len(found) > 3 and (good != "range(2, int(n ** 0.5) + 1)" or found[-1] > 4) and found[-1] != 0


def _seq(name: str, found: list[int]) -> str:
    steps = {"even numbers": f"seq -s ' ' 2 2 {found[-1]}", "odd numbers": f"seq -s ' ' 1 2 {found[-1]}"}
    return steps.get(name, "")


def _fizzbuzz(lower: str) -> Task | None:
    match = re.search(r"fizz ?buzz\D{0,60}(\d+)(?:\s*(?:to|-|から)\s*(\d+))?", lower)
    if not match:
        return None
    last = int((match[2] or match[1])[:6])
    if not 1 <= last <= _MOST:
        return None
    words = [
        "FizzBuzz" if n % 15 == 0 else "Fizz" if n % 3 == 0 else "Buzz" if n % 5 == 0 else str(n) for n in range(1, last + 1)
    ]
    source = (
        f'# FizzBuzz from 1 to {last}\nfor n in range(1, {last} + 1):\n    word = ""\n'
        '    if n % 3 == 0:\n        word += "Fizz"\n'
        '    if n % 5 == 0:\n        word += "Buzz"\n    print(word or n)\n'
    )
    good = f"range(1, {last} + 1)"

    def suspicious(output: str) -> str:
        got = output.split()
        if len(got) != last:
            return f"{len(got)} lines came out and there should be {last}"
        wrong = next((at for at in range(last) if got[at] != words[at]), None)
        return "" if wrong is None else f"{wrong + 1} should give {words[wrong]}, not {got[wrong]}"

    return Task(
        understood=f"play FizzBuzz from 1 to {last}",
        script="fizzbuzz.py",
        source=source,
        answer="FizzBuzz:\n\n{out}",
        own_mistakes=(
            Mistake(good, f"range(1, {last})", "", "`range` leaves out its end, so the last number is missing."),
            Mistake("n % 5 == 0", "n % 4 == 0", "", "Buzz is for multiples of 5; I typed 4."),
        ),
        in_head="\n".join(words),
        suspicious=suspicious,
        check="python3 fizzbuzz.py | grep -c -v '[0-9]' ; python3 fizzbuzz.py | wc -l",
        check_why="I count the lines with words, and all of them.",
        agrees=lambda check, output: check.split() == [str(sum(not word.isdigit() for word in words)), str(last)],
    )


_GCD = re.compile(r"\b(?:gcd|greatest common (?:divisor|factor)|lcm|least common multiple)\D{0,20}(\d{1,15})\D{1,6}(\d{1,15})")
_RANGE_SUM = re.compile(
    r"\bsum of (?:all )?(?:the )?(?:numbers|integers)?\s*from (\d{1,7}) to (\d{1,7})"
    r"|(\d{1,7})から(\d{1,7})までの(?:数|整数)?の?(?:合計|和)"
)


def number_theory(text: str) -> Task | None:
    """ "Is 97 prime?", "factorial of 12", "gcd of 84 and 36", "prime factors of 360"."""
    lower = text.lower()
    if match := _GCD.search(lower):
        first, second = int(match[1]), int(match[2])
        name = "gcd" if match[0].startswith(("gcd", "greatest")) else "lcm"
        value = math.gcd(first, second) if name == "gcd" else math.lcm(first, second)
        line = "result = math.gcd(first, second)" if name == "gcd" else "result = first * second // math.gcd(first, second)"
        source = f"# {name.upper()} of two numbers\nimport math\n\nfirst = {first}\nsecond = {second}\n{line}\nprint(result)\n"
        return one_number(
            f"find the {name} of {first} and {second}", name, source, value, f"The {name} of {first} and {second} is"
        )
    if match := re.search(r"factorial of (\d{1,3})\b|\b(\d{1,3})(?:!(?!\w)| factorial)|(\d{1,3})の階乗", lower):
        number = int(match[1] or match[2] or match[3])
        if number > 300:
            return None
        source = f"# {number}!\nresult = 1\nfor n in range(1, {number} + 1):\n    result *= n\nprint(result)\n"
        mistake = Mistake(
            f"range(1, {number} + 1)", f"range(1, {number})", "", "`range` leaves out its end: the last factor is missing."
        )
        own = (mistake,) if number > 1 else ()
        return one_number(f"work out {number}!", "factorial", source, math.factorial(number), f"{number}! =", own)
    if match := re.search(r"\bis (\d{1,7}) (?:a )?prime|(\d{1,7})\s*は素数", lower):
        number = int(match[1] or match[2])
        source = f"# Is {number} prime?\nnumber = {number}\n"
        source += "divisors = [d for d in range(2, int(number ** 0.5) + 1) if number % d == 0]\n"
        source += 'result = number > 1 and not divisors\nprint("prime" if result else "not prime")\n'
        verdict = "prime" if _is_prime(number) else "not prime"
        return one_number(f"find out whether {number} is prime", "is_prime", source, verdict, f"{number} is")
    if match := re.search(r"(?:prime factors|factori[sz]ation) of (\d{1,7})\b|factori[sz]e (\d{1,7})\b", lower):
        number = int(match[1] or match[2])
        source = (
            f"# Prime factors of {number}\nnumber = {number}\nfactors = []\ndivisor = 2\nwhile divisor * divisor <= number:\n"
        )
        source += (
            "    while number % divisor == 0:\n        factors.append(divisor)\n        number //= divisor\n    divisor += 1\n"
        )
        source += "if number > 1:\n    factors.append(number)\nprint(*factors)\n"
        return one_number(
            f"factorise {number}", "factors", source, " ".join(map(str, _factors(number))), f"Prime factors of {number}:"
        )
    if match := _RANGE_SUM.search(lower):
        first, last = int(match[1] or match[3]), int(match[2] or match[4])
        if first >= last:
            return None
        source = f"# Sum from {first} to {last}\ntotal = 0\nfor n in range({first}, {last} + 1):\n    total += n\nprint(total)\n"
        mistake = Mistake(
            f"range({first}, {last} + 1)", f"range({first}, {last})", "", f"`range` leaves out its end, so {last} is missing."
        )
        total = (first + last) * (last - first + 1) // 2
        task = one_number(
            f"add up {first} to {last}", "range_sum", source, total, f"The sum from {first} to {last} is", (mistake,)
        )
        return with_check(
            task, f"echo $(( ({first} + {last}) * ({last} - {first} + 1) / 2 ))", "Gauss's formula gives the sum without a loop."
        )
    return None


def _factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors + ([number] if number > 1 else [])


def with_check(task: Task, command: str, why: str) -> Task:
    return msgspec.structs.replace(task, check=command, check_why=why, without_python=command)


def one_number(understood: str, name: str, source: str, value: object, said: str, own: tuple[Mistake, ...] = ()) -> Task:
    def suspicious(output: str) -> str:
        return "" if output == str(value) else doubt(output, value)

    return Task(
        understood=understood,
        script=f"{name}.py",
        source=source,
        answer=f"{said} {{out}}" + ("." if said[-1] not in ":=" else ""),
        answer_ja="答えは {out} です。",
        own_mistakes=own,
        in_head=str(value),
        suspicious=suspicious,
    )
