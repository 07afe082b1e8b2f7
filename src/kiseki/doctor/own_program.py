"""A program: gives rows to a consumer's own code, as far as that goes without weights, and says on stdout what it makes of each.

A process of its own, so that the consumer's imports, settings and crashes stay in it. Its one argument is a file with an `OwnJob`
as JSON. It prints one `Made` as JSON a line; which row each belongs to is told by the marks in it (`rendering.mark`), since
consumers leave out rows without a word.

Consumers need a tokenizer, which is made here: one token a byte, so that what it encodes is what it decodes.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

NEEDS = {
    "trl": ("trl", "datasets", "transformers"),
    "axolotl": ("axolotl", "datasets", "transformers", "torch"),
    "llamafactory": ("llamafactory", "datasets", "transformers", "torch"),
    "swift": ("swift", "modelscope", "transformers", "torch"),
    "verl": ("verl", "omegaconf", "transformers", "torch"),
    "atif": ("atif",),
    "atropos": ("atroposlib", "fastapi"),
}
"""Modules that have to be there for a consumer's own code to run; the first is the consumer."""
PACKAGES = {"swift": "ms-swift", "atropos": "atroposlib"}
_SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


class OwnJob(msgspec.Struct, frozen=True):
    target: str
    file: str
    """The marked rows: JSON lines, or parquet."""
    template: str
    """Jinja text."""
    scratch: str
    info: str = ""
    """For LLaMA-Factory: its `dataset_info.json` beside the file has the data set under this name."""
    dataset_class: str = ""
    """For verl: a Python file with the class `TrajectoryDataset`, to be used in place of verl's own."""


class Made(msgspec.Struct, omit_defaults=True):
    text: str = ""
    """What the model sees."""
    trained: str | None = None
    """The part that a loss falls on; None where that is not known."""
    error: str = ""
    row: str = ""
    """With an error: the row, so that its marks tell which it is; "" where everything stopped."""


def installed(target: str) -> str:
    """The consumer's version; "" where its code cannot run here."""
    needs = NEEDS.get(target, ())
    try:
        if not needs or any(find_spec(each) is None for each in needs):
            return ""
        return version(PACKAGES.get(target, needs[0]))
    except Exception:  # a broken installation is none
        return ""


def _take(module: str, *names: str) -> tuple[Any, ...]:
    """Things of a module that need not be installed, and has no types that fit every version."""
    found = import_module(module)
    return tuple(getattr(found, name) for name in names)


def _tokenizer(template: str) -> Any:
    Tokenizer, decoders, models, pre_tokenizers = _take("tokenizers", "Tokenizer", "decoders", "models", "pre_tokenizers")
    PreTrainedTokenizerFast = _take("transformers", "PreTrainedTokenizerFast")[0]

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=_SPECIAL[1],
        pad_token=_SPECIAL[2],
        additional_special_tokens=[_SPECIAL[0]],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens(list(_ADDED))
    tokenizer.chat_template = template
    return tokenizer


def _rows(job: OwnJob) -> Any:
    """As the trainer's first step gives them."""
    load_dataset = _take("datasets", "load_dataset")[0]
    kind = "parquet" if job.file.endswith(".parquet") else "json"
    return load_dataset(kind, data_files=job.file, split="train", cache_dir=job.scratch)


def _each(rows: Any, make: Callable[[Any], Made]) -> Iterator[Made]:
    for row in rows:
        try:
            yield make(row)
        except Exception as error:  # what the consumer raises is the answer
            yield Made(error=_words(error), row=json.dumps(row, default=str, ensure_ascii=False))


def _labels(tokenizer: Any, ids: Any, labels: Any) -> Made:
    return Made(tokenizer.decode(ids), tokenizer.decode([each for each in labels if each != -100]))


