"""Rows that cannot be run: each is named with its line and the reason, and costs nothing."""

from __future__ import annotations

import json
from pathlib import Path

from support import FAST, kiseki, light_tools, read_rows

from kiseki.models.mock_server import MockServer

JUNK: dict[bytes, str] = {
    b'"a string"': "the row is a string, not a JSON object",
    b"42": "the row is a number, not a JSON object",
    b"null": "not a JSON object",
    b'["prompt", "x"]': "not a JSON object",
    b'{"prompt": null}': "there is no 'prompt'",
    b'{"task": "no prompt"}': "there is no 'prompt'",
    b'{"prompt": ""}': "'prompt' is empty",
    b'{"prompt": " \\n "}': "'prompt' is empty",
    b'{"prompt": 5}': "'prompt' is a number",
    b'{"prompt": true}': "'prompt' is",
    b'{"prompt": {"text": "x"}}': "'prompt' is an object",
    b'{"prompt": []}': "do not end with the user's",
    b'{"prompt": [{"role": "assistant", "content": "x"}]}': "do not end with the user's",
    b'{"prompt": "%b"}' % (b"x" * 50_000_000): "longer than",
    b'{"prompt": "x", "image": 7}': "'image' is a number",
    b'{"prompt": "x", "docker_image": ["a"]}': "'docker_image' is",
    b'{"prompt": "x", "cwd": {}}': "'cwd' is an object",
    b'{"prompt": "caf\xe9"}': "not valid UTF-8",
    b'{"prompt": "torn': "not valid JSON",
    b"prompt: yaml": "not valid JSON",
    b"[" * 100_000: "not valid JSON",
}


def test_each_is_named_with_its_line_and_costs_nothing(tmp_path: Path) -> None:
    """A good row and a blank line after each of them, so that a count that is off by one would show."""
    with (tmp_path / "p.jsonl").open("wb") as file:
        for number, junk in enumerate(JUNK):
            file.write(junk + b"\n\n" + json.dumps({"prompt": f"good {number}"}).encode() + b"\n")
    with MockServer(turns=0) as server:
        flags = (
            "batch",
            "--dataset_file=p.jsonl",
            "--run_name=r",
            "--batch_size=9",
            f"--base_url={server.base_url}",
            "--model=m",
        )
        done = kiseki(*flags, *FAST, *light_tools(tmp_path), cwd=tmp_path)
        assert server.stats()["calls"] == len(JUNK)
    skipped = read_rows(tmp_path / "data/r/skipped_rows.jsonl")
    assert [row["line"] for row in skipped] == [3 * number + 1 for number in range(len(JUNK))]
    for row, reason in zip(skipped, JUNK.values(), strict=True):
        assert reason in row["reason"], row["reason"][:300]
        assert len(row["reason"]) < 500
    for row in skipped[:3]:
        assert f"p.jsonl line {row['line']}: skipped, {row['reason']}" in done.stdout
    assert f"unusable rows skipped: {len(JUNK)}" in done.stdout
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert [row["prompt"] for row in rows] == [f"good {number}" for number in range(len(JUNK))]
    kiseki("verify", "data/r", cwd=tmp_path)
