"""How trajectories are compressed: one flat struct for the library and the flags, and the YAML file's sections that fill it."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from kiseki.errors import UsageError
from kiseki.models.endpoints import OPENROUTER_URL

Strategy = Literal["summary", "ladder", "segment"]
Placement = Literal["human", "tool", "first_human"]
Count = Literal["text", "chat_template"]

NOTICE = "Some turns in the middle of this conversation may have been replaced by a summary of what happened in them."

TEMPERATURE = 0.3


class CompressionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what comes out, and how it is computed. Raises `UsageError` for values that cannot be used."""

    target_max_tokens: int = 15_250
    """Tokens that a trajectory may have. Default: 15,250."""
    summary_target_tokens: int = 750
    """Tokens that a summary or digest should have at most. Default: 750."""
    strategy: Strategy = "summary"
    """`summary`: a model writes it; `ladder`: rules, no model; `segment`: several rows. Default: `summary`."""
    summary_placement: Placement = "human"
    """Where a summary or digest stands: as a turn of its own, in the tool turn before it, in the first human turn."""
    mark_summary: bool = False
    """Put loss flags on every turn, false on the summary: `train` (axolotl) and `loss` (ms-swift). Default: False."""

    tokenizer: str = "bundled"
    """Hugging Face id or folder, path of a tokenizer.json, `tiktoken:ENCODING`, or `bundled`. Default: `bundled`."""
    trust_remote_code: bool = False
    """Let a tokenizer's repository run its own code on this machine. Default: False."""
    count: Count = "text"
    """What is counted: the turns' text, or the conversation under the tokenizer's chat template. Default: `text`."""

    first_system: bool = True
    first_human: bool = True
    first_gpt: bool = True
    first_tool: bool = True
    last_n_turns: int = 4
    """Turns at the end that stay as they are. Default: 4."""

    model: str = "google/gemini-3-flash-preview"
    """The summariser. Default: google/gemini-3-flash-preview."""
    base_url: str = OPENROUTER_URL
    """API base of the summariser. Default: OpenRouter."""
    api_key_env: str = ""
    """Environment variable that holds the summariser's key. Default: by host, as everywhere (`OPENROUTER_API_KEY`, …)."""
    temperature: float | None = TEMPERATURE
    """Of the summariser. Default: 0.3, left out where the model takes no sampling settings. None: left out everywhere."""
    max_retries: int = 3
    """Requests after the first that a failed or unusable summary may cost. Default: 3."""
    retry_delay: float = 2.0
    """Seconds that the first of these waits at most; doubled for each further one, jittered. Default: 2."""

    add_summary_notice: bool = False
    """Say in the system turn of compressed rows that turns may be summaries. Default: False; it changes that turn."""
    summary_notice_text: str = NOTICE
    output_suffix: str = "_compressed"
    """What the output's name has more than the input's. Default: `_compressed`."""

    num_workers: int = 0
    """Processes that count and compress. Default: 0, one per core."""
    max_concurrent_requests: int = 50
    """Summaries asked for at once, at most. Default: 50."""
    skip_under_target: bool = True
    """Leave trajectories within the target alone. False: clean their tool outputs too (strategy `ladder`). Default: True."""
    save_over_limit: bool = True
    """Keep trajectories that could not be brought within the target. False: they go to the rejects. Default: True."""
    per_trajectory_timeout: float = 300.0
    """Seconds that a trajectory's summary may take, waits for rate limits not counted. Default: 300."""

    metrics: bool = True
    """Write the aggregate metrics file. Default: True."""
    metrics_per_trajectory: bool = True
    """Give each row its `compression_metrics`. Default: True."""
    metrics_file: str = ""
    """Name of the metrics file, beside the output. Default: the output's name with `_metrics.json`, or `compression_metrics.json`
    in an output folder."""

    def __post_init__(self) -> None:
        for name, choices in (("strategy", Strategy), ("summary_placement", Placement), ("count", Count)):
            if getattr(self, name) not in get_args(choices):
                raise UsageError(f"{name}: {getattr(self, name)!r} is none of {', '.join(get_args(choices))}")
        if self.api_key_env and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", self.api_key_env):  # not shown: it may be the key itself
            raise UsageError("api_key_env: it must be the name of an environment variable, as OPENROUTER_API_KEY, not the key")
        for name in ("output_suffix", "metrics_file"):
            value = getattr(self, name)
            if "/" in value or "\0" in value or value in (".", "..") or (name == "output_suffix" and not value):
                raise UsageError(f"{name}: {value!r} is not a {'part of a ' if name == 'output_suffix' else ''}file's name")
        for name, least in (
            ("target_max_tokens", 1),
            ("summary_target_tokens", 1),
            ("last_n_turns", 0),
            ("max_retries", 0),
            ("num_workers", 0),
            ("max_concurrent_requests", 1),
            ("temperature", 0),
            ("retry_delay", 0),
            ("per_trajectory_timeout", 0.001),
        ):
            if getattr(self, name) is not None and not least <= getattr(self, name) < math.inf:
                raise UsageError(f"{name}: {getattr(self, name)!r} is not a number from {least:g} on")


