"""What tools return, as the model gets it: images and bytes become files in the sandbox, never base64."""

from __future__ import annotations

import array
import asyncio
import dataclasses
import datetime
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from support import open_sandbox

from kiseki import Image
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools import results
from kiseki.tools.context import ToolContext
from kiseki.tools.registry import make_tool
from kiseki.tools.toolbox import Toolbox
from kiseki.trajectory.types import ToolCall, ToolRun


@dataclasses.dataclass
class Plot:
    name: str
    parts: list[Any]
    day: datetime.date


class Shot(msgspec.Struct, rename="camel"):
    raw_data: bytes
    others: set[bytes]


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
TWICE = {"picture": PNG}
AROUND: dict[str, Any] = {"picture": PNG}
AROUND["again"] = AROUND
WIDE: list[Any] = []
for _ in range(60):
    WIDE = [WIDE, WIDE, WIDE]
GIVEN: dict[str, Any] = {
    "image": Image(PNG),
    "named": {"left": Image(PNG, "jpeg", "shot"), "rest": [1, {"deep": Image(b"x", "gif")}]},
    "text": "grüße, 世界".encode(),
    "latin": "grüße".encode("latin-1"),
    "nul": b"a\0b",
    "empty": b"",
    "array": bytearray(b"\xff\xfe\x00"),
    "twice": [TWICE, TWICE],
    "fields": Plot("p", [PNG, {"more": memoryview(PNG)}], datetime.date(2026, 1, 2)),
    "struct": Shot(PNG, {PNG}),
    "around": AROUND,
    "wide": WIDE,
    "large": Image(bytes(results.MAX_FILE_BYTES + 1)),
    "keys": {b"\xff": 1, "bytes": array.array("b", [1, 2])},
    "paths": Image(PNG, "png/../x", "../../../etc/" + "n" * 300),
}


def give(what: str) -> Any:
    """Give something."""
    return GIVEN[what]


def pillow() -> Any:
    """Draw."""
    from PIL import Image as Pillow

    return {"picture": Pillow.new("RGB", (7, 5), "red"), "print": Pillow.new("CMYK", (7, 5)), "depth": Pillow.new("F", (7, 5))}


Ask = Callable[..., Awaitable[tuple[Any, ToolRun]]]
BOX = Toolbox([make_tool(give, "mine", "give"), make_tool(pillow, "mine", "pillow")])


def in_sandbox(scenario: Callable[[Ask, ToolContext], Awaitable[None]]) -> None:
    async def run() -> None:
        sandbox = await open_sandbox(SandboxSettings(backend="local", label="result-tests"))
        context = ToolContext(sandbox)

        async def ask(name: str, **arguments: Any) -> tuple[Any, ToolRun]:
            message, run = await BOX.call(context, ToolCall("c", name, msgspec.json.encode(arguments).decode()))
            answer = message.content
            return (msgspec.json.decode(answer) if answer.startswith(("{", "[")) else answer), run

        try:
            await scenario(ask, context)
        finally:
            await sandbox.close()

    asyncio.run(run())


def test_an_image_is_a_file_in_the_sandbox() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        answer, run = await ask("give", what="image")
        assert run.ok
        assert answer["image"].endswith("/artifacts/image-1.png")
        assert answer["image"].startswith("/")
        assert (answer["format"], answer["bytes"]) == ("png", len(PNG))
        assert await context.sandbox.read_file(answer["image"]) == PNG
        named, _ = await ask("give", what="named")
        assert named["left"]["image"].endswith("/artifacts/shot-2.jpeg")
        assert await context.sandbox.read_file(named["rest"][1]["deep"]["image"]) == b"x"

    in_sandbox(scenario)


def test_bytes_are_text_where_they_are_and_a_file_else() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        assert (await ask("give", what="text"))[0] == "grüße, 世界"
        for what in ("latin", "nul", "array"):
            answer, run = await ask("give", what=what)
            assert run.ok
            assert await context.sandbox.read_file(answer["file"]) == bytes(GIVEN[what])
        answer, run = await ask("give", what="empty")
        assert (answer, run.ok) == ("", False)  # as an empty text

    in_sandbox(scenario)


def test_bytes_inside_of_objects_are_files_too() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        fields, _ = await ask("give", what="fields")
        assert (fields["name"], fields["day"]) == ("p", "2026-01-02")
        struct, _ = await ask("give", what="struct")
        for each in (fields["parts"][0], fields["parts"][1]["more"], struct["rawData"], struct["others"][0]):
            assert await context.sandbox.read_file(each["file"]) == PNG

    in_sandbox(scenario)


def test_pillow_images_are_images() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        answer, _ = await ask("pillow")
        for kind in ("picture", "print", "depth"):
            assert (await context.sandbox.read_file(answer[kind]["image"])).startswith(b"\x89PNG")

    in_sandbox(scenario)


def test_results_that_hold_something_twice_or_themselves() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        answer, _ = await ask("give", what="twice")
        assert answer[0] == answer[1]
        around, run = await ask("give", what="around")
        assert not run.ok
        assert "cannot be written as JSON" in around["error"]
        assert results._holds_bytes(WIDE) is False

    in_sandbox(scenario)


def test_names_of_files_lead_nowhere_and_keys_are_no_base64() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        answer, _ = await ask("give", what="paths")
        folder, _, name = answer["image"].rpartition("/")
        assert folder.endswith("/artifacts")
        assert name.startswith("etc_nnn") and name.endswith("n-1.png_.._x") and len(name) < 100
        assert (await ask("give", what="keys"))[0] == {"\\xff": 1, "bytes": [1, 2]}

    in_sandbox(scenario)


def test_a_file_too_large_is_refused_and_says_so() -> None:
    async def scenario(ask: Ask, context: ToolContext) -> None:
        answer, run = await ask("give", what="large")
        assert not run.ok
        assert "50,000,001 bytes, more than 50,000,000" in answer["error"]

    in_sandbox(scenario)


def test_without_a_sandbox_there_is_no_file_and_no_base64() -> None:
    message, run = asyncio.run(BOX.call(ToolContext(None), ToolCall("c", "give", '{"what": "image"}')))
    assert run.ok
    assert msgspec.json.decode(message.content) == {"image": "", "format": "png", "bytes": len(PNG)}
