"""The dataset card, `README.md`: front matter that the Hub reads, and what the run's ledger says of how the data came to be.

Between two markers everything is written anew with each push. What stands outside of them is the user's, also in the front
matter, and stays: the first push puts fields to fill there. The same run gives the same card.

Names of tools, models and runs may be anybody's: they are escaped wherever they stand.
Front matter: https://huggingface.co/docs/hub/datasets-cards, `configs`: …/datasets-manual-configuration.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
import yaml

from kiseki import __version__
from kiseki.errors import UsageError
from kiseki.hub.facts import Facts
from kiseki.trajectory.text import printable
from kiseki.views.report import MORE_TIME

BEGIN = "<!-- kiseki: what follows is written anew by each push, up to the end mark -->"
END = "<!-- kiseki: end -->"
TAGS = ("agent-traces", "tool-use", "kiseki")
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B")
NAME_CHARS, VALUE_CHARS, BAR_CHARS = 80, 300, 30
TO_FILL = "to fill in"
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?\n?", re.DOTALL | re.MULTILINE)
_PLAIN = re.compile(r"[\w./:@+-]+(?: [\w./:@+-]+)*", re.ASCII)
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$:@])")

FIELDS = f"""\
## Licence and origin

- **Licence** ({TO_FILL}): may the model's output be used so by its terms, and under which licence is this dataset given?
  Write it into `license:` at the top, too.
- **Prompts** ({TO_FILL}): where they come from, and under which licence.
- **Personal or sensitive data** ({TO_FILL}): what of it is in there.
- **Contact** ({TO_FILL}): who answers for the dataset.
"""


class DataFiles(msgspec.Struct, frozen=True):
    """One configuration of the dataset."""

    config: str
    splits: dict[str, str]
    """Split → pattern of its files."""
    rows: dict[str, int]
    """Split → its rows."""


def write_card(
    facts: Facts,
    data: Sequence[DataFiles],
    *,
    repository: str,
    format: str,
    left_out: dict[str, int],
    in_progress: bool,
    redacted: int,
    before: str,
) -> str:
    """The card's text.

    data: The configurations, the one that is loaded by default first.
    format: What the rows are, in words.
    left_out: Kept rollouts that are not in the data, by reason.
    in_progress: The run goes on, and there will be more.
    redacted: Secrets that this push has replaced.
    before: The card as it is in the repository; "" for none.

    Raises `UsageError` for a card there whose front matter cannot be read.
    """
    front, body = _parted(before, repository)
    rows = sum(data[0].rows.values())
    ours = "\n\n".join(
        part
        for part in (
            BEGIN,
            f"# {md(facts.statistics.run_name)}",
            _opening(facts, rows, in_progress),
            "## Loading\n\n" + _loading(data, repository),
            "## How it was made\n\n" + _made(facts, format),
            "## Counts and filters\n\n" + _counts(facts, left_out),
            "## Tool use\n\n" + _tools(facts, has_children="children" in (each.config for each in data)),
            "## Reasoning\n\n" + _reasoning(facts),
            "## Lengths\n\n" + _lengths(facts),
            "## Known limits\n\n" + _limits(facts, in_progress, redacted),
            END,
        )
        if part
    )
    head, mark, rest = body.partition(BEGIN)
    is_there = mark and END in rest
    body = head + ours + rest.partition(END)[2] if is_there else f"{ours}\n\n{body.strip() or FIELDS.strip()}\n"
    return f"---\n{_front_matter(front, facts, rows, data)}---\n{body if body.startswith(chr(10)) else chr(10) + body}"


# ---- front matter -------------------------------------------------------------------------------------------------------


def _parted(before: str, repository: str) -> tuple[dict[str, Any], str]:
    found = _FRONT.match(before.removeprefix("\ufeff"))
    if not found:
        return {}, before
    try:
        front = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        where = getattr(getattr(error, "problem_mark", None), "line", 0) + 2
        raise UsageError(
            f"README.md of {repository} has front matter that is no YAML (line {where}); put it right there"
        ) from None
    if front is not None and not isinstance(front, dict):
        raise UsageError(f"README.md of {repository} has front matter that is no list of fields; put it right there")
    return front or {}, before.removeprefix("\ufeff")[found.end() :]


def _front_matter(before: dict[str, Any], facts: Facts, rows: int, data: Sequence[DataFiles]) -> str:
    """The user's fields as they are, ours where they are missing; what the data decides always."""
    size = next((words for at, words in enumerate(SIZES) if rows < 10 ** (at + 3)), SIZES[-1])
    tags = before.get("tags") or []
    front: dict[str, Any] = {"license": "unknown", "pretty_name": printable(facts.statistics.run_name, NAME_CHARS)} | before
    front |= {
        "tags": list(dict.fromkeys([*(tags if isinstance(tags, list) else [tags]), *TAGS])),
        "size_categories": [size],
        "configs": [
            {
                "config_name": each.config,
                **({"default": True} if at == 0 else {}),
                "data_files": [{"split": split, "path": path} for split, path in each.splits.items()],
            }
            for at, each in enumerate(data)
        ],
    }
    front.setdefault("task_categories", ["text-generation"])
    text: str = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=1000)
    return text.replace("license: unknown\n", f"license: unknown  # {TO_FILL}\n", 1)


