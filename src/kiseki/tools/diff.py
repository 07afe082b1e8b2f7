"""A unified diff that stays quick and short whatever it compares. Pure, no I/O."""

from __future__ import annotations

from difflib import SequenceMatcher

from kiseki.tools.matching import split_lines
from kiseki.trajectory.text import clean_text, cut_middle

CONTEXT = 3
MAX_DIFF_BYTES = 12_000
"""About 3,000 tokens: enough to see what happened; the file can be read for the rest."""
MAX_COMPARED = 4_000
"""Lines between the first and the last difference. difflib's cost grows with the square; beyond this the diff is not made."""


def unified_diff(old_path: str, new_path: str, before: str, after: str) -> str:
    """The diff as text, "" when nothing differs. `/dev/null` as a path means created or deleted."""
    old, new = split_lines(before), split_lines(after)
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    if head == len(old) == len(new) and old_path == new_path:
        return ""
    first = max(head - CONTEXT, 0)
    end = max(tail - CONTEXT, 0)
    old, new = old[first : len(old) - end], new[first : len(new) - end]
    lines = [f"--- {old_path}\n", f"+++ {new_path}\n"]
    if min(len(old), len(new)) > MAX_COMPARED:
        return "".join(lines) + f"(lines {first + 1} to {first + len(old)} became {len(new)} lines: too many to show)\n"
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT):
        start, stop = group[0], group[-1]
        lines.append(f"@@ -{_range(first, start[1], stop[2])} +{_range(first, start[3], stop[4])} @@\n")
        for tag, i, j, m, n in group:
            if tag == "equal":
                lines += [_line(" ", each) for each in old[i:j]]
            else:
                lines += [_line("-", each) for each in old[i:j]] + [_line("+", each) for each in new[m:n]]
    return cut_middle(clean_text("".join(lines)).encode(), MAX_DIFF_BYTES).decode("utf-8", "replace")


def _range(first: int, start: int, stop: int) -> str:
    """A range of lines as unified diffs write it: counted from 1, an empty one named by the line before it."""
    length = stop - start
    begin = first + start + (1 if length else 0)
    return f"{begin}" if length == 1 else f"{begin},{length}"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
