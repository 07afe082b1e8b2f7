"""Folders as the repositories of models have them: one with a tokenizer.json, one whose tokenizer is Python code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}"
    "{% if message.role == 'robot' %}{{ raise_exception('Only people speak here.') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIDE_EFFECT_CODE = '''
from pathlib import Path

from transformers import PreTrainedTokenizer

Path({ran!r}).touch()


class OwnTokenizer(PreTrainedTokenizer):
    """A token for each character."""

    @property
    def vocab_size(self):
        return 1

    def get_vocab(self):
        return {{"a": 0}}

    def _tokenize(self, text, **more):
        return list(text)

    def _convert_token_to_id(self, token):
        return 0

    def _convert_id_to_token(self, number):
        return "a"
'''


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a model's repository has it: a trained tokenizer.json that cuts and pads, and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(["hello world, hello agent", "def f(x): return x", "軌跡"] * 3, trainer)
    trained.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    trained.enable_truncation(4)
    trained.enable_padding(length=8)
    trained.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    (folder / "modeling_own.py").touch()
    return folder


@pytest.fixture
def own_code(tmp_path: Path) -> Path:
    """A folder whose tokenizer is Python code, which leaves a file `ran` when it runs."""
    folder = tmp_path / "own"
    folder.mkdir()
    config = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(SIDE_EFFECT_CODE.format(ran=str(tmp_path / "ran")))
    return folder
