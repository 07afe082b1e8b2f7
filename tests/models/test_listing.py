"""What an endpoint's list of models says: the price and the context window of one."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.models.endpoints import ModelSettings
from kiseki.models.listing import Listing, Listings, read_answers
from kiseki.models.mock_server import MockServer
from kiseki.models.prices import Price
from kiseki.models.spending import with_listed

PRICING = {"prompt": "0.000003", "completion": "0.000015", "request": "0", "input_cache_read": "0.0000003", "image": "0.0048"}
ELSEWHERE = "https://api.example.com/v1"
HERE = "http://127.0.0.1:8000/v1"


def listed(models: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"data": [{"id": name, "pricing": pricing} for name, pricing in models.items()]})


def price(body: bytes, model: str) -> Price | None:
    return read_answers([body], ModelSettings(model, ELSEWHERE)).price


def window(*answers: Any, model: str = "m", base_url: str = ELSEWHERE) -> int | None:
    bodies = [each if isinstance(each, bytes) else msgspec.json.encode(each) for each in answers]
    return read_answers(bodies, ModelSettings(model, base_url)).context_length


def test_the_price_in_a_list() -> None:
    body = listed({"a/b": PRICING, "c": {"prompt": "0.1", "completion": "0.2"}})
    assert price(body, "a/b") == Price(3e-6, 15e-6, 0.3e-6)
    assert price(body, "c") == Price(0.1, 0.2)
    assert price(body, "d") is None


def test_another_way_to_a_provider_is_the_same_model() -> None:
    body = listed({"a/b": PRICING, "a/b:free": {"prompt": "0", "completion": "0"}})
    assert price(body, "a/b:nitro") == price(body, "a/b:floor") == price(body, "a/b")
    assert price(body, "a/b:free") == Price()
    assert price(body, "a/b:thinking") is None


@pytest.mark.parametrize(
    "pricing",
    [
        None,
        {},
        [],
        "free",
        {"prompt": "0.1"},
        {"prompt": "-1", "completion": "-1"},
        {"prompt": "nan", "completion": "0"},
        {"prompt": "inf", "completion": "0"},
        {"prompt": "0", "completion": "0", "request": "-1"},
        {"prompt": "0", "completion": "0", "input_cache_read": "-1"},
        {"prompt": "cheap", "completion": "0"},
        {"prompt": None, "completion": "0"},
    ],
)
def test_a_model_without_a_usable_price(pricing: Any) -> None:
    assert price(listed({"a": pricing}), "a") is None


def test_the_window_by_each_servers_name_for_it() -> None:
    """As vLLM, OpenRouter, Groq, Mistral, LM Studio, llama.cpp and Anthropic have it."""
    for fields in (
        {"max_model_len": 8192, "root": "/models/m"},
        {"context_length": 8192, "top_provider": {"context_length": 4096, "max_completion_tokens": None}},
        {"context_length": 8192.0},
        {"context_window": 8192, "active": True},
        {"max_context_length": 8192, "capabilities": {"function_calling": True}},
        {"max_context_length": 131_072, "loaded_context_length": 8192, "state": "loaded"},
        {"max_input_tokens": 8192, "max_tokens": 64_000},
        {"meta": {"n_ctx": 8192, "n_ctx_train": 131_072}},
        {"meta": {"n_ctx_train": 8192}},
    ):
        assert window({"object": "list", "data": [{"id": "x", "max_model_len": 1}, {"id": "m", **fields}]}) == 8192, fields
    assert window([{"id": "m", "context_length": 8192}]) == 8192, "Together's list has nothing around it"
    assert window({"id": "m-20260101", "type": "model", "max_input_tokens": 8192}) == 8192, "Anthropic's answer for one"
    assert window({"data": [{"id": "m-2612", "aliases": ["m-latest"], "max_context_length": 8192}]}, model="m-latest") == 8192


@pytest.mark.parametrize("said", [0, -1, None, True, "8192", [8192], {"n": 1}, 2**31, 1e300])
def test_what_is_no_window(said: Any) -> None:
    assert window({"data": [{"id": "m", "context_length": said}]}) is None
    assert window({"data": [{"id": "m", "meta": said}]}) is None


def test_the_only_model_of_ones_own_server_is_meant_by_any_name() -> None:
    one = {"data": [{"id": "/models/q.gguf", "meta": {"n_ctx": 4096}}]}
    assert window(one, base_url=HERE) == 4096
    assert window(one) is None
    assert window({"data": [*one["data"], {"id": "other", "meta": {"n_ctx": 1}}]}, base_url=HERE) is None


def test_what_a_server_runs_with_is_more_than_what_the_model_could() -> None:
    """An older llama.cpp, whose list has only the latter."""
    could = {"data": [{"id": "m", "meta": {"n_ctx_train": 131_072}}]}
    assert window(could, {"default_generation_settings": {"n_ctx": 4096}}, base_url=HERE) == 4096
    assert window(could, b"", {"error": "no such path"}, base_url=HERE) == 131_072


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["data", "id", "pricing", "meta", "aliases"]), inner, max_size=3)
    ),
)


@given(json_values)
def test_any_json_is_understood_or_not(value: Any) -> None:
    for each in (value, {"data": value}):
        assert read_answers([msgspec.json.encode(each)], ModelSettings("a", HERE)) == Listing()


@given(st.binary(max_size=30))
def test_any_answer_is_understood_or_not(body: bytes) -> None:
    assert read_answers([body], ModelSettings("a", HERE)) == Listing()


def test_nesting_without_end() -> None:
    assert read_answers([b"[" * 1_000_000], ModelSettings("a", HERE)) == Listing()


@contextmanager
def server(answers: dict[str, Any]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Its root, and what it was asked: path and key."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("x-api-key") or self.headers.get("Authorization") or ""))
            body = json.dumps(answers.get(self.path, {"error": "no"})).encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}", asked
    finally:
        running.shutdown()
        running.server_close()


def test_a_list_that_says_it_is_all_that_is_asked_for() -> None:
    with server({"/v1/models": {"data": [{"id": "m", "max_model_len": 8192, "pricing": PRICING}]}}) as (root, asked):
        listings = Listings()
        settings = ModelSettings("m", f"{root}/v1/", api_key="secret")
        for _ in range(2):
            assert listings.of(settings) == Listing(Price(3e-6, 15e-6, 0.3e-6), 8192)
        assert listings.of(ModelSettings("other", f"{root}/v1", api_key="secret")).context_length == 8192, "there is one model"
    assert asked == [("/v1/models", "Bearer secret")]


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/props", {"default_generation_settings": {"n_ctx": 4096}}),
        ("/api/v0/models", {"data": [{"id": "m", "loaded_context_length": 4096}, {"id": "other"}]}),
    ],
)
def test_servers_that_say_it_elsewhere(path: str, answer: Any) -> None:
    with server({"/v1/models": {"data": [{"id": "m"}, {"id": "other"}]}, path: answer}) as (root, asked):
        assert Listings().of(ModelSettings("m", f"{root}/v1")).context_length == 4096
    assert asked[-1] == (path, "")


@pytest.mark.parametrize("base", ["", "/v1"])
def test_anthropic_is_asked_for_the_one_model_in_its_own_way(base: str) -> None:
    """Its list has pages, and no aliases; this finds both."""
    with server({"/v1/models/claude-new": {"id": "claude-new-20260101", "max_input_tokens": 200_000}}) as (root, asked):
        settings = ModelSettings("claude-new", f"{root}{base}", api_key="secret", api_mode="anthropic")
        assert Listings().of(settings) == Listing(None, 200_000)
    assert asked == [("/v1/models/claude-new", "secret")]


def test_price_and_window_are_one_question() -> None:
    with server({"/v1/models": {"data": [{"id": "m", "context_length": 8192, "pricing": PRICING}]}}) as (root, asked):
        fallback = ModelSettings("m", f"{root}/v1")
        found = with_listed(ModelSettings("m", f"{root}/v1", fallback=(fallback,)), "", ["max_cost"])
        assert (found.context_length, found.price) == (8192, Price(3e-6, 15e-6, 0.3e-6))
        assert found.fallback[0].price == found.price
        assert len(asked) == 1
        assert with_listed(ModelSettings("m", f"{root}/v1", context_length=100), "", ()).context_length == 100
        assert len(asked) == 1, "nothing was wanted of it"


def test_the_mock_server_has_a_list() -> None:
    with MockServer(list_prices=True, price=(3.0, 15.0)) as mock:
        assert Listings().of(ModelSettings("mock", mock.base_url)) == Listing(Price(3e-6, 15e-6, 0.3e-6), 131_072)
    with MockServer() as mock:
        assert Listings().of(ModelSettings("mock", mock.base_url)) == Listing()


def test_a_built_in_model_has_no_endpoint() -> None:
    assert Listings().of(ModelSettings("builtin/practice")) == Listing()


def test_nobody_who_could_list() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        assert Listings().of(ModelSettings("m", f"http://127.0.0.1:{taken.getsockname()[1]}/v1")) == Listing()


def test_a_server_that_does_not_answer_is_left_to_itself() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # takes the connection and says nothing
        settings = ModelSettings("m", f"http://127.0.0.1:{silent.getsockname()[1]}/v1")
        assert Listings(seconds=0.2).of(settings) == Listing()
