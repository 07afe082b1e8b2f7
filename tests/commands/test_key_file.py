"""Keys in `.env`: used, never shown, and nothing else is taken from there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import kiseki, write_dataset

from kiseki.commands.key_file import load_keys
from kiseki.errors import UsageError
from kiseki.models.mock_server import MockServer

KEY = "sk-from-the-file-0123456789"
FLAGS = ("--batch_size=5", "--run_name=r", "--distribution=minimal", "--skip_unavailable", "--model=m")


def test_a_runs_key_and_that_it_shows_nowhere(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f'export OPENROUTER_API_KEY="{KEY}"  # mine\nOTHER=1\n')
    (tmp_path / "mine.yaml").write_text("terminal: 100\n")
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "what is in the environment?"}])
    script = [
        {"turns": [{"tool_calls": [{"name": "terminal", "arguments": {"command": "env"}}]}, {"content": "{{last_tool_result}}"}]}
    ]
    with MockServer(script, record=9) as server:
        flags = ("--dataset_file=p.jsonl", *FLAGS, "--distribution=mine.yaml", f"--base_url={server.base_url}")
        done = kiseki("batch", *flags, cwd=tmp_path)
        seen = server.stats(log=True)["log"]
    assert len(seen) == 2
    files = [each for each in (tmp_path / "data").rglob("*") if each.is_file()]
    assert files and not [each for each in files if KEY.encode() in each.read_bytes()]
    assert KEY not in done.stdout + done.stderr


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENROUTER_API_KEY", "HF_TOKEN", "LD_PRELOAD", "PATH_EXTRA"):
        monkeypatch.setenv(name, "x")  # so that it is as before after the test
        monkeypatch.delenv(name)


def test_only_keys_are_taken_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "from the shell")
    (tmp_path / ".env").write_text("OPENROUTER_API_KEY=a$b${HOME}\nHF_TOKEN=from the file\nLD_PRELOAD=/evil.so\nPATH_EXTRA=/x\n")
    monkeypatch.setenv("OPENROUTER_API_KEY", "")  # as good as not set
    load_keys(tmp_path)
    assert os.environ["OPENROUTER_API_KEY"] == "a$b${HOME}"
    assert os.environ["HF_TOKEN"] == "from the shell"
    assert "LD_PRELOAD" not in os.environ and "PATH_EXTRA" not in os.environ


def test_a_folder_of_that_name_is_none_and_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "venv/.env").mkdir(parents=True)
    load_keys(tmp_path / "venv")
    (tmp_path / ".env").write_bytes(b"OPENROUTER_API_KEY=\xff\xfe\n")
    with pytest.raises(UsageError, match=r"\.env cannot be read"):
        load_keys(tmp_path)


def test_a_key_goes_to_its_own_host_alone(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OPENROUTER_API_KEY={KEY}\n")
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "x"}])
    done = kiseki("batch", "--dataset_file=p.jsonl", *FLAGS, "--base_url=https://api.openai.com/v1", cwd=tmp_path, status=2)
    assert "No API key for api.openai.com: set OPENAI_API_KEY" in done.stderr
