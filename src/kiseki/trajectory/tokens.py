"""How many tokens a text has: which tokenizer is meant by a name, and counting with it.

`find_tokenizer` does all that may need the network, once; `open_counter` opens what it found, in any process of this machine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from hashlib import blake2b
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from kiseki.errors import UsageError
from kiseki.trajectory.hugging_face import (
    INSTALL,
    NotToBeHad,
    check_template,
    hub_folder,
    load_tokenizer,
    one_line,
    set_library_defaults,
    tokenizer_files,
)
from kiseki.trajectory.text import clean_text

BUNDLED_ENCODINGS = ("o200k_base", "cl100k_base")
"""Vocabularies that come with Kiseki's own dependencies; counting with them needs no network."""
TIKTOKEN_PREFIX = "tiktoken:"
TIKTOKEN_ENCODINGS = ("gpt2", "r50k_base", "p50k_base", "p50k_edit", *BUNDLED_ENCODINGS, "o200k_harmony")
"""What `tiktoken` knows, for when it is not installed."""
DOWNLOAD_SECONDS = 20.0
"""For one of tiktoken's vocabularies, a few MB."""
TOKENIZER_FILE = "tokenizer.json"

REMEMBERED_FROM = 256
"""Characters; to count a shorter text again costs about as much as to look it up."""
GENERATION = 25_000
"""Counts kept, up to twice as many; some 6 MB."""


class Tokenizer(msgspec.Struct, frozen=True):
    """A tokenizer that is there: what a worker process needs to open it. Picklable."""

    kind: Literal["bundled", "tiktoken", "file", "transformers"]
    source: str
    """Name of an encoding (`bundled`, `tiktoken`), path of a tokenizer.json (`file`) or of a folder (`transformers`)."""
    name: str
    """As told to people and written in metrics: "bundled (o200k_base)"."""
    trust_remote_code: bool = False
    version: str = ""
    """Digest of its files, so that other ones under the same name are known for what they are; "" where the name says it all."""


BUNDLED = Tokenizer("bundled", "o200k_base", "bundled (o200k_base)")


class TokenCounter(Protocol):
    """Counts tokens. No special tokens are added to a text."""

    name: str

    def count(self, text: str) -> int:
        """Tokens of `text`, in which lone surrogates count as U+FFFD."""
        ...

    def count_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> int:
        """Tokens of the whole conversation under the model's chat template, without a generation prompt.

        Raises `ValueError`, with the template's words, when the template refuses the conversation or there is none.
        """
        ...


# ---- which one is meant -----------------------------------------------------------------------------------------------


def find_tokenizer(
    asked: str, *, trust_remote_code: bool = False, chat_template: bool = False, warn: Callable[[str], None]
) -> Tokenizer:
    """The tokenizer that `asked` names, opened once to see that it works.

    `asked` is `bundled`, `tiktoken:ENCODING`, a path of a folder or of a tokenizer.json, or a Hugging Face id. A path begins
    with `/`, `.` or `~`, ends with `.json`, or exists.

    trust_remote_code: Let a repository's own Python code run. Default: False.
    chat_template: It has to have a chat template, for `TokenCounter.count_chat`. Default: False.
    warn: Is told, in one line, when the bundled tokenizer takes the place of an id or encoding that is not to be had.

    Raises `UsageError` for a path that is not there or is no tokenizer, for an encoding that nobody knows, and for a tokenizer
    without the chat template that it has to have.
    """
    local = _is_path(asked)
    try:
        if asked == "bundled":
            found = BUNDLED
        elif asked.startswith(TIKTOKEN_PREFIX):
            found = _find_encoding(asked, chat_template)
        elif local:
            path = Path(os.path.expanduser(asked))  # noqa: PTH111 - pathlib's raises for a user that is not there
            found = _find_in(path, asked, trust_remote_code, chat_template)
        else:
            found = _find_in(Path(hub_folder(asked, trust_remote_code)), asked, trust_remote_code, chat_template)
    except NotToBeHad as error:
        if local or chat_template:
            raise UsageError(f"the tokenizer {asked} cannot be used: {error.why}; {error.way_out}") from error
        warn(
            f"the tokenizer {asked} cannot be used: {error.why}. {BUNDLED.name} counts instead, so the counts differ from "
            f"the model's own. To count with {asked}: {error.way_out}"
        )
        return BUNDLED
    if chat_template and found.kind != "transformers":
        raise UsageError(
            f"the tokenizer {asked} has no chat template to count under; name the model's Hugging Face id or a folder with "
            f"its tokenizer_config.json, or count the text"
        )
    return found


def _is_path(asked: str) -> bool:
    return asked.startswith(("/", ".", "~")) or asked.endswith(".json") or bool(asked and Path(asked).exists())


def _find_encoding(asked: str, chat_template: bool) -> Tokenizer:
    encoding = asked.removeprefix(TIKTOKEN_PREFIX)
    known = _encodings()
    if encoding not in known:
        raise UsageError(f"tiktoken has no encoding {encoding!r}; it has {', '.join(known)}")
    if encoding in BUNDLED_ENCODINGS:
        return Tokenizer("bundled", encoding, asked)
    found = Tokenizer("tiktoken", encoding, asked)
    if not chat_template:
        _download_encoding(encoding)
    return found


