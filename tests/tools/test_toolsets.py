"""Which toolsets there are, users' own tools, and what the model is told of each tool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kiseki.errors import UsageError
from kiseki.models.endpoints import ModelSettings
from kiseki.tools.registry import Tool
from kiseki.tools.settings import McpServer, ToolSettings
from kiseki.tools.toolsets import TOOLSETS, available_toolsets, load_set_ups, load_tools, why_unavailable
from kiseki.tools.user_tools import load_user_tools

SETTINGS = ToolSettings()


def why(name: str, settings: ToolSettings = SETTINGS, **environ: str) -> str:
    return why_unavailable(name, settings, None, environ)


def test_what_is_there() -> None:
    assert {"terminal", "file", "todo", "memory", "code_execution", "delegation"} <= set(available_toolsets(SETTINGS, None, {}))
    assert not {"image_gen", "skills"} & set(available_toolsets(SETTINGS, None, {}))
    assert [each.name for each in load_tools(["file", "terminal", "file"])] == [
        "read_file",
        "write_file",
        "patch",
        "search_files",
        "terminal",
        "process",
    ]
    assert [each.name for each in load_tools(("todo",))] == ["todo"]
    assert [each.name for each in load_tools(("web", "search"))] == ["web_search", "web_extract"]


@pytest.mark.parametrize("name", TOOLSETS)
def test_each_toolset_has_the_tools_that_it_promises(name: str) -> None:
    assert [each.name for each in load_tools([name])] == list(TOOLSETS[name].tools)
    assert len(load_set_ups([name])) == bool(TOOLSETS[name].set_up)


def test_why_a_toolset_cannot_be_had_and_what_helps(tmp_path: Path) -> None:
    assert "FAL_KEY" in why("image_gen") and why("image_gen", FAL_KEY="k") == ""
    assert "BRAVE_API_KEY" in why("search", ToolSettings(search_provider="brave"))
    assert why("search", ToolSettings(search_provider="brave"), BRAVE_API_KEY="k") == ""
    assert "--skills_dir" in why("skills") and why("skills", ToolSettings(skills_dir=str(tmp_path))) == ""
    assert why("memory") == "" and "no such folder" in why("memory", ToolSettings(memory_dir=str(tmp_path / "none")))
    assert why("mcp-x") == "--mcp_config names the file whose mcpServers has 'x'"
    servers = ToolSettings(mcp_config="m.json", mcp_servers=(McpServer("y"),))
    assert why("mcp-x", servers) == "m.json has no server 'x'; it has y"
    practice = ModelSettings("builtin/practice")
    assert "--vision_model" in why_unavailable("vision", SETTINGS, practice, {})


def test_a_misspelt_toolset_gets_the_close_one() -> None:
    assert why("terminl") == "there is no toolset 'terminl'; did you mean terminal?"
    assert why("zzz") == f"there is no toolset 'zzz'; there are {', '.join(TOOLSETS)}"
    with pytest.raises(UsageError, match=r"^toolset terminl: there is no toolset 'terminl'; did you mean terminal"):
        load_tools(["terminl"])


TWO = '''\
from __future__ import annotations

import json

from kiseki.tools.registry import tool

@tool(toolset="mine")
def shout(text: str, times: int = 1) -> str:
    """Say it loudly."""
    return text.upper() * times

@tool(toolset="web", name="look_it_up")
async def look_up(query: str) -> dict[str, str]:
    """Look it up."""
    return {"found": query}
'''


def write(folder: Path, text: str, name: str = "my_tools.py") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_own_tools_join_their_toolsets(tmp_path: Path) -> None:
    own = load_user_tools(write(tmp_path, TWO))
    assert [(each.name, each.toolset) for each in own] == [("shout", "mine"), ("look_it_up", "web")]
    assert [each.name for each in load_tools(["web", "todo"], own)] == ["web_search", "web_extract", "look_it_up", "todo"]
    assert [each.name for each in load_tools(["todo"], own)] == ["todo"]
    with pytest.raises(UsageError, match="two tools are named 'shout'"):
        load_tools(["mine"], own + load_user_tools(tmp_path / "my_tools.py"))


def test_own_tools_can_import_their_neighbours(tmp_path: Path) -> None:
    write(tmp_path, "WORD = 'from the neighbour'\n", "neighbour_of_my_tools.py")
    text = TWO.replace("import json", "from neighbour_of_my_tools import WORD")
    assert len(load_user_tools(str(write(tmp_path, text)))) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "declares no tools; a tool is declared by @tool(toolset="),
        ("\n\ndef f(:\n", "my_tools.py, line 3: invalid syntax; correct it"),
        ("\nimport no_such_module_anywhere\n", "my_tools.py, line 2: ModuleNotFoundError: No module named"),
        ("def f():\n    return 1 / 0\n\nf()\n", "my_tools.py, line 2: ZeroDivisionError: division by zero; correct it (try: "),
        ("raise SystemExit(3)\n", "my_tools.py, line 1: SystemExit: 3"),
        (TWO.replace("text: str, times", "text, times"), "parameter 'text' needs a type hint"),
        (TWO.replace("def shout", "def terminal"), "'terminal' is taken by Kiseki's own toolset terminal; @tool(…, name="),
        (TWO.replace('"look_it_up"', '"shout"'), "'shout' is taken by another tool of "),
        (TWO.replace('"look_it_up"', '"web_search"'), "'web_search' is taken by Kiseki's own toolset "),
    ],
)
def test_a_wrong_file_says_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_user_tools(write(tmp_path, text))
    assert message in str(caught.value)


def test_a_missing_file_and_one_that_is_no_python(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        load_user_tools(tmp_path / "none.py")
    with pytest.raises(UsageError, match=r"must end in \.py"):
        load_user_tools(write(tmp_path, TWO, "tools.txt"))


def schema_of(each: Tool) -> dict[str, Any]:
    schema = msgspec.json.decode(each.schema.parameters)
    assert isinstance(schema, dict)
    return schema


SCHEMAS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "terminal": (["command"], {"timeout": 180, "workdir": "", "background": False}),
    "process": (["action"], {"session_id": "", "data": "", "timeout": 30, "offset": 0, "limit": 200}),
    "read_file": (["path"], {"offset": 1, "limit": 500}),
    "write_file": (["path", "content"], {}),
    "patch": ([], {"path": "", "old_string": "", "new_string": "", "replace_all": False, "patch": ""}),
    "search_files": (
        ["pattern"],
        {
            "target": "content",
            "path": ".",
            "file_glob": "",
            "limit": 50,
            "offset": 0,
            "output_mode": "content",
            "context": 0,
        },
    ),
    "todo": ([], {"todos": None, "merge": False}),
    "memory": (["action"], {"target": "memory", "content": "", "old_text": ""}),
    "skills_list": ([], {"category": ""}),
    "skill_view": (["name"], {"file_path": ""}),
}
ENUMS = {
    ("process", "action"): {"list", "poll", "log", "wait", "kill", "write"},
    ("search_files", "target"): {"content", "files"},
    ("memory", "action"): {"add", "replace", "remove", "read"},
    ("memory", "target"): {"memory", "user"},
    ("search_files", "output_mode"): {"content", "files_only", "count"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_pinned(name: str) -> None:
    (toolset,) = [toolset for toolset, has in TOOLSETS.items() if name in has.tools]
    (each,) = [tool for tool in load_tools([toolset]) if tool.name == name]
    schema = schema_of(each)
    required, defaults = SCHEMAS[each.name]
    properties = schema["properties"]
    assert schema["type"] == "object"
    assert schema.get("additionalProperties") is False
    assert schema.get("required", []) == required
    assert list(properties) == [*required, *defaults]
    assert {name: value["default"] for name, value in properties.items() if "default" in value} == defaults
    assert {(each.name, name): set(value["enum"]) for name, value in properties.items() if "enum" in value} == {
        place: values for place, values in ENUMS.items() if place[0] == each.name
    }
    assert all(value["description"] for value in properties.values())
    assert 60 < len(each.schema.description) < 900
    assert "$ref" not in str(schema)


def test_the_items_of_a_todo_list_are_described_in_place() -> None:
    (todo,) = load_tools(["todo"])
    listed = schema_of(todo)["properties"]["todos"]
    item = next(each for each in listed["anyOf"] if each.get("type") == "array")["items"]
    assert item["required"] == ["id"]
    assert set(item["properties"]["status"]["enum"]) == {"pending", "in_progress", "completed", "cancelled"}
