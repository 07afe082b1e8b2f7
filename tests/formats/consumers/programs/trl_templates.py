"""TRL's tokenization of conversations, without its trainer: `trl_templates.py FILE TEMPLATE…`. A line for each row and template.

What its templates cannot mask is shown without its trained text.
"""

from __future__ import annotations

import json
import sys

from common import chat_template, failed, made_of, show, tokenizer


def main(path: str, names: list[str]) -> None:
    import datasets
    from trl.chat_template_utils import get_training_chat_template
    from trl.data_utils import _tokenize, is_conversational

    loaded = datasets.load_dataset("parquet" if path.endswith(".parquet") else "json", data_files=path, split="train")
    for name in names:
        opened = tokenizer(chat_template(name))
        try:
            training = get_training_chat_template(opened)
        except ValueError:  # TRL has none for it: no mask then
            training = None
        for row in loaded:
            assert is_conversational(row)
            tools = json.loads(row["tools"]) if isinstance(row["tools"], str) else row["tools"]
            try:
                masked = training is not None
                made = _tokenize(
                    opened, row["messages"], chat_template=training, tools=tools, return_assistant_tokens_mask=masked
                )
                trained = made["assistant_masks"] if masked else [0] * len(made["input_ids"])
                said = made_of(opened, made["input_ids"], [bool(each) for each in trained])
                show({"template": name, "masked": masked, **said})
            except Exception as error:  # a template is code: it raises what it likes
                show({"template": name, "masked": masked, **failed(error)})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
