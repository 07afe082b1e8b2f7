"""The notes of one rollout: kept in its sandbox, bounded, and never another rollout's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from support import FAST, kiseki, read_rows, write_dataset
from tools.rollouts import Ask, play

from kiseki.models.mock_server import MockServer
from kiseki.tools.context import ToolContext
from kiseki.tools.memory import MAX_CHARS
from kiseki.tools.settings import ToolSettings

NOTES = "uses tabs\n§\nthe build is\nmake all\n"


def seeded(folder: Path) -> ToolSettings:
    memory = folder / "memory"
    memory.mkdir()
    (memory / "MEMORY.md").write_text(NOTES)
    return ToolSettings(memory_dir=str(memory))


def test_entries_are_added_replaced_and_removed(tmp_path: Path) -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        assert await ask("memory", action="read") == {
            "target": "memory",
            "count": 2,
            "characters": len(NOTES),
            "limit": MAX_CHARS,
            "entries": ["uses tabs", "the build is\nmake all"],
        }
        assert (await ask("memory", action="read", target="user"))["entries"] == []
        await ask("memory", action="add", content="  tests: make check\n")
        assert (await ask("memory", action="add", content="tests: make check"))["note"] == "it was there already"
        await ask("memory", action="replace", old_text="tabs", content="uses spaces")
        assert (await ask("memory", action="remove", old_text="make all"))["count"] == 2
        await ask("memory", action="add", target="user", content="wants it short")
        shown = (await context.sandbox.exec("cat ~/memory/MEMORY.md ~/memory/USER.md", timeout=60)).output
        assert shown == "uses spaces\n§\ntests: make check\nwants it short\n"

    play(["memory"], seeded(tmp_path), scenario)
    assert (tmp_path / "memory" / "MEMORY.md").read_text() == NOTES


def test_what_is_not_clear_changes_nothing(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"action": "add"}, "content is empty"),
        ({"action": "add", "content": "a\n § \nb"}, "must not have a line with only §"),
        ({"action": "remove"}, "old_text is empty"),
        (
            {"action": "remove", "old_text": "s"},
            "2 entries of memory contain 's'; give more of the one you mean:\n- uses tabs\n- the",
        ),
        (
            {"action": "replace", "old_text": "zzz", "content": "x"},
            "no entry of memory contains 'zzz'; there are:\n- uses tabs\n",
        ),
        ({"action": "remove", "target": "user", "old_text": "x"}, "user has no entries"),
        ({"action": "forget"}, "Invalid enum value 'forget'"),
    ]

    async def scenario(ask: Ask, context: ToolContext) -> None:
        for arguments, message in wrong:
            assert message in (await ask("memory", **arguments))["error"]
        assert (await ask("memory", action="read"))["entries"] == ["uses tabs", "the build is\nmake all"]

    play(["memory"], seeded(tmp_path), scenario)


def test_a_full_memory_says_so_and_can_be_made_smaller() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        await ask("memory", action="add", content="a" * (MAX_CHARS - 1))
        assert (
            "memory is full: it would have 10,004 characters, and 10,000 are allowed"
            in (await ask("memory", action="add", content="b"))["error"]
        )
        await context.sandbox.exec("seq 9999 > ~/memory/MEMORY.md", timeout=60)  # commands know no limit
        large = await ask("memory", action="read")
        assert large["truncated"] is True and sum(map(len, large["entries"])) == MAX_CHARS < large["characters"]
        await ask("memory", action="replace", old_text="77", content="short")
        assert (await ask("memory", action="read"))["entries"] == ["short"]
        await context.sandbox.exec(r"printf '\377' > ~/memory/MEMORY.md", timeout=60)
        assert "is not UTF-8 text any more" in (await ask("memory", action="read"))["error"]

    play(["memory"], ToolSettings(), scenario)


def test_calls_side_by_side_lose_nothing() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        await asyncio.gather(*(ask("memory", action="add", content=f"entry {number}") for number in range(5)))
        assert len((await ask("memory", action="read"))["entries"]) == 5

    play(["memory"], ToolSettings(), scenario)


def test_a_prompt_never_sees_what_another_has_noted(tmp_path: Path) -> None:
    def calls(*each: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"tool_calls": [{"name": "memory", "arguments": arguments}]} for arguments in each] + [{"content": "done"}]

    script = [
        {"match": "write", "turns": calls({"action": "add", "content": "a secret"}, {"action": "read"})},
        {"turns": calls({"action": "read"}, {"action": "read", "target": "user"})},
    ]
    seeded(tmp_path)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "write"}, {"prompt": "look"}])
    (tmp_path / "d.yaml").write_text("memory: 100\n")
    base = ("batch", "--dataset_file=p.jsonl", "--batch_size=1", "--run_name=r", "--distribution=d.yaml", "--model=m")
    one_by_one = ("--concurrency=1", "--reasoning_filter=off", "--memory_dir=memory", *FAST)
    with MockServer(script) as server:
        kiseki(*base, *one_by_one, f"--base_url={server.base_url}", cwd=tmp_path)
    written, looked = read_rows(tmp_path / "data" / "r" / "trajectories.jsonl")
    assert "a secret" in json.dumps(written["conversations"])
    assert "a secret" not in json.dumps(looked["conversations"]) and "uses tabs" in json.dumps(looked["conversations"])
    assert looked["tool_stats"]["memory"] == {"count": 2, "success": 2, "failure": 0}
    assert (tmp_path / "memory" / "MEMORY.md").read_text() == NOTES
