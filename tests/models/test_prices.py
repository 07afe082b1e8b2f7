"""What a token costs, and who says so."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.errors import UsageError
from kiseki.models.mock_server import MockServer
from kiseki.models.prices import Price, find_in_list, listed_price, read_prices
from kiseki.trajectory.types import Usage

PRICING = {"prompt": "0.000003", "completion": "0.000015", "request": "0", "input_cache_read": "0.0000003", "image": "0.0048"}


def listed(models: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"data": [{"id": name, "pricing": pricing} for name, pricing in models.items()]})


def test_what_a_call_costs() -> None:
    price = Price(input=3e-6, output=15e-6, cached_input=0.3e-6, request=0.01)
    assert price.of(1000, 100) == pytest.approx(0.01 + 0.003 + 0.0015)
    assert price.of_usage(Usage(prompt_tokens=1000, completion_tokens=100, cached_tokens=900)) == pytest.approx(
        0.01 + 0.0003 + 0.00027 + 0.0015
    )
    assert Price(input=1.0).of(10, 0, cached_tokens=10) == 10.0  # no price of its own


def test_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text("my/model: {input: 3, output: 15}\nother: {input: 0.5, output: 1, cached_input: 0.25, request: 0.01}\n")
    prices = read_prices(str(path))
    assert prices["my/model"] == Price(3e-6, 15e-6)
    assert prices["other"] == Price(0.5e-6, 1e-6, 0.25e-6, 0.01)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expected `object`"),
        ("- my/model", "Expected `object`"),
        ("my/model: 3", "Expected `object`"),
        ("my/model: {input: 3}", "missing required field `output`"),
        ("my/model: {input: 3, output: 15, outptu: 1}", "unknown field `outptu`"),
        ("my/model: {input: '3', output: 15}", "Expected `float`"),
        ("my/model: {input: -3, output: 15}", "a price of my/model is not a number of 0 or more"),
        ("my/model: {input: .nan, output: 15}", "a price of my/model is not a number of 0 or more"),
        ("my/model: {input: 3, output: .inf}", "a price of my/model is not a number of 0 or more"),
        ("my/model: {input: 3, output: 15, cached_input: -1}", "a price of my/model is not a number of 0 or more"),
        ("{", "line 1"),
        ("my/model: 2026-99-99", "month must be in 1..12"),
        ("a\x00b", "unacceptable character"),
    ],
)
def test_a_file_that_says_no_price(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_prices(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"caf\xe9: {input: 3, output: 15}")
    for name in ("nowhere.yaml", "", "latin"):
        with pytest.raises(UsageError, match="--prices: cannot read"):
            read_prices(str(tmp_path / name))


def test_the_list_of_an_endpoint() -> None:
    body = listed({"a/b": PRICING, "c": {"prompt": "0.1", "completion": "0.2"}})
    assert find_in_list(body, "a/b") == Price(3e-6, 15e-6, 0.3e-6)
    assert find_in_list(body, "c") == Price(0.1, 0.2)
    assert find_in_list(body, "d") is None


def test_another_way_to_a_provider_is_the_same_model() -> None:
    body = listed({"a/b": PRICING, "a/b:free": {"prompt": "0", "completion": "0"}})
    assert find_in_list(body, "a/b:nitro") == find_in_list(body, "a/b:floor") == find_in_list(body, "a/b")
    assert find_in_list(body, "a/b:free") == Price()
    assert find_in_list(body, "a/b:thinking") is None


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
    assert find_in_list(listed({"a": pricing}), "a") is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["data", "id", "pricing"]), inner, max_size=3),
)


@given(json_values)
def test_any_json_is_understood_or_not(value: Any) -> None:
    assert find_in_list(msgspec.json.encode(value), "a") is None
    assert find_in_list(msgspec.json.encode({"data": value}), "a") is None


@given(st.binary(max_size=30))
def test_any_answer_is_understood_or_not(body: bytes) -> None:
    assert find_in_list(body, "a") is None


def test_a_real_list() -> None:
    with MockServer(list_prices=True, price=(3.0, 15.0)) as server:
        assert listed_price(server.base_url, "", "mock") == Price(3e-6, 15e-6, 0.3e-6)
        assert listed_price(server.base_url + "/", "key", "another") is None
    with MockServer() as server:
        assert listed_price(server.base_url, "", "mock") is None


def test_nobody_who_could_list() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        assert listed_price(f"http://127.0.0.1:{taken.getsockname()[1]}/v1", "", "mock") is None
