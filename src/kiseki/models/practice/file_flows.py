"""Families about files: create one, list a folder, count in a file, find the largest. Told by commands, not by a script."""

from __future__ import annotations

import random
import re
import shlex

from kiseki.models.practice.flows import todo_call
from kiseki.models.practice.view import Call, Flow, Kit, Result, Turn, brief, stop

_NAME = r"[\w./~-]{1,120}"
_FILE = rf"(?<![\w./~-])[`'\"「]?({_NAME}\.[A-Za-z0-9]{{1,8}}|/{_NAME})[`'\"」]?"
"""A path as people write it: with an extension, or absolute. No spaces: those cannot be told from the sentence."""
_CREATE = re.compile(
    rf"\b(?:create|make|write|save)\b[^.\n]{{0,40}}?\bfile\b[^.\n]{{0,20}}?{_FILE}"
    r"[^\n]{0,40}?\b(?:containing|contains|with (?:the )?(?:text|contents?|lines?|words?)|that says|saying)\b\s*[:：]?\s*",
    re.IGNORECASE,
)
_CREATE_JA = re.compile(rf"{_FILE}\s*(?:という(?:名前の)?ファイル)?に[、,]?\s*「([^」]{{1,4000}})」(?:と|を)(?:書|保存)")
_SAVE = re.compile(
    rf"\b(?:write|save|put)\s+[\"'“`]([^\"”`\n]{{1,2000}})[\"'”`]\s+(?:in)?to\s+(?:the\s+|a\s+)?(?:file\s+)?{_FILE}", re.I
)
_SHOW = re.compile(
    rf"\b(?:read|show|print|display|cat|open)\b(?:\s+me)?\s+(?:the\s+)?(?:contents?\s+of\s+)?(?:the\s+)?(?:file\s+)?{_FILE}", re.I
)
_COUNT = re.compile(
    rf"(?:how many|count(?: the)?|number of)\s+(?:the\s+)?(lines?|words?|characters?|bytes?)\b[^\n]{{0,60}}?"
    rf"\b(?:in|of)\s+(?:the\s+)?(?:file\s+)?{_FILE}",
    re.IGNORECASE,
)
_COUNT_JA = re.compile(rf"{_FILE}\s*の(行数|単語数|文字数)")
_LIST = re.compile(
    r"\b(?:list|show|how many)\b[^.\n]{0,30}\b(?:files|folder|directory|contents)\b"
    r"(?:[^\n]{0,40}?\s(?:in|of|under)\s+(?:the\s+)?[`'\"]?((?:[~.]{0,2}/)[\w./-]{0,120}))?",
    re.IGNORECASE,
)
_LINES_OF = re.compile(
    r"\bhow many lines of (python|javascript|typescript|rust|go|java|c|markdown|json|text|shell)\b"
    r"[^\n]{0,40}\b(?:here|folder|directory|project|repository|repo)\b",
    re.IGNORECASE,
)
_SUFFIXES = {"python": "py", "javascript": "js", "typescript": "ts", "rust": "rs", "markdown": "md", "text": "txt", "shell": "sh"}
_LIST_JA = re.compile(r"ファイル(?:の)?(?:一覧|をリスト)|フォルダの中身")
_LARGEST = re.compile(
    r"\b(?:(\d{1,2}) )?(?:largest|biggest) files?\b"
    r"(?:[^\n]{0,40}?\s(?:in|under)\s+(?:the\s+)?[`'\"]?((?:[~.]{0,2}/)[\w./-]{0,120}))?",
    re.IGNORECASE,
)


