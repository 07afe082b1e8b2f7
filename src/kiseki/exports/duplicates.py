"""Examples that say what an earlier one says: `--dedup`. Only those that were written count as earlier ones.

`exact`: the same conversation but for the system's turns: roles, contents, reasoning, names and arguments of calls, results, each
with runs of blanks as one and in Unicode's form NFC. Ids, schemas and metadata do not count.

`near`: the sets of 5 words in a row (`words.py`) of all that is said in the two, but by the system, and of the URLs of images
have a Jaccard similarity of 0.8 or more, estimated by MinHash (Broder 1997) with 128 hash functions, which is off by 0.035 (one
standard deviation) at 0.8. Candidates share one of 16 bands of 8 hashes: a pair at 0.8 is found in 95 of 100 cases, one at 0.9
always but for 1 in 10,000. At most 64 candidates of a band are looked at.
"""

from __future__ import annotations

import hashlib
import sqlite3
import unicodedata
import zlib
from typing import Any, Protocol

import msgspec

from kiseki.errors import UsageError
from kiseki.exports.words import texts, words
from kiseki.formats.images import urls
from kiseki.trajectory.example import Example

INSTALL = "pip install 'kiseki[export]'"
SHINGLE_WORDS = 5
SIMILAR = 0.8
HASHES, BANDS = 128, 16
MOST_CANDIDATES = 64
"""Of one band: what many examples have in common says nothing, and comparing with all of them would take for ever."""
_AT_ONCE = 512
"""Shingles that are hashed at a time: 512 KB, which stays in a processor's cache."""


class Duplicates(Protocol):
    """What was written, to be compared with. `sign` what is asked about first."""

    def sign(self, example: Example) -> Any:
        """What stands for an example in the other two."""

    def find(self, signature: Any) -> str:
        """The key of an example that was added and says the same; "" where none does."""

    def add(self, signature: Any, key: str) -> None: ...


class ExactDuplicates:
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.execute("CREATE TABLE exact (digest BLOB PRIMARY KEY, key TEXT) WITHOUT ROWID")

    def sign(self, example: Example) -> bytes:
        said = hashlib.blake2b(digest_size=16)
        for message in example.messages:
            if message.role != "system":
                calls = [text for call in message.tool_calls for text in (call.name, call.arguments)]
                images = [image.url for image in message.images]
                for text in (message.role, message.reasoning, message.content, *calls, *images):
                    said.update(" ".join(unicodedata.normalize("NFC", text).split()).encode() + b"\0")
                said.update(b"\1%d" % len(calls))
        return said.digest()

    def find(self, signature: bytes) -> str:
        found = self._database.execute("SELECT key FROM exact WHERE digest = ?", (signature,)).fetchone()
        return str(found[0]) if found else ""

    def add(self, signature: bytes, key: str) -> None:
        self._database.execute("INSERT INTO exact VALUES (?, ?)", (signature, key))


class MinHash(msgspec.Struct, frozen=True):
    hashes: Any
    """`numpy.uint32`, one for each hash function."""
    bands: list[int]
    """A number for what is in each band."""


class NearDuplicates:
    """Raises `UsageError` where numpy is not installed."""

    def __init__(self, database: sqlite3.Connection) -> None:
        try:
            import numpy
        except ImportError:
            raise UsageError(f"--dedup=near needs numpy: {INSTALL}") from None
        self._np = numpy
        self._database = database
        database.execute("CREATE TABLE near (id INTEGER PRIMARY KEY, hashes BLOB, key TEXT)")
        database.execute("CREATE TABLE bands (band INTEGER, id INTEGER, PRIMARY KEY (band, id)) WITHOUT ROWID")
        # fixed, so that the same rows give the same data: multiply-shift hashing (Dietzfelbinger et al. 1997), odd multipliers
        drawn = b"".join(hashlib.blake2b(b"%d" % number, digest_size=16).digest() for number in range(HASHES))
        pairs = numpy.frombuffer(drawn, "<u8").reshape(HASHES, 2)
        self._multipliers, self._offsets = pairs[:, :1] | numpy.uint64(1), pairs[:, 1:]  # columns: a row for each function

    def sign(self, example: Example) -> MinHash:
        np = self._np
        told = [word for text in texts(example) for word in words(text)]
        said = [zlib.crc32(word.encode()) for word in told + urls(example) * SHINGLE_WORDS]
        said += [0] * (SHINGLE_WORDS - len(said))
        numbers = np.array(said, np.uint64)
        count = len(said) - SHINGLE_WORDS + 1
        shingles = np.zeros(count, np.uint64)
        for at in range(SHINGLE_WORDS):
            shingles = self._mixed(shingles, numbers[at : at + count])
        shingles = np.unique(shingles)
        least: Any = np.full(HASHES, 2**64 - 1, np.uint64)
        for start in range(0, len(shingles), _AT_ONCE):
            hashed = self._multipliers * shingles[start : start + _AT_ONCE] + self._offsets
            least = np.minimum(least, hashed.min(axis=1))
        least = (least >> np.uint64(32)).astype(np.uint32)
        bands = np.arange(BANDS, dtype=np.uint64)  # the number of each is mixed in: equal hashes in two bands mean nothing
        for row in least.reshape(BANDS, -1).T:
            bands = self._mixed(bands, row.astype(np.uint64))
        return MinHash(least, bands.view(np.int64).tolist())  # SQLite's integers have a sign

    def find(self, signature: MinHash) -> str:
        seen: set[int] = set()
        for band in signature.bands:
            query = "SELECT id FROM bands WHERE band = ? ORDER BY id LIMIT ?"
            for (number,) in self._database.execute(query, (band, MOST_CANDIDATES)).fetchall():
                if number not in seen:
                    seen.add(number)
                    hashes, key = self._database.execute("SELECT hashes, key FROM near WHERE id = ?", (number,)).fetchone()
                    if (self._np.frombuffer(hashes, self._np.uint32) == signature.hashes).mean() >= SIMILAR:
                        return str(key)
        return ""

    def add(self, signature: MinHash, key: str) -> None:
        hashes = signature.hashes.tobytes()
        number = self._database.execute("INSERT INTO near (hashes, key) VALUES (?, ?)", (hashes, key)).lastrowid
        self._database.executemany("INSERT INTO bands VALUES (?, ?)", [(band, number) for band in signature.bands])

    def _mixed(self, mixed: Any, numbers: Any) -> Any:
        """64 bits that depend on all that was mixed in before, and in what order."""
        mixed = (mixed ^ numbers) * self._np.uint64(0x9E3779B97F4A7C15)
        return mixed ^ (mixed >> self._np.uint64(29))
