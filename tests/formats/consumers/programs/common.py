"""What the programs have in common: a tokenizer that needs no download, TRL's chat templates, and how rows are printed.

Runs in the environment of `make consumers`, without Kiseki.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

# Libraries print where they like: whatever they print goes to the errors, and what `show` prints is all that is on stdout.
_out = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)

ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
IGNORED = -100


def show(row: dict[str, Any]) -> None:
    _out.write(json.dumps(row) + "\n")
    _out.flush()


def made_of(tokenizer: Any, ids: Sequence[int], trained: Sequence[bool]) -> dict[str, str]:
    """The text of a row of ids, and of those that a loss falls on."""
    kept = [each for each, on in zip(ids, trained, strict=True) if on]
    return {"text": tokenizer.decode(ids), "trained": tokenizer.decode(kept)}


def of_labels(tokenizer: Any, ids: Sequence[int], labels: Sequence[int]) -> dict[str, str]:
    return made_of(tokenizer, ids, [each != IGNORED for each in labels])


def failed(error: Exception) -> dict[str, str]:
    return {"error": f"{type(error).__name__}: {error}"[:600]}


def chat_template(name: str) -> str:
    """One of those that TRL ships."""
    spec = find_spec("trl")
    assert spec is not None and spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer(template: str | None = None) -> Any:
    """A token for each byte, and for each of the tags of Qwen's templates."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={each: at for at, each in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    fast: Any = PreTrainedTokenizerFast
    made = fast(
        tokenizer_object=inner,
        bos_token="<|begin|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    made.add_tokens(ADDED)
    made.chat_template = template
    return made


class _Nothing(ModuleType):
    """A module whose every name is a class without anything in it."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in(*names: str) -> None:
    """Modules that a consumer imports at its top and does not call for text: too large to install for that, or without a build
    for this torch."""
    for name in names:
        module = _Nothing(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
