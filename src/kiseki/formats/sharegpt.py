"""`sharegpt`: the rows of `trajectories.jsonl` (`trajectory/sharegpt.py` has the layout of the turns), of any conversation."""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.formats.format import EVERYTHING, Format, Options, Row
from kiseki.formats.images import urls, with_placeholders
from kiseki.trajectory.example import Example, prompt_text
from kiseki.trajectory.sharegpt import to_sharegpt
from kiseki.trajectory.types import Message

_EMPTY_THINK = "<think>\n</think>\n"


def write(example: Example, options: Options) -> list[Row]:
    """One row. Results stand with the calls that they answer; images as `<image>`, with their URLs in `images`."""
    messages = [_plain(each) for each in example.messages]
    tools = msgspec.json.encode(example.tools).decode()
    turns = [{"from": str(turn.role), "value": turn.value} for turn in to_sharegpt(messages, tools)]
    if not example.tools:
        own = "\n\n".join(each.content for each in messages if each.role == "system")
        turns[:1] = [{"from": "system", "value": own}] if own else []
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


def _plain(message: Message) -> Message:
    return msgspec.structs.replace(message, content=with_placeholders(message), images=()) if message.images else message


FORMAT = Format(
    name="sharegpt",
    suffixes=(".jsonl",),
    write=write,
    holds=EVERYTHING - {"masks"},
)