def _trl(job: OwnJob) -> Iterator[Made]:
    get_training_chat_template = _take("trl.chat_template_utils", "get_training_chat_template")[0]
    _tokenize, is_conversational, is_conversational_from_value, maybe_convert_to_chatml = _take(
        "trl.data_utils", "_tokenize", "is_conversational", "is_conversational_from_value", "maybe_convert_to_chatml"
    )

    tokenizer = _tokenizer(job.template)
    try:
        template = get_training_chat_template(tokenizer) or job.template
    except ValueError:  # it has none for this one
        template = job.template
    masked = "generation" in template

    def make(row: Any) -> Made:
        row = dict(row)
        if is_conversational_from_value(row):
            row = maybe_convert_to_chatml(row)
        if "prompt" in row and "completion" not in row:
            raise KeyError("completion")
        if not is_conversational(row):
            raise ValueError("TRL does not take it for a conversation")
        tools = json.loads(row["tools"]) if isinstance(row.get("tools"), str) else row.get("tools")
        more = row.get("chat_template_kwargs", {})
        made = _tokenize(
            tokenizer, row["messages"], chat_template=template, tools=tools, return_assistant_tokens_mask=masked, **more
        )
        ids = made["input_ids"]
        if not masked:
            return Made(tokenizer.decode(ids))
        return Made(tokenizer.decode(ids), tokenizer.decode([i for i, m in zip(ids, made["assistant_masks"], strict=True) if m]))

    yield from _each(_rows(job), make)


def _axolotl(job: OwnJob) -> Iterator[Made]:
    load = _take("axolotl.prompt_strategies.chat_template", "load")[0]
    DictDefault = _take("axolotl.utils.dict", "DictDefault")[0]

    rows = _rows(job)
    tokenizer = _tokenizer(job.template)
    sharegpt = "conversations" in rows.column_names
    names = {"role": "from", "content": "value"} if sharegpt else {"role": "role", "content": "content"}
    config = {"sequence_len": 10**7, "train_on_inputs": False, "chat_template": "tokenizer_default"}
    data = {
        "type": "chat_template",
        "field_messages": "conversations" if sharegpt else "messages",
        "message_property_mappings": names,
        "message_field_training": "train",
        "roles_to_train": ["assistant"],
        "train_on_eos": "turn",
    }
    strategy = load(tokenizer, DictDefault(config), DictDefault(data))

    def make(row: Any) -> Made:
        encoded = strategy.tokenize_prompt(row)
        return _labels(tokenizer, encoded["input_ids"], encoded["labels"])

    yield from _each(rows, make)


def _llamafactory(job: OwnJob) -> Iterator[Made]:
    _stub("torchaudio")  # imported at the top for audio rows, which there are none of
    _get_merged_dataset, _get_preprocessed_dataset = _take(
        "llamafactory.data.loader", "_get_merged_dataset", "_get_preprocessed_dataset"
    )
    get_template_and_fix_tokenizer = _take("llamafactory.data.template", "get_template_and_fix_tokenizer")[0]
    DataArguments = _take("llamafactory.hparams.data_args", "DataArguments")[0]
    Seq2SeqTrainingArguments = _take("transformers", "Seq2SeqTrainingArguments")[0]

    class Model:
        """What the loader reads of a model's settings."""

        cache_dir, hf_hub_token = job.scratch, None

    folder = str(Path(job.file).parent)
    data = DataArguments(dataset=job.info, dataset_dir=folder, template="qwen3", cutoff_len=10**7, overwrite_cache=True)
    training = Seq2SeqTrainingArguments(output_dir=job.scratch, use_cpu=True, report_to="none", log_level="error")
    tokenizer = _tokenizer(job.template)
    template = get_template_and_fix_tokenizer(tokenizer, data)
    aligned = _get_merged_dataset([job.info], Model, data, training, "sft")
    for number in range(len(aligned)):
        one = aligned.select([number])
        if not one[0]["_prompt"]:
            continue  # it is left out, with a line in the log
        try:
            encoded = _get_preprocessed_dataset(one, data, training, "sft", template, tokenizer)
        except Exception as error:
            yield Made(error=_words(error), row=json.dumps(one[0], default=str, ensure_ascii=False))
            continue
        for row in encoded:
            yield _labels(tokenizer, row["input_ids"], row["labels"])


