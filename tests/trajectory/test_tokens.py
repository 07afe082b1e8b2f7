"""Counting tokens: with the bundled vocabularies, tiktoken, a tokenizer.json, a chat template, and what stands in for none."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import bpe_openai
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe
from tiktoken_ext import openai_public

from kiseki.errors import UsageError
from kiseki.trajectory import tokens
from kiseki.trajectory.tokens import TokenCounter, find_tokenizer, open_counter

MIXED = {
    "code": 'def f(x: int) -> str:\n\treturn f"{x:>10}" if x % 2 else "None"\r\n\n\n    # it\'s WE\'LL don\'T\n' * 20,
    "japanese": "軌跡のトークン数を数える。「カギ括弧」、半角カナ、１２３。" * 30,
    "emoji": "👩‍👩‍👧‍👦 🇯🇵 e\u0301 ﷽ \U0001f9d1\U0001f3ff‍🚀 \u200b\ufeff" * 10,
    "runs": "a" * 5000 + " " * 3000 + "\n" * 2000 + "=" * 1001 + "1234567890" * 300 + "\u3000" * 50,
    "special tokens": "<|endoftext|> <|im_start|>user<|endofprompt|><|fim_prefix|> <|endoftext|>",
    "trailing space": "end of it   ",
    "control characters": "a\x00b\x1b[31mc\u2028d\x85e\ufffd",
    "empty": "",
}


def silent(line: str) -> None:
    raise AssertionError(f"a warning: {line}")


def counter(asked: str | Path, **how: bool) -> TokenCounter:
    return open_counter(pickle.loads(pickle.dumps(find_tokenizer(str(asked), warn=silent, **how))))


# ---- bundled vocabularies and tiktoken ----------------------------------------------------------------------------------


@pytest.fixture
def vocabularies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tiktoken reads, and checks by its own hashes, the vocabulary files of the bundled package, not its host's."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))

    def load(url: str, expected_hash: str) -> dict[bytes, int]:
        name = Path(url).name
        shipped = Path(bpe_openai.__file__).parent / "data" / f"{name}.gz"
        (tmp_path / name).write_bytes(gzip.decompress(shipped.read_bytes()))
        return load_tiktoken_bpe(str(tmp_path / name), expected_hash)

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", load)


@pytest.mark.usefixtures("vocabularies")
@pytest.mark.parametrize("encoding", ["o200k_base", "cl100k_base"])
def test_bundled_counts_are_tiktokens(encoding: str) -> None:
    theirs = tiktoken.Encoding(**getattr(openai_public, encoding)())
    ours = counter("bundled" if encoding == "o200k_base" else f"tiktoken:{encoding}")
    for what, text in MIXED.items():
        assert ours.count(text) == len(theirs.encode_ordinary(text)), what

    @settings(max_examples=100, deadline=None, database=None)
    @given(st.text(max_size=80) | st.text(alphabet=" \n\r\t'sStT0é日a/.", max_size=80))
    def on_any_text(text: str) -> None:
        assert ours.count(text) == len(theirs.encode_ordinary(text))

    on_any_text()


@pytest.mark.usefixtures("vocabularies")
def test_other_encodings_are_counted_by_tiktoken() -> None:
    found = find_tokenizer("tiktoken:o200k_harmony", warn=silent)
    assert (found.kind, found.source, found.name) == ("tiktoken", "o200k_harmony", "tiktoken:o200k_harmony")
    theirs, bundled = open_counter(found), counter("bundled")
    for text in MIXED.values():  # the same vocabulary; its special tokens are plain text as well
        assert theirs.count(text) == bundled.count(text)


def test_names_say_what_counts() -> None:
    assert counter("bundled").name == "bundled (o200k_base)"
    assert counter("tiktoken:o200k_base").name == "tiktoken:o200k_base"


def test_an_unknown_encoding_is_an_error_that_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed in (True, False):
        with monkeypatch.context() as patch:
            if not installed:
                patch.setitem(sys.modules, "tiktoken", None)
            with pytest.raises(UsageError, match=r"no encoding 'o200k'; it has gpt2, .*o200k_base"):
                find_tokenizer("tiktoken:o200k", warn=silent)


def test_an_encoding_that_is_not_to_be_had_is_replaced_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(url: str, expected_hash: str) -> dict[bytes, int]:
        raise OSError("no route\nto host")

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", load)
    lines: list[str] = []
    found = find_tokenizer("tiktoken:p50k_edit", warn=lines.append)
    assert (found.kind, found.name) == ("bundled", "bundled (o200k_base)")
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    find_tokenizer("tiktoken:p50k_edit", warn=lines.append)
    [no_network, not_installed] = lines
    assert "tiktoken:p50k_edit" in no_network and "(no route to host)" in no_network and "\n" not in no_network
    assert "bundled (o200k_base) counts instead" in no_network and "TIKTOKEN_CACHE_DIR" in no_network
    assert "pip install 'kiseki[tokenizers]'" in not_installed


# ---- what every counter does --------------------------------------------------------------------------------------------


def test_texts_of_a_million_characters_are_counted() -> None:
    assert counter("bundled").count("ab " * 400_000) == 400_001


def test_lone_surrogates_count_as_replacement_characters(model: Path) -> None:
    for each in (counter("bundled"), counter(model)):
        for more in ("", "x" * 1000):
            assert each.count(f"a\ud800b{more}") == each.count(f"a\ufffdb{more}")


def test_a_text_counts_the_same_again_whatever_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "GENERATION", 10)
    bundled = counter("bundled")
    texts = [f"{number} " * (100 + number) for number in range(25)]
    first = [bundled.count(text) for text in texts]
    assert len(set(first)) == len(texts)
    assert [bundled.count(text) for text in reversed(texts)] == first[::-1]
    assert [bundled.count(text) for text in texts[:3] * 9] == first[:3] * 9


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "GENERATION", 50)
    bundled = counter("bundled")
    bundled.count("x" * 1000)
    tracemalloc.start()
    try:
        for number in range(2000):
            bundled.count(f"{number:0300}")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 40_000  # 2000 digests alone would be 98 KB


# ---- tokenizer.json -----------------------------------------------------------------------------------------------------


def test_a_file_and_its_folder_count_alike_and_whole(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_tokenizer(str(model), warn=silent)
    assert (found.kind, found.source, found.name) == ("file", str(model / "tokenizer.json"), str(model))
    monkeypatch.chdir(model.parent)
    for asked in (model, model / "tokenizer.json", f"./{model.name}", model.name, f"{model.name}/tokenizer.json"):
        each = counter(asked)
        assert each.count("hello") == 1  # nothing padded, nothing added in front
        assert each.count(" hello" * 500) == 500  # nothing cut off
        assert each.count("") == 0
    whole = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    whole.no_truncation()
    whole.no_padding()
    for what, text in MIXED.items():
        assert each.count(text) == len(whole.encode(text, add_special_tokens=False)), what


@pytest.mark.parametrize(
    "asked", ["./modle", "/no/such/folder", "~/no/such/folder", "~nobody-here/x", "tokeniser.json", "org/name/tokenizer.json"]
)
def test_a_path_that_is_not_there_is_an_error(asked: str) -> None:
    with pytest.raises(UsageError, match="no such file or folder"):
        find_tokenizer(asked, warn=silent)


def test_what_is_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": 1}')
    (tmp_path / "empty").mkdir()
    for asked in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "empty", "/dev/null"):
        with pytest.raises(UsageError, match=f"the tokenizer {asked} cannot be used: .+; name ") as caught:
            find_tokenizer(str(asked), warn=silent)
        assert "\n" not in str(caught.value)


def test_what_is_no_path_and_no_id_is_an_error() -> None:
    for asked in ("", "two words", "a/b/c", "Bundled!"):
        with pytest.raises(UsageError, match="neither a path that is there nor a Hugging Face id"):
            find_tokenizer(asked, warn=silent)


def test_a_library_that_is_missing_is_named_with_the_way_to_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tokenizers", "transformers", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)
    for how in (False, True):
        with pytest.raises(UsageError, match="not installed; pip install 'kiseki\\[tokenizers]'"):
            find_tokenizer(str(model), chat_template=how, warn=silent)
    lines: list[str] = []
    assert find_tokenizer("org/name", warn=lines.append).kind == "bundled"
    assert "pip install 'kiseki[tokenizers]'" in lines[0]


# ---- chat templates -----------------------------------------------------------------------------------------------------


def test_a_template_that_is_none_is_said_at_once(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "broken")
    (tmp_path / "broken" / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }")
    with pytest.raises(UsageError, match="is no Jinja template: line 1"):
        find_tokenizer(str(tmp_path / "broken"), chat_template=True, warn=silent)


def test_other_files_under_the_same_name_are_another_version(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "own")
    asked = str(tmp_path / "own")
    before = find_tokenizer(asked, warn=silent)
    assert find_tokenizer(asked, warn=silent) == before
    file = tmp_path / "own" / "tokenizer.json"
    file.write_text(file.read_text() + "\n")
    assert find_tokenizer(asked, warn=silent).version != before.version


def test_a_conversation_is_counted_under_the_chat_template(model: Path) -> None:
    from transformers import AutoTokenizer

    chat = counter(model, chat_template=True)
    theirs = AutoTokenizer.from_pretrained(str(model))
    messages = [{"role": "user", "content": "hello <|im_end|> 軌跡"}, {"role": "assistant", "content": "x" * 1000}]
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
    ]
    for each in (None, tools):
        ids = theirs.apply_chat_template(messages, tools=each, tokenize=True, return_dict=False)  # type: ignore[arg-type]
        assert chat.count_chat(messages, each) == len(ids)
    assert chat.count_chat(messages, tools) > chat.count_chat(messages) > 0
    assert chat.count_chat([{"role": "user", "content": "\ud800"}]) == chat.count_chat([{"role": "user", "content": "\ufffd"}])
    assert chat.count("hello" * 300) == counter(model).count("hello" * 300)


def test_a_template_of_its_own_file_is_found(model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UsageError, match="has no chat template"):
        find_tokenizer(str(tmp_path), chat_template=True, warn=silent)
    (tmp_path / "chat_template.jinja").write_text(json.loads((model / "tokenizer_config.json").read_text())["chat_template"])
    messages = [{"role": "user", "content": "hello"}]
    assert counter(tmp_path, chat_template=True).count_chat(messages) == counter(model, chat_template=True).count_chat(messages)


def test_a_conversation_that_the_template_refuses_is_an_error_in_its_words(model: Path) -> None:
    chat = counter(model, chat_template=True)
    with pytest.raises(ValueError, match="Only people speak here"):
        chat.count_chat([{"role": "robot", "content": "hello"}])
    with pytest.raises(ValueError, match="no chat template"):
        counter("bundled").count_chat([{"role": "user", "content": "hello"}])


def test_a_tokenizer_without_a_template_is_an_error(model: Path) -> None:
    for asked in ("bundled", "tiktoken:cl100k_base", "tiktoken:p50k_base", str(model / "tokenizer.json")):
        with pytest.raises(UsageError, match=r"has no chat template.*name the model's Hugging Face id or a folder"):
            find_tokenizer(asked, chat_template=True, warn=silent)


def test_code_beside_a_tokenizer_json_does_not_run(own_code: Path, model: Path, tmp_path: Path) -> None:
    (own_code / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    assert counter(own_code).count("hello") == 1
    with pytest.raises(UsageError, match="trust_remote_code"):
        find_tokenizer(str(own_code), chat_template=True, warn=silent)
    assert not (tmp_path / "ran").exists()


def test_finding_imports_nothing_heavy() -> None:
    code = "import sys, kiseki.trajectory.tokens; print([name for name in sys.argv[1:] if name in sys.modules])"
    heavy = ("bpe_openai", "tiktoken", "tokenizers", "transformers", "huggingface_hub")
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
