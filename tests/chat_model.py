"""A model's folder with a tokenizer of bytes and a chat template of tags, made on the spot."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for message in messages %}"
    "{% if message.content == 'REFUSE' %}{{ raise_exception('no such words') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content and (KEEP or loop.last) %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\nOPENING{% endif %}"
)


def chat_model(folder: Path, *, keep_reasoning: bool = True, opening: str = "") -> Path:
    """`keep_reasoning`: of earlier turns. `opening`: what the generation prompt puts before a reply."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    made.save(str(folder / "tokenizer.json"))
    template = TEMPLATE.replace("KEEP", str(keep_reasoning).lower()).replace("OPENING", opening)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def decode(folder: Path, ids: list[int]) -> str:
    """The text of ids, special tokens included."""
    text: str = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(ids, skip_special_tokens=False)
    return text
