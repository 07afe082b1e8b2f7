"""What a token costs, and who says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiseki.errors import UsageError
from kiseki.models.prices import Price, read_prices
from kiseki.trajectory.types import Usage


def test_what_a_call_costs() -> None:
    price = Price(input=3e-6, output=15e-6, cached_input=0.3e-6, request=0.01)
    assert price.of(1000, 100) == pytest.approx(0.01 + 0.003 + 0.0015)
    assert price.of_usage(Usage(prompt_tokens=1000, completion_tokens=100, cached_tokens=900)) == pytest.approx(
        0.01 + 0.0003 + 0.00027 + 0.0015
    )
    assert Price(input=1.0).of(10, 0, cached_tokens=10, cache_write_tokens=0) == 10.0  # no price of its own
    written = Usage(prompt_tokens=1000, cached_tokens=300, cache_write_tokens=200)
    assert Price(input=1.0, cached_input=0.1, cache_write=1.25).of_usage(written) == pytest.approx(500 + 30 + 250)
    assert Price(input=1.0).of_usage(written) == 1000.0


def test_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(
        "my/model: {input: 3, output: 15}\nother: {input: 0.5, output: 1, cached_input: 0.25, cache_write: 2, request: 0.01}\n"
    )
    prices = read_prices(str(path))
    assert prices["my/model"] == Price(3e-6, 15e-6)
    assert prices["other"] == Price(0.5e-6, 1e-6, 0.25e-6, 0.01, 2e-6)


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
        ("my/model: {input: 3, output: 15, cache_write: .inf}", "a price of my/model is not a number of 0 or more"),
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
