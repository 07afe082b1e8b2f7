"""A row of any of the usual layouts as an `Example`: ShareGPT turns (`from`, `value`, with Hermes tags or with turns of their own
for calls), and chat messages (`role`, `content`, `tool_calls`, `reasoning_content`), wherever they were made.

Nothing is judged here: what is wrong with a row is the doctor's to say. A result that answers no call keeps its `tool_call_id`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from kiseki.formats import hermes
from kiseki.formats.images import from_parts, placeholder_reader
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.outcome import result_ok
from kiseki.trajectory.reasoning import native_reasoning, split_inline
from kiseki.trajectory.text import clean_text, printable
from kiseki.trajectory.types import ImageAt, Message, Role, ToolCall, Usage

COLUMNS = ("conversations", "messages", "conversation", "trajectory")
"""Columns that may have the conversation; the first that a row has is taken."""
_NAMES: dict[Role, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt", "model", "function_call", "tool_call"),
    "tool": ("tool", "function", "observation", "tool_response", "function_response", "ipython"),
}
ROLES = {name: role for role, names in _NAMES.items() for name in names}
CALL_ROLES = ("function_call", "tool_call")
"""Turns that are nothing but calls."""
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")


def read_row(row: Mapping[str, Any], *, inline: bool | None = None, key: str = "", number: int = 0) -> Example:
    """The example in one row, decoded.

    inline: Whether `<think>` and call tags in the content of chat messages are reasoning and calls. None: they are where the row
    has no fields for them, ShareGPT's always. Default: None.
    key, number: What names the row in reports, and its number from 0, where it does not say so itself.

    Raises `ValueError` with the reason for a row without a conversation, or with a turn that is none.
    """
    _, turns = conversation_of(row)
    tools = read_tools(row.get("tools"))
    sharegpt = any("from" in turn for turn in turns)
    plain = inline is False
    if inline is None:
        inline = sharegpt or ("tools" not in row and not any(turn.get("tool_calls") for turn in turns))
    system = row.get("system")
    if isinstance(system, str) and system and turns and _role(turns[0], 1) != "system":
        turns = [{"from": "system", "value": system} if sharegpt else {"role": "system", "content": system}, *turns]
    take_images = placeholder_reader(row.get("images"))
    messages: list[Message] = []
    masked: set[int] = set()
    open_calls = False  # whether calls in turns of their own belong to the message before
    for at, turn in enumerate(turns, 1):
        role = _role(turn, at)
        text, images, thinking = _content(turn)
        if role == "system" and inline and not tools:
            found, text = hermes.read_system(text)
            tools = tools or read_tools(found)
            if found and not text:
                continue
        if role in ("system", "user") and not images:
            text, images = take_images(text)
        if str(turn.get("from", turn.get("role"))) in CALL_ROLES:
            reasoning, text, calls = _bare_calls(text, at)
            if open_calls:
                before = messages.pop()
                reasoning = before.reasoning or reasoning
                message = msgspec.structs.replace(before, reasoning=reasoning, tool_calls=before.tool_calls + calls)
            else:
                message = Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)
        elif role == "assistant":
            message = _assistant(turn, text, images, thinking, inline=inline, plain=plain)
            if not images:
                text, images = take_images(message.content)
                message = msgspec.structs.replace(message, content=text, images=images)
        elif role == "tool" and inline and "tool_call_id" not in turn:
            for call_id, name, content in hermes.read_results(text, escaped="from" in turn):
                content, shown = take_images(content)
                messages.append(Message(role="tool", content=content, tool_call_id=call_id, name=name, images=shown))
            open_calls = False
            continue
        else:
            if role == "tool" and not images:
                text, images = take_images(text)
            named = _text(turn.get("name")) if role == "tool" else ""
            message = Message(role=role, content=text, tool_call_id=_text(turn.get("tool_call_id")), name=named, images=images)
        open_calls = role == "assistant"
        if role == "assistant" and _is_masked(turn):
            masked.add(len(messages))
        messages.append(message)
    return make_example(row, messages, tools, masked=masked, key=key, number=number)


def make_example(
    row: Mapping[str, Any],
    messages: Sequence[Message],
    tools: tuple[dict[str, Any], ...],
    *,
    masked: Iterable[int] = (),
    key: str = "",
    number: int = 0,
) -> Example:
    """The example of a row whose conversation has been read: its calls and results joined, and what else the row says."""
    joined = join_calls(messages)
    return Example(
        messages=joined,
        tools=tools,
        masked=frozenset(masked),
        failed=frozenset(at for at, each in enumerate(joined) if each.role == "tool" and not result_ok(each.content)),
        **_facts(row, key, number),
    )


def conversation_of(row: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """(column, turns) of a row; a column of text that holds a JSON list counts. Raises `ValueError`."""
    for name in COLUMNS:
        value = row.get(name)
        if isinstance(value, str) and value.lstrip()[:1] == "[":
            try:
                value = decode_row(value.encode())
            except ValueError as error:
                raise ValueError(f"column {name!r} holds text that is no JSON list: {error}") from None
        if isinstance(value, list | tuple) and value:
            for at, turn in enumerate(value, 1):
                if not isinstance(turn, dict):
                    raise ValueError(f"turn {at} of {name!r} is not an object")
            return name, list(value)
    raise ValueError(f"there is no conversation: none of {', '.join(COLUMNS[:2])} is a list of turns")


def read_tools(value: Any) -> tuple[dict[str, Any], ...]:
    """Schemas, in OpenAI's form, of a list or of its JSON text. Raises `ValueError` for what is none."""
    value = _decoded(value, "tools")
    made = []
    for each in value or ():
        each = _decoded(each, "a tool")
        function = each.get("function", each) if isinstance(each, dict) else None
        if not isinstance(function, dict) or not function.get("name"):
            raise ValueError("tools has an entry that is no schema of a function")
        parameters = _decoded(function.get("parameters"), "parameters")
        inner = {name: value for name, value in function.items() if value is not None and name != "parameters"}
        inner["parameters"] = parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}
        made.append({"type": "function", "function": inner})
    return tuple(made)


