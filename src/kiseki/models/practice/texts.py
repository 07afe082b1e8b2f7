"""Families about a text that is given in the prompt: changing it, counting in it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable

from kiseki.models.practice.task import Mistake, Task, doubt

_QUOTES = ('""', "“”", "「」", "``", "''")


def _between(text: str, opened: str, closed: str) -> list[str]:
    """What stands between these quotation marks. An apostrophe inside a word opens and closes nothing."""
    found, at = [], 0
    while (start := text.find(opened, at)) >= 0:
        at = start + 1
        if opened == "'" and text[start - 1 : start].isalnum():
            continue
        end = text.find(closed, at)
        while opened == "'" and end >= 0 and text[end + 1 : end + 2].isalnum():
            end = text.find(closed, end + 1)
        if end < 0:
            break
        found.append(text[at:end])
        at = end + 1
    return found


def given_text(text: str) -> str:
    """The text that a prompt is about: the longest quoted one, else what follows the first line that ends in a colon."""
    quoted = [each for pair in _QUOTES for each in _between(text, *pair)]
    if quoted:
        return max(quoted, key=len)
    if match := re.search(r":[ \t]{0,4}\n+(.+)", text, re.DOTALL):
        return match[1].strip("\n")
    match = re.search(r":[ \t]{1,4}(\S.*)", text)
    return match[1].strip() if match else ""


# (pattern, understood, expression of `text`, how to say it)
_CHANGES = (
    (r"\breverse (?:the )?(?:order of )?(?:the )?words|words? in reverse", "reverse the order of the words",
     '" ".join(text.split()[::-1])', "Reversed"),
    (r"\brevers|backwards|逆(?:順|に|から)|反転", "reverse the text", "text[::-1]", "Reversed"),
    (r"upper ?case|capital letters|大文字", "put the text in upper case", "text.upper()", "In upper case"),
    (r"lower ?case|小文字", "put the text in lower case", "text.lower()", "In lower case"),
    (r"title case|capitali[sz]e each|capitali[sz]e every", "put the text in title case", "text.title()", "In title case"),
    (r"palindrome|回文", "find out whether the text is a palindrome", "", "Palindrome"),
    (r"sha-?256", "hash the text with SHA-256", "sha256", "SHA-256"),
    (r"\bmd5\b", "hash the text with MD5", "md5", "MD5"),
    (r"alphabetical|sort (?:these|the|this list of|the following) (?:words|names|fruits|list)|アルファベット順", "sort the words",
     "sort", "Sorted"),
    (r"how many vowels|count (?:the )?vowels|number of vowels", "count the vowels", "vowels", "Vowels"),
    (r"(?:how long is|length of) (?:the |this )?(?:string|text|word|\")|文字数|何文字", "measure the text", "len(text)",
     "Length"),
)  # fmt: skip


def text_change(text: str) -> Task | None:
    """ "Reverse the string 'kiseki'", "how many r's are in strawberry", "is 'level' a palindrome?", "sort these words: …"."""
    lower = text.lower()
    if match := re.search(
        r"how many (?:times does )?(?:the )?(?:letters? )?[\"'`]?([a-z])[\"'`]?(?:'?s)?(?: letters?)? "
        r"(?:are |is |appear )?(?:there )?in (?:the (?:word|string|text) )?[\"'`]?([a-z]{2,60})",
        lower,
    ):
        return _letters(match[1], match[2])
    subject = given_text(text)
    if not subject or len(subject) > 2000 or "\n" in subject.strip():
        return None
    if re.search(r"\b(?:list|array|numbers)\b", lower) and re.search(r"\brevers", lower):
        return None
    for pattern, what, expression, said in _CHANGES:
        if not re.search(pattern, lower):
            continue
        if expression == "sort":
            return _sorted_words(subject)
        if expression == "vowels":
            return _task(what, "vowels.py", f'text = {subject!r}\nresult = sum(letter in "aeiou" for letter in text.lower())\n',
                         str(sum(letter in "aeiou" for letter in subject.lower())), f"Vowels in {subject!r}: {{out}}",
                         (Mistake('"aeiou"', '"aeio"', "", "I left the `u` out."),))  # fmt: skip
        if expression in ("sha256", "md5"):
            value = hashlib.new(expression, subject.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
            body = f"import hashlib\n\ntext = {subject!r}\nresult = hashlib.{expression}(text.encode()).hexdigest()\n"
            wrong = Mistake(
                f"{expression}(text.encode())",
                f"{expression}(text)",
                "TypeError",
                "A hash takes bytes, so the text must be encoded first.",
            )
            return _task(what, "hash.py", body, value, f"{said}: {{out}}", (wrong,))
        if not expression:
            letters = "letters = [letter.lower() for letter in text if letter.isalnum()]\n"
            kept = [letter.lower() for letter in subject if letter.isalnum()]
            value = "yes" if kept == kept[::-1] else "no"
            body = f'text = {subject!r}\n{letters}result = "yes" if letters == letters[::-1] else "no"\n'
            return _task(what, "palindrome.py", body, value, f"Is {subject!r} a palindrome? {{out}}", (), "回文かどうか: {out}")
        value = str(eval_change(expression, subject))
        own = [Mistake("text[::-1]", "text[::1]", "", "The step must be -1 to go backwards.")]
        own.append(Mistake("text.upper()", "text.title()", "", "`title` only raises the first letters; `upper` is the one."))
        own.append(
            Mistake("text.split()[::-1]", "text[::-1].split()", "", "That turned the letters round; only the words should.")
        )
        shown = [each for each in own if each.good in expression and value != _spoilt(each, expression, subject)]
        name = {"Reversed": "reverse.py", "Length": "length.py"}.get(said, "change_case.py")
        return _task(
            what,
            name,
            f"text = {subject!r}\nresult = {expression}\n",
            value,
            f"{said}: {{out}}",
            tuple(shown),
            "結果は {out} です。",
        )
    return None


def message(text: str) -> Task | None:
    """ "Write a script hello.py that prints hello world and run it"."""
    match = re.search(r"\b(?:script|program|file|code)\b[^\n]{0,60}?\bprints?\b(?: out)? (.{1,200})", text, re.IGNORECASE)
    if not match:
        return None
    quoted = [each for pair in _QUOTES for each in _between(match[1], *pair)]
    plain = re.match(r"hello,? world!?", match[1], re.IGNORECASE)
    said = quoted[0] if quoted else plain[0] if plain else ""
    if not said.strip() or said != said.strip():
        return None
    named = re.search(r"(?<![\w./-])(\w{1,40}\.py)\b", text)
    source = f"# Say it\nmessage = {said!r}\nprint(message)\n"
    return Task(
        understood="write a script that prints a text",
        script=named[1] if named else "hello.py",
        source=source,
        answer="The script prints: {out}",
        answer_ja="スクリプトの出力は「{out}」です。",
        in_head=said,
        suspicious=lambda output: "" if output == said else doubt(output, said),
    )


def eval_change(expression: str, text: str) -> object:
    """The value of one of the expressions above, in the policy's head."""
    changes: dict[str, Callable[[], object]] = {
        "text[::-1]": lambda: text[::-1],
        "text[::1]": lambda: text,
        "text.upper()": text.upper,
        "text.lower()": text.lower,
        "text.title()": text.title,
        "len(text)": lambda: len(text),
        '" ".join(text.split()[::-1])': lambda: " ".join(text.split()[::-1]),
        '" ".join(text[::-1].split())': lambda: " ".join(text[::-1].split()),
    }
    return changes[expression]()


