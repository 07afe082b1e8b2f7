"""The dataset card as text: what it says, and that nobody's names can break it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from support import FAST, kiseki, light_tools, write_dataset

from kiseki.errors import UsageError
from kiseki.hub.card import BEGIN, END, DataFiles, md, write_card
from kiseki.hub.facts import Facts, gather_facts
from kiseki.ledger.opening import open_reader

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


def front_matter(text: str) -> dict[str, object]:
    front = yaml.safe_load(text.split("---\n")[1])
    assert isinstance(front, dict)
    return front


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


@pytest.mark.parametrize("name", ["a|b", "<script>", "![x](y)", "`code`", "a\n# b", "\x1b[31mred", "***", "--- x"])
def test_names_are_no_markup(name: str) -> None:
    shown = md(name)
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert "<" not in shown
    inside = shown[1:-1] if shown[0] == "`" else shown  # as code
    for sign in ("|", "[", "`", "*"):
        assert sign not in inside.replace(f"\\{sign}", "")


def test_a_runs_name_cannot_break_the_tables_or_the_front_matter(facts: Facts) -> None:
    text = card(facts)
    assert front_matter(text)["pretty_name"] == "a|b"
    assert "# a\\|b\n" in text
