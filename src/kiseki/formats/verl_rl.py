"""`verl-rl`: the prompts of a run as verl's RL trainers read them, parquet, a row a prompt
(https://verl.readthedocs.io/en/latest/preparation/prepare_data.html).

The trainer makes the rollouts itself, so of an example only the prompt is written, with what the prompt's row had beside it:
`ground_truth` is the first of its columns `ground_truth`, `answer`, `solution`, `expected_answer` and `target`, as text, and ""
where it has none of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from kiseki.formats.columns import arrow_schema
from kiseki.formats.format import Format, Options, Row, Unfit
from kiseki.formats.images import urls, with_placeholders
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import decode_row, encode_row

TRUTH_COLUMNS = ("ground_truth", "answer", "solution", "expected_answer", "target")
_COLUMNS = {
    "data_source": str,
    "prompt": [{"role": str, "content": str}],
    "images": [str],
    "ability": str,
    "reward_model": {"style": str, "ground_truth": str},
    "extra_info": {"index": int, "need_tools_kwargs": bool, "source": str},
    "agent_name": str,
}


def write(example: Example, options: Options) -> list[Row]:
    """One row. `data_source`, by which a reward function tells datasets apart, and `ability` are the prompt row's own columns of
    these names, else `kiseki` and `agent`. Raises `Unfit` for a prompt without a user's message."""
    prompt = _prompt(example)
    if not any(each.role == "user" for each in prompt.messages):
        raise Unfit("no user turn")
    contents = with_placeholders(prompt)
    row = _source(example)
    return [
        {
            "data_source": _text(row.get("data_source")) or "kiseki",
            "prompt": [{"role": each.role, "content": contents[at]} for at, each in enumerate(prompt.messages)],
            "images": urls(prompt),
            "ability": _text(row.get("ability")) or "agent",
            "reward_model": {"style": "rule", "ground_truth": _truth(row)},
            "extra_info": {"index": example.prompt_index, "need_tools_kwargs": False, "source": example.source},
            "agent_name": "tool_agent" if example.tools else "single_turn_agent",
        }
    ]


def _prompt(example: Example) -> Example:
    """The prompt's own messages; where it is not known which these are, those before the first of the assistant's."""
    first = next((at for at, each in enumerate(example.messages) if each.role == "assistant"), len(example.messages))
    return msgspec.structs.replace(example, messages=example.messages[: example.prompt_messages or first])


def _source(example: Example) -> dict[str, Any]:
    try:
        row = decode_row(example.source.encode())
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _truth(row: dict[str, Any]) -> str:
    return next((_text(row[name]) for name in TRUTH_COLUMNS if row.get(name) is not None), "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else encode_row(value).decode()


FORMAT = Format(
    name="verl-rl",
    suffixes=(".parquet",),
    write=write,
    holds=frozenset(),
    schema=partial(arrow_schema, _COLUMNS),
    per_prompt=True,
)
