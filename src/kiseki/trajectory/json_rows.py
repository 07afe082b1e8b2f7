"""Rows as JSON text: read leniently, written so that every parser takes them."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from kiseki.trajectory.text import clean_text

_decode = msgspec.json.Decoder().decode


def decode_row(text: bytes) -> Any:
    """One row's JSON as Python values. What strict parsers refuse but Python's own writes is read and cleaned: a lone surrogate
    becomes U+FFFD, NaN and infinity null.

    Raises `ValueError` with the reason.
    """
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _decode_leniently(text)


def _decode_leniently(text: bytes) -> Any:
    try:
        return _clean(json.loads(text.decode()))
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 (byte {error.start + 1} of the line)") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON: {error.msg} at character {error.pos + 1} of the line") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from None


def encode_row(row: Any) -> bytes:
    """Any row content as JSON that every parser takes: no NaN, no lone surrogates, dates as text."""
    try:
        return msgspec.json.encode(row, enc_hook=str)
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError):
        return clean_text(json.dumps(_clean(row), ensure_ascii=False, default=str)).encode()


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {clean_text(str(key)): _clean(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return clean_text(value) if isinstance(value, str) else value


# ---- reading ----------------------------------------------------------------------------------------------------------
