"""The one place that decides whether a tool result is a success (the rule is part of the contract, README "Tool statistics")."""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.trajectory.text import clean_text


class _Verdict(msgspec.Struct):
    error: Any = None
    success: Any = None


_decode = msgspec.json.Decoder(_Verdict).decode


def result_ok(content: str) -> bool:
    """Failure: a JSON object with a non-null `error` or with `success: false`; or, not JSON, empty or starting with "error:".

    A command's non-zero exit status alone is not a failure.
    """
    stripped = content.strip()
    if stripped.startswith("{"):
        try:
            verdict = _decode(stripped)
        except (msgspec.DecodeError, RecursionError):  # no JSON, or nested too deeply to be read
            return True
        except UnicodeEncodeError:
            return result_ok(clean_text(stripped))
        return verdict.error is None and verdict.success is not False
    return bool(stripped) and not stripped[:6].lower().startswith("error:")