def _download_encoding(encoding: str) -> None:
    """Have `tiktoken` put a vocabulary into its cache. Raises `NotToBeHad`, within seconds when there is no network."""
    try:
        import tiktoken
    except ImportError as error:
        raise NotToBeHad("tiktoken is not installed", INSTALL) from error
    failed: list[BaseException] = [TimeoutError(f"no answer in {DOWNLOAD_SECONDS:g} seconds")]

    def download() -> None:
        try:
            tiktoken.get_encoding(encoding)
            failed.clear()
        except Exception as error:  # of the HTTP library or the disk
            failed[:] = [error]

    thread = threading.Thread(target=download, daemon=True)  # its request has no time limit
    thread.start()
    thread.join(DOWNLOAD_SECONDS)
    if failed:
        way_out = "let tiktoken download it once where there is a network, and set TIKTOKEN_CACHE_DIR to its cache"
        raise NotToBeHad(f"tiktoken cannot download it ({one_line(failed[0])})", way_out)


def _encodings() -> tuple[str, ...]:
    try:
        import tiktoken
    except ImportError:
        return TIKTOKEN_ENCODINGS
    return tuple(tiktoken.list_encoding_names())


def _find_in(path: Path, asked: str, trust_remote_code: bool, chat_template: bool) -> Tokenizer:
    """The tokenizer in a folder, or of one tokenizer.json."""
    if not path.exists():
        raise NotToBeHad("there is no such file or folder", "check the path")
    folder = path.is_dir()
    file = path / TOKENIZER_FILE if folder else path
    if not folder or file.is_file():
        _open_file(file)
    if folder and (chat_template or not file.is_file()):
        opened = load_tokenizer(path, trust_remote_code)
        if chat_template:
            check_template(opened, asked)
        files = tokenizer_files(path)
        return Tokenizer("transformers", str(path.absolute()), asked, trust_remote_code, _digest(files))
    return Tokenizer("file", str(file.absolute()), asked, version=_digest([file]))


def _digest(files: Iterable[Path]) -> str:
    total = blake2b(digest_size=8)
    for file in files:
        total.update(file.name.encode() + blake2b(file.read_bytes()).digest())
    return total.hexdigest()


# ---- counting ---------------------------------------------------------------------------------------------------------


def open_counter(tokenizer: Tokenizer) -> TokenCounter:
    """A counter for this process. Takes a tenth of a second for a bundled tokenizer, up to seconds for others."""
    render = None
    if tokenizer.kind == "bundled":
        count = _open_bundled(tokenizer.source)
    elif tokenizer.kind == "tiktoken":
        count = _open_encoding(tokenizer.source)
    elif tokenizer.kind == "file":
        count = _open_file(Path(tokenizer.source))
    else:
        folder = Path(tokenizer.source)
        opened = load_tokenizer(folder, tokenizer.trust_remote_code)
        render = opened.apply_chat_template if opened.chat_template else None
        file = folder / TOKENIZER_FILE
        count = _open_file(file) if file.is_file() else _count_encoded(opened)
    return _Counter(tokenizer.name, count, render)


class _Counter:
    """Counts texts, and remembers the long ones, since system prompts and turns come again."""

    def __init__(self, name: str, count: Callable[[str], int], render: Callable[..., Any] | None) -> None:
        self.name = name
        self._count = count
        self._render = render
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}

    def count(self, text: str) -> int:
        text = clean_text(text)
        if len(text) < REMEMBERED_FROM:
            return self._count(text)
        key = blake2b(text.encode(), digest_size=16).digest()
        tokens = self._young.get(key)
        if tokens is None:
            tokens = self._old.get(key)
            if tokens is None:
                tokens = self._count(text)
            if len(self._young) >= GENERATION:
                self._old, self._young = self._young, {}
            self._young[key] = tokens
        return tokens

    def count_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> int:
        if self._render is None:
            raise ValueError(f"the tokenizer {self.name} has no chat template")
        try:
            text = self._render(messages, tools=tools, tokenize=False, add_generation_prompt=False)
        except Exception as error:  # a template is code: it raises its own errors, and any of Python's for what it did not expect
            raise ValueError(f"the chat template of {self.name} refuses the conversation: {one_line(error)}") from error
        return self._count(clean_text(text))


def _open_bundled(encoding: str) -> Callable[[str], int]:
    # The package's public functions build lists of token ids and refuse a text of a million characters, and its import reads the
    # vocabularies into Python, for half a second: its extension module has all that is needed.
    package = find_spec("bpe_openai")
    spec = PathFinder.find_spec("_bindings", package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:
        raise ImportError("bpe-openai, which has the bundled vocabularies, is not installed as it should be", name="bpe_openai")
    bindings = module_from_spec(spec)
    spec.loader.exec_module(bindings)
    count: Callable[[str], int] = bindings.tokenizer_for_encoding(encoding).count
    return count


def _open_encoding(encoding: str) -> Callable[[str], int]:
    import tiktoken

    encode = tiktoken.get_encoding(encoding).encode_ordinary
    return lambda text: len(encode(text))


def _open_file(file: Path) -> Callable[[str], int]:
    """Counting with a tokenizer.json. Raises `NotToBeHad`."""
    set_library_defaults()
    try:
        from tokenizers import Tokenizer as FastTokenizer
    except ImportError as error:
        raise NotToBeHad("the tokenizers library is not installed", INSTALL) from error
    try:
        opened = FastTokenizer.from_file(str(file))
    except Exception as error:  # the library has no class of its own for them
        why = f"{file.name} is not a tokenizer's ({one_line(error)})"
        raise NotToBeHad(why, "name a tokenizer.json that the tokenizers library can read") from error
    opened.no_truncation()
    opened.no_padding()
    encode = opened.encode_batch_fast  # the one way to encode without tracking where each token came from
    return lambda text: len(encode([text], add_special_tokens=False)[0])


def _count_encoded(opened: Any) -> Callable[[str], int]:
    return lambda text: len(opened.encode(text, add_special_tokens=False))