def _spoilt(mistake: Mistake, expression: str, text: str) -> str:
    return str(eval_change(mistake.spoil(expression), text))


def _letters(letter: str, word: str) -> Task:
    body = f"word = {word!r}\nletter = {letter!r}\nresult = word.count(letter)\n"
    own = (Mistake("word.count(letter)", "word.counts(letter)", "AttributeError", "The method is `count`, not `counts`."),)
    said = f"The letter {letter} is {{out}} times in {word!r}."
    value = str(word.count(letter))
    return _task(f"count the letter {letter} in {word}", "letters.py", body, value, said, own, "{out} 個あります。",
                 check=f"printf %s {word} | grep -o {letter} | wc -l")  # fmt: skip


def _sorted_words(subject: str) -> Task | None:
    words = [each.strip(" .,;") for each in re.split(r"[,;、]|\band\b", subject) if each.strip(" .,;")]
    words = words if len(words) > 1 else subject.split()
    if not 2 <= len(words) <= 200:
        return None
    body = f'words = {words!r}\nordered = sorted(words, key=str.lower)\nresult = ", ".join(ordered)\n'
    own = (
        Mistake(
            "sorted(words, key=str.lower)", "words.sort(key=str.lower)", "TypeError", "`list.sort` sorts in place and gives None."
        ),
    )
    return _task(
        "sort the words",
        "sort_words.py",
        body,
        ", ".join(sorted(words, key=str.lower)),
        "Sorted: {out}",
        own,
        "並べ替えた結果: {out}",
    )