def _swift(job: OwnJob) -> Iterator[Made]:
    load_dataset = _take("swift.dataset", "load_dataset")[0]
    get_processor = _take("swift.model", "get_processor")[0]
    get_template = _take("swift.template", "get_template")[0]
    Qwen3Config = _take("transformers", "Qwen3Config")[0]

    home = Path(job.scratch, "qwen3")
    tokenizer = _tokenizer(job.template)
    tokenizer.save_pretrained(home)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(vocab_size=len(tokenizer), architectures=["Qwen3ForCausalLM"], **sizes, **heads)
    config.save_pretrained(home)
    processor = get_processor(str(home), model_type="qwen3")
    whole = {"max_length": 10**7}  # a byte is a token here, so that the model's own limit says nothing
    template = get_template(processor, template_type="qwen3", agent_template="hermes", loss_scale="default", **whole)
    template.set_mode("train")
    rows, _ = load_dataset([job.file], load_from_cache_file=False, strict=False)

    def make(row: Any) -> Made:
        encoded = template.encode(row)
        return _labels(tokenizer, encoded["input_ids"], encoded["labels"])

    yield from _each(rows, make)


def _verl(job: OwnJob) -> Iterator[Made]:
    OmegaConf = _take("omegaconf", "OmegaConf")[0]

    _stub("ray")  # imported at the top for what runs on many machines
    Dataset = _take("verl.utils.dataset.multiturn_sft_dataset", "MultiTurnSFTDataset")[0]
    if job.dataset_class:
        Dataset = runpy.run_path(job.dataset_class)["TrajectoryDataset"]

    tokenizer = _tokenizer(job.template)
    settings = OmegaConf.create({"pad_mode": "no_padding", "max_length": 10**7, "truncation": "error"})
    rows = Dataset(job.file, tokenizer, settings)
    given = _rows(job)
    for number in range(len(rows)):
        try:
            row = rows[number]
        except Exception as error:
            yield Made(error=_words(error), row=json.dumps(given[number], default=str, ensure_ascii=False))
            continue
        ids, mask = row["input_ids"].tolist(), row["loss_mask"].tolist()
        yield Made(tokenizer.decode(ids), tokenizer.decode([each for each, on in zip(ids, mask, strict=True) if on]))


def _atif(job: OwnJob) -> Iterator[Made]:
    Trajectory = _take("atif", "Trajectory")[0]

    def make(line: str) -> Made:
        return Made(Trajectory.model_validate_json(line).model_dump_json())

    with open(job.file, encoding="utf-8") as file:
        yield from _each(file, make)


def _atropos(job: OwnJob) -> Iterator[Made]:
    ScoredData = _take("atroposlib.api.server", "ScoredData")[0]

    def make(line: str) -> Made:
        row = json.loads(line)
        if "tokens" in row:
            ScoredData.model_validate(row)
        return Made(line)

    with open(job.file, encoding="utf-8") as file:
        yield from _each(file, make)


OWN: dict[str, Callable[[OwnJob], Iterator[Made]]] = {
    "trl": _trl,
    "axolotl": _axolotl,
    "llamafactory": _llamafactory,
    "swift": _swift,
    "verl": _verl,
    "atif": _atif,
    "atropos": _atropos,
}


def _stub(name: str) -> None:
    """A module of empty classes in place of one that is missing and not used."""
    if find_spec(name) is not None:
        return

    def empty(attribute: str) -> type:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return type(attribute, (), {})

    for each in (name, f"{name}.experimental", f"{name}.util"):
        stub = sys.modules[each] = ModuleType(each)
        stub.__spec__, stub.__path__ = ModuleSpec(each, None, is_package=True), []
        stub.__dict__["__getattr__"] = empty


def _words(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def main() -> None:
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=OwnJob)
    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # consumers print
        try:
            for made in OWN[job.target](job):
                answers.write(msgspec.json.encode(made).decode("utf-8", "replace") + "\n")
        except Exception as error:
            answers.write(msgspec.json.encode(Made(error=_words(error))).decode() + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
