"""`atif`: the Agent Trajectory Interchange Format, version 1.8, one trajectory a line
(https://github.com/harbor-framework/harbor/blob/main/rfcs/0001-trajectory-format.md).

A step is a message of the system or the user, or an assistant turn with the results of its calls. What is not known is left out:
the format has rules on which fields a step may have, so objects differ in their keys. What ATIF has no field for (the prompt
row's other columns, rewards, which turns are not to be trained on) is in `extra`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

import msgspec

import kiseki
from kiseki.formats.columns import arguments_object, facts
from kiseki.formats.format import EVERYTHING, Format, Options, Row, Unfit
from kiseki.formats.reading import arguments_text, make_example, read_tools
from kiseki.trajectory.example import Example
from kiseki.trajectory.types import ImageAt, Message, ModelCall, ToolCall

SCHEMA_VERSION = "ATIF-v1.8"
_MEDIA = {
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "webp": "image/webp",
}


def write(example: Example, options: Options) -> list[Row]:
    """One row. Raises `Unfit` for an image of another kind than JPEG, PNG, GIF and WebP, or of which that cannot be told."""
    agent = {
        "name": "kiseki" if example.calls or example.toolsets else "unknown",
        "version": kiseki.__version__ if example.calls or example.toolsets else "unknown",
        "model_name": example.model,
        "tool_definitions": list(example.tools),
    }
    return [
        {
            "schema_version": SCHEMA_VERSION,
            "session_id": example.key,
            "trajectory_id": example.key,
            "agent": {name: value for name, value in agent.items() if value != ""},
            "steps": _steps(example),
            "final_metrics": _final_metrics(example),
            "extra": facts(example)
            | {
                "partial": example.partial,
                "stop_reason": example.stop_reason,
                "finish_reason": example.finish_reason,
                "seconds": float(example.seconds),
                "prompt_messages": example.prompt_messages,
            },
        }
    ]


def _steps(example: Example) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    assistant = 0
    for at, message in enumerate(example.messages):
        if message.role == "tool":
            if not steps or (steps[-1]["source"] != "agent" and "observation" not in steps[-1]):
                steps.append({"step_id": len(steps) + 1, "source": "system", "message": ""})
            known = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append(_result(message, at in example.failed, known))
            continue
        source = "agent" if message.role == "assistant" else message.role
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": source}
        step["message"] = _content(message)
        if message.role == "assistant":
            if message.reasoning:
                step["reasoning_content"] = message.reasoning
            if message.tool_calls:
                step["tool_calls"] = [_call(call) for call in message.tool_calls]
            if at < example.prompt_messages:
                step["is_copied_context"] = True
            elif assistant < len(example.calls):
                step |= _model_call(example.calls[assistant])
            assistant += at >= example.prompt_messages
            if at in example.masked:
                step["extra"] = {"masked": True}
        steps.append(step)
    return steps


def _call(call: ToolCall) -> dict[str, Any]:
    made: dict[str, Any] = {"tool_call_id": call.id, "function_name": call.name}
    try:
        return made | {"arguments": arguments_object(call)}
    except Unfit:
        return made | {"arguments": {}, "extra": {"raw_arguments": call.arguments}}


def _result(message: Message, failed: bool, known: set[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"content": _content(message)}
    if message.tool_call_id in known:
        made["source_call_id"] = message.tool_call_id
    else:
        made["extra"] = {"tool_call_id": message.tool_call_id}
    extra = made.get("extra", {}) | ({"name": message.name} if message.name else {}) | ({"failed": True} if failed else {})
    return made | ({"extra": extra} if extra else {})


def _content(message: Message) -> str | list[dict[str, Any]]:
    if not message.images:
        return message.content
    parts: list[dict[str, Any]] = []
    done = 0
    for image in message.images:
        if image.at > done:
            parts.append({"type": "text", "text": message.content[done : image.at]})
        parts.append({"type": "image", "source": {"media_type": _media_type(image.url), "path": image.url}})
        done = image.at
    return [*parts, {"type": "text", "text": message.content[done:]}] if message.content[done:] else parts


def _media_type(url: str) -> str:
    if url.startswith("data:"):
        named = url[5:].partition(";")[0].partition(",")[0]
        if named in _MEDIA.values():
            return named
    elif found := _MEDIA.get(PurePath(urlsplit(url).path).suffix[1:].lower()):
        return found
    raise Unfit("an image of unknown kind")


def _model_call(call: ModelCall) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    if call.usage_reported:
        use = call.usage
        metrics = {
            "prompt_tokens": use.prompt_tokens,
            "completion_tokens": use.completion_tokens,
            "cached_tokens": use.cached_tokens,
            "cost_usd": float(use.cost),
            "extra": {"reasoning_tokens": use.reasoning_tokens},
        }
    if call.tokens:
        metrics["completion_token_ids"] = list(call.tokens.completion)
        if call.tokens.logprobs:
            metrics["logprobs"] = list(call.tokens.logprobs)
    made: dict[str, Any] = {"llm_call_count": 1}
    if metrics:
        made["metrics"] = metrics
    if call.model:
        made["model_name"] = call.model
    if call.started:
        made["timestamp"] = datetime.fromtimestamp(call.started, UTC).isoformat()
    return made


def _final_metrics(example: Example) -> dict[str, Any]:
    use = example.usage
    return {
        "total_prompt_tokens": use.prompt_tokens,
        "total_completion_tokens": use.completion_tokens,
        "total_cached_tokens": use.cached_tokens,
        "total_cost_usd": float(use.cost),
        "extra": {"reasoning_tokens": use.reasoning_tokens},
    }


# ---- reading ------------------------------------------------------------------------------------------------------------


def read(row: Row) -> Example:
    """An example of a trajectory by any agent. Raises `ValueError` for a step that is none; other agents' `extra` is left."""
    agent = row["agent"]
    messages: list[Message] = []
    masked: set[int] = set()
    prompt = 0
    for step in row["steps"]:
        results = (step.get("observation") or {}).get("results") or []
        if not (step["source"] == "system" and results and not step["message"]):
            if step.get("is_copied_context"):
                prompt = len(messages) + 1
            if (step.get("extra") or {}).get("masked"):
                masked.add(len(messages))
            messages.append(_read_step(step))
        messages += [_read_result(each) for each in results]
    extra = dict(row.get("extra") or {})
    known = extra.pop("prompt_messages", None)
    said = {"model": agent.get("model_name"), "key": row.get("session_id")} | extra
    made = make_example(said, messages, read_tools(list(agent.get("tool_definitions") or ())), masked=masked)
    return msgspec.structs.replace(made, prompt_messages=known if isinstance(known, int) else prompt)


