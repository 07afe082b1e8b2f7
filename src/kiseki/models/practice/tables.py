"""Families about structured text in the prompt: a CSV column to add up or average, a JSON document to format."""

from __future__ import annotations

import csv
import io
import re

import msgspec

from kiseki.models.practice.task import Mistake, Task, doubt


def _block(text: str) -> str:
    """The fenced block of the prompt, else the lines after the first one that ends in a colon."""
    if match := re.search(r"```[a-z]{0,10}\n(.+?)```", text, re.DOTALL):
        return match[1].strip("\n")
    match = re.search(r"[:：][ \t]{0,4}\n\n?(.+)", text, re.DOTALL)
    return match[1].strip("\n") if match else ""


def csv_table(text: str) -> Task | None:
    """ "Add up the column price of this CSV: …"."""
    lower = text.lower()
    if not re.search(r"\bcsv\b|\bcolumns?\b|列", lower):
        return None
    lines = _block(text).split("\n")
    data = []
    for line in lines:  # the table ends where the commas do
        if "," in line:
            data.append(line)
        elif data:
            break
    if len(data) < 2:
        return None
    rows = list(csv.reader(io.StringIO("\n".join(data))))
    header = [each.strip() for each in rows[0]]
    named = text[: text.find(data[0])] + text[text.find(data[-1]) + len(data[-1]) :]
    column = next((each for each in header if each and re.search(rf"(?<!\w){re.escape(each)}(?!\w)", named, re.IGNORECASE)), "")
    average = bool(re.search(r"\b(?:average|mean)\b|平均", lower))
    values: list[float] = []
    try:
        at = header.index(column)
        values = [float(row[at]) for row in rows[1:] if row]
    except (ValueError, IndexError):
        return None
    if not values or not all(abs(each) < 1e12 for each in values):
        return None
    total = sum(values) / len(values) if average else sum(values)
    expression = "sum(values) / len(values)" if average else "sum(values)"
    source = (
        f"# {'Average' if average else 'Sum'} of one column of data.csv\nimport csv\n\n"
        'with open("data.csv", encoding="utf-8", newline="") as f:\n    rows = list(csv.DictReader(f, skipinitialspace=True))\n'
        f"values = [float(row[{column!r}]) for row in rows]\nresult = {expression}\nprint(round(result, 2))\n"
    )
    wrong_name = column.swapcase() if column.swapcase() != column else column + "_"
    own = [
        Mistake(
            f"float(row[{column!r}])", f"row[{column!r}]", "TypeError", "CSV cells are text; they must become numbers first."
        ),
        Mistake(f"row[{column!r}]", f"row[{wrong_name!r}]", "KeyError", f"The header says {column!r}, exactly so."),
        Mistake('open("data.csv"', 'open("input.csv"', "FileNotFoundError", "The file is called data.csv."),
    ]
    value = str(round(total, 2))

    def suspicious(output: str) -> str:
        return "" if output == value else doubt(output, value)

    awk = "{ s += $" + str(at + 1) + '; n++ } END { printf "%.12g\\n", ' + ("s / n" if average else "s") + " }"
    command = f"tail -n +2 data.csv | awk -F, '{awk}'"
    simple = not any('"' in line for line in data)
    what = f"{'average' if average else 'add up'} the column {column}"
    return Task(
        understood=what,
        script="column.py",
        source=source,
        answer=f"The {'average' if average else 'sum'} of {column} is {{out}}.",
        answer_ja=f"{column} の{'平均' if average else '合計'}は {{out}} です。",
        own_mistakes=tuple(own),
        inputs=(("data.csv", "\n".join(data) + "\n"),),
        in_head=value,
        suspicious=suspicious,
        check=command if simple else "",
        check_why="`awk` can do a column as well.",
        agrees=_near,
        without_python=command if simple else "",
    )


def _near(check: str, output: str) -> bool:
    try:
        # the script rounds to cents
        return abs(float(check) - float(output)) <= max(0.01, abs(float(output)) * 1e-5)
    except ValueError:
        return False


def json_document(text: str) -> Task | None:
    """ "Format this JSON with two spaces: {…}", "sort the keys", "is this valid JSON?"."""
    lower = text.lower()
    if "json" not in lower or not re.search(r"format|pretty|indent|valid|sort|整形|検証", lower):
        return None
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    end = max(text.rfind("}"), text.rfind("]"))
    if not starts or end <= min(starts):
        return None
    document = text[min(starts) : end + 1]
    try:
        msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError):
        return _broken_json(document)
    sort = bool(re.search(r"sort", lower))
    indent = 4 if re.search(r"\b(?:4|four)[- ]space|indent(?:ation)? of 4", lower) else 2
    options = f"indent={indent}, ensure_ascii=False" + (", sort_keys=True" if sort else "")
    source = (
        '# Format data.json\nimport json\n\nwith open("data.json", encoding="utf-8") as f:\n    data = json.load(f)\n'
        f"formatted = json.dumps(data, {options})\nprint(formatted)\n"
    )
    own = (
        Mistake("json.load(f)", 'json.load("data.json")', "AttributeError", "`json.load` takes the open file, not its name."),
        Mistake("json.load(f)", "json.loads(f)", "TypeError", "`loads` is for text; a file goes to `load`."),
    )
    return Task(
        understood="format the JSON document",
        script="format_json.py",
        source=source,
        answer="The document, formatted:\n\n```json\n{out}\n```",
        answer_ja="整形した JSON です。\n\n```json\n{out}\n```",
        own_mistakes=own,
        inputs=(("data.json", document + "\n"),),
        in_head=msgspec.json.format(document, indent=indent) if not sort and len(document) < 2000 else "",
        suspicious=lambda output: "" if output[:1] in "{[" else "that is no JSON document",
        check="python3 -m json.tool data.json > /dev/null && echo valid",
        check_why="`json.tool` says whether the input was valid at all.",
        agrees=lambda check, output: check.strip() == "valid",
    )


def _broken_json(document: str) -> Task:
    source = (
        '# Is data.json valid?\nimport json\n\nwith open("data.json", encoding="utf-8") as f:\n    text = f.read()\n'
        'try:\n    json.loads(text)\n    verdict = "valid"\nexcept ValueError as error:\n'
        '    verdict = f"not valid: {error}"\nprint(verdict)\n'
    )
    return Task(
        understood="look at the JSON document",
        script="check_json.py",
        source=source,
        answer="The document is {out}",
        answer_ja="検証の結果: {out}",
        own_mistakes=(Mistake("json.loads(text)", "json.loads(txt)", "NameError", "The variable is called `text`."),),
        inputs=(("data.json", document + "\n"),),
        in_head="not valid JSON",
        suspicious=lambda output: "" if output.startswith("not valid") else "I read a document that is not valid, so this is odd",
    )
