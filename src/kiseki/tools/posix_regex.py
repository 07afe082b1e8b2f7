"""Regular expressions as models write them (Python's and Rust's common ground) as `grep -E` takes them, for the question whether
a line matches. Pure, no I/O.

What the extended ones lack but can say is translated: classes such as `\\d`, escapes, also in brackets, groups that capture
nothing or have a name, lazy repeats (a line that matches lazily matches), `(?i)` at the start. What they cannot say is refused.
"""

from __future__ import annotations

import re

from kiseki.errors import ToolError

_CLASSES = {"d": "[:digit:]", "w": "[:alnum:]_", "s": "[:blank:]\f\v"}
_CONTROLS = {"t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_WORDS = ("b", "B", "<", ">")
"""Edges of words: no POSIX, but in the regular expressions of glibc (also busybox's) and musl."""
_END = "\r?$"
"""Lines may end as on Windows: the end is before the \\r, which is nothing that a pattern could match."""
_FLAGS = re.compile(r"\(\?([aimsuLU]+)\)")
_GROUP = re.compile(r"\(\?(?::|P?<[A-Za-z_]\w*>)")
_NOT_IN_GREP = {"(?=": "lookahead", "(?!": "lookahead", "(?<=": "lookbehind", "(?<!": "lookbehind", "(?>": "atomic groups"}
_REPEAT = re.compile(r"[*+?]|\{(?:\d+(?:,\d*)?|,\d+)\}")
_CODE = re.compile(r"x([0-9A-Fa-f]{2})|x\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_NAMED = re.compile(r"\[:\^?[a-z]+:\]")
_BREAKING = (0, ord("\n"))
MAX_SPELLED_OUT = 600
"""Characters, more than an alphabet has. glibc's usual locale has ranges of ASCII alone, musl's would be slow with so many."""
_AWKWARD = "]^-[\\"
"""Characters that mean something at some place in brackets."""


def posix_regex(pattern: str) -> tuple[str, bool]:
    """(the extended regular expression, whether it ignores case). Raises `ToolError` for what `grep` has no words for, and for
    some of what is no regular expression; `grep` itself knows the rest."""
    reader = _Reader(pattern)
    return reader.translate(), reader.ignore_case


class _Reader:
    """One pass over one pattern."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.ignore_case = False

    def translate(self) -> str:
        while flags := _FLAGS.match(self.pattern, self.at):
            self.ignore_case = self.ignore_case or "i" in flags[1]
            self.at = flags.end()
        parts: list[str] = []
        depth = 0
        repeats = False
        """Whether there is something before that a repeat can be about."""
        while self.at < len(self.pattern):
            if repeat := _REPEAT.match(self.pattern, self.at):
                if not repeats:
                    raise self._invalid(f"there is nothing to repeat at position {self.at}")
                self.at = repeat.end()
                parts.append(f"{{0{repeat[0][1:]}" if repeat[0].startswith("{,") else repeat[0])
                if self._take("+"):
                    raise self._lacks("possessive repeats")
                self._take("?")
                continue
            char = self.pattern[self.at]
            repeats = char not in "(|^"
            if char == "(":
                depth += 1
                parts.append(self._group())
                continue
            if char == "[":
                parts.append(self._brackets())
                continue
            self.at += 1
            if char == "\\":
                parts.append(self._escape())
            elif char == "$":
                parts.append(_END)
            elif char == ".":
                parts.append("[^\r]")
            elif char in "|^":
                parts.append(char)
            elif char == ")":
                depth -= 1
                if depth < 0:
                    raise self._invalid(f"the ) at position {self.at - 1} has no (")
                parts.append(char)
            else:
                parts.append(_literal(char))
        if depth:
            raise self._invalid("a ( has no )")
        return "".join(parts)

    def _take(self, char: str) -> bool:
        taken = self.pattern.startswith(char, self.at)
        self.at += taken
        return taken

    def _group(self) -> str:
        if opened := _GROUP.match(self.pattern, self.at):
            self.at = opened.end()
        elif self.pattern.startswith("(?", self.at):
            for sign, name in _NOT_IN_GREP.items():
                if self.pattern.startswith(sign, self.at):
                    raise self._lacks(f"{name} {sign}…)")
            raise self._lacks(f"group such as that at position {self.at}")
        else:
            self.at += 1
        return "("

    def _escape(self) -> str:
        """After a backslash, outside of brackets."""
        if self.at == len(self.pattern):
            raise self._invalid("it ends with a backslash")
        char = self.pattern[self.at]
        if char.lower() in _CLASSES:
            self.at += 1
            return f"[^{_CLASSES[char.lower()]}\r]" if char.isupper() else f"[{_CLASSES[char]}]"
        if char in _WORDS:
            self.at += 1
            return f"\\{char}"
        if char in "AZz":
            self.at += 1
            return "^" if char == "A" else _END
        return _literal(self._character())

    def _character(self) -> str:
        """The one that an escape stands for."""
        if code := _CODE.match(self.pattern, self.at):
            self.at = code.end()
            number = int(next(filter(None, code.groups())), 16)
            number += not number and self.pattern.startswith("-", self.at)  # [\x00-\x7f], of text without NUL characters
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise self._invalid(f"there is no character \\{code[0]}")
            if number in _BREAKING:
                raise ToolError("the pattern has a line break or a NUL character in it, but the search goes line by line in text")
            return chr(number)
        char = self.pattern[self.at]
        self.at += 1
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isalnum():
            raise self._lacks(f"\\{char}")
        return char

    def _brackets(self) -> str:
        """A set of characters, from its [ on."""
        opened = self.at
        self.at += 1
        negated = self._take("^")
        inside: list[str] = []
        outside: list[str] = []
        """What a class such as \\W leaves out."""
        chars: list[str] = []
        first = True
        while first or not self.pattern.startswith("]", self.at):
            first = False
            if self.at >= len(self.pattern):
                raise self._invalid(f"the [ at position {opened} has no ]")
            if named := _NAMED.match(self.pattern, self.at):
                self.at = named.end()
                (outside if "^" in named[0] else inside).append(named[0].replace("^", ""))
                continue
            following = self.pattern[self.at + 1 : self.at + 2]
            if self.pattern[self.at] == "\\" and following and following in "dwsDWS":
                self.at += 2
                (outside if following.isupper() else inside).append(_CLASSES[following.lower()])
                continue
            low = self._member()
            if self.pattern[self.at : self.at + 1] == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._member()
                if low > high:
                    raise self._invalid(f"{low}-{high} is no range")
                inside += _range(low, high)
            else:
                chars.append(low)
        self.at += 1
        chars += [each for each in inside if len(each) == 1]
        inside = [each for each in inside if len(each) > 1]
        if outside and negated:
            if len(outside) == 1 and not inside and not chars:
                return f"[{outside[0]}]"
            raise self._lacks("[^…] with a class such as \\W in it")
        sets = [f"[^{each}\r]" for each in outside]
        if inside or chars:
            sets.append(_set(inside, chars, negated))
        return sets[0] if len(sets) == 1 else f"({'|'.join(sets)})"

    def _member(self) -> str:
        char = self.pattern[self.at]
        self.at += 1
        if char != "\\" or self.at == len(self.pattern):
            return char
        if self.pattern[self.at] == "b":
            self.at += 1
            return "\b"
        return self._character()

    def _invalid(self, why: str) -> ToolError:
        return ToolError(f"the pattern {self.pattern!r} is not a valid regular expression: {why}")

    def _lacks(self, what: str) -> ToolError:
        return ToolError(f"this sandbox has only grep to search with, which has no {what}: write {self.pattern!r} without it")


def _literal(char: str) -> str:
    if char in "^\\":
        return f"\\{char}"
    return f"[{char}]" if char in ".[]()*+?{}|$" else char


def _range(low: str, high: str) -> list[str]:
    """Members of a set: as ranges without \\r, or one by one where grep might take no range."""
    for last, following in (("\f", "\x0e"), ("\x7f", "\x80")):
        if low <= last and high >= following:
            return _range(low, last) + _range(following, high)
    if low in _AWKWARD or high in _AWKWARD or (low >= "\x80" and ord(high) - ord(low) < MAX_SPELLED_OUT):
        return [chr(code) for code in range(ord(low), ord(high) + 1) if chr(code) != "\n" and not 0xD800 <= code < 0xE000]
    return [high] if low >= high else [f"{low}-{high}"]


def _set(members: list[str], chars: list[str], negated: bool) -> str:
    """The brackets: ] stands first, - last, ^ not first, and [ before nothing that it could open something with."""
    plain = dict.fromkeys(each for each in chars + ["\r"] * negated if each not in "]^-[")
    text = "]" * ("]" in chars) + "".join(members) + "".join(plain)
    text += "[" * ("[" in chars) + "^" * ("^" in chars) + "-" * ("-" in chars)
    if text == "^":
        return "\\^"
    if text.startswith("^") and not negated:  # nothing but ^ and -
        text = "-^"
    return f"[{'^' if negated else ''}{text}]"
