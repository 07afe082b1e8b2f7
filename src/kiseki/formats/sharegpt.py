"""`sharegpt`: the rows of `trajectories.jsonl` (`trajectory/sharegpt.py` has the layout of the turns), of any conversation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from kiseki.formats.columns import arrow_schema
from kiseki.formats.format import EVERYTHING, Format, Options, Row
from kiseki.formats.images import urls, with_placeholders
from kiseki.trajectory.example import Example, prompt_text
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.sharegpt import to_sharegpt
from kiseki.trajectory.types import Message

_METADATA = {
    "key": str,
    "model": str,
    "stop_reason": str,
    "finish_reason": str,
    "reward": str,
    "seconds": float,
    "prompt_tokens": int,
    "completion_tokens": int,
    "reasoning_tokens": int,
    "cached_tokens": int,
    "cost": float,
    "source": str,
}
_COLUMNS = {
    "prompt_index": int,
    "prompt": str,
    "sample_index": int,
    "conversations": [{"from": str, "value": str}],
    "images": [str],
    "metadata": _METADATA,
    "completed": bool,
    "partial": bool,
    "toolsets_used": [str],
}
_EMPTY_THINK = "<think>\n</think>\n"


def write(example: Example, options: Options) -> list[Row]:
    """One row. Results stand with the calls that they answer; images as `<image>`, with their URLs in `images`."""
    contents = with_placeholders(example)
    messages = [msgspec.structs.replace(each, content=contents[at]) for at, each in enumerate(example.messages)]
    turns = turns_of(messages, example.tools)
    if options.empty_think == "drop":
        for turn in turns:
            if turn["from"] == "gpt":
                turn["value"] = turn["value"].removeprefix(_EMPTY_THINK)
    return [
        {
            "prompt_index": example.prompt_index,
            "prompt": prompt_text(example),
            "sample_index": example.sample_index,
            "conversations": turns,
            "images": urls(example),
            "metadata": metadata(example),
            "completed": example.completed,
            "partial": example.partial,
            "toolsets_used": list(example.toolsets),
        }
    ]


def turns_of(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """System messages at the start become one turn, with the tools; later ones stay where they are."""
    began = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    starts = [at for at, message in enumerate(messages) if message.role == "system" and at > began]
    made: list[dict[str, str]] = []
    for start, end in zip([0, *starts], [*starts, len(messages)], strict=True):
        part = messages[start:end]
        with_tools = encode_row(tools).decode() if tools and start == 0 else ""
        own = "\n\n".join(each.content for each in part if each.role == "system")
        turns = to_sharegpt(part, with_tools)
        made += [] if with_tools or not own else [{"from": "system", "value": own}]
        made += [{"from": str(turn.role), "value": turn.value} for turn in (turns if with_tools else turns[1:])]
    return made


def metadata(example: Example) -> dict[str, Any]:
    """What every row says of its rollout, in fixed types."""
    use = example.usage
    return {
        "key": example.key,
        "model": example.model,
        "stop_reason": example.stop_reason,
        "finish_reason": example.finish_reason,
        "reward": "" if example.reward is None else repr(example.reward),
        "seconds": float(example.seconds),
        "prompt_tokens": use.prompt_tokens,
        "completion_tokens": use.completion_tokens,
        "reasoning_tokens": use.reasoning_tokens,
        "cached_tokens": use.cached_tokens,
        "cost": float(use.cost),
        "source": example.source,
    }


FORMAT = Format(
    name="sharegpt",
    suffixes=(".jsonl", ".parquet"),
    write=write,
    holds=EVERYTHING - {"masks"},
    schema=partial(arrow_schema, _COLUMNS),
)
