"""What was found, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kiseki.doctor.examine import Examined
from kiseki.doctor.findings import Check, Group, Place
from kiseki.doctor.kinds import KINDS

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"lost": "red", "harm": "yellow", "note": "cyan"}
_SIGNS = {None: ("✓", "green"), "note": ("✓", "green"), "harm": ("✗", "yellow"), "lost": ("✗", "red")}


def as_json(examined: Examined, name: str, target: str) -> dict[str, Any]:
    """One object: `rows`, `loses`, `problems` and `checks`."""
    findings = examined.findings
    return {
        "file": name,
        "for": target,
        "rows": examined.rows,
        "loses": findings.loses,
        "problems": [
            {
                "kind": each.kind,
                "severity": each.severity,
                "where": each.where,
                "rows": each.rows,
                "times": each.times,
                "first": [{"file": place.file, "row": place.row} for place in each.first],
                "details": each.details,
                "effect": KINDS[each.kind].effect,
            }
            for each in findings.groups
        ],
        "checks": [
            {
                "check": each.name,
                "count": each.count,
                "unit": each.unit,
                "done": not each.note,
                "ok": findings.worst(each) in (None, "note"),
            }
            for each in findings.checks
        ],
    }


def show(console: Console, examined: Examined, name: str, target: str, fix: dict[str, str]) -> None:
    """Problems, the worst first, and what was checked.

    fix: What stands for `{file}`, `{to}`, `{trainer}` and `{limit}` in the fixes of `KINDS`.
    """
    from rich.table import Table
    from rich.text import Text

    groups = examined.findings.groups
    several = len({place.file for group in groups for place in group.first if place.row}) > 1
    for group in groups:
        kind = KINDS[group.kind]
        head = Text(f"{group.severity}: ", style=_STYLES[group.severity])
        head.append(group.kind + (f" ({group.where})" if group.where else ""), style="bold")
        head.append(f"  {rows_of(group, several)}")
        lines = [head, *(Text(f"      {each}") for each in group.details)]
        lines += [Text(f"   →  {kind.effect}"), Text(f"   fix: {kind.fix.format_map(fix)}")]
        for line in lines:
            console.print(line, soft_wrap=True)
    table = Table(title="What was checked", title_justify="left", show_header=False)
    for check in examined.findings.checks:
        table.add_row(*_row(check, *(("–", "") if check.note else _SIGNS[examined.findings.worst(check)])))
    console.print(table)
    words, style = _verdict(examined, name, target)
    console.print(Text(words), style=style, soft_wrap=True)


def _row(check: Check, sign: str, style: str) -> Sequence[Any]:
    from rich.text import Text

    return Text(sign, style=style), Text(check.name), Text(check.note or counted(check.count, check.unit))


def counted(count: int, unit: str) -> str:
    """unit: In the plural."""
    return f"{count:,} {unit.removesuffix('s') if count == 1 else unit}"


def rows_of(group: Group, several: bool) -> str:
    """`rows 3, 17, 21 … (412)`; with the files' names where several have problems."""
    named = [_name(place, several) for place in group.first]
    if not any(place.row for place in group.first):
        return ", ".join(dict.fromkeys(each for each in named if each))
    listed = f"row{'s' * (group.rows > 1)} {', '.join(named)}"
    return f"{listed} … ({group.rows:,})" if group.rows > len(named) else listed


def _name(place: Place, several: bool) -> str:
    if not place.row:
        return place.file
    return f"{place.file}:{place.row}" if several else f"{place.row}"


def _verdict(examined: Examined, name: str, target: str) -> tuple[str, str]:
    whom = f" for {target}" if target else ""
    groups = examined.findings.groups
    lost = sum(each.severity == "lost" for each in groups)
    harm = sum(each.severity == "harm" for each in groups)
    if lost or harm:
        parts = [
            f"{lost} would lose rows or the file" if lost else "",
            f"{harm} would lose or damage what rows say" if harm else "",
        ]
        return (
            f"{name}{whom}: of {counted(len(groups), 'kinds')} of problems, {' and '.join(filter(None, parts))}",
            "red" if lost else "yellow",
        )
    notes = f", {counted(len(groups), 'notes')}" if groups else ""
    return f"{name}{whom}: {counted(examined.rows, 'rows')}, nothing would be lost{notes}", "green"