DECIDING = (
    *("strategy", "target_max_tokens", "summary_target_tokens", "summary_placement", "mark_summary", "skip_under_target"),
    *("tokenizer", "count", "first_system", "first_human", "first_gpt", "first_tool", "last_n_turns"),
    *("add_summary_notice", "summary_notice_text"),
)
"""Settings that decide what comes of a row, but for what a model writes."""


def digest_of(config: CompressionConfig) -> str:
    """Of the settings that decide what comes of a row."""
    values = [getattr(config, name) for name in DECIDING]
    return hashlib.blake2b(msgspec.json.encode(values), digest_size=4).hexdigest()


# section → key in the file → field; a key that is not here is an error
SECTIONS: dict[str, dict[str, str]] = {
    "tokenizer": {"name": "tokenizer", "trust_remote_code": "trust_remote_code", "count": "count"},
    "compression": {
        name: name for name in ("target_max_tokens", "summary_target_tokens", "strategy", "summary_placement", "mark_summary")
    },
    "protected_turns": {name: name for name in ("first_system", "first_human", "first_gpt", "first_tool", "last_n_turns")},
    "summarization": {name: name for name in ("model", "base_url", "api_key_env", "temperature", "max_retries", "retry_delay")},
    "output": {name: name for name in ("add_summary_notice", "summary_notice_text", "output_suffix")},
    "processing": {
        name: name
        for name in (
            "num_workers",
            "max_concurrent_requests",
            "skip_under_target",
            "save_over_limit",
            "per_trajectory_timeout",
        )
    },
    "metrics": {"enabled": "metrics", "per_trajectory": "metrics_per_trajectory", "output_file": "metrics_file"},
}


def read_config(path: Path | None, **flags: Any) -> CompressionConfig:
    """The settings of a YAML file, with `flags` (those that are not None) in place of its values.

    Raises `UsageError` for a file that is not there or not YAML, an unknown section or key, and a value of the wrong type.
    """
    values = _from_yaml(path) if path else {}
    values |= {name: value for name, value in flags.items() if value is not None}
    try:
        return msgspec.convert(values, CompressionConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path or 'settings'}: {error}") from error


def _from_yaml(path: Path) -> dict[str, Any]:
    import difflib

    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--config: there is no file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--config: cannot read {path}: {error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"--config: {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"--config: {path} is not a mapping of sections; its sections are {', '.join(SECTIONS)}")
    values: dict[str, Any] = {}
    for section, keys in document.items():
        known = SECTIONS.get(section)
        if known is None:
            close = difflib.get_close_matches(str(section), SECTIONS, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SECTIONS)}"
            raise UsageError(f"--config: {path}: unknown section {section!r}; {hint}")
        if keys is None:
            continue
        if not isinstance(keys, dict):
            raise UsageError(f"--config: {path}: section {section!r} is not a mapping; its keys are {', '.join(known)}")
        for key, value in keys.items():
            if key not in known:
                close = difflib.get_close_matches(str(key), known, 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
                raise UsageError(f"--config: {path}: unknown key {section}.{key}; {hint}")
            field = CompressionConfig.__annotations__[known[key]]
            values[known[key]] = _typed(value, field, f"--config: {path}: {section}.{key}")
    return values


OR_NULL = " | None"
"""How the kind of a field ends that may be null."""


def _typed(value: Any, kind: str, where: str) -> Any:
    """`value` where it is of its field's kind. Raises `UsageError` with the key's name."""
    kinds: dict[str, tuple[type, str]] = {
        "int": (int, "a whole number"),
        "float": (float, "a number"),
        "bool": (bool, "true or false"),
    }
    wanted, words = kinds.get(kind.removesuffix(OR_NULL), (str, "text"))
    if kind.endswith(OR_NULL):
        if value is None:
            return None
        words += " or null"
    fits = isinstance(value, wanted) or (wanted is float and isinstance(value, int))
    if not fits or (isinstance(value, bool) and wanted is not bool):
        raise UsageError(f"{where}: {value!r} is not {words}")
    return float(value) if wanted is float else value