# ---- parts --------------------------------------------------------------------------------------------------------------


def _opening(facts: Facts, rows: int, in_progress: bool) -> str:
    model = facts.settings.get("model", "")
    words = (
        f"{rows:,} trajectories of a tool-using agent, made by {md(model)} with Kiseki: prompts were run through the agent,"
        " and every call, result and answer was kept."
    )
    if in_progress:
        words += "\n\n**The run goes on.** This is what was done when it was last pushed; there will be more."
    return words


def _loading(data: Sequence[DataFiles], repository: str) -> str:
    lines = []
    for at, each in enumerate(data):
        config = "" if at == 0 else f', "{each.config}"'
        for split in each.splits:
            name = each.config if at else split
            lines.append(f'{name} = load_dataset("{repository}"{config}, split="{split}")  # {each.rows[split]:,} rows')
    code = "\n".join(["```python", "from datasets import load_dataset", "", *lines, "```"])
    if "children" in (each.config for each in data[1:]):
        code += "\n\n`children` holds the conversations of sub-agents; `parent` says where each was started."
    return code


def _made(facts: Facts, format: str) -> str:
    rows: list[tuple[str, str]] = [*facts.settings.items()]
    rows.append(("version of kiseki", ", ".join(facts.versions)))
    if facts.first:
        rows.append(("made (UTC)", facts.first if facts.first == facts.last else f"{facts.first} to {facts.last}"))
    rows.append(("rows", format))
    table = _table(("", ""), ((name, md(value)) for name, value in rows))
    used = [name for name, count in facts.statistics.configurations.items() if count]
    if len(used) > 1:
        table += f"\n\nThe rows were made with {len(used)} configurations; `metadata.config` says which made each."
    return table


def _counts(facts: Facts, left_out: dict[str, int]) -> str:
    s = facts.statistics
    kept = s.outcomes["completed"] + s.outcomes["partial"]
    rows = [
        ("prompts", s.total_prompts, ""),
        ("rollouts", s.total_rollouts, ""),
        ("kept: completed", s.outcomes["completed"], "the model answered"),
        ("kept: partial", s.outcomes["partial"], "stopped early, as a limit or the model's end of output does"),
        ("discarded", s.outcomes["discarded"], ""),
        *((f"discarded: {md(reason.replace('_', ' '))}", count, "") for reason, count in s.discarded.items()),
        ("failed", s.outcomes["failed"], ""),
        *((f"failed: {md(kind)}", count, "") for kind, count in s.failed.items()),
        *((f"not written: {md(reason)}", count, "") for reason, count in left_out.items()),
        ("not run yet", s.outcomes["pending"], ""),
    ]
    shown = ((name, f"{count:,}", words) for name, count, words in rows if count or name in ("prompts", "rollouts"))
    table = _table(("what", "count", ""), shown, right={1})
    stops = ", ".join(f"{md(reason)} {count:,}" for reason, count in s.stop_reasons.items())
    filters = "without any reasoning, and such" if facts.reasoning_filter else "those"
    words = f"Rollouts {filters} that called tools which the run does not have, were discarded."
    return f"{table}\n\n{words}" + (f" What ended the {kept:,} kept: {stops}." if stops else "")


