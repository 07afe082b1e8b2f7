"""Which rows `--sample_percent` takes: as many as asked for, to within one, spread over the whole file, from the seed alone."""

from __future__ import annotations

import hashlib
from fractions import Fraction


def sampled(number: int, percent: float, seed: int) -> bool:
    """Whether row `number` (from 0) is in the sample: one row, drawn by `seed`, of every stretch of 100 / `percent` rows.

    Needs neither the number of rows nor the rows before it.
    """
    if percent >= 100.0:
        return True
    share = Fraction(str(percent)) / 100
    first = int(number * share)  # the stretch that the row begins in; it may reach into the next one
    return any(_drawn(stretch, share, seed) == number for stretch in (first, first + 1))


def _drawn(stretch: int, share: Fraction, seed: int) -> int:
    start = -(-stretch * share.denominator // share.numerator)
    end = -(-(stretch + 1) * share.denominator // share.numerator)
    digest = hashlib.blake2b(f"{seed}:{stretch}".encode(), digest_size=8).digest()
    return start + int.from_bytes(digest, "big") % max(1, end - start)
