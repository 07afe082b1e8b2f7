"""The dataset card as text: what it says, and that nobody's names can break it."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub_uploads import upload_hub
from markdown_it import MarkdownIt
from pushing import front_matter, push
from support import FAST, kiseki, light_tools, read_rows, write_dataset

from kiseki.errors import UsageError
from kiseki.hub.card import BEGIN, END, DataFiles, write_card
from kiseki.hub.facts import Facts, gather_facts
from kiseki.ledger.opening import open_reader
from kiseki.models.mock_server import MockServer

DATA = (DataFiles("default", {"train": "data/train-*.jsonl"}, {"train": 3}),)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    folder = tmp_path_factory.mktemp("card")
    write_dataset(folder / "prompts.jsonl", [{"prompt": f"Say number {n} aloud."} for n in range(3)])
    flags = ("--batch_size=3", "--run_name=a|b", "--model=builtin/practice", *light_tools(folder), *FAST, "--temperature=0.5")
    more = ("--seed=7", "--ephemeral_system_prompt=Be brief, unit 731.")
    kiseki("batch", "--dataset_file=prompts.jsonl", *flags, *more, cwd=folder)
    with open_reader(Path(folder / "data/a|b")) as ledger:
        return gather_facts(ledger)


def card(facts: Facts, before: str = "", left_out: dict[str, int] | None = None) -> str:
    return write_card(
        facts, DATA, repository="org/x", format="rows", left_out=left_out or {}, in_progress=False, redacted=2, before=before
    )


def test_it_says_how_the_data_was_made(facts: Facts) -> None:
    text = card(facts, left_out={"near duplicate": 4})
    for words in (
        "| temperature | `0.5` |",
        "| seed | 7 |",
        "| model | `builtin/practice` |",
        "| model calls per rollout at most | 10 |",
        "| shout |",
        "| kept: completed | 3 |",
        "| not written: near duplicate | 4 |",
        'load_dataset("org/x", split="train")  # 3 rows',
        "follows a script",
        "2 at the push",
        "to fill in",
    ):
        assert words in text, words
    assert front_matter(text)["size_categories"] == ["n<1K"]
    assert "731" not in text


def test_the_same_run_gives_the_same_card(facts: Facts) -> None:
    assert card(facts, card(facts)) == card(facts)


def test_what_the_user_wrote_stays_around_the_marks(facts: Facts) -> None:
    before = f"---\nlicense: mit\ntags: [mine]\n---\nAbove.\n{BEGIN}\nold\n{END}\nBelow.\n"
    text = card(facts, before)
    front = front_matter(text)
    assert front["license"] == "mit"
    assert front["tags"] == ["mine", "agent-traces", "tool-use", "kiseki"]
    assert text.partition(BEGIN)[0].endswith("Above.\n")
    assert text.endswith(f"{END}\nBelow.\n")
    assert "\nold\n" not in text


@pytest.mark.parametrize("front", ["license: [", "- a\n- b"])
def test_front_matter_that_is_none_is_not_overwritten(facts: Facts, front: str) -> None:
    with pytest.raises(UsageError, match=r"README\.md of org/x"):
        card(facts, f"---\n{front}\n---\n# Mine\n")


NASTY: tuple[str, ...] = (
    "a|b",
    "<script>x</script>",
    "![x](y)",
    "[l](x)",
    "`code`",
    "a`b|c",
    "a\n# b",
    "\n---\n",
    "\x1b[31mred",
    "***",
    "--- x",
)
NASTY += (
    "http://evil.example/x",
    "#1 x",
    "1. x",
    "> q",
    "&lt;b&gt;",
    "a\\|b",
    "x\\",
    "</td></table><h1>",
    END,
    "日本語|道具",
    "$x$",
    "|",
    "",
)


def test_no_name_is_markup(facts: Facts) -> None:
    """As a page shows it: every name is a cell's text, whatever it is."""
    nasty = msgspec.structs.replace(
        facts,
        tools={name: (len(NASTY) - at, 0) for at, name in enumerate(NASTY)},
        settings={f"setting {at}": name for at, name in enumerate(NASTY)},
        statistics=msgspec.structs.replace(facts.statistics, failed=dict.fromkeys(NASTY, 1), run_name="---\nx: [\n---"),
    )
    text = card(nasty, card(nasty))
    assert front_matter(text)["license"] == "unknown"
    assert text.count(END) == text.count(BEGIN) == 1
    page = MarkdownIt("gfm-like", {"linkify": False}).render(text.split("---\n", 2)[2].replace(BEGIN, "").replace(END, ""))
    tags = {tag.strip("/") for tag in re.findall(r"<(/?[a-z0-9]+)", page)}
    assert tags <= {"h1", "h2", "p", "pre", "code", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "strong"}
    assert page.count("<h1>") == 1
    wanted = ["".join(each for each in " ".join(name.split()) if each.isprintable()) for name in NASTY]
    assert [row[0] for row in table(page, "Tool use")] == wanted
    assert [len(row) for row in table(page, "Tool use")] == [5] * len(NASTY)
    assert {row[1] for row in table(page, "How it was made")} >= set(wanted)


