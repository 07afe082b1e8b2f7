"""`clean`: what nobody reads goes, the rest stays; never longer, the same again, in linear time."""

from __future__ import annotations

import base64
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kiseki
from kiseki.compress.ladder.observations import clean

BYTES = random.Random(5).randbytes(900)
ENCODED = base64.b64encode(BYTES).decode()


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[1;31mFAILED\x1b[0m tests/a.py", "FAILED tests/a.py"),
        ("\x1b]0;a title\x07$ ls\x1b]8;;http://x\x1b\\", "$ ls"),
        ("\x1b(B\x1b[?25lready\x1b[?25h", "ready"),
        ("at \x1b[\x1b[0m0m the end \x1b", "at 0m the end"),
        ("0%\r50%\r100%\ndone", "100%\ndone"),
        ("loading\r       \rready\r\nnext\r\n", "ready\nnext\n"),
        (
            " 1%|▏   | 1/99 [00:01<01:38]\n45%|███ | 45/99 [00:45<00:54]\n100%|████| 99/99 [01:39]\nok",
            "100%|████| 99/99 [01:39]\nok",
        ),
        ("   ━━━━━━━━╸━━━━ 1.2/3.4 MB\n   ━━━━━━━━━━━━━ 3.4/3.4 MB\nInstalled", "   ━━━━━━━━━━━━━ 3.4/3.4 MB\nInstalled"),
        (
            "a1b2c3d4e5f6: Waiting\na1b2c3d4e5f6: Downloading [=>   ] 1MB/9MB\na1b2c3d4e5f6: Pull complete\nx",
            "a1b2c3d4e5f6: Pull complete\nx",
        ),
        ("Receiving objects:  12% (1/8)\nReceiving objects: 100% (8/8), done.\nx", "Receiving objects: 100% (8/8), done.\nx"),
        ("Downloading model: 10%\nDownloading model: 55.5%\nDownloading model: 100%\n", "Downloading model: 100%\n"),
        (f"<img src='data:image/png;base64,{ENCODED}'>", f"<img src='[data URI image/png: {len(ENCODED) + 22:,} characters]'>"),
        (f'{{"png": "{ENCODED}"}}', '{"png": "[base64 data: 1,200 characters]"}'),
        (f"digest {BYTES[:100].hex()}{BYTES[:9].hex()}.", "digest [hexadecimal data: 218 characters]."),
        (f"--BEGIN--\n{base64.encodebytes(BYTES).decode()}--END--", "--BEGIN--\n[base64 data: 1,200 characters]\n--END--"),
        ("a warning of the linker\n" * 40 + "linked", "a warning of the linker\n[same line 39 more times]\nlinked"),
        ("a  \t\n\n\n\n\nb\n", "a\n\nb\n"),
    ],
)
def test_noise_goes(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    "text",
    [
        "def a():\n    return 1\n\n\ndef b():\n\treturn {\n\t\t'x': 100 % 7,\n\t}\n",
        '{\n  "a": [\n    1,\n    2\n  ],\n  "b": "50%"\n}',
        "Name     Stmts  Cover\n---------------------\nload.py    100    95%\ncopy.py     80    90%\nTOTAL      180    93%\n",
        "tests/test_load.py ........    [ 45%]\ntests/test_copy.py ........    [100%]\n",
        "| a | b |\n|---|---|\n| 10% | 1 |\n| 20% | 2 |\n",
        "│ rich │ table │\n├──────┼───────┤\n│ 1    │ 2     │\n",
        "drwxr-xr-x  2 root root 4096 Jan  1 00:00 .\n-rw-r--r--  1 root root    0 Jan  1 00:00 a\n",
        "}\n}\n}\n}\n0\n0\n0\n",
        f"{'0' * 400} {'ACGT' * 100} {'a/long/path' * 40} {'1234567890' * 30} {'-' * 300}",
        "\n".join(f"{number:064x}" for number in range(2**250, 2**250 + 9)),
        f"sha512: {BYTES[:64].hex()}",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert clean(text) == text


def test_our_own_source_stays() -> None:
    for path in sorted(Path(kiseki.__file__).parent.rglob("*.py")):
        text = path.read_text()
        assert clean(text) == text, path


CODES = ("\x1b", "\x1b[", "\x1b]0;", "0m", "\x07", "\x1b\\", "\r", "\n", " ", "\t", "x", "=")
BARS = ("9%|", "█|", "[====    ] 12", "abcdef012345: Pulling\n", "same line as before here\n", "[same line 4 more times]\n")
DATA = (ENCODED[:76] + "\n", ENCODED[:120], BYTES[:101].hex(), "data:a/b;base64,")
NOISE = st.sampled_from(CODES + BARS + DATA)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(NOISE, st.integers(1, 5)) | st.tuples(st.text(max_size=5), st.just(1)), max_size=25))
def test_never_longer_and_the_same_again(pieces: list[tuple[str, int]]) -> None:
    text = "".join(piece * times for piece, times in pieces)
    cleaned = clean(text)
    assert len(cleaned) <= len(text)
    assert clean(cleaned) == cleaned


@pytest.mark.parametrize(
    "piece",
    ["a", " ", "\x1b[", "\x1b]a", "\x1bP0", "a\r", "aB3/", "data:a/b;", "9%|", "[=", "%\n", "aB3 ", "\n", "downloading 9%"],
)
def test_a_line_of_megabytes_does_not_hang(piece: str) -> None:
    text = piece * (2_000_000 // len(piece)) + "x"  # what is not linear takes minutes, and the suite's time limit
    assert len(clean(text)) <= len(text)
