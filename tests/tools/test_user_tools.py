"""A user's tools as an installed package brings them: a distribution with entry points on the module search path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import FAST, kiseki, read_rows, write_dataset

from kiseki import AIAgent
from kiseki.errors import UsageError
from kiseki.models.mock_server import MockServer
from kiseki.tools.user_tools import load_user_tools, wanted_entry_points

MODULE = '''
from kiseki import RolloutInfo, tool

@tool(toolset="weather")
def forecast(town: str, rollout: RolloutInfo) -> dict[str, object]:
    """Say how the weather will be.

    Args:
        town: Where.
    """
    return {"town": town, "of": rollout.prompt, "source": rollout.source}

@tool(toolset="maps")
async def distance(start: str, end: str) -> int:
    """Measure."""
    return 7

both = [forecast, distance]
nothing = 5
'''
ENTRIES = """\
[kiseki.tools]
weather = weather_tools:forecast
all_of_it = weather_tools
listed = weather_tools:both
empty = weather_tools:nothing
gone = weather_tools:missing
broken = broken_tools
"""


def install(site: Path, name: str = "weather-tools", entries: str = ENTRIES) -> Path:
    (site / f"{name.replace('-', '_')}-1.0.dist-info").mkdir(parents=True)
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    (site / "weather_tools.py").write_text(MODULE)
    (site / "broken_tools.py").write_text("import no_such_module_anywhere\n")
    return site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    site = install(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site))
    return site


def test_an_entry_point_names_a_module_a_function_or_a_list(site: Path) -> None:
    assert [each.name for each in load_user_tools("weather")] == ["forecast"]
    assert [each.name for each in load_user_tools("all_of_it")] == ["forecast", "distance"]
    assert [each.name for each in load_user_tools("listed")] == ["forecast", "distance"]
    assert wanted_entry_points(["terminal", "weather", "maps", "listed"], ["listed"]) == ("weather",)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("empty", "entry point empty of weather-tools (weather_tools:nothing) declares no tools; a tool is declared by @tool("),
        ("gone", "entry point gone of weather-tools (weather_tools:missing) cannot be loaded: AttributeError"),
        ("broken", "(broken_tools) cannot be loaded: ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("wether", "--tools wether: there is no such file, and no installed package has an entry point 'wether'"),
        ("wether", "in the group kiseki.tools (did you mean weather?)"),
        ("xyz.py", "--tools xyz.py: there is no such file"),
    ],
)
def test_what_cannot_be_loaded_is_said(site: Path, name: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_user_tools(name)
    assert says in str(caught.value)


def test_two_packages_with_one_name(site: Path) -> None:
    install(site, "other-tools", "[kiseki.tools]\nweather = weather_tools:distance\nlisted = weather_tools:both\n")
    with pytest.raises(UsageError, match="several installed packages have an entry point of that name"):
        load_user_tools("weather")
    assert len(load_user_tools("listed")) == 2


def test_the_library_takes_them_too(site: Path) -> None:
    agent = AIAgent("builtin/practice", tools=["weather"], enabled_toolsets=["weather"])
    assert [each.name for each in agent.tools.toolbox.schemas] == ["forecast"]
    with pytest.raises(UsageError, match="there is no toolset 'listed'"):  # the package's tools are in others
        AIAgent("builtin/practice", enabled_toolsets=["listed"])
    assert AIAgent("builtin/practice", enabled_toolsets=["weather"]).toolsets == ("weather",)


@pytest.mark.parametrize("flags", [("--tools=weather", *FAST), ("--num_workers=1", "--engine=processes")])
def test_a_batch_uses_them_in_every_engine(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """By name, or because the distribution names a toolset as the entry point is called."""
    site = install(tmp_path / "site")
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "How is it?", "level": 3}])
    (tmp_path / "d.yaml").write_text("weather: 100\n")
    base = ("batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", "--distribution=d.yaml", "--model=m")
    script = [{"turns": [{"tool_calls": [{"name": "forecast", "arguments": {"town": "Oslo"}}]}, {"content": "fine"}]}]
    path = os.pathsep.join((str(site), os.environ.get("PYTHONPATH", "")))
    with MockServer(script) as server:
        more = (f"--base_url={server.base_url}", "--reasoning_filter=off")
        kiseki(*base, *more, *flags, cwd=tmp_path, PYTHONPATH=path)
    (row,) = read_rows(tmp_path / "data" / "r" / "trajectories.jsonl")
    assert row["tool_stats"] == {"forecast": {"count": 1, "success": 1, "failure": 0}}
    assert row["toolsets_used"] == ["weather"]
    said = next(turn["value"] for turn in row["conversations"] if turn["from"] == "tool")
    assert '"of":"How is it?"' in said and "level" in said