def _decoded(value: Any, what: str) -> Any:
    """The value, or what its JSON text says; None for an empty text. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    try:
        return decode_row(value.encode("utf-8", "surrogatepass")) if value.strip() else None
    except ValueError as error:
        raise ValueError(f"{what} is text, and {error}") from None


def join_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with an id on every call and, on every result, the id and name of its call: by id where both have one, else by
    name, else by position."""
    done = list(messages)
    taken = {call.id for each in done for call in each.tool_calls} | {each.tool_call_id for each in done}
    made = 0
    for at, message in enumerate(done):
        if not message.tool_calls:
            continue
        stop = next((place for place in range(at + 1, len(done)) if done[place].role != "tool"), len(done))
        results = range(at + 1, stop)
        pairs = _pairs(message.tool_calls, [done[place] for place in results])
        calls = []
        for number, call in enumerate(message.tool_calls):
            answer = pairs.get(number)
            call_id = call.id or (done[results[answer]].tool_call_id if answer is not None else "")
            while not call_id:
                made += 1
                call_id = "" if f"call_{made}" in taken else f"call_{made}"
            calls.append(msgspec.structs.replace(call, id=call_id))
            if answer is not None:
                done[results[answer]] = msgspec.structs.replace(done[results[answer]], tool_call_id=call_id)
        done[at] = msgspec.structs.replace(message, tool_calls=tuple(calls))
    names: dict[str, str] = {}  # of the calls so far: ids may begin anew in each turn
    for at, message in enumerate(done):
        names |= {call.id: call.name for call in message.tool_calls}
        if message.role == "tool" and not message.name:
            done[at] = msgspec.structs.replace(message, name=names.get(message.tool_call_id, ""))
    return tuple(done)


def _pairs(calls: Sequence[ToolCall], results: Sequence[Message]) -> dict[int, int]:
    """Number of a call → number of its result."""
    pairs: dict[int, int] = {}

    def pair(fits: Callable[[ToolCall, Message], bool]) -> None:
        for number, call in enumerate(calls):
            if number not in pairs:
                free = (at for at, each in enumerate(results) if at not in pairs.values() and fits(call, each))
                if (found := next(free, None)) is not None:
                    pairs[number] = found

    def without_id(call: ToolCall, result: Message) -> bool:
        return not (call.id and result.tool_call_id)

    pair(lambda call, result: bool(call.id) and call.id == result.tool_call_id)
    pair(lambda call, result: without_id(call, result) and call.name == result.name)
    pair(lambda call, result: without_id(call, result) and not (call.name and result.name))
    return pairs


def _role(turn: Mapping[str, Any], at: int) -> Role:
    named = turn.get("from", turn.get("role"))
    role = ROLES.get(str(named))
    if role is None:
        raise ValueError(f"turn {at} has the role {printable(repr(named), 80)}, not one of {', '.join(ROLES)}")
    return role


def _content(turn: Mapping[str, Any]) -> tuple[str, tuple[ImageAt, ...], str]:
    value = turn.get("value") if "from" in turn else turn.get("content")
    if isinstance(value, list | tuple):
        return from_parts(value)
    if value is None or isinstance(value, str):
        return clean_text(value or ""), (), ""
    return encode_row(value).decode(), (), ""


def _assistant(
    turn: Mapping[str, Any], text: str, images: tuple[ImageAt, ...], thinking: str, *, inline: bool, plain: bool
) -> Message:
    old = turn.get("function_call")  # of the chat API before it had several calls
    calls = _calls(turn.get("tool_calls") or ([old] if old else None))
    reasoning = _reasoning(turn) or thinking
    if inline and not calls:
        told = ""
        if "from" not in turn:  # blank lines after the block are the template's, where our own ShareGPT turns have none
            text, told = split_inline(text, cut_short=False, has_native=bool(reasoning))
        inner, text, calls = hermes.read_gpt(text, escaped="from" in turn)
        reasoning = reasoning or told or inner
    elif not plain and not reasoning and all(turn.get(name) is None for name in _REASONING_KEYS):
        text, reasoning = split_inline(text, cut_short=bool(calls), has_native=False)
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls, images=images)


