"""Runs inside a sandbox that has Python but no ripgrep; never imported. Prints what `rg --json` would, as far as `search.py`
reads it. Any Python from 3.6 on, standard library only.

argv[1] is a JSON object: pattern, glob (regular expression for the path, "" for all), context (lines), max_file (bytes).
argv[2] is the target below the current folder: `.` or `./name`.
"""

import json
import os
import re
import sys
from collections.abc import Iterator


def files(folder: str) -> "Iterator[str]":
    """Relative paths in ripgrep's order: each folder's entries by the bytes of their names, folders entered where they stand."""
    try:
        entries = sorted(os.scandir(folder or "."), key=lambda entry: os.fsencode(entry.name))
    except OSError:
        return
    for entry in entries:
        path = folder + entry.name
        if entry.name == ".git" or entry.is_symlink():
            continue
        if entry.is_dir():
            yield from files(path + "/")
        elif entry.is_file():
            yield path


def emit(kind: str, **data: object) -> None:
    sys.stdout.write(json.dumps({"type": kind, "data": data}) + "\n")


def search(path: str, regex: "re.Pattern[str]", context: int, max_file: int) -> None:
    try:
        with open(path, "rb") as file:
            data = file.read(max_file + 1)
    except OSError:
        return
    if b"\0" in data or len(data) > max_file:
        return
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    found = {}
    for number, line in enumerate(lines):
        match = regex.search(line[:-1] if line.endswith("\r") else line)
        if match:
            found[number] = len(line[: match.start()].encode("utf-8"))
    shown = {n for hit in found for n in range(max(hit - context, 0), min(hit + context + 1, len(lines)))}
    where = {"text": os.fsencode("./" + path).decode("utf-8", "replace")}
    for number in sorted(shown):
        kind, at = ("match", [{"start": found[number]}]) if number in found else ("context", [])
        emit(kind, path=where, lines={"text": lines[number] + "\n"}, line_number=number + 1, submatches=at)


def main() -> None:
    asked = json.loads(sys.argv[1])
    target = sys.argv[2]
    try:
        regex = re.compile(asked["pattern"])
    except (re.error, OverflowError, RecursionError) as error:
        sys.stdout.write("error: " + str(error) + "\n")
        return
    glob = re.compile(asked["glob"])
    if target != ".":
        search(target[2:], regex, asked["context"], asked["max_file"])
        return
    for path in files(""):
        if not asked["glob"] or glob.fullmatch(path):
            search(path, regex, asked["context"], asked["max_file"])


if __name__ == "__main__":
    main()