def _read_step(step: Mapping[str, Any]) -> Message:
    text, images = _read_content(step["message"])
    if step["source"] != "agent":
        return Message(role=step["source"], content=text, images=images)
    calls = tuple(_read_call(each) for each in step.get("tool_calls") or ())
    return Message(role="assistant", content=text, reasoning=step.get("reasoning_content") or "", tool_calls=calls, images=images)


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    raw = (call.get("extra") or {}).get("raw_arguments")
    arguments = raw if isinstance(raw, str) else arguments_text(call["arguments"])
    return ToolCall(call["tool_call_id"], call["function_name"], arguments)


def _read_result(result: Mapping[str, Any]) -> Message:
    extra = result.get("extra") or {}
    text, images = _read_content(result.get("content") or "")
    call_id = result.get("source_call_id") or extra.get("tool_call_id") or ""
    return Message(role="tool", content=text, tool_call_id=call_id, name=extra.get("name") or "", images=images)


def _read_content(content: str | list[dict[str, Any]]) -> tuple[str, tuple[ImageAt, ...]]:
    if isinstance(content, str):
        return content, ()
    text, images = "", []
    for part in content:
        if part["type"] == "text":
            text += part["text"]
        elif part["type"] == "image":
            images.append(ImageAt(len(text), part["source"]["path"]))
    return text, tuple(images)


FORMAT = Format(name="atif", suffixes=(".jsonl",), write=write, holds=EVERYTHING, read=read)
