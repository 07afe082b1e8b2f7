"""A run that draws and looks, as a user starts it: the file is in the sandbox, and no base64 in what is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import FAST, kiseki, read_rows, write_dataset

from kiseki.ledger.opening import open_ledger
from kiseki.models.mock_server import MockServer

FOUND = {"pattern": "*.png", "target": "files", "path": "~/artifacts"}
SCRIPT = [
    {
        "match": "Draw",
        "turns": [
            {"tool_calls": [{"name": "image_generate", "arguments": {"prompt": "a fox", "aspect_ratio": "portrait"}}]},
            {"tool_calls": [{"name": "search_files", "arguments": FOUND}]},
            {"tool_calls": [{"name": "vision_analyze", "arguments": {"image_url": "~/artifacts/image-1.png", "question": "?"}}]},
            {"content": "It is {{last_tool_result}}"},
        ],
    }
]


@pytest.mark.parametrize("engine", [FAST, ("--num_workers=1",)])
def test_a_run_draws_and_looks(tmp_path: Path, engine: tuple[str, ...]) -> None:
    (tmp_path / "pictures.yaml").write_text("vision: 100\nimage_gen: 100\nfile: 100\n")
    write_dataset(tmp_path / "d.jsonl", [{"prompt": "Draw a fox and look at it."}])
    with MockServer(SCRIPT) as server:
        kiseki(
            *("batch", "--dataset_file=d.jsonl", "--batch_size=1", "--run_name=r", "--distribution=pictures.yaml"),
            *("--model=m", f"--base_url={server.base_url}", f"--image_base_url={server.base_url}", "--vision_model=sees"),
            *("--reasoning_filter=off", "--sandbox=local", *engine),
            cwd=tmp_path,
        )
        stats = server.stats()
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    made, found, seen = (turn["value"] for turn in row["conversations"] if turn["from"] == "tool")
    assert '"width":1024,"height":1536,"model":"gpt-image-1"' in made and "artifacts/image-1.png" in made
    assert "image-1.png" in found
    assert '{"answer":"I see 1 image: PNG, 1024 x 1536 pixels.","model":"sees"}' in seen
    assert row["completed"] and row["tool_stats"]["vision_analyze"] == {"count": 1, "success": 1, "failure": 0}
    assert (stats["images_made"], stats["images_shown"], stats["calls"]) == (1, 1, 6)
    for file in ("trajectories.jsonl", "run.db"):
        assert b"base64" not in (tmp_path / "data/r" / file).read_bytes()
    with open_ledger(tmp_path / "data/r", create=False) as ledger:
        cost, tokens = ledger.spent()
    assert cost == pytest.approx(stats["cost"]) and tokens > 0