def table(page: str, section: str) -> list[list[str]]:
    """The cells of a section's first table, as a reader sees them."""
    part = page.partition(f"<h2>{section}</h2>")[2].partition("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", part.partition("<tbody>")[2], re.DOTALL)
    return [[html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]


def test_a_runs_name_cannot_break_the_tables_or_the_front_matter(facts: Facts) -> None:
    text = card(facts)
    assert front_matter(text)["pretty_name"] == "a|b"
    assert "# a\\|b\n" in text


def test_its_figures_are_those_of_the_rows(tmp_path: Path) -> None:
    """Counted again from the files: discarded rollouts are in none of them but the counts of outcomes."""

    def turn(content: str = "", *, reasoning: str = "r", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        usage = {"prompt_tokens": 100, "completion_tokens": 30}
        return {"content": content, "reasoning": reasoning, "tool_calls": calls or [], "usage": usage}

    shout, wrong = ({"name": "shout", "arguments": arguments} for arguments in ({"text": "x"}, {"nope": 1}))
    script = [
        {"match": "^good", "turns": [turn(calls=[shout, shout]), turn(calls=[wrong]), turn("ok", reasoning="")]},
        {"match": "^silent", "turns": [turn(reasoning="", calls=[shout]), turn("ok", reasoning="")]},
        {"match": "^wild", "turns": [turn(calls=[{"name": "nothing", "arguments": {}}]), turn("ok")]},
        {"match": "^long", "turns": [turn(calls=[shout])]},
    ]
    kinds = ("good", "silent", "wild", "long")
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"{kind} {n}"} for n in range(2) for kind in kinds])
    flags = ("--dataset_file=p.jsonl", "--batch_size=3", "--run_name=r", "--max_turns=6", *light_tools(tmp_path), *FAST)
    with MockServer(script=script) as server:
        kiseki("batch", *flags, f"--base_url={server.base_url}", "--model=acme/m", cwd=tmp_path)
    with open_reader(tmp_path / "data/r") as ledger:
        text = card(gather_facts(ledger))
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    replies = [[m["value"] for m in row["conversations"] if m["from"] == "gpt"] for row in rows]
    page = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    calls, failed = (sum(row["tool_stats"]["shout"][what] for row in rows) for what in ("count", "failure"))
    assert table(page, "Tool use")[0][:4] == ["shout", str(calls), str(calls - failed), str(failed)]
    thought = sum(not re.match(r"<think>\s*</think>", each) for of_row in replies for each in of_row)
    turns = sum(map(len, replies))
    assert table(page, "Reasoning")[0][:3] == [str(turns), str(thought), str(turns - thought)]
    assert [row[:2] for row in table(page, "Lengths")] == [["3–4", "2"], ["5–8", "2"]]
    assert Counter(map(len, replies)) == {3: 2, 6: 2}
    counts = {row[0]: row[1] for row in table(page, "Counts and filters")}
    statistics = json.loads((tmp_path / "data/r/statistics.json").read_text())
    assert counts == {
        "prompts": "8",
        "rollouts": "8",
        "kept: completed": str(sum(row["completed"] for row in rows)),
        "kept: partial": str(sum(row["partial"] for row in rows)),
        "discarded": str(statistics["outcomes"]["discarded"]),
        "discarded: no reasoning": "2",
        "discarded: unknown tool": "2",
    }
    with upload_hub() as hub:
        push(hub, tmp_path, "--run=data/r", "--to=messages")
        again = hub.text("org/mine", "README.md")
    page = MarkdownIt("gfm-like", {"linkify": False}).render(again)
    assert {row[0]: row[1] for row in table(page, "Counts and filters")} == counts, "nothing is counted twice"