def _task(
    understood: str,
    script: str,
    body: str,
    value: str,
    answer: str,
    own: tuple[Mistake, ...],
    ja: str = "答えは {out} です。",
    check: str = "",
) -> Task:
    first = value.strip()[:1]

    def suspicious(output: str) -> str:
        if output == value.strip():
            return ""
        return f"{output[:60]!r} should begin with {first!r}" if first != output[:1] else doubt(output, value)

    return Task(
        understood=understood,
        script=script,
        source=f"# {understood[0].upper()}{understood[1:]}\n{body}print(result)\n",
        answer=answer,
        answer_ja=ja,
        own_mistakes=own,
        in_head=value,
        suspicious=suspicious,
        check=check,
        check_why="`grep -o` puts each on a line of its own.",
    )


def text_statistics(text: str) -> Task | None:
    """ "Count the words in this text: …", "most frequent word in …"."""
    lower = text.lower()
    frequent = re.search(r"most (?:common|frequent) words?|word frequenc|いちばん多い単語", lower)
    counted = re.search(r"(?:how many|count(?: the)?|number of) (?:the )?(words|lines|characters|sentences)|単語数|行数", lower)
    subject = given_text(text).replace("\r\n", "\n").replace("\r", "\n")  # as Python reads it back
    if not subject or not (frequent or counted) or re.search(r"\b[\w-]+\.(?:txt|md|csv|log|py|json)\b", subject[:200]):
        return None
    body = 'with open("text.txt", encoding="utf-8") as f:\n    text = f.read()\n'
    if frequent:
        found = re.findall(r"\w+", subject.lower())
        if not found:
            return None
        (best, times), *more = Counter(found).most_common(2)
        source = f"# The most frequent word\nimport re\nfrom collections import Counter\n\n{body}"
        source += (
            'words = re.findall(r"\\w+", text.lower())\nbest, times = Counter(words).most_common(1)[0]\nprint(best, times)\n'
        )
        own = [Mistake("text.lower()", "text.split()", "TypeError", "`findall` takes a text, not a list of words.")]
        answer = "The most frequent word is “{first}”; it is there {second} times."
        value, what, check = f"{best} {times}", "find the most frequent word", ""
        if subject.isascii() and "_" not in subject and not (more and more[0][1] == times):  # else `tr` would see other words
            check = "tr -cs '[:alnum:]' '\\n' < text.txt | tr '[:upper:]' '[:lower:]' | sort | uniq -c | sort -rn | head -1"
    else:
        unit = counted[1] if counted and counted[1] else "lines" if "行数" in lower else "words"
        counts = {
            "words": ("len(text.split())", len(subject.split()), "wc -w < text.txt"),
            "lines": ("len(text.splitlines())", len(subject.splitlines()), "grep -c '' text.txt"),
            "characters": ("len(text)", len(subject), ""),
            "sentences": ('len(re.findall(r"[.!?。！？]+", text))', len(re.findall(r"[.!?。！？]+", subject)), ""),
        }
        expression, number, check = counts[unit]
        value, what = str(number), f"count the {unit}"
        imports = "import re\n\n" if "re." in expression else ""
        source = f"# Count the {unit}\n{imports}{body}result = {expression}\nprint(result)\n"
        own = [
            Mistake('open("text.txt"', 'open("input.txt"', "FileNotFoundError", "The file is called text.txt."),
            Mistake("text.split())", "text.split)", "TypeError", "The brackets of the call to `split` are missing."),
        ]
        answer = f"The text has {{out}} {unit}."

    def suspicious(output: str) -> str:
        return "" if output == value else doubt(output, value)

    return Task(
        understood=what,
        script="count.py",
        source=source,
        answer=answer,
        answer_ja="結果は {out} です。",
        own_mistakes=tuple(own),
        inputs=(("text.txt", subject),),
        in_head=value,
        suspicious=suspicious,
        check=check,
        check_why="The shell can count too.",
        agrees=_same_count,
        without_python="" if frequent else check,
    )


def _same_count(check: str, output: str) -> bool:
    return sorted(check.split()) == sorted(output.split())
