"""Skills: found, read, and run in the sandbox that got a copy of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.rollouts import Ask, play

from kiseki.tools.context import ToolContext
from kiseki.tools.settings import ToolSettings
from kiseki.tools.skills import MAX_CHARS, MAX_LISTED


def skill(folder: Path, path: str, text: str) -> Path:
    place = folder / path
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text(text)
    return place


@pytest.fixture
def settings(tmp_path: Path) -> ToolSettings:
    root = tmp_path / "skills"
    tables = skill(root, "data/tables", "---\nname: tables\ndescription: Reads\n  tables\n---\n# Tables\nRun scripts/count.sh.\n")
    (tables / "scripts").mkdir()
    (tables / "scripts" / "count.sh").write_text("#!/bin/sh\nwc -l\n")
    (tables / "scripts" / "count.sh").chmod(0o755)
    (tables / "logo.png").write_bytes(b"\x89PNG\xff")
    skill(root, "data/deep/er", "# The deeper one\n\nIt goes deep.\n")
    skill(root, "web/tables", "---\r\nname: tables\r\ndescription: Use when: there is a table in a page\r\n---\r\nx\r\n")
    skill(root, "broken", "---\n[\n---\n\n# Only a heading\n")
    skill(root, "long", "x" * (MAX_CHARS + 1))
    return ToolSettings(skills_dir=str(root))


def test_they_are_listed_by_category(settings: ToolSettings) -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        answer = await ask("skills_list")
        assert [(each["name"], each["category"], each["description"][:40]) for each in answer["skills"]] == [
            ("broken", "", "Only a heading"),
            ("er", "data/deep", "It goes deep."),
            ("data/tables", "data", "Reads tables"),
            ("long", "", "x" * 40),
            ("web/tables", "web", "Use when: there is a table in a page"),
        ]
        assert answer["categories"] == ["data", "data/deep", "web"] and answer["count"] == 5
        assert [each["name"] for each in (await ask("skills_list", category="data"))["skills"]] == ["er", "data/tables"]
        error = (await ask("skills_list", category="dat"))["error"]
        assert error == "there is no category 'dat'; there are: data, data/deep, web"
        await context.sandbox.exec("mkdir ~/skills/new; echo Fresh. > ~/skills/new/SKILL.md", timeout=60)
        assert (await ask("skill_view", name="new"))["description"] == "Fresh."

    play(["skills"], settings, scenario)


def test_one_is_read_with_its_files(settings: ToolSettings) -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        found = await ask("skill_view", name="data/tables")
        assert found["files"] == ["logo.png", "scripts/count.sh"]
        assert found["content"].endswith("# Tables\nRun scripts/count.sh.\n")
        ran = await context.sandbox.exec(f"printf 'a\\nb\\n' | {found['folder']}/scripts/count.sh", timeout=60)
        assert ran.output.strip() == "2"
        script = await ask("skill_view", name="data/tables", file_path="./scripts/count.sh")
        assert (script["file"], script["content"]) == ("scripts/count.sh", "#!/bin/sh\nwc -l\n")
        assert (await ask("skill_view", name="er"))["name"] == "er"
        long = await ask("skill_view", name="long")
        assert long["truncated"] and len(long["content"]) == MAX_CHARS and "of 40,001 characters" in long["note"]

    play(["skills"], settings, scenario)


def test_what_cannot_be_read_is_said(settings: ToolSettings) -> None:
    wrong = [
        (("tables", ""), "there are several skills 'tables'; give the path: data/tables, web/tables"),
        (("tabels", ""), "did you mean web/tables or data/tables?"),
        (("zzz", ""), "there is no skill 'zzz'; there are: broken, er, data/tables, long, web/tables"),
        (("er", "../tables/SKILL.md"), "leads out of the skill's folder"),
        (("er", "/etc/passwd"), "leads out of the skill's folder"),
        (("er", "a/../../x"), "leads out of the skill's folder"),
        (("data/tables", "count.sh"), "no such file"),
        (("data/tables", "count.sh"), "; its files are: logo.png, scripts/count.sh"),
        (("data/tables", "scripts"), "folder"),
        (("data/tables", "logo.png"), "logo.png is no text (5 bytes); it is /"),
    ]

    async def scenario(ask: Ask, context: ToolContext) -> None:
        for (name, file_path), message in wrong:
            assert message in (await ask("skill_view", name=name, file_path=file_path))["error"]

    play(["skills"], settings, scenario)


def test_what_a_skill_holds_is_nobody_elses(tmp_path: Path) -> None:
    skill(tmp_path, "a", "---\ndescription: Of a\n---\n\n==> ./ghost/SKILL.md <==\nboo\n\n==> ./b/SKILL.md <==\nNot of b\n")
    skill(tmp_path, "b", f"---\n0x{'f' * 4000}: a number of more digits than Python writes\ndescription: no\n---\n")
    skill(tmp_path, "c", "")
    skill(tmp_path, "d", "Of d, without an end of its line")
    skill(tmp_path, "e", "é" * 5000)

    async def scenario(ask: Ask, context: ToolContext) -> None:
        found = {each["name"]: each["description"] for each in (await ask("skills_list"))["skills"]}
        assert list(found) == ["a", "b", "c", "d", "e"]
        assert (found["a"], found["c"], found["d"]) == ("Of a", "", "Of d, without an end of its line")

    play(["skills"], ToolSettings(skills_dir=str(tmp_path)), scenario)


def test_front_matter_that_repeats_itself_is_not_unfolded(tmp_path: Path) -> None:
    """With merges and aliases a few hundred bytes would take minutes to read."""
    levels = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))
    (tmp_path / "bomb").mkdir()
    (tmp_path / "bomb/SKILL.md").write_text(f"---\nname: boom\ndescription: a bomb\na0: &a0 {{x: 1}}\n{levels}---\nText.\n")

    async def scenario(ask: Ask, context: ToolContext) -> None:
        (skill,) = (await ask("skills_list"))["skills"]
        assert (skill["name"], skill["description"]) == ("boom", "a bomb")

    play(("skills",), ToolSettings(skills_dir=str(tmp_path)), scenario)


def test_many_are_listed_in_part(tmp_path: Path) -> None:
    for number in range(MAX_LISTED + 1):
        skill(tmp_path, f"s{number:03}", f"Skill {number}\n")

    async def scenario(ask: Ask, context: ToolContext) -> None:
        answer = await ask("skills_list")
        assert len(answer["skills"]) == MAX_LISTED and answer["count"] == MAX_LISTED + 1
        assert answer["note"] == "the first 100 of 101; give a category to see the others"

    play(["skills"], ToolSettings(skills_dir=str(tmp_path)), scenario)


def test_without_a_folder_there_are_none() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        assert await ask("skills_list") == {"skills": [], "count": 0}
        assert "there are: none" in (await ask("skill_view", name="x"))["error"]

    play(["skills"], ToolSettings(), scenario)
