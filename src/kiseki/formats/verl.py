"""`verl`: parquet for verl's multi-turn SFT, with the dataset class that decodes it
(https://github.com/verl-project/verl/blob/main/verl/utils/dataset/multiturn_sft_dataset.py).

verl reads the file with pandas, which gives every object of a column all the keys that any row has, null where it has none: with
tools or arguments as objects, the model would be trained on those nulls. So both are JSON text here, and `kiseki_verl.py`,
written beside the data, is verl's own dataset with that text decoded and empty keys left out:

    data.custom_cls.path=FOLDER/kiseki_verl.py data.custom_cls.name=TrajectoryDataset

Without it verl ends at the first row, as its class takes no text for tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kiseki.formats.columns import CALL, FACTS, arguments_object, arrow_schema, call_object, check_answers, facts, tools_text
from kiseki.formats.format import EVERYTHING, Format, Options, Row
from kiseki.formats.images import urls, with_placeholders
from kiseki.formats.reading import read_row
from kiseki.trajectory.example import Example
from kiseki.trajectory.types import Message

_MESSAGE = {
    "role": str,
    "content": str,
    "reasoning_content": str,
    "tool_calls": [CALL],
    "tool_call_id": str,
    "name": str,
}
_COLUMNS = {"messages": [_MESSAGE], "tools": str, "enable_thinking": bool, "images": [str], **FACTS}
_DATASET = '''"""verl's multi-turn SFT dataset, for rows whose tools and arguments are JSON text. Kiseki wrote it beside the data.

data.custom_cls.path=<this file> data.custom_cls.name=TrajectoryDataset
"""

import json

from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset


class TrajectoryDataset(MultiTurnSFTDataset):
    def _read_files_and_process(self):
        super()._read_files_and_process()
        self.tools = [json.loads(tools) or None for tools in self.tools]

    def _build_messages(self, example):
        if not len(example[self.image_key]):
            example = {name: value for name, value in example.items() if name != self.image_key}
        messages = [
            {name: value for name, value in message.items() if name == "content" or value}
            for message in super()._build_messages(example)
        ]
        for message in messages:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return messages
'''


def write(example: Example, options: Options) -> list[Row]:
    """One row. Raises `Unfit` for calls and results that do not answer each other, and where arguments are no JSON object."""
    check_answers(example)
    contents = with_placeholders(example)
    return [
        {
            "messages": [_message(each, contents[at]) for at, each in enumerate(example.messages)],
            "tools": tools_text(example),
            "enable_thinking": any(each.reasoning for each in example.messages),
            "images": urls(example),
            **facts(example),
        }
    ]


def dataset_class(files: Sequence[str]) -> dict[str, bytes]:
    """kiseki_verl.py."""
    return {"kiseki_verl.py": _DATASET.encode()}


def _message(message: Message, content: str) -> dict[str, Any]:
    for call in message.tool_calls:
        arguments_object(call)
    return {
        "role": message.role,
        "content": content,
        "reasoning_content": message.reasoning,
        "tool_calls": [call_object(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


FORMAT = Format(
    name="verl",
    suffixes=(".parquet",),
    write=write,
    holds=EVERYTHING - {"masks"},
    read=partial(read_row, inline=False),
    schema=partial(arrow_schema, _COLUMNS),
    beside=dataset_class,
)
