"""`kiseki tools`: what there is and why something is not, and one tool tried as a rollout would use it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import IN_PROCESS_TOOL, kiseki

from kiseki.commands.main import main
from kiseki.tools.toolsets import TOOLSETS

OWN = (
    IN_PROCESS_TOOL
    + '''
from kiseki import Image, RolloutInfo, Sandbox, ToolError

@tool(toolset="web")
async def visit(place: str, sandbox: Sandbox, rollout: RolloutInfo) -> dict[str, object]:
    """Go there. And come back."""
    if place == "nowhere":
        raise ToolError("there is no way")
    await sandbox.write_file("seen.txt", place.encode())
    return {"picture": Image(b"x"), "rollout": rollout.key}
'''
)
LOCAL = "--sandbox=local"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "tides.md").write_text("# Tides\n\nThe moon pulls at the sea.\n")
    return tmp_path


def listed(*flags: str, cwd: Path, **environ: str) -> list[dict[str, Any]]:
    found = json.loads(kiseki("tools", "--json", *flags, cwd=cwd, status=0, **environ).stdout)
    assert isinstance(found, list)
    return found


def test_every_tool_is_listed_with_its_schema(folder: Path) -> None:
    found = listed("--tools=mine.py", cwd=folder)
    built_in = [(name, tool) for name, toolset in TOOLSETS.items() for tool in toolset.tools]
    assert {(each["toolset"], each["name"]) for each in found} == {*built_in, ("mine", "shout"), ("web", "visit")}
    assert all(list(each) == ["name", "toolset", "description", "parameters", "available", "why"] for each in found)
    assert all(each["parameters"]["type"] == "object" and each["description"] for each in found)
    assert all(each["available"] is (each["why"] == "") for each in found)
    by_name = {each["name"]: each for each in found}
    assert by_name["memory"]["available"] and by_name["visit"]["available"]
    assert by_name["skill_view"]["why"] == "--skills_dir names a folder of skills"
    assert "FAL_KEY" in by_name["image_generate"]["why"]


def test_flags_and_keys_make_toolsets_available(folder: Path) -> None:
    found = listed("--toolset=image_gen,skills", "--skills_dir=.", cwd=folder, FAL_KEY="k")
    assert [(each["name"], each["available"]) for each in found] == [
        ("image_generate", True),
        ("skills_list", True),
        ("skill_view", True),
    ]


def test_tables_for_people(folder: Path) -> None:
    shown = kiseki("tools", "--toolset=mine,web,skills", "--tools=mine.py", cwd=folder).stdout
    for words in ("Say it louder", "What to say.", "Go there", "needed", "not available: --skills_dir names a folder"):
        assert words in shown
    short = kiseki("tools", cwd=folder).stdout
    assert all(name in short for name in (*TOOLSETS, "browser_press", "Keep short notes"))
    assert "What to do." not in short, "parameters only of toolsets that are asked for"


def test_nothing_is_cut_off_on_a_narrow_screen(folder: Path) -> None:
    (folder / "mine.py").write_text(OWN.replace("def visit", "def visit_a_place_with_a_long_name"))
    flags = ("--toolset=web,image_gen", "--tools=mine.py")
    shown = kiseki("tools", *flags, cwd=folder, COLUMNS="60").stdout
    columns = zip(*(line.split("│")[1:-1] for line in shown.splitlines() if line.count("│") == 5), strict=True)
    words = ["".join("".join(column).split()) for column in columns]
    assert "visit_a_place_with_a_long_name" in words[1] and "OPENROUTER_API_KEY,OPENAI_API_KEY" in words[3]


def test_what_a_users_file_prints_is_not_in_the_output(folder: Path) -> None:
    (folder / "loud.py").write_text("print('loading')\n" + IN_PROCESS_TOOL.replace("return", "print('running'); return"))
    more = ("--toolset=mine", "--tools=loud.py")
    assert json.loads(kiseki("tools", *more, "--json", cwd=folder).stdout)[0]["name"] == "shout"
    done = kiseki("tools", "call", "shout", '{"text": "hey"}', *more, cwd=folder)
    assert done.stdout == "HEY\n" and "loading\n" in done.stderr and "running\n" in done.stderr


def test_what_is_installed_is_listed_and_what_is_broken_named(folder: Path) -> None:
    info = folder / "site" / "some_tools-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kiseki.tools]\nmine = some_tools\nbroken = some_tools:gone\n")
    (folder / "site" / "some_tools.py").write_text(IN_PROCESS_TOOL)
    site = os.pathsep.join((str(folder / "site"), os.environ.get("PYTHONPATH", "")))
    found = {each["toolset"]: each for each in listed(cwd=folder, PYTHONPATH=site)}
    assert found["mine"]["name"] == "shout" and found["mine"]["available"]
    assert found["broken"]["name"] == "" and "some_tools:gone) cannot be loaded: AttributeError" in found["broken"]["why"]
    done = kiseki("tools", "call", "shout", '{"text": "hey"}', "--toolset=mine", cwd=folder, PYTHONPATH=site)
    assert done.stdout == "HEY\n"


@pytest.mark.parametrize(
    ("name", "arguments", "status", "says"),
    [
        ("terminal", {"command": "echo $((6 * 7)); pwd"}, 0, '{"output":"42\\n/'),
        ("terminal", {"command": "exit 4"}, 0, '"exit_code":4'),
        ("visit", {"place": "home"}, 0, '/artifacts/image-1.png","format":"png","bytes":1},"rollout":"call"}'),
        ("visit", {"place": "nowhere"}, 3, '{"error":"there is no way"}'),
        ("shout", {"text": 5}, 3, "have wrong values: Expected `str`, got `int` - at `$.text`"),
        ("read_file", {"path": "none"}, 3, "no such file: none"),
        ("web_search", {"query": "moon"}, 0, "pulls at the sea"),
    ],
)
def test_a_call_prints_what_a_model_would_get(folder: Path, name: str, arguments: dict[str, Any], status: int, says: str) -> None:
    toolsets = "--toolset=terminal,file,mine,web"
    more = (toolsets, "--tools=mine.py", LOCAL, "--corpus=notes")
    done = kiseki("tools", "call", name, json.dumps(arguments), *more, cwd=folder, status=status)
    assert says in done.stdout and len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def test_a_sandbox_is_only_opened_for_tools_that_need_one(folder: Path) -> None:
    never = (LOCAL, "--sandbox_timeout=0.001", "--tools=mine.py")
    done = kiseki("tools", "call", "shout", '{"text": "hey"}', "--toolset=mine", *never, cwd=folder)
    assert done.stdout == "HEY\n"
    done = kiseki("tools", "call", "shout", '{"text": "hey"}', "--toolset=mine,terminal", *never, cwd=folder, status=1)
    assert "the sandbox did not start within 0.001 s" in done.stderr and len(done.stderr.splitlines()) == 1


def test_secrets_are_taken_out(folder: Path) -> None:
    call = ("tools", "call", "shout", '{"text": "of KEY-0123456789-ABCDEFGH"}', "--toolset=mine", "--tools=mine.py", LOCAL)
    assert "KEY-0123" not in kiseki(*call, cwd=folder, OPENROUTER_API_KEY="KEY-0123456789-ABCDEFGH").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("call", "terminl", "{}"), "there is no tool 'terminl'; did you mean terminal?"),
        (("call", "terminal", "{"), 'ARGUMENTS must be a JSON object, such as \'{"command": "ls"}\': Input data was truncated'),
        (("call", "terminal", "[]"), "ARGUMENTS must be a JSON object"),
        (("call", "terminal"), "missing ARGUMENTS; kiseki tools call --help shows an example"),
        (("call", "shout", "{}"), "there is no tool 'shout'; there are process, terminal; mcp-x: --mcp_config names the file"),
        (("call", "skills_list", "{}"), "skills_list (toolset skills) is not available: --skills_dir names a folder of skills"),
        (("call", "terminal", "{}", "--sandbox=ssh"), "sandbox backend 'ssh' needs ssh_host"),
        (("call", "terminal", "{}", "--model=builtin/x"), "no built-in model 'builtin/x'"),
        (("--toolset=terminl",), "there is no toolset 'terminl'; did you mean terminal?"),
        (("--tools=none.py",), "--tools none.py: there is no such file, and no installed package has an entry point"),
        (("--jsn",), "unknown flag --jsn; did you mean --json?"),
        (("cal",), "unknown argument cal"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    folder: Path,
    arguments: tuple[str, ...],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    toolsets = {"terminal": "terminal", "terminl": "terminal", "shout": "terminal,mcp-x", "skills_list": "skills"}
    called = arguments[1] if arguments[0] == "call" else ""
    only = (f"--toolset={toolsets[called]}",) if called else ()
    assert main(["tools", *arguments, *only]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert len(said.err.splitlines()) == 1 and said.out == ""


def test_the_agent_lists_them_too(folder: Path) -> None:
    shown = kiseki("agent", "--list_tools", "--tools=mine.py", cwd=folder).stdout
    assert "shout" in shown and "skill_view" in shown
