"""What the processes of a sample say of each row. No state but the pool's token counter."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from kiseki.compress.job.pool import count_texts
from kiseki.compress.rows import Trajectory, read_trajectory
from kiseki.sampling.identity import what_is_said

Verdict = tuple[int, int] | str
"""(priority, tokens), or why it is no trajectory. Tokens are 0 where it did not matter how many there are."""


def judge(rows: Sequence[bytes], reach: int, seed: int, min_tokens: int) -> list[Verdict]:
    """Tokens are those of all turns' text, counted for rows with a priority below `reach` that can have `min_tokens`."""
    return [_judge(row, reach, seed, min_tokens) for row in rows]


def count_row(row: bytes) -> int:
    """Tokens of all turns' text."""
    return sum(count_texts([turn.text for turn in read_trajectory(row).turns]))


def _judge(row: bytes, reach: int, seed: int, min_tokens: int) -> Verdict:
    try:
        trajectory = read_trajectory(row)
    except ValueError as problem:
        return str(problem)
    turns = trajectory.turns
    if not turns:
        return "its conversation has no turns"
    drawn = priority(trajectory, seed)
    most = sum(len(turn.text.encode()) for turn in turns) + len(turns)  # no token is shorter than a byte
    if drawn >= reach or most < min_tokens:
        return drawn, 0
    return drawn, sum(count_texts([turn.text for turn in turns]))


def priority(trajectory: Trajectory, seed: int) -> int:
    """128 bits of a hash of the seed and of what the conversation says."""
    digest = hashlib.blake2b(f"{seed}\n".encode(), digest_size=16)
    digest.update(msgspec.json.encode(what_is_said(trajectory)))
    return int.from_bytes(digest.digest(), "big")
