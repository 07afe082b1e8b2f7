"""`atropos`: rows for both of what Atropos reads (atroposlib 0.4.0), one for each rollout.

`tokens`, `masks`, `scores`, `inference_logprobs` and `messages` are a `ScoredDataGroup` (`atroposlib/envs/base.py`), as its
`process` mode writes them and `POST /scored_data` takes them: lists with one entry for each sequence of the rollout (a row each
in `rl`), masks the token id where the model sampled it and -100 elsewhere, logprobs 1.0 where the mask is -100, as its managed
server has them. The group of a prompt is the rows with one `prompt_index`, which stand together: their lists, joined, are those
of all its samples. Without token ids `tokens`, `masks` and `inference_logprobs` are empty; without logprobs the last is.

`conversation` is for its SFT loader (`sft_loader_server.py`, with `dataset_format: oai_format` and `dataset_column_name:
conversation`), which renders it with the tokenizer's chat template itself; that has to take the role `tool`. The loader's
ShareGPT reader fails on such turns, and it gives the template no tools: here they stand in the system message, and reasoning and
calls as Hermes tags in the text, so that a message is its role and its text alone. `messages` has the same.

The loader's masks are as long as the tokens only where a conversation ends on the assistant, so results after its last turn are
cut off.

`scores` is the reward, 0.0 where there is none, as `has_reward` says; the loader does not look at it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.formats.columns import FACTS, arrow_schema, facts, in_call_order
from kiseki.formats.format import EVERYTHING, Format, Options, Row, Unfit
from kiseki.formats.images import with_placeholders
from kiseki.formats.reading import read_row
from kiseki.formats.token_sequences import UNCAPTURED, TokenSequence, sequences_of
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.sharegpt import escape_text, to_sharegpt
from kiseki.trajectory.types import Message

MASKED = -100
NO_LOGPROB = 1.0
"""Of a token that was not sampled: no logarithm of a probability, so that nobody takes it for one."""
_FROM = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}
_EMPTY_THINK = to_sharegpt([Message(role="assistant")], "")[-1].value


def write(example: Example, options: Options) -> list[Row]:
    """One row. Raises `Unfit`, but not where there are no token ids."""
    try:
        found = sequences_of(example, options)
    except Unfit as unfit:
        if unfit.reason != UNCAPTURED:
            raise
        found = []
    reward = 0.0 if example.reward is None else float(example.reward)
    conversation = _conversation(example, len(example.messages), options)
    known = bool(found) and all(each.has_logprobs for each in found)
    return [
        {
            "tokens": [[*each.prompt, *each.response] for each in found],
            "masks": [_masks(each) for each in found],
            "scores": [reward] * max(1, len(found)),
            "inference_logprobs": [_logprobs(each) for each in found] if known else [],
            "messages": [_conversation(example, each.messages, options) for each in found] or [conversation],
            "conversation": conversation,
            "has_reward": example.reward is not None,
            "retokenized": any(each.retokenized for each in found),
            **{name: value for name, value in facts(example).items() if name != "reward"},
        }
    ]


def read(row: Row) -> Example:
    """The conversation, and what the row says of it; its token ids stay where they are. Raises `ValueError`."""
    turns = [{"from": _FROM.get(each["role"], each["role"]), "value": each["content"]} for each in row["conversation"]]
    found = read_row({name: row[name] for name in facts(Example(messages=())) if name in row} | {"conversations": turns})
    return msgspec.structs.replace(found, reward=float(row["scores"][0])) if row.get("has_reward") else found


def schema() -> Any:
    import pyarrow as pa

    chat = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
    ids = pa.list_(pa.list_(pa.int32()))
    own = {"tokens": ids, "masks": ids, "scores": pa.list_(pa.float64())}
    own |= {"inference_logprobs": pa.list_(pa.list_(pa.float64())), "messages": pa.list_(chat), "conversation": chat}
    own |= {"has_reward": pa.bool_(), "retokenized": pa.bool_()}
    return pa.schema(own | {field.name: field.type for field in arrow_schema(FACTS) if field.name != "reward"})


def _masks(sequence: TokenSequence) -> list[int]:
    said = [each if on else MASKED for each, on in zip(sequence.response, sequence.mask, strict=True)]
    return [MASKED] * len(sequence.prompt) + said


def _logprobs(sequence: TokenSequence) -> list[float]:
    said = [each if on else NO_LOGPROB for each, on in zip(sequence.logprobs, sequence.mask, strict=True)]
    return [NO_LOGPROB] * len(sequence.prompt) + said


def _conversation(example: Example, count: int, options: Options) -> list[dict[str, str]]:
    """The first `count` messages, results in the order of their calls."""
    contents = with_placeholders(example)
    messages = [msgspec.structs.replace(example.messages[at], content=contents[at]) for at in range(count)]
    messages = [messages[at] for at in in_call_order(tuple(messages))]
    began = next((at for at, each in enumerate(messages) if each.role != "system"), len(messages))
    opening = "\n\n".join(each.content for each in messages[:began])
    if example.tools:
        opening = to_sharegpt(messages[:began], encode_row(example.tools).decode())[0].value
    rows = [{"role": "system", "content": opening}] if opening else []
    return rows + [{"role": str(each.role), "content": _text(each, options)} for each in messages[began:]]


def _text(message: Message, options: Options) -> str:
    if message.role == "tool":
        return escape_text(message.content)
    if message.role != "assistant":
        return message.content
    text = to_sharegpt([message], "")[-1].value
    return text if options.empty_think == "keep" else text.removeprefix(_EMPTY_THINK)


FORMAT = Format(
    name="atropos",
    suffixes=(".jsonl", ".parquet"),
    write=write,
    read=read,
    holds=EVERYTHING - {"ids", "images", "masks"},
    schema=schema,
    ends_on_assistant=True,
)
