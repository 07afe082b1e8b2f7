"""TRL's SFTTrainer with a model of one small layer: `trl_sft.py OPTIONS FILE…`. For each file a line for each row of its training
set, then one for a training step.

OPTIONS: of `SFTConfig`, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from common import chat_template, of_labels, show, tokenizer


def main(options: dict[str, Any], paths: list[str]) -> None:
    import datasets
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl import SFTConfig, SFTTrainer

    opened = tokenizer(chat_template("qwen3"))
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(opened),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            tie_word_embeddings=True,
        )
    )
    small: dict[str, Any] = {
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
    }
    small |= {"report_to": "none", "save_strategy": "no", "output_dir": "out"}
    for path in paths:
        loaded = datasets.load_dataset("parquet" if path.endswith(".parquet") else "json", data_files=path, split="train")
        trainer = SFTTrainer(model=model, processing_class=opened, args=SFTConfig(**options, **small), train_dataset=loaded)
        for row in trainer.train_dataset:
            show({"file": path, **of_labels(opened, row["input_ids"], row["labels"])})
        show({"file": path, "loss": trainer.train().training_loss})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2:])
