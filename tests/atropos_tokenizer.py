"""A tokenizer built without a network: a token per byte, ChatML's marks, and a chat template with Hermes' tags."""

from __future__ import annotations

import json
from pathlib import Path

MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATE = """\
{%- if messages[0].role == "system" %}{% set own = messages[0].content + "\\n\\n" %}{% set rest = messages[1:] %}
{%- else %}{% set own = "" %}{% set rest = messages %}{% endif -%}
{%- if tools %}{{ "<|im_start|>system\\n" + own + "You may call functions.\\n<tools>\\n" }}
{%- for tool in tools %}{{ tool | tojson + "\\n" }}{% endfor %}{{ "</tools><|im_end|>\\n" }}
{%- elif own %}{{ "<|im_start|>system\\n" + own + "<|im_end|>\\n" }}{% endif -%}
{%- for message in rest %}
{%- if message.role == "tool" %}
{{- "<|im_start|>tool\\n<tool_response>\\n" + message.content + "\\n</tool_response><|im_end|>\\n" }}
{%- else %}{{ "<|im_start|>" + message.role + "\\n" + OWN + "<|im_end|>\\n" }}{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\nBEGINS" }}{% endif -%}
"""


def build_tokenizer(folder: Path, *, lowers: bool = False, begins: str = "") -> str:
    """Write it to `folder`, whose path is returned. `lowers`: the template writes assistant turns in small letters. `begins`:
    what it puts before a reply."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={each: at for at, each in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in MARKS])
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in TAGS])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    shown = "(message.content | lower)" if lowers else "message.content"
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE.replace("OWN", shown).replace("BEGINS", begins.replace("\n", "\\n")),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)
