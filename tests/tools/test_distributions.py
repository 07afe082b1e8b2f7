"""The table, users' files, and the draw."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kiseki.errors import UsageError
from kiseki.tools.distributions import BUILT_IN, Distribution, draw, format_table, get_distribution

ALL = {"web", "vision", "image_gen", "terminal", "file", "browser"}


def test_the_table() -> None:
    assert len(BUILT_IN) == 17
    assert get_distribution("science").toolsets == {
        "web": 94,
        "terminal": 94,
        "file": 94,
        "vision": 65,
        "browser": 50,
        "image_gen": 15,
    }
    assert list(get_distribution("browser_tasks").toolsets) == ["browser", "vision", "terminal"]
    assert get_distribution("default").toolsets == dict.fromkeys(ALL, 100)
    lines = format_table().splitlines()
    assert len(lines) == 18
    assert lines[0].split() == ["distribution", "toolsets", "(percent)"]
    assert lines[10] == "terminal_web    terminal 100, file 100, web 100"


def test_an_unknown_name_gets_close_ones_and_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        get_distribution("terminal_onyl")
    assert "did you mean terminal_only" in str(caught.value)
    assert all(name in str(caught.value) for name in BUILT_IN)


def test_a_file_with_one_and_with_several(tmp_path: Path) -> None:
    one = tmp_path / "mine.yaml"
    one.write_text("terminal: 80\nmcp-github: 12.5\n")
    assert get_distribution(str(one)) == Distribution("mine", {"terminal": 80, "mcp-github": 12.5})
    several = tmp_path / "all.yml"
    several.write_text("first: {terminal: 100}\nsecond: {file: 1}\n")
    assert get_distribution(f"{several}:second") == Distribution("second", {"file": 1})
    assert get_distribution("first", several) == Distribution("first", {"terminal": 100})
    with pytest.raises(UsageError, match=r"choose one, as .*all\.yml:first \(first, second\)"):
        get_distribution(str(several))
    with pytest.raises(UsageError, match=r"has no distribution 'secnd'; did you mean second\? \(there are: first, second\)"):
        get_distribution(f"{several}:secnd")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("terminal: 101", "terminal must be a number from 0 to 100 (percent), not 101"),
        ("terminal: yes", "terminal must be a number from 0 to 100 (percent), not True"),
        ("terminal: .nan", "terminal must be a number"),
        ("terminal: '50'", "terminal must be a number from 0 to 100 (percent), not '50'"),
        ("terminal: 0\nfile: 0", "at least one toolset needs more than 0 percent"),
        ("a: {terminal: -1}", "a: terminal must be a number"),
        ("a: {terminal: 1}\nb: 3", "'b' is not a distribution as 'a' is"),
        ("7: 50", "7 is not the name of a toolset"),
        ("- terminal", "must hold a mapping of toolset to percent"),
        ("", "must hold a mapping of toolset to percent"),
        ("a: [", "is not valid YAML"),
        ("\udc80", "is not valid YAML"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "d.yaml"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as caught:
        get_distribution(str(file))
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the distribution file .*none\.yaml: No such file"):
        get_distribution(str(tmp_path / "none.yaml"))


def test_draws_are_pinned() -> None:
    """These values must never change: a resumed run has to draw what it drew before."""
    science = get_distribution("science")
    assert [draw(science, 0, f"key{number}", ALL) for number in range(4)] == PINNED
    assert draw(science, 1, "key0", ALL) != PINNED[0]


PINNED = [
    ("terminal", "file", "vision", "browser"),
    ("web", "terminal", "file", "vision"),
    ("web", "terminal", "file", "vision", "browser"),
    ("web", "terminal", "vision", "image_gen"),
]


def test_frequencies_are_those_of_the_table() -> None:
    counts = dict.fromkeys(ALL, 0)
    science = get_distribution("science")
    for number in range(10_000):
        for name in draw(science, 42, str(number), ALL):
            counts[name] += 1
    for name, percent in science.toolsets.items():
        assert abs(counts[name] / 100 - percent) < 2.0, name  # 4 standard deviations at 50 %


def test_toolsets_are_drawn_independently_of_each_other() -> None:
    both = terminal = file = 0
    half = Distribution("half", {"terminal": 50, "file": 50, "web": 100})
    for number in range(10_000):
        drawn = draw(half, 7, str(number), ALL)
        terminal += "terminal" in drawn
        file += "file" in drawn
        both += "terminal" in drawn and "file" in drawn
    assert abs(both / 10_000 - terminal * file / 10_000**2) < 0.02


def test_a_draw_depends_on_nothing_but_seed_key_and_name() -> None:
    forward = Distribution("a", {"terminal": 50, "file": 50, "web": 50})
    backward = Distribution("b", {"web": 50, "other": 99, "file": 50, "terminal": 50})
    for number in range(300):
        key = str(number)
        one, two = draw(forward, 3, key, ALL), draw(backward, 3, key, ALL)
        less = draw(forward, 3, key, {"terminal", "web"})
        if one and two and len(less) > 1:  # no fallback in play
            assert set(one) >= set(two) or not set(one) & set(two)
            assert [name for name in one if name != "file"] == list(less)


def test_at_least_one_is_on() -> None:
    rare = Distribution("rare", {"terminal": 0.001, "file": 0.002, "web": 0.002, "browser": 0})
    assert draw(rare, 0, "k", ALL) == ("file",)  # the most probable; of equals the first of the table
    assert draw(rare, 0, "k", {"terminal", "web"}) == ("web",)
    assert draw(rare, 0, "k", {"browser"}) == ()
    assert draw(rare, 0, "k", set()) == ()


def test_draws_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from kiseki.tools.distributions import *; d = get_distribution('mixed_tasks');"
        "print([draw(d, 5, str(n), set(d.toolsets)) for n in range(50)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1


def test_listing_imports_nothing_heavy() -> None:
    program = (
        "import sys; from kiseki.tools.distributions import format_table; format_table();"
        "print([name for name in ('asyncio', 'yaml', 'aiohttp', 'rich', 'difflib', 'sqlite3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
