"""A task that a small Python script solves, and the mistakes that the script's first version can have."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec


class Mistake(msgspec.Struct, frozen=True):
    """One real bug: `good` in the right source became `bad`."""

    good: str
    bad: str
    error: str
    """What the run should say then (an exception's name); "" when it runs and prints the wrong thing."""
    why: str
    """The insight, once seen."""

    def spoil(self, source: str) -> str:
        return source.replace(self.good, self.bad, 1)

    def fits(self, source: str) -> bool:
        """Whether a patch can find the bad text again: it must be there once."""
        return self.good != self.bad and source.count(self.good) == 1 and self.spoil(source).count(self.bad) == 1


def _no_complaint(output: str) -> str:
    return ""


def doubt(output: str, value: object) -> str:
    """What to say of an output that is not `value`, without giving the value away: a policy that could would need no run."""
    try:
        rough = float(f"{float(str(value)):.2g}")
        float(output)
    except (ValueError, OverflowError):
        return f"{output[:60]!r} does not look right"
    return f"{output[:40]} does not fit a rough estimate, which comes to about {rough:g}"


def same_words(check: str, output: str) -> bool:
    return check.split() == output.split()


class Task(msgspec.Struct, frozen=True):
    """A request that was understood, and how to do it."""

    understood: str
    """The request in the policy's words, as the middle of a sentence: "multiply 17 by 23"."""
    script: str
    source: str
    """The right version; prints the result and nothing else."""
    answer: str
    """The sentence that reports; `{out}` is replaced by what the script printed, `{first}`, `{second}` by its first words."""
    answer_ja: str = "実行した結果は次のとおりです: {out}"
    own_mistakes: tuple[Mistake, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()
    """Files (path, content) that the script reads."""
    in_head: str = ""
    """What the script should print, where it can be said without running it: the answer when nothing can run."""
    suspicious: Callable[[str], str] = _no_complaint
    """Output → what cannot be right about it ("" when it looks right). Catches the mistakes that raise nothing."""
    check: str = ""
    """A shell command that looks at the result in another way."""
    check_why: str = ""
    agrees: Callable[[str, str], bool] = same_words
    """(check's output, script's output) → whether they fit."""
    without_python: str = ""
    """A shell command that gives the same result where there is no Python."""
    last_line: str = ""
    """What the answer must end with; `{out}` as in `answer`."""
    caveat: str = ""

    def mistakes(self) -> list[Mistake]:
        """Those that the first version can have."""
        return [each for each in (*self.own_mistakes, *usual_mistakes(self.source)) if each.fits(self.source)]


_ASSIGNED = re.compile(r"^([a-z_]\w{3,}) = ", re.MULTILINE)
_PRINT = re.compile(r"^ *print\(.*\)$", re.MULTILINE)
_BLOCK = re.compile(r"^ *(?:def|for|while|if|with) .*:$", re.MULTILINE)
_IMPORT = re.compile(r"^(# .*)\n(?:import|from) (\w+).*$", re.MULTILINE)


def usual_mistakes(source: str) -> list[Mistake]:
    """The slips that anyone makes in any script: a misspelt name, a forgotten import, bracket or colon."""
    found: list[Mistake] = []
    prints = _PRINT.findall(source)
    if prints:
        line = prints[-1]
        for name in _ASSIGNED.findall(source):
            if re.search(rf"\b{name}\b", line):
                typo = name[:-2] + name[-1] + name[-2] if name[-1] != name[-2] else name[:-1]
                if typo not in source:
                    bad = re.sub(rf"\b{name}\b", typo, line, count=1)
                    found.append(Mistake(line, bad, "NameError", f"I misspelt `{name}` as `{typo}` in the print line."))
                break
        found.append(Mistake(line, line[:-1], "SyntaxError", "The print call is missing its closing parenthesis."))
    if match := _IMPORT.search(source):
        why = f"The script uses `{match[2]}` and never imports it."
        found.append(Mistake(match[0], match[1], "NameError", why))
    if match := _BLOCK.search(source):
        found.append(Mistake(match[0], match[0][:-1], "SyntaxError", f"The line `{match[0].strip()[:-1]}` lacks its colon."))
    return found
