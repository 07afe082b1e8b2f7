"""Every format by its name, and what it is in one line. A format's module is loaded when it is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from kiseki.errors import UsageError
from kiseki.formats.format import Format
from kiseki.trajectory.example import Example

FORMATS = {
    "sharegpt": "ShareGPT turns with Hermes tags, as trajectories.jsonl has them",
    "messages": "chat messages with reasoning_content, arguments as JSON text",
    "openai": "OpenAI fine-tuning: messages as its API documents them, with weight",
    "trl": "TRL: messages and tools columns, arguments as objects",
    "axolotl": "axolotl chat_template: messages with train flags",
    "llamafactory": "LLaMA-Factory sharegpt: alternating turns, with its dataset_info.json",
    "swift": "ms-swift: tool_call and tool_response messages with loss flags",
    "verl": "verl multi-turn SFT (parquet)",
    "verl-rl": "verl RL prompts (parquet): prompt, reward_model, extra_info",
    "parquet": "everything in columns of fixed types",
    "atif": "Agent Trajectory Interchange Format, one trajectory a line",
    "sts": "session traces as the Hugging Face Hub shows them, a file each",
    "rl": "token ids, masks and logprobs, where they were captured",
    "atropos": "Atropos SFT loader and process mode: groups of tokens, masks and scores",
}

_COLUMNS = {
    "atif": {"schema_version", "agent", "steps"},
    "rl": {"prompt_ids", "response_ids", "response_mask", "messages"},
    "atropos": {"tokens", "masks", "scores", "conversation"},
    "parquet": {"prompt_messages", "usage", "calls", "toolsets", "messages"},
    "llamafactory": {"conversations", "system", "tools", "images", "key", "source"},
}
"""Columns by which rows are known that another reader would read differently."""

EXAMINED = ("trl", "axolotl", "llamafactory", "swift", "verl", "openai", "atif", "atropos", "sharegpt", "messages")
"""Formats that `kiseki doctor --for` knows the consumers of."""


def reader_for(row: Mapping[str, Any]) -> Callable[[dict[str, Any]], Example] | None:
    """The reader of the format that has written this row, by its columns; None where that is `reading.read_row`."""
    turns = row.get("messages")
    first = turns[0] if isinstance(turns, list) and turns and {"key", "source"} <= row.keys() else None
    if isinstance(first, dict) and first.keys() == {"role", "content", "loss"}:
        return find_format("swift").read
    name = next((name for name, columns in _COLUMNS.items() if columns <= row.keys()), "")
    return find_format(name).read if name else None


def find_format(name: str) -> Format:
    """Raises `UsageError` for a name that is none."""
    if name not in FORMATS:
        close = difflib.get_close_matches(name, FORMATS, 1)
        raise UsageError(f"there is no format {name!r}" + (f"; did you mean {close[0]}?" if close else f"; {', '.join(FORMATS)}"))
    found: Format = import_module(f"kiseki.formats.{name.replace('-', '_')}").FORMAT
    return found
