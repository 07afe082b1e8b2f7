"""Folders of the user's and the tools that read them, on every backend: wherever its home folder is, whoever the user."""

from __future__ import annotations

from pathlib import Path

from contract.backends import SHELLS, Place, places
from contract.opening import out, within

from kiseki.sandboxes.base import Sandbox
from kiseki.tools.context import ToolContext
from kiseki.tools.memory import memory
from kiseki.tools.seeding import seed
from kiseki.tools.skills import skill_view, skills_list

place = places(*SHELLS)


def test_a_folder_is_there_as_it_was(place: Place, tmp_path: Path) -> None:
    skill = tmp_path / "kind" / "one"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\ndescription: The one.\n---\nRun it.\n")
    (skill / "run").write_text("#!/bin/sh\necho ran\n")
    (skill / "run").chmod(0o755)
    (skill / "link").symlink_to("run")
    (skill / ("n" * 150)).write_text("long")

    async def body(box: Sandbox) -> None:
        context = ToolContext(box)
        await seed(context, str(tmp_path), "skills")
        assert (await skills_list(context))["skills"] == [{"name": "one", "description": "The one.", "category": "kind"}]
        found = await skill_view(context, "one")
        assert found["files"] == ["link", "n" * 150, "run"]
        assert (
            await out(box, f"{found['folder']}/link; echo more > {found['folder']}/run; cat ~/skills/kind/one/nnn*")
            == "ran\nlong"
        )
        await memory(context, "add", content="noted")
        assert (await memory(context, "read"))["entries"] == ["noted"]
        assert (await out(box, "cat ~/memory/MEMORY.md")).strip() == "noted"

    within(place, body)
