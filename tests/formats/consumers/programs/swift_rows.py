"""ms-swift's loader and template: `swift_rows.py FILE ARGUMENTS`. A line for each row that it kept.

ARGUMENTS: of its `get_template`, as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from common import failed, of_labels, show, tokenizer


def main(path: str, arguments: dict[str, Any]) -> None:
    from swift.dataset import load_dataset
    from swift.model import get_processor
    from swift.template import get_template
    from transformers import Qwen3Config

    opened = tokenizer("{{ messages }}")
    opened.save_pretrained("model")
    Qwen3Config(vocab_size=len(opened), num_hidden_layers=1, architectures=["Qwen3ForCausalLM"]).save_pretrained("model")
    template = get_template(get_processor("model", model_type="qwen3"), **arguments)
    template.set_mode("train")
    loaded, _ = load_dataset([path], load_from_cache_file=False, strict=False)
    for row in loaded:
        try:
            made = template.encode(row)
            show(of_labels(opened, made["input_ids"], made["labels"]))
        except Exception as error:  # one row's; ms-swift itself would leave it out
            show(failed(error))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
