"""Families that say one thing in another way: units, number bases, Roman numerals, dates."""

from __future__ import annotations

import datetime
import re

import msgspec

from kiseki.models.practice.sequences import one_number, with_check
from kiseki.models.practice.task import Mistake, Task

_UNITS: dict[str, tuple[str, str, float, float]] = {
    # from: (to, script formula of x, factor, offset): y = x * factor + offset
    r"(?:°\s*f|fahrenheit|degrees f)\b.{0,20}?(?:°\s*c|celsius)": ("°C", "(x - 32) * 5 / 9", 5 / 9, -160 / 9),
    r"(?:°\s*c|celsius|degrees c)\b.{0,20}?(?:°\s*f|fahrenheit)": ("°F", "x * 9 / 5 + 32", 9 / 5, 32),
    r"(?:miles?)\b.{0,20}?(?:km|kilomet)": ("km", "x * 1.609344", 1.609344, 0),
    r"(?:km|kilomet(?:er|re)s?)\b.{0,20}?miles?": ("miles", "x / 1.609344", 1 / 1.609344, 0),
    r"(?:kg|kilograms?|kilos?)\b.{0,20}?(?:lbs?|pounds?)": ("pounds", "x / 0.45359237", 1 / 0.45359237, 0),
    r"(?:lbs?|pounds?)\b.{0,20}?(?:kg|kilo)": ("kg", "x * 0.45359237", 0.45359237, 0),
    r"hours?\b.{0,20}?minutes": ("minutes", "x * 60", 60, 0),
    r"minutes?\b.{0,20}?hours": ("hours", "x / 60", 1 / 60, 0),
}


def conversion(text: str) -> Task | None:
    """ "Convert 100 Fahrenheit to Celsius", "42 in binary", "2024 as a Roman numeral"."""
    lower = text.lower()
    if not re.search(
        r"\bconvert\b|\bin (?:binary|hex|roman)|\bas an? (?:roman|binary|hex)|\bto (?:binary|hex|roman|celsius)", lower
    ):
        return None
    match = re.search(r"(?<![\w.])(\d{1,7}(?:\.\d{1,4})?)\s*(?=(.{0,60}))", lower)
    if not match:
        return None
    shown, after = match[1], match[2]
    for pattern, (unit, formula, factor, offset) in _UNITS.items():
        if re.match(rf"(?:degrees? )?{pattern}", after):
            value = round(float(f"{float(shown) * factor + offset:.6f}"), 2)
            source = f"# Convert {shown} to {unit}\nx = {shown}\nresult = {formula}\nprint(round(result, 2))\n"
            own = (Mistake("(x - 32) * 5 / 9", "x - 32 * 5 / 9", "", "The brackets around `x - 32` are missing."),)
            task = one_number(f"convert {shown} to {unit}", "convert", source, value, "That is", own)
            return msgspec.structs.replace(task, answer=f"That is {{out}} {unit}.", answer_ja=f"{{out}} {unit} です。")
    if "." in shown:
        return None
    number = int(shown)
    base = next((each for each in ("binary", "hex", "roman") if each in lower), "")
    if base in ("binary", "hex"):
        sign = "b" if base == "binary" else "x"
        source = f'# {number} in {base}\nnumber = {number}\nresult = format(number, "{sign}")\nprint(result)\n'
        wrong = Mistake(f'"{sign}"', f'"{"o" if sign == "b" else "d"}"', "", f'The format letter for {base} is "{sign}".')
        written = format(number, sign)
        return one_number(
            f"write {number} in {base}", "convert", source, written, f"{number} in {base} is", (wrong,) * (number > 15)
        )
    if base == "roman" and 0 < number < 4000:
        source = (
            f"# {number} as a Roman numeral\nnumber = {number}\nvalues = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]\n"
            'letters = "M CM D CD C XC L XL X IX V IV I".split()\nresult = ""\nfor value, letter in zip(values, letters):\n'
            "    while number >= value:\n        result += letter\n        number -= value\nprint(result)\n"
        )
        return one_number(
            f"write {number} as a Roman numeral", "roman", source, _roman(number), f"{number} as a Roman numeral is"
        )
    return None


def _roman(number: int) -> str:
    letters = ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I")
    said = ""
    for value, letter in zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), letters, strict=True):
        said += letter * (number // value)
        number %= value
    return said


def dates(text: str) -> Task | None:
    """ "How many days between 2024-01-01 and 2024-03-01", "what weekday was 2000-01-01"."""
    found = re.findall(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)(?!\d)", text)
    lower = text.lower()
    try:
        days = [datetime.date(int(year), int(month), int(day)) for year, month, day in found[:2]]
    except ValueError:
        return None
    if len(days) == 2 and re.search(r"\bdays\b|何日", lower):
        first, last = min(days), max(days)
        source = (
            f"# Days from {first} to {last}\nfrom datetime import date\n\n"
            f"first = date({first.year}, {first.month}, {first.day})\n"
            f"last = date({last.year}, {last.month}, {last.day})\nresult = (last - first).days\nprint(result)\n"
        )
        own = (
            (Mistake("(last - first).days", "(first - last).days", "", "The dates are the wrong way round."),)
            if first != last
            else ()
        )
        task = one_number(
            f"count the days from {first} to {last}", "days", source, (last - first).days, f"Days from {first} to {last}:", own
        )
        command = f"echo $(( ($(date -u -d {last} +%s) - $(date -u -d {first} +%s)) / 86400 ))"
        return with_check(task, command, "The `date` command can count too.")
    if len(days) == 1 and re.search(r"weekday|day of the week|曜日", lower):
        day = days[0]
        source = (
            f"# The weekday of {day}\nfrom datetime import date\n\nday = date({day.year}, {day.month}, {day.day})\n"
            'result = day.strftime("%A")\nprint(result)\n'
        )
        task = one_number(f"find the weekday of {day}", "weekday", source, day.strftime("%A"), f"{day} is a")
        return with_check(task, f"LC_ALL=C date -u -d {day} +%A", "The `date` command knows it too.")
    return None
