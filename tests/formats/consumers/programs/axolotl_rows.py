"""axolotl's chat_template strategy: `axolotl_rows.py FILE DATASET`. A line for each row.

DATASET: an entry of `datasets` of its configuration, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from common import chat_template, failed, of_labels, show, tokenizer


def main(path: str, dataset: dict[str, Any]) -> None:
    import datasets
    from axolotl.prompt_strategies.chat_template import load
    from axolotl.utils.dict import DictDefault
    from axolotl.utils.schemas.datasets import SFTDataset

    opened = tokenizer(chat_template("qwen3"))
    whole = DictDefault({"sequence_len": 100_000, "train_on_inputs": False, "chat_template": "tokenizer_default"})
    own = DictDefault(SFTDataset(**dataset).model_dump(exclude_none=True))
    strategy = load(opened, whole, own)
    for row in datasets.load_dataset(dataset["ds_type"], data_files=path, split="train"):
        try:
            made = strategy.tokenize_prompt(row)
            show(of_labels(opened, made["input_ids"], made["labels"]))
        except Exception as error:  # one row's; axolotl itself would end here
            show(failed(error))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
