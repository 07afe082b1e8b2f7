"""verl's datasets: `verl_rows.py KIND CONFIG FILE TEMPLATE…`. A line for each row and template.

KIND: `sft` or `rl`. CONFIG: the trainer's `data` settings, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from common import chat_template, failed, made_of, show, stand_in, tokenizer

stand_in("ray", "ray.experimental", "ray.util")


def main(kind: str, config: dict[str, Any], path: str, names: list[str]) -> None:
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.utils.import_utils import load_extern_object

    own = config.get("custom_cls", {})
    usual = MultiTurnSFTDataset if kind == "sft" else RLHFDataset
    dataset = load_extern_object(own["path"], own["name"]) if own.get("path") else usual
    for name in names:
        opened = tokenizer(chat_template(name))
        loaded = dataset(path, opened, OmegaConf.create(config))
        for at in range(len(loaded)):
            try:
                row = loaded[at]
            except Exception as error:  # one row's; verl itself would end here
                show({"template": name, **failed(error)})
                continue
            if kind == "sft":
                said = made_of(opened, row["input_ids"].tolist(), row["loss_mask"].bool().tolist())
            else:
                said = {name: value for name, value in row.items() if name != "dummy_tensor"}
            show({"template": name, **said})


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4:])
