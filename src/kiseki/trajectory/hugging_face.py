"""Tokenizers of Hugging Face: their files from the hub or its cache, and opening them with transformers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kiseki.errors import UsageError
from kiseki.trajectory.text import printable

INSTALL = "pip install 'kiseki[tokenizers]'"
HUB_SECONDS = 10.0
"""For the hub's first answer; without one, what its cache has is used."""
FILES = ["tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "additional_chat_templates/*"]
FILES += ["vocab*", "merges.txt", "spiece.model", "sentencepiece*", "*.tiktoken", "tiktoken.model", "config.json"]
"""What tokenizers are made of, without a model's weights."""
CODE_FILES = ["*.py"]


class NotToBeHad(Exception):
    """A tokenizer cannot be opened here."""

    def __init__(self, why: str, way_out: str) -> None:
        super().__init__(why)
        self.why = why
        self.way_out = way_out


def hub_folder(repository: str, trust_remote_code: bool) -> str:
    """The folder, in the hub's cache, of a repository's tokenizer files; its code is among them only when trusted.

    Raises `NotToBeHad`, within seconds when there is no network, and `UsageError` for what cannot be an id.
    """
    set_library_defaults()
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import HFValidationError
    except ImportError as error:
        raise NotToBeHad("the huggingface_hub library is not installed", INSTALL) from error
    patterns = FILES + (CODE_FILES if trust_remote_code else [])
    try:
        HfApi().model_info(repository, timeout=HUB_SECONDS)  # a download has no time limit on its own first request
        return snapshot_download(repository, allow_patterns=patterns)
    except HFValidationError as error:
        raise UsageError(
            f"{repository!r} is neither a path that is there nor a Hugging Face id (organisation/name) nor 'bundled'"
        ) from error
    except Exception as error:  # dozens of classes, of several HTTP libraries
        try:
            return snapshot_download(repository, allow_patterns=patterns, local_files_only=True)
        except Exception:
            why = f"Hugging Face does not give it ({one_line(error)}), and it is not in the cache"
            way_out = "download it once where there is a network, with HF_TOKEN set if it is gated, or name a folder that has it"
            raise NotToBeHad(why, way_out) from error


def load_tokenizer(folder: Path, trust_remote_code: bool) -> Any:
    """transformers' tokenizer of a folder, without asking the hub for anything. Raises `NotToBeHad`."""
    set_library_defaults()
    try:
        import jinja2  # noqa: F401 - of chat templates; transformers would miss it only then
        from transformers import AutoTokenizer
    except ImportError as error:
        raise NotToBeHad(f"{error.name or 'transformers'} is not installed", INSTALL) from error
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust_remote_code, local_files_only=True)
    except Exception as error:  # a repository's own code may raise anything
        if not trust_remote_code and "trust_remote_code" in str(error):
            raise NotToBeHad("it needs Python code of its own repository to run", "allow that with trust_remote_code") from error
        raise NotToBeHad(f"transformers cannot open it ({one_line(error)})", "name one that it can open") from error


def check_template(opened: Any, asked: str) -> None:
    """Raises `UsageError` for a tokenizer without a chat template, or with one that is no template."""
    if not opened.chat_template:
        raise UsageError(f"the tokenizer {asked} has no chat template; count the text, or name one that has")
    import jinja2

    try:
        opened.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"the chat template of {asked} is no Jinja template: line {error.lineno}: {error.message}") from error
    except Exception:  # noqa: S110 - of a conversation that the template does not take: that is for each row to say
        pass


def tokenizer_files(folder: Path) -> list[Path]:
    """What a folder's tokenizer is made of, its code included, in a fixed order."""
    return sorted({path for pattern in FILES + CODE_FILES for path in folder.glob(pattern) if path.is_file()})


def one_line(error: BaseException) -> str:
    """An error's words in one line of bounded length."""
    return printable(" ".join(str(error).split()) or type(error).__name__, 200)


def set_library_defaults() -> None:
    """Before an import of tokenizers, transformers or huggingface_hub, which read these then. What the user has set stays."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # Kiseki's processes are the parallelism
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it warns of PyTorch, which nothing here needs
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
