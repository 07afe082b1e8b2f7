"""The compressor as a library."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import MappingProxyType

import pytest
from compress.trajectories import make_row, shell

from kiseki.compress import CompressionConfig, compress_trajectory
from kiseki.errors import UsageError
from kiseki.models.mock_server import MockServer

ROW = make_row([shell("ls", "word " * 100)] * 8, note={"kept": 1})
CONFIG = CompressionConfig(target_max_tokens=900, summary_target_tokens=100)


def test_ladder_and_segments() -> None:
    done = compress_trajectory(MappingProxyType(ROW), CompressionConfig(target_max_tokens=900, strategy="ladder"))
    assert done.row["compression_metrics"]["compressed_tokens"] == done.metrics[0].compressed_tokens <= 900
    assert done.row["note"] == ROW["note"] and len(done.rows) == 1
    assert len(compress_trajectory(ROW, CompressionConfig(target_max_tokens=900, strategy="segment")).rows) > 1
    assert compress_trajectory(ROW).row["conversations"] == ROW["conversations"], "it is within the default target"


def test_a_summary_by_a_function() -> None:
    asked: list[str] = []

    def summarize(request: str) -> str:
        asked.append(request)
        return "All files were listed."

    done = compress_trajectory(ROW, CONFIG, summarize=summarize)
    assert "[CONTEXT SUMMARY]: All files were listed." in [turn["value"] for turn in done.row["conversations"]]
    assert len(asked) == 1 and done.metrics[0].summarization_api_calls == 1
    empty = compress_trajectory(ROW, CONFIG, summarize=lambda request: " ")
    assert empty.row["conversations"] == ROW["conversations"] and "empty" in empty.metrics[0].error
    with pytest.raises(TypeError, match="returned NoneType, not text"):
        compress_trajectory(ROW, CONFIG, summarize=lambda request: None)  # type: ignore[arg-type, return-value]


def test_the_settings_model_is_asked_also_inside_a_running_loop() -> None:
    async def inside(config: CompressionConfig) -> int:
        return compress_trajectory(ROW, config).metrics[0].compressed_tokens

    with MockServer(turns=0) as server:
        config = CompressionConfig(target_max_tokens=900, summary_target_tokens=100, model="mock", base_url=server.base_url)
        assert asyncio.run(inside(config)) <= 900
        assert server.stats()["calls"] == 1


def test_what_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(UsageError, match="OPENROUTER_API_KEY"):
        compress_trajectory(ROW, CONFIG)
    with pytest.raises(ValueError, match="no conversation"):
        compress_trajectory({"prompt": "x"}, CONFIG)
    with pytest.raises(UsageError, match="nowhere"):
        compress_trajectory(ROW, CompressionConfig(tokenizer=str(tmp_path / "nowhere")))
    assert compress_trajectory({"messages": [{"role": "user", "content": "\ud83d"}]}).row["messages"][0]["content"] == "\ufffd"
