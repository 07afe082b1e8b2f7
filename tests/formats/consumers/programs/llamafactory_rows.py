"""LLaMA-Factory's converter and template: `llamafactory_rows.py ARGUMENTS`. A line for each row that it kept.

ARGUMENTS: of its `DataArguments`, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from common import of_labels, show, stand_in, tokenizer

os.environ["DISABLE_VERSION_CHECK"] = "1"
stand_in("torchaudio")


class _Model:
    """What the loader reads of its ModelArguments."""

    cache_dir = None
    hf_hub_token = None


def main(arguments: dict[str, Any]) -> None:
    from llamafactory.data.loader import _get_merged_dataset, _get_preprocessed_dataset
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams.data_args import DataArguments
    from transformers import Seq2SeqTrainingArguments

    data = DataArguments(**arguments)
    training = Seq2SeqTrainingArguments(output_dir="out", use_cpu=True, report_to="none", log_level="error")
    opened = tokenizer()
    template = get_template_and_fix_tokenizer(opened, data)
    converted = _get_merged_dataset(data.dataset, _Model, data, training, "sft")
    for row in _get_preprocessed_dataset(converted, data, training, "sft", template, opened):
        show(of_labels(opened, row["input_ids"], row["labels"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