def _tools(facts: Facts, *, has_children: bool) -> str:
    used = sorted((pair for pair in facts.tools.items() if pair[1][0]), key=lambda pair: (-pair[1][0], pair[0]))
    if not used:
        return "No tool was called."
    rows = (
        (md(name), f"{calls:,}", f"{calls - failed:,}", f"{failed:,}", f"{100 * (calls - failed) / calls:.2f} %")
        for name, (calls, failed) in used
    )
    table = _table(("tool", "calls", "success", "failure", "success rate"), rows, right={1, 2, 3, 4})
    unused = [md(name) for name, (calls, _) in facts.tools.items() if not calls]
    notes = [f"There, and never called: {', '.join(unused)}."] if unused else []
    if has_children:
        notes.append("Calls of sub-agents are not counted.")
    return f"{table}\n\n{' '.join(notes)}" if notes else table


def _reasoning(facts: Facts) -> str:
    turns, having = facts.assistant_turns, facts.reasoning_turns
    share = f"{100 * having / turns:.1f} %" if turns else "–"
    row = (f"{turns:,}", f"{having:,}", f"{turns - having:,}", share)
    return _table(("assistant turns", "with reasoning", "without", "share"), [row], right={0, 1, 2, 3})


def _lengths(facts: Facts) -> str:
    parts = [_histogram("assistant turns", facts.turns)]
    if facts.tokens:
        parts.append(_histogram("tokens that the model wrote, as its endpoint counted them", facts.tokens))
    return "\n\n".join(parts)


def _histogram(what: str, counts: dict[str, int]) -> str:
    most = max(counts.values(), default=1)
    rows = ((name, f"{count:,}", "█" * -(-BAR_CHARS * count // most)) for name, count in counts.items())
    return _table((what, "trajectories", ""), rows, right={1})


def _limits(facts: Facts, in_progress: bool, redacted: int) -> str:
    s = facts.statistics
    lines = [
        "Whether answers are right was not checked; a tool's success says that it ran, not that its result was of use.",
        "Results of tools are what was there when the run was made: pages, packages and times differ by now.",
    ]
    if facts.settings.get("model", "").startswith("builtin/"):
        lines.append(
            "The model is the built-in one that follows a script, for trying set-ups: there is nothing to learn from it."
        )
    if s.timeouts.cut:
        flags = ", ".join(dict.fromkeys(MORE_TIME[name] for name in s.timeouts.cut))
        count = sum(each.count for each in s.timeouts.cut.values())
        lines.append(
            f"Deadlines cut {count:,} attempts or calls, and those are the long ones, so lengths are biased ({md(flags)})."
        )
    if s.outcomes["failed"]:
        lines.append(f"{s.outcomes['failed']:,} rollouts failed and are missing; they need not be like the others.")
    if s.outcomes["partial"]:
        lines.append("Partial rollouts have no final answer of the model's own choice; `partial` is true in their rows.")
    if s.outcomes["pending"] and not in_progress:
        lines.append(f"{s.outcomes['pending']:,} rollouts were not run.")
    if s.redacted or redacted:
        lines.append(
            f"Secrets were replaced by markers, `[redacted: …]`: {s.redacted:,} in tool results during the run,"
            f" {redacted:,} at the push."
        )
    return "\n".join(f"- {line}" for line in lines) + f"\n\nWritten by Kiseki {__version__} from the run's ledger."


# ---- markdown -----------------------------------------------------------------------------------------------------------


def md(text: str) -> str:
    """Anybody's text inside of markdown, a table's cell too: code where it is plain, else with all markup escaped."""
    text = " ".join(printable(text, VALUE_CHARS).split())
    if _PLAIN.fullmatch(text):
        return f"`{text}`" if not text.replace(" ", "").isalnum() else text
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKUP.sub(r"\\\1", text)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    rule = ("---:" if at in right else "---" for at in range(len(head)))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, tuple(rule), *rows))
