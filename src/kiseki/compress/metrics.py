"""What compression did to one trajectory. Names and layout are the contract with users (`docs/compression.md`)."""

from __future__ import annotations

import msgspec


class Region(msgspec.Struct, frozen=True):
    """Turns of the original conversation that a summary or digest stands for; -1 where there is none."""

    start_idx: int = -1
    end_idx: int = -1
    """The first turn after them."""
    turns_count: int = 0


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Of one row: `compression_metrics`. Every key in every row, so that loaders infer one type."""

    original_tokens: int
    compressed_tokens: int
    tokens_saved: int = 0
    """Of a segment: what was left out of its outputs. What other segments have is not saved, and `turns_removed` is 0."""
    compression_ratio: float = 1.0
    """`compressed_tokens / original_tokens`."""
    original_turns: int
    compressed_turns: int
    turns_removed: int = 0
    compression_region: Region = Region()
    was_compressed: bool = False
    still_over_limit: bool = False
    skipped_under_target: bool = False
    summarization_api_calls: int = 0
    summarization_errors: int = 0
    strategy: str
    target_max_tokens: int
    tokenizer: str
    """What counted, as `bundled (o200k_base)`."""
    settings: str
    """Digest of all settings that decide what comes out."""
    observations_cleaned: int = 0
    observations_repeated: int = 0
    """Repeated observations and superseded file views that became a pointer."""
    observations_cut: int = 0
    observations_masked: int = 0
    units_digested: int = 0
    """Units (a gpt turn with its tool turns) that the digest stands for."""
    segment_index: int = 0
    segment_count: int = 1
    error: str = ""
    """Why the row stayed as it was although it is over the target; "" where nothing went wrong."""