def _reasoning(turn: Mapping[str, Any]) -> str:
    """Whole where it is a text, blanks included: what comes back has to be what went in."""
    for name in _REASONING_KEYS:
        if isinstance(text := turn.get(name), str) and text:
            return clean_text(text)
    return native_reasoning(turn)


def _calls(value: Any) -> tuple[ToolCall, ...]:
    """Raises `ValueError` for what is no list of calls."""
    made = []
    for each in _decoded(value, "tool_calls") or ():
        function = each.get("function", each) if isinstance(each, dict) else None
        if not isinstance(function, dict):
            raise ValueError("tool_calls has an entry that is no call")
        made.append(ToolCall(_text(each.get("id")), _text(function.get("name")), arguments_text(function.get("arguments"))))
    return tuple(made)


def _bare_calls(text: str, at: int) -> tuple[str, str, tuple[ToolCall, ...]]:
    """(reasoning, text, calls) of a turn that is one call's JSON or a list of them, perhaps in call tags after a text."""
    text, reasoning = split_inline(text, cut_short=False, has_native=False)
    said, tag, payload = text.partition("<tool_call>")
    in_tags = bool(tag) and text.lstrip()[:1] not in ("{", "[")
    said, text = (said.rstrip(), payload.partition("</tool_call>")[0]) if in_tags else ("", text)
    try:
        value = decode_row(text.encode())
    except ValueError as error:
        raise ValueError(f"turn {at} is to be a call, and is {error}") from None
    calls = _calls(value if isinstance(value, list) else [value])
    if not calls:
        raise ValueError(f"turn {at} is to be a call, and is none")
    return reasoning, said, calls


def arguments_text(value: Any) -> str:
    """A call's arguments as the JSON text that models write."""
    if value is None:
        return "{}"
    return clean_text(value) if isinstance(value, str) else encode_row(value).decode()


def _is_masked(turn: Mapping[str, Any]) -> bool:
    """Whether a loss flag of axolotl (`train`, `weight`), ms-swift (`loss`, `loss_scale`) or OpenAI (`weight`) is off."""
    return any(turn.get(name) is not None and not turn[name] for name in ("train", "weight", "loss", "loss_scale"))


def _text(value: Any) -> str:
    return clean_text(value) if isinstance(value, str) else "" if value is None else str(value)


# ---- what a row says beside its conversation ----------------------------------------------------------------------------

_KNOWN = {
    "prompt_index",
    "sample_index",
    "completed",
    "partial",
    "reward",
    "toolsets_used",
    "metadata",
    "tools",
    "system",
    "images",
}
_FACTS = ("model", "stop_reason", "finish_reason", "source", "seconds", "key", "reward")


def _facts(row: Mapping[str, Any], key: str, number: int) -> dict[str, Any]:
    metadata = row.get("metadata")
    if isinstance(metadata, str):
        try:
            metadata = decode_row(metadata.encode())
        except ValueError:
            metadata = None
    facts: dict[str, Any] = dict.fromkeys(_FACTS) | (metadata if isinstance(metadata, dict) else {})
    facts |= {name: row[name] for name in _FACTS if row.get(name) is not None}
    rest = {name: value for name, value in row.items() if name not in _KNOWN and name not in COLUMNS and name not in _FACTS}
    source = facts["source"]
    partial = row.get("partial") is True
    tokens = {name: _whole(facts.get(name), 0) for name in Usage.__struct_fields__ if name != "cost"}
    completed = row.get("completed")
    return {
        "key": _text(facts["key"]) or key,
        "prompt_index": _whole(row.get("prompt_index"), number),
        "sample_index": _whole(row.get("sample_index"), 0),
        "completed": completed if isinstance(completed, bool) else not partial,
        "partial": partial,
        "stop_reason": _text(facts["stop_reason"]),
        "finish_reason": _text(facts["finish_reason"]),
        "model": _text(facts["model"]),
        "reward": reward_of(facts["reward"], source),
        "seconds": _number(facts["seconds"]) or 0.0,
        "usage": Usage(**tokens, cost=_number(facts.get("cost")) or 0.0),
        "toolsets": tuple(map(_text, row["toolsets_used"])) if isinstance(row.get("toolsets_used"), list) else (),
        "source": source if isinstance(source, str) and source else encode_row(source or {}).decode(),
        "metadata": encode_row(rest).decode(),
    }


def reward_of(value: Any, source: Any = None) -> float | None:
    """A number, also as text; true and false as 1 and 0; where there is none, `reward` of the prompt row's other columns."""
    if (number := _number(value)) is not None:
        return number
    if isinstance(source, str):
        try:
            source = decode_row(source.encode())
        except ValueError:
            return None
    return reward_of(source.get("reward")) if isinstance(source, dict) and source.get("reward") is not None else None


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else otherwise


def _number(value: Any) -> float | None:
    """None for what is no finite number."""
    try:
        number = float(value) if isinstance(value, bool | int | float) or (isinstance(value, str) and value) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
