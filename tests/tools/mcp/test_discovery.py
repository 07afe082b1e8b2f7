"""What servers offer, found out before a run: names, schemas, and why one cannot be had."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import msgspec
from mcp_rollouts import SANDBOX, Play, Rollout
from mcp_servers import config, git, npm, odd

from kiseki.agent.settings import RolloutSettings, secrets_of_run
from kiseki.models.endpoints import ModelSettings
from kiseki.tools.mcp.discovery import discover, tool_names
from kiseki.tools.redact import redact
from kiseki.tools.settings import ToolSettings

ODD_LISTING = [
    {"name": "none"},
    {"name": "null", "inputSchema": None, "description": None, "outputSchema": 3, "annotations": "x"},
    {"name": "wrong", "inputSchema": {"type": "string", "properties": [], "required": "a"}},
    {
        "name": "any.of",
        "inputSchema": {"anyOf": [{"type": "object", "properties": {"$a": {"type": "string"}}, "required": ["$a"]}]},
    },
    {"name": "long" * 30, "description": "word " * 1000},
    {"name": ""},
    {"name": 3},
    "tool",
]


def test_odd_listings(play: Play) -> None:
    play.find(odd=odd(env={"LISTING": json.dumps(ODD_LISTING)}))
    tools = {each.name: each for each in play.servers[0].tools}
    assert list(tools) == ["any.of", "long" * 30, "none", "null", "wrong"]
    assert all(
        msgspec.json.decode(tools[name].parameters) == {"type": "object", "properties": {}} for name in ("none", "null", "wrong")
    )
    assert tools["any.of"].alias == "mcp_odd_any_of" and len(tools["long" * 30].alias) == 64
    assert len(tools["long" * 30].description) == 2001

    async def scenario(rollout: Rollout) -> None:
        assert "missing required field `a`" in await rollout.error("mcp_odd_any_of")
        assert rollout.run and rollout.run.invalid

    play(scenario)


def test_names_do_not_hang_on_the_order_of_a_listing() -> None:
    listed = {"a": ["b_c", "x.y", "x y", "z" * 90], "a_b": ["c", "工具"]}
    names = tool_names(listed)
    assert names == tool_names({server: tools[::-1] for server, tools in reversed(listed.items())})
    assert len(set(names.values())) == 6
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names.values())
    assert names["a_b", "工具"] == "mcp_a_b___"
    assert re.fullmatch(r"mcp_a_b_c_[0-9a-f]{8}", names["a", "b_c"])


def test_why_a_server_cannot_be_had(tmp_path: Path) -> None:
    secret = "s3cret-word-of-mine"
    servers = {
        "absent": {"command": "no-such-program"},
        "failing": odd(env={"FAIL": secret}),
        "failing_inside": odd(env={"FAIL": secret}, scope="sandbox"),
        "all_in_one": {"command": "python3 -m x"},
        "empty": odd(env={"LISTING": "[{}]"}),
        "off": {"command": "no-such-program", "disabled": True},
        "good": odd(),
    }
    found, lost = discover(config(tmp_path, **servers), SANDBOX)
    assert [each.name for each in found] == ["good"]
    assert lost == {
        "mcp-absent": "the MCP server absent did not start: there is no program 'no-such-program' here",
        "mcp-all_in_one": "the MCP server all_in_one did not start: there is no program 'python3 -m x' here; what follows the "
        "program belongs in args",
        "mcp-failing": "the MCP server failing did not start: it ended before it answered; it wrote: "
        "no luck with [redacted: secret of this run]",
        "mcp-failing_inside": "the MCP server failing_inside did not start: it ended before it answered; it wrote: "
        "no luck with [redacted: secret of this run]",
        "mcp-empty": "it has no tools",
    }


def test_a_sandbox_that_cannot_be_had_costs_only_what_needs_it(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(SANDBOX, backend="docker", image="", host="")
    found, lost = discover(config(tmp_path, inside=odd(scope="sandbox"), good=odd()), settings)
    assert [each.name for each in found] == ["good"]
    assert lost["mcp-inside"].startswith("it runs in the sandbox, and none can be had: ")


def test_from_inside_a_running_event_loop(tmp_path: Path) -> None:
    async def notebook() -> Any:
        return discover(config(tmp_path, odd=odd()), SANDBOX)

    found, lost = asyncio.run(notebook())
    assert len(found[0].tools) == 12 and found[0].legacy and not lost


def test_its_secrets_are_taken_out_of_results(play: Play, monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_WORD", "s3cret-word-of-mine")
    play.find(odd={**odd(), "args": ["-S", odd()["args"][1], "", "${MY_WORD}"]})
    secrets = secrets_of_run(RolloutSettings(ModelSettings("m", ""), SANDBOX, tools=ToolSettings(mcp_servers=play.servers)))
    monkeypatch.delenv("MY_WORD")
    assert redact("it is s3cret-word-of-mine", secrets)[0] == "it is [redacted: secret of this run]"


def test_mcp_server_git(play: Play, tmp_path: Path) -> None:
    play.find(git=git(tmp_path / "repository"))

    async def scenario(rollout: Rollout) -> None:
        place = str(tmp_path / "repository")
        assert "nothing to commit" in await rollout("mcp_git_git_status", repo_path=place)
        assert "first words" in await rollout("mcp_git_git_log", repo_path=place)
        (tmp_path / "repository" / "a.txt").write_text("two\n")
        assert "+two" in await rollout("mcp_git_git_diff_unstaged", repo_path=place)
        assert "outside the allowed repository" in await rollout.error("mcp_git_git_status", repo_path="/")

    play(scenario)


def test_server_filesystem(play: Play, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    play.find(files=npm("filesystem", str(folder)))

    async def scenario(rollout: Rollout) -> None:
        place = str(folder / "a.txt")
        assert "Successfully wrote" in await rollout("mcp_files_write_file", path=place, content="héllo")
        assert await rollout("mcp_files_read_text_file", path=place) == "héllo"
        assert "[FILE] a.txt" in await rollout("mcp_files_list_directory", path=str(folder))
        assert "Access denied" in await rollout.error("mcp_files_read_text_file", path="/etc/passwd")
        assert "missing required field `path`" in await rollout.error("mcp_files_read_text_file")

    play(scenario)


def test_server_everything(play: Play, monkeypatch: Any) -> None:
    monkeypatch.setenv("SECRET_WORD", "abcdefgh-0123456789")
    play.find(every=npm("everything"))

    async def scenario(rollout: Rollout) -> None:
        assert rollout.sandbox
        assert await rollout("mcp_every_echo", message="hello") == "Echo: hello"
        assert "SECRET_WORD" not in await rollout("mcp_every_get-env")
        weather = await rollout.json("mcp_every_get-structured-content", location="New York")
        assert set(weather) == {"temperature", "conditions", "humidity"}
        image = (await rollout.json("mcp_every_get-tiny-image"))["attachments"][0]
        assert (await rollout.sandbox.read_file(image["image"])).startswith(b"\x89PNG")
        links = (await rollout.json("mcp_every_get-resource-links", count=2))["attachments"]
        assert len(links) == 2 and links[0]["uri"].startswith("demo://")
        assert "Invalid option" in await rollout.error("mcp_every_get-structured-content", location="Nowhere")

    play(scenario, sandbox=True)
