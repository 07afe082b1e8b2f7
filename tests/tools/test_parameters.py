"""What parameters of a user's tool may be: the schema that the model gets, and what the function is called with."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import threading
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
import typing_extensions
from tools.rollouts import Ask, play

from kiseki.errors import UsageError
from kiseki.sandboxes.base import Sandbox
from kiseki.tools.context import RolloutInfo, ToolContext
from kiseki.tools.registry import Tool, make_tool, tool, tools_in
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.trajectory.types import ToolCall, ToolRun


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict):
    deep: bool
    title: NotRequired[str]


class Node(msgspec.Struct):
    name: str
    parts: list[Node] = []


class Pet(pydantic.BaseModel):
    """Who lives here."""

    kind: Literal["pet"] = "pet"
    name: str = pydantic.Field(min_length=2, description="What it is called.")
    title: str | None = None


class Plant(pydantic.BaseModel):
    kind: Literal["plant"]
    leaves: pydantic.PositiveInt
    below: list[Plant] = []


REX = Pet(name="Rex")
Living = Annotated[Pet | Plant, pydantic.Field(discriminator="kind", description="Anything alive.")]


def plain(
    color: Color,
    point: Point,
    options: Options,
    tree: Node,
    size: Annotated[int, "In metres."],
    level: Annotated[int, msgspec.Meta(ge=1, le=3, description="From one to three.")] = 2,
    mode: Literal["fast", "slow"] | None = None,
) -> Any:
    """Take all kinds.

    Args:
        color: Its color.
        size: In feet.
    """
    return [color, [point.x, point.y], options, tree, size, level, mode]


def living(who: Living, pets: list[Pet] | None = None, count: Annotated[int, pydantic.Field(gt=0)] = 1, plant: Pet = REX) -> Any:
    """Take what lives.

    Args:
        pets: More of them.
    """
    return {"who": who, "pets": pets, "count": count, "plant": plant, "types": [type(who).__name__, type(plant).__name__]}


def schema_of(made: Tool) -> dict[str, Any]:
    schema = msgspec.json.decode(made.schema.parameters)
    assert isinstance(schema, dict)
    return schema


def call(made: Tool, arguments: Any) -> tuple[Any, ToolRun]:
    message, run = asyncio.run(Toolbox([made]).call(None, ToolCall("c", made.name, msgspec.json.encode(arguments).decode())))
    return msgspec.json.decode(message.content), run


def test_pythons_own_types() -> None:
    made = make_tool(plain, "mine", "plain")
    schema = schema_of(made)
    found = schema["properties"]
    assert schema["required"] == ["color", "point", "options", "tree", "size"]
    assert found["color"] == {"enum": ["blue", "red"], "description": "Its color."}
    assert found["point"]["required"] == ["x"] and found["point"]["properties"]["y"]["default"] == 0
    assert found["options"]["properties"] == {"deep": {"type": "boolean"}, "title": {"type": "string"}}
    assert found["tree"]["properties"]["parts"]["items"] == {"description": "again as the Node around it"}
    assert found["size"] == {"type": "integer", "description": "In metres."}
    assert found["level"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 3,
        "description": "From one to three.",
        "default": 2,
    }
    given = {"color": "red", "point": {"x": 1}, "options": {"deep": True}, "tree": {"name": "a", "parts": [{"name": "b"}]}}
    answer, run = call(made, {**given, "size": 4})
    assert answer == ["red", [1, 0], {"deep": True}, {"name": "a", "parts": [{"name": "b", "parts": []}]}, 4, 2, None]
    assert run.ok
    answer, run = call(made, {**given, "size": 4, "level": 9})
    assert "Expected `int` <= 3 - at `$.level`" in answer["error"] and run.invalid


def test_pydantics_types() -> None:
    made = make_tool(living, "mine", "living")
    schema = schema_of(made)
    found = schema["properties"]
    assert list(found) == ["who", "pets", "count", "plant"] and schema["required"] == ["who"]
    assert found["who"]["description"] == "Anything alive."
    pet, plant = found["who"]["oneOf"]
    assert pet["properties"]["name"] == {"type": "string", "minLength": 2, "description": "What it is called."}
    assert "title" in pet["properties"] and pet["description"] == "Who lives here."
    assert plant["properties"]["below"]["items"] == {"description": "again as the Plant around it"}
    assert found["pets"]["description"] == "More of them." and found["pets"]["default"] is None
    assert found["count"] == {"type": "integer", "exclusiveMinimum": 0, "default": 1}
    assert found["plant"]["default"] == {"kind": "pet", "name": "Rex", "title": None}
    assert "$ref" not in str(schema) and "$defs" not in str(schema)
    answer, run = call(made, {"who": {"kind": "plant", "leaves": 3}, "pets": [{"name": "Ada"}]})
    assert run.ok and answer == {
        "who": {"kind": "plant", "leaves": 3, "below": []},
        "pets": [{"kind": "pet", "name": "Ada", "title": None}],
        "count": 1,
        "plant": {"kind": "pet", "name": "Rex", "title": None},
        "types": ["Plant", "Pet"],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"who": {"kind": "plant", "leaves": 0}},
            "the arguments of living have wrong values: Input should be greater than 0 - at `$.who.plant.leaves`",
        ),
        ({"who": {"name": "Rex"}}, "Unable to extract tag using discriminator 'kind' - at `$.who`"),
        ({"who": {"kind": "pet", "name": "Rex"}, "pets": [{"name": "x"}] * 7}, "at `$.pets.4.name`; and 2 more"),
        ({"who": {"kind": "pet", "name": "Rex"}, "count": 0}, "greater than 0 - at `$.count`"),
        ({"pets": None}, "missing required field `who`"),
        ({"who": None, "what": 1}, "unknown field `what`"),
    ],
)
def test_what_pydantic_refuses_comes_back_with_the_schema(arguments: dict[str, Any], message: str) -> None:
    answer, run = call(make_tool(living, "mine", "living"), arguments)
    assert message in answer["error"] and "properties" in answer["expected"]
    assert run.invalid and not run.ok
    assert len(answer["error"]) < 700


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int, times: int = 1) -> int:
        """Add."""
        self.count += number * times
        return self.count

    async def __call__(self, number: int) -> int:
        """Call."""
        return self.add(number)


@dataclasses.dataclass
class Home:
    pet: Pet
    rooms: int = 1


class Trip(typing_extensions.TypedDict):
    who: list[Pet]


class Cage(msgspec.Struct):
    pet: Pet


def test_pythons_types_with_pydantics_in_them() -> None:
    def visit(home: Home, trips: list[Trip] | None = None) -> Any:
        return [home.pet.name, home.rooms, [each["who"][0].name for each in trips or []]]

    made = make_tool(visit, "mine", "visit")
    found = schema_of(made)["properties"]["home"]
    assert found["required"] == ["pet"] and found["properties"]["pet"]["properties"]["name"]["minLength"] == 2
    given = {"home": {"pet": {"name": "Rex"}}, "trips": [{"who": [{"name": "Tom"}]}]}
    assert call(made, given)[0] == ["Rex", 1, ["Tom"]]
    answer, run = call(made, {"home": {"pet": {"name": "R"}}})
    assert "at least 2 characters - at `$.home.pet.name`" in answer["error"] and run.invalid


def test_defaults_belong_to_the_function() -> None:
    def collect(kinds: list[str], more: dict[str, int], name: str, size: Annotated[int, "In m."]) -> Any:
        kinds.append("x")
        return [kinds, more, name, size]

    collect.__defaults__ = (["a"], {"a": 1}, None, None)  # as users write them, and no checker likes it
    made = make_tool(collect, "mine", "collect")
    found = schema_of(made)["properties"]
    assert found["kinds"] == {"type": "array", "items": {"type": "string"}, "default": ["a"]}
    assert found["name"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert found["size"]["description"] == "In m."
    for _ in range(2):  # what a call does to its lists is not the next one's
        assert call(made, {"name": None})[0] == [["a", "x"], {"a": 1}, None, None]


def test_a_description_may_stand_beside_none() -> None:
    def go(place: Annotated[str, "Where to."] | None = None, pet: Annotated[Pet, "Who."] | None = None) -> Any:
        return place

    found = schema_of(make_tool(go, "mine", "go"))["properties"]
    assert [found["place"]["description"], found["pet"]["description"]] == ["Where to.", "Who."]


def test_methods_partials_and_objects_that_can_be_called() -> None:
    counter = Counter()
    assert call(make_tool(counter.add, "mine", "add"), {"number": 2, "times": 2})[0] == 4
    bound = make_tool(partial(counter.add, times=10), "mine", "ten")
    assert list(schema_of(bound)["properties"]) == ["number"]
    assert call(bound, {"number": 1})[0] == 14
    called = make_tool(counter, "mine", "called")
    assert called.is_async and called.schema.description == "Call."
    assert call(called, {"number": 1})[0] == 15
    assert tools_in({"f": tool(toolset="mine", name="ten")(partial(counter.add, times=10))})[0].name == "ten"


def test_a_decorator_need_not_be_async() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def around(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return around

    async def double(number: int) -> int:
        await asyncio.sleep(0 if number else 60)
        return 2 * number

    made = make_tool(logged(double), "mine", "double", timeout=0.5)
    assert call(made, {"number": 2})[0] == 4
    assert call(made, {"number": 0})[0] == {"error": "double did not finish within 0.5 seconds"}


def declared() -> dict[str, Callable[[], Any]]:
    def yields(a: int) -> Any:
        yield a

    def unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def maybe(context: ToolContext | None, a: int) -> None: ...

    def odd(a: threading.Lock) -> None: ...

    def bad_default(a: Any = threading) -> None: ...

    def caged(b: int, cage: Cage) -> None: ...

    def fine(a: int) -> None: ...

    return {
        "it yields; a tool returns its whole result": lambda: make_tool(yields, "mine", "t"),
        "use 'Missing', which its module does not define": lambda: make_tool(unknown, "mine", "t"),
        "its parameters cannot be turned into a JSON schema": lambda: make_tool(odd, "mine", "t"),
        "ToolContext": lambda: make_tool(maybe, "mine", "t"),
        "its default <module 'threading'": lambda: make_tool(bad_default, "mine", "t"),
        "Pet'> has no JSON form there": lambda: make_tool(caged, "mine", "t"),
        "a method is no tool by itself": lambda: make_tool(Counter.add, "mine", "t"),
        "it is no function": lambda: make_tool(Counter, "mine", "t"),
        "letters, digits, _ and -": lambda: make_tool(fine, "mine", "my tool"),
        'name="…") gives it one': lambda: tool(toolset="mine")(partial(fine)),
        "cannot be declared; declare a function that calls it": lambda: tool(toolset="mine")(Counter().add),
        "concurrency must be at least 1, not 0": lambda: make_tool(fine, "mine", "t", concurrency=0),
        "timeout must be above 0 seconds, not 0": lambda: make_tool(fine, "mine", "t", timeout=0),
    }


@pytest.mark.parametrize("says", declared())
def test_what_cannot_be_a_tool_is_said(says: str) -> None:
    with pytest.raises(UsageError, match=r"^tool ") as caught:
        declared()[says]()
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_tool_gets_the_sandbox_and_the_rollout() -> None:
    async def where(sandbox: Sandbox, rollout: RolloutInfo, context: Annotated[ToolContext, "all of it"], word: str) -> Any:
        """Look around."""
        result = await sandbox.exec(f"echo {word}", timeout=60)
        return {"said": result.output, "rollout": rollout, "same": context.sandbox is sandbox}

    made = make_tool(where, "mine", "where")
    assert made.needs_sandbox and list(schema_of(made)["properties"]) == ["word"]

    async def scenario(ask: Ask, context: ToolContext) -> None:
        answer = await ask("where", word="hello")
        assert answer["said"].strip() == "hello" and answer["same"]
        assert answer["rollout"] == {
            "key": "key",
            "prompt_index": 3,
            "sample_index": 1,
            "attempt": 2,
            "seed": 7,
            "prompt": "the prompt",
            "source": '{"level":"hard"}',
        }

    play(["mine"], ToolSettings(), scenario, own=[made])


def test_calls_wait_for_their_turn_and_lose_no_time() -> None:
    running = most = 0

    async def slow() -> int:
        """Be slow."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return running

    made = make_tool(slow, "mine", "slow", timeout=30, concurrency=2)

    async def scenario(ask: Ask, context: ToolContext) -> None:
        box = Toolbox([made])
        runs = await asyncio.gather(*(box.call(context, ToolCall(str(number), "slow", "{}")) for number in range(6)))
        assert all(run.ok for _, run in runs)

    play([], ToolSettings(), scenario)
    assert most == 2