def file_flow(text: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow | None:
    """The flow of a prompt about files, None when it is not about files or no tool can reach any."""
    if kit.can_write:
        if (found := _CREATE_JA.search(text)) and (content := found[2]):
            return create(found[1], content, _wants_count(text), kit, draw, japanese)
        if (found := _CREATE.search(text)) and (content := _content(text[found.end() :])):
            return create(found[1], content, _wants_count(text), kit, draw, japanese)
        if found := _SAVE.search(text):
            return create(found[2], found[1], _wants_count(text), kit, draw, japanese)
    if kit.can_read:
        if found := _COUNT_JA.search(text):
            unit = {"行数": "lines", "単語数": "words", "文字数": "characters"}[found[2]]
            return count(found[1], unit, kit, draw, japanese)
        if found := _COUNT.search(text):
            return count(found[2], found[1].lower().rstrip("s") + "s", kit, draw, japanese)
        if found := _SHOW.search(text):
            return show(found[1], kit, draw, japanese)
    if kit.shell and (found := _LINES_OF.search(text)):
        return lines_of(found[1], kit, draw, japanese)
    if kit.shell and (found := _LARGEST.search(text)):
        return largest((found[2] or ".").rstrip(".") or ".", min(int(found[1] or 1), 20), kit, draw, japanese)
    if (kit.shell or "search_files" in kit.known) and ((found := _LIST.search(text)) or _LIST_JA.search(text)):
        return listing(((found and found[1]) or ".").rstrip(".") or ".", kit, draw, japanese)
    return None


def _wants_count(text: str) -> str:
    found = re.search(r"\b(?:count|how many)\b[^.\n]{0,30}\b(lines|words|characters)\b", text, re.IGNORECASE)
    return found[1].lower() if found else ""


def _content(after: str) -> str:
    """What the file is to contain: a fenced block, a quoted text, or the rest of the paragraph."""
    if match := re.match(r"\s*```[a-z]*\n(.{1,6000}?)\n?```", after, re.DOTALL):
        return match[1]
    for opened, closed in ('""', "''", "“”", "「」", "``"):
        if after.startswith(opened) and (end := after.find(closed, 1)) > 0:
            return after[1:end]
    line = re.split(r"\n\n|(?<=[.!?]) (?=Then|Count|Tell|After|Read|Show)", after, maxsplit=1)[0].strip()
    return line.removesuffix(".") if line.count(".") == 1 else line


def create(path: str, content: str, unit: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Write a file, read it back, mend what differs, and count in it when asked to."""
    wanted = content.replace("\\n", "\n") + "\n"
    words = content.split()
    slips = [wanted]
    if len(words) > 1:
        slips.append(content[: content.rfind(words[-1])].rstrip() + "\n")
    if len(content) > 3:
        slips.append(content[:-1] + "\n")
    first = draw.choice(slips[1:]) if len(slips) > 1 and draw.random() < 0.6 else wanted
    planned = "todo" in kit.known and draw.random() < 0.5
    plan = (f"write {path}", "read it back and compare", "report")
    calls = (todo_call(plan, 0), kit.write(path, first)) if planned else (kit.write(path, first),)
    *_, written = yield Turn(f"The request is to write {len(wanted.encode())} bytes of text to {path}. I write the file.", calls)
    if written.failed:
        text = f"I could not write {path}: {written.complaint}"
        yield Turn("The file could not be written; I say so.", text=_said(text, japanese, "ファイルを書けませんでした。"))
        return
    back = yield Turn("I read it back to compare it with the request.", _look_back(path, kit))
    note, good = "", True
    if back and not _holds(back[0], wanted):
        if first != wanted and not back[0].failed:
            note = " My first version lacked the end of the text; reading it back showed that, and I wrote it again."
            thought = f"It reads {brief(back[0].output, 60)!r}: the end of the text is missing. I left something out."
        else:
            thought = (
                f"What I read back is not what I wrote ({back[0].complaint if back[0].failed else 'it differs'}). Once more."
            )
        yield Turn(thought, (kit.write(path, wanted),))
        back = yield Turn("Again I read it back.", _look_back(path, kit))
        good = _holds(back[0], wanted)
    counted = ""
    if unit:
        if kit.shell:
            flag = {"lines": "-l", "words": "-w", "characters": "-m"}[unit]
            (wc,) = yield Turn(f"The request also asks for the {unit}.", (kit.run(f"wc {flag} {shlex.quote(path)}"),))
            found = re.search(r"\d+", wc.output)
            counted = f" It has {found[0]} {unit}, says `wc`." if found and not wc.failed else f" Counting failed: {wc.complaint}"
        else:
            number = {"lines": len(wanted.splitlines()), "words": len(wanted.split()), "characters": len(wanted)}[unit]
            counted = f" By my own count it has {number} {unit}."
    if good and back:
        text = f"I wrote {path} and read it back: it holds the text that you gave.{note}{counted}"
    elif good:
        text = f"I wrote {path}; no tool could read it back, so that is unchecked.{counted}"
    else:
        text = f"I wrote {path}, but reading it back did not show the text ({back[0].complaint}).{note}{counted}"
    ja = f"{path} を作成し、内容を確認しました。" if good and back else f"{path} を書きましたが、内容は確認できませんでした。"
    yield Turn(
        "The file is as it should be." if good and back else "I cannot vouch for the file.", text=_said(text, japanese, ja)
    )


def _look_back(path: str, kit: Kit) -> tuple[Call, ...]:
    return (kit.read(path),) if kit.can_read else ()


def _holds(back: Result, wanted: str) -> bool:
    """Whether a file that was read shows every line of `wanted`; tools may number lines."""
    if back.failed:
        return False
    seen = [re.sub(r"^\s*\d+[|\t→:] ?", "", line).rstrip() for line in back.output.splitlines()]
    lines = [line.rstrip() for line in wanted.splitlines()]
    plain = [line.rstrip() for line in back.output.splitlines()]
    return lines in (plain, seen) or wanted.strip() == back.output.strip()


def count(path: str, unit: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Count lines, words, characters or bytes of a file that is there, or is not."""
    name = shlex.quote(path)
    looks = kit.look(draw)
    if looks:
        yield Turn(f"The request is to count the {unit} of {path}. First I look whether it is there.", looks)
    if not kit.shell:
        (read,) = yield Turn("I read the file; counting is up to me then.", (kit.read(path),))
        if read.failed:
            yield _absent(path, read, japanese)
            return
        body = "\n".join(re.sub(r"^\s*\d+\|", "", line) for line in read.output.splitlines())
        number = {"lines": len(body.splitlines()), "words": len(body.split())}.get(unit, len(body))
        whole = (
            "" if read.data.get("truncated") is not True else " The file was longer than what I could read, so there are more."
        )
        text = f"{path} has {number} {unit}, counted by me in what read_file gave.{whole}"
        yield Turn(f"I count {number}.", text=_said(text, japanese, f"{number} です。"))
        return
    flag = {"lines": "l", "words": "w", "characters": "m", "bytes": "c"}[unit]
    slip = draw.choice([each for each in "lwc" if each != flag]) if draw.random() < 0.7 else flag
    (wc,) = yield Turn("`wc` counts.", (kit.run(f"wc -{slip} {name}"),))
    if wc.failed:
        (found,) = yield Turn(
            f"{stop(wc.complaint)} Perhaps it is elsewhere.",
            (kit.run(f"find . -name {shlex.quote(path.rsplit('/', 1)[-1])} | head"),),
        )
        others = [line for line in found.output.split("\n") if line.startswith("./")] if not found.failed else []
        if not others:
            yield _absent(path, wc, japanese)
            return
        name = shlex.quote(others[0])
        (wc,) = yield Turn(f"There is one at {others[0]}; I count that.", (kit.run(f"wc -{flag} {name}"),))
    elif slip != flag:
        (wc,) = yield Turn(f"`-{slip}` was the wrong option: {unit} are `-{flag}`.", (kit.run(f"wc -{flag} {name}"),))
    number_found = re.search(r"\d+", wc.output)
    if wc.failed or not number_found:
        yield _absent(path, wc, japanese)
        return
    text = f"{path} has {number_found[0]} {unit}."
    yield Turn(f"`wc` says {number_found[0]}.", text=_said(text, japanese, f"{number_found[0]} です。"))


def show(path: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Show what is in a file."""
    looks = kit.look(draw)
    if looks and "/" not in path:
        yield Turn(f"The request is to show {path}. First I look whether it is there.", looks)
    (read,) = yield Turn(f"I read {path}.", (kit.read(path),))
    if read.failed:
        text = f"I could not read {path}: {read.complaint}"
        yield Turn("It cannot be read; I say so.", text=_said(text, japanese, f"{path} を読めませんでした。"))
        return
    text = f"{path} says:\n\n{_short(read.output)}" if read.output.strip() else f"{path} is empty."
    yield Turn("I have its content.", text=_said(text, japanese, f"{path} の内容は次のとおりです。"))


def _absent(path: str, seen: Result, japanese: bool) -> Turn:
    text = f"I could not count anything: {path} cannot be read here ({seen.complaint})."
    return Turn(
        f"{path} cannot be read, and a made-up number would be wrong.", text=_said(text, japanese, f"{path} を読めませんでした。")
    )


def listing(folder: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """List a folder."""
    if not kit.shell:
        call = Call("search_files", {"pattern": "*", "target": "files", "path": folder})
        (seen,) = yield Turn(f"The request is to list {folder}; a search for every file shows them.", (call,))
    else:
        name = shlex.quote(folder)
        pair = (kit.run("pwd"), kit.run(f"ls -la {name}"))
        *_, seen = yield Turn(f"The request is to list {folder}.", pair if draw.random() < 0.5 else pair[1:])
        if not seen.failed:
            (number,) = yield Turn("I count the entries as well.", (kit.run(f"ls -A {name} | wc -l"),))
            total = number.output.strip()
            if total.isdigit():
                note = "The folder is empty." if total == "0" else f"{total} entries in {folder}:\n\n{_short(seen.output)}"
                yield Turn("I have the listing and the count.", text=_said(note, japanese, f"{folder} の中身は {total} 個です。"))
                return
    if seen.failed:
        text = f"I could not list {folder}: {seen.complaint}"
        yield Turn("That folder cannot be listed; I say so.", text=_said(text, japanese, "一覧を取れませんでした。"))
        return
    text = f"This is what is in {folder}:\n\n{_short(seen.output)}"
    yield Turn("I have the listing.", text=_said(text, japanese, f"{folder} の中身は次のとおりです。"))


def lines_of(language: str, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Count the lines of all files of a language below the current folder."""
    suffix = _SUFFIXES.get(language.lower(), language.lower())
    looks = kit.look(draw)
    yield Turn(f"The request is to count lines of {language}: files that end in .{suffix}. First a look at the folder.", looks)
    find = f"find . -name '*.{suffix}' -type f"
    if draw.random() < 0.6:
        (wc,) = yield Turn("`wc -l` counts lines.", (kit.run(f"wc -l *.{suffix}"),))
        seen = f"{stop(wc.complaint)} So none lie here directly" if wc.failed else "That takes only this folder"
        thought = f"{seen}; `find` goes into the folders below as well."
    else:
        thought = "`find` goes into the folders below as well, and `cat` joins all files for one count."
    total, files = yield Turn(thought, (kit.run(f"{find} -exec cat {{}} + | wc -l"), kit.run(f"{find} | wc -l")))
    lines, number = total.output.strip(), files.output.strip()
    if total.failed or files.failed or not (lines.isdigit() and number.isdigit()):
        text = f"I could not count the lines: {total.complaint if total.failed else files.complaint}"
        yield Turn("The count did not come out; I say so.", text=_said(text, japanese, "数えられませんでした。"))
    elif number == "0":
        text = f"There are no .{suffix} files in this folder or below it, so there are 0 lines of {language}."
        yield Turn("No such files.", text=_said(text, japanese, "該当するファイルはありません。"))
    else:
        text = f"{lines} lines of {language}, in {number} file{'s' * (number != '1')} in this folder and below it."
        yield Turn(f"{number} files, {lines} lines.", text=_said(text, japanese, f"{lines} 行です。"))


def largest(folder: str, how_many: int, kit: Kit, draw: random.Random, japanese: bool) -> Flow:
    """Find the largest files under a folder."""
    name = shlex.quote(folder)
    find = f"find {name} -type f -printf '%s %p\\n'"
    first = f"{find} | sort | tail -n {how_many}" if draw.random() < 0.7 else f"{find} | sort -n | tail -n {how_many}"
    yield Turn(
        f"The request is to find the largest of the files under {folder}. How is the folder laid out?",
        (kit.run(f"ls {name} | head -20"),),
    )
    (seen,) = yield Turn("I list sizes and sort them.", (kit.run(first),))
    if not seen.failed and "sort -n" not in first:
        thought = "Plain `sort` compares sizes as words, so 9 comes after 1000. `sort -n` compares numbers."
        (seen,) = yield Turn(thought, (kit.run(f"{find} | sort -n | tail -n {how_many}"),))
    if seen.failed or "No such file" in seen.output:
        text = f"I could not look through {folder}: {seen.complaint}"
        yield Turn("The search failed; I say so.", text=_said(text, japanese, "調べられませんでした。"))
        return
    rows = [line.split(" ", 1) for line in seen.output.strip().splitlines() if re.match(r"\d+ ", line)]
    if not rows:
        yield Turn("Nothing came out.", text=_said(f"There are no files under {folder}.", japanese, "ファイルはありません。"))
        return
    told = "\n".join(f"{path} ({size} bytes)" for size, path in reversed(rows))
    head = "The largest file is " if len(rows) == 1 else f"The {len(rows)} largest files are:\n"
    yield Turn(f"{rows[-1][1]} is the largest.", text=_said(head + told, japanese, "一番大きいファイルは次のとおりです。"))


def _short(listing_text: str) -> str:
    lines = listing_text.strip().splitlines()
    return "\n".join(lines[:60]) + (f"\n… and {len(lines) - 60} more" if len(lines) > 60 else "")


def _said(text: str, japanese: bool, ja: str) -> str:
    return f"{ja}\n\n{text}" if japanese else text
