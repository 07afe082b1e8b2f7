"""POST /generate of the mock server: ids of a prompt in, ids and logprobs of the scripted reply out."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import pytest
from atropos_tokenizer import build_tokenizer
from support import kiseki
from tokenizers import Tokenizer

from kiseki.models.mock_server import MockServer
from kiseki.models.mock_tokens import logprob

TOOLS = '<|im_start|>system\n<tools>\n{"type": "function", "function": {"name": "terminal"}}\n</tools><|im_end|>\n'
ASKED = "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
CALLED = (
    "<think>\nI call terminal.\n</think>\n\n\n<tool_call>\n"
    '{"name": "terminal", "arguments": {"command":"echo hello"}}\n</tool_call><|im_end|>'
)
RESULT = "\n<|im_start|>user\n<tool_response>\nhello\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


class Client:
    def __init__(self, server: MockServer, tokenizer: str) -> None:
        self._port = int(server.root_url.rpartition(":")[2])
        self.tokenizer = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def say(self, text: str, **more: Any) -> tuple[str, dict[str, Any]]:
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        body = {"prompt": {"prompt_token_ids": ids}, "logprobs": 0, "max_tokens": 1000, **more}
        status, answer = self.ask("/generate", body)
        assert status == 200, answer
        return self.tokenizer.decode(answer["token_ids"][0], skip_special_tokens=False), answer


def test_the_script_answers_in_ids_with_a_logprob_for_each(tmp_path: Path) -> None:
    folder = build_tokenizer(tmp_path / "tokenizer")
    with MockServer(tokenizer=folder) as server:
        client = Client(server, folder)
        called, answer = client.say(TOOLS + ASKED, n=2)
        assert called == CALLED
        expected = [[{str(token): logprob(at, token)}] for at, token in enumerate(answer["token_ids"][0])]
        assert answer["logprobs"] == [expected] * 2
        assert answer["finish_reasons"] == ["stop"] * 2
        done, _ = client.say(TOOLS + ASKED + called + RESULT)
        assert done == "<think>\nI have what I need.\n</think>\n\nDone. hello<|im_end|>"
        assert client.ask("/health") == (200, {})
        assert server.stats()["calls"] == 2


def test_a_reply_ends_at_the_limit_of_the_request(tmp_path: Path) -> None:
    folder = build_tokenizer(tmp_path / "tokenizer")
    with MockServer(tokenizer=folder) as server:
        said, answer = Client(server, folder).say(TOOLS + ASKED, max_tokens=10)
    assert (said, answer["finish_reasons"]) == (Client(server, folder).tokenizer.decode(answer["token_ids"][0]), ["length"])
    assert len(answer["token_ids"][0]) == len(answer["logprobs"][0]) == 10


def test_faults_are_those_of_a_chat_request(tmp_path: Path) -> None:
    folder = build_tokenizer(tmp_path / "tokenizer")
    with MockServer(tokenizer=folder, fail_after=1) as server:
        client = Client(server, folder)
        assert client.ask("/generate", {"prompt": {"prompt_token_ids": [1]}})[0] == 503
        assert client.ask("/generate", {"prompt": "text"})[0] == 400


def test_without_a_tokenizer_there_is_no_such_endpoint(tmp_path: Path) -> None:
    with MockServer() as server:
        assert Client(server, build_tokenizer(tmp_path / "tokenizer")).ask("/generate", {})[0] == 404


@pytest.mark.parametrize("made", [True, False])
def test_a_tokenizer_that_cannot_be_read_is_one_line(tmp_path: Path, made: bool) -> None:
    if made:
        (tmp_path / "tokenizer.json").write_text("{}")
    done = kiseki("mock-server", "--port=0", f"--tokenizer={tmp_path}", cwd=tmp_path, status=2)
    assert f"--tokenizer {tmp_path}: " in done.stderr
    assert "Traceback" not in done.stderr
