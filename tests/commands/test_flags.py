"""The command line as a new user meets it: one clear line when something is wrong, before anything is created."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import REPOSITORY, environment, kiseki, read_rows, write_dataset

from kiseki.commands.main import main
from kiseki.models.mock_server import MockServer

BASE = ("--dataset_file=p.jsonl", "--batch_size=2", "--run_name=r", "--model=builtin/practice")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "What is 2 + 2?"}])
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "junk.jsonl").write_text('5\n{"prompt": ""}\n')
    (tmp_path / "image.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "docker_image": "debian:12"}\n')
    (tmp_path / "p.parquet.gz").write_bytes(b"")
    (tmp_path / "prefill.json").write_text('[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]')
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "typo.yaml").write_text("termnal: 100\n")
    (tmp_path / "bad.yaml").write_text("terminal: 120\n")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "missing --dataset_file, --batch_size, --run_name"),
        ((*BASE, "--dataset_file=nope.jsonl"), "dataset file not found: nope.jsonl"),
        ((*BASE, "--dataset_file=."), "is a folder"),
        ((*BASE, "--dataset_file=empty.jsonl"), "no usable row"),
        ((*BASE, "--dataset_file=p.parquet.gz"), "a parquet file is read as it is, not inside .gz"),
        ((*BASE, "--dataset_file=junk.jsonl"), "no usable row (2 unusable; line 1: the row is a number"),
        ((*BASE, "--dataset_file=image.jsonl"), "row 1 (from 0) asks for image 'debian:12'"),
        ((*BASE, "--distribution=defualt"), "did you mean default?"),
        (
            (*BASE, "--distribution=minimal", "--search_provider=brave"),
            "no toolset of distribution 'minimal' is available (web: --search_provider=brave needs BRAVE_API_KEY",
        ),
        ((*BASE, "--distribution=bad.yaml"), "bad.yaml"),
        ((*BASE, "--batch_sise=5"), "unknown flag --batch_sise=5; did you mean --batch_size?"),
        ((*BASE, "--batch-size", "0"), "--batch_size: '0' cannot be used: it must be at least 1"),
        ((*BASE, "--max_turns=many"), "--max_turns: 'many' cannot be used: a whole number is needed"),
        ((*BASE, "--resume=perhaps"), "--resume: 'perhaps' is neither true nor false"),
        ((*BASE, "--engine=rai"), "--engine: 'rai' cannot be used"),
        ((*BASE, "stray"), "unknown argument stray"),
        ((*BASE, "--run_name=../up"), "--run_name must be a plain folder name"),
        ((*BASE, "--run_name=/tmp/up"), "--run_name must be a plain folder name"),
        ((*BASE, "--model=builtin/other"), "no built-in model 'builtin/other'"),
        ((*BASE, "--tools=nope.py"), "nope.py: there is no such file"),
        ((*BASE, "--tools=bad.py"), "bad.py, line 1"),
        ((*BASE, "--prefill_messages_file=p.jsonl"), "p.jsonl must be a list of {role, content}: it is an object"),
        ((*BASE, "--model=x/y", "--distribution=terminal_only"), "OPENROUTER_API_KEY"),
        ((*BASE, "--model=x/y", "--dataset_file=nope.jsonl"), "dataset file not found"),
        ((*BASE, "--model=x/y", "--distribution=defualt"), "did you mean default?"),
        ((*BASE, "--distribution=typo.yaml"), "did you mean terminal?"),
        ((*BASE, "--model=m", "--base_url=http://u:secret@127.0.0.1:9/v1", "--skip_unavailable"), "must not hold a user name"),
        ((*BASE, "--output_dir=p.jsonl/under"), "--output_dir names another place"),
        ((*BASE, "--model=x/y", "--base_url=https://api.openai.com/v1", "--skip_unavailable"), "OPENAI_API_KEY"),
        ((*BASE, "--model=x/y", "--api_key=k"), "image_gen: one of FAL_KEY, OPENROUTER_API_KEY, OPENAI_API_KEY"),
        ((*BASE, "--model=m", "--base_url=http://127.0.0.1:9/v1", "--skip_unavailable", "--providers_order=a"), "OpenRouter"),
        ((*BASE, "--model=x/y", "--api_key=k", "--skip_unavailable", "--reasoning_effort=huge"), "huge"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(folder: Path, flags: tuple[str, ...], says: str) -> None:
    done = kiseki("batch", *flags, cwd=folder, status=2)
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert not (folder / "data" / "r").exists(), "nothing is created"
    assert "secret" not in done.stderr


def test_flags_in_every_spelling(folder: Path) -> None:
    spelled = ("--dataset-file", "p.jsonl", "--batch-size=2", "--run_name", "r", "--model=builtin/practice", "--num-workers", "1")
    kiseki("batch", *spelled, "--verbose", "--resume=false", cwd=folder)
    kiseki("batch", *spelled, "--resume", "true", cwd=folder)
    kiseki("batch", *spelled, "--resume", "False", cwd=folder, status=2)


def test_list_distributions_needs_no_other_flag(folder: Path) -> None:
    lines = kiseki("batch", "--list_distributions", cwd=folder).stdout.splitlines()
    assert len(lines) == 18
    assert any(line.split() == ["terminal_only", "terminal", "100,", "file", "100"] for line in lines)


@pytest.mark.parametrize("script", ["batch_runner.py", "run_agent.py"])
def test_scripts_are_the_subcommands(folder: Path, script: str) -> None:
    command = [sys.executable, str(REPOSITORY / script)]
    done = subprocess.run([*command, "--help"], cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0
    assert "examples:" in done.stdout
    done = subprocess.run([*command, "--typo"], cwd=folder, env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("kiseki: ")


def test_unknown_commands_and_help(folder: Path) -> None:
    assert "did you mean batch?" in kiseki("bach", cwd=folder, status=2).stderr
    assert "usage: kiseki COMMAND" in kiseki(cwd=folder).stdout
    assert kiseki("--version", cwd=folder).stdout.startswith("kiseki ")
    assert "has no run.db" in kiseki("merge", ".", cwd=folder, status=2).stderr


def test_the_agent_command_saves_trajectories_and_samples(folder: Path) -> None:
    flags = ("agent", "--query", "What is 17 * 23?", "--model=builtin/practice", "--save_trajectories", "--save_sample")
    done = kiseki(*flags, "--sandbox=local", cwd=folder)
    assert "391" in done.stdout
    kiseki(*flags, cwd=folder)
    rows = read_rows(folder / "trajectory_samples.jsonl")
    assert len(rows) == 2
    assert list(rows[0]) == ["conversations", "timestamp", "model", "completed"]
    assert rows[0]["completed"] is True
    assert [turn["from"] for turn in rows[0]["conversations"]][:3] == ["system", "human", "gpt"]
    (first, _second) = sorted(folder.glob("sample_*.json"))
    assert '"query": "What is 17 * 23?"' in first.read_text()
    kiseki(*flags, "--max_turns=1", cwd=folder)
    (failed,) = read_rows(folder / "failed_trajectories.jsonl")
    assert failed["completed"] is False


def test_the_agent_command_lists_tools_and_refuses(folder: Path) -> None:
    listed = kiseki("agent", "--list_tools", cwd=folder).stdout
    for word in ("terminal", "read_file", "todo", "not available: --skills_dir"):
        assert word in listed
    base = ("agent", "--model=builtin/practice")
    assert "missing --query" in kiseki(*base, cwd=folder, status=2).stderr
    assert "'skills' is not available" in kiseki(*base, "--query=x", "--enabled_toolsets=skills", cwd=folder, status=2).stderr
    assert "did you mean file?" in kiseki(*base, "--query=x", "--enabled_toolsets=fil", cwd=folder, status=2).stderr
    assert "did you mean file?" in kiseki(*base, "--query=x", "--disabled_toolsets=fil", cwd=folder, status=2).stderr


def test_the_agent_command_takes_a_prefill_file(folder: Path) -> None:
    with MockServer(turns=0, record=1) as server:
        flags = ("--query=ask", "--model=m", f"--base_url={server.base_url}", "--enabled_toolsets=todo")
        kiseki("agent", *flags, "--prefill_messages_file=prefill.json", cwd=folder)
        (request,) = server.stats(log=True)["log"]
    sent = [(each["role"], each["content"]) for each in request["body"]["messages"]]
    assert sent == [("user", "a"), ("assistant", "b"), ("user", "ask")]


@pytest.mark.parametrize("command", ["agent", "batch", "merge"])
def test_only_a_batch_is_told_to_resume(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped_by(error: BaseException) -> tuple[int, str]:
        def stopped(arguments: object) -> int:
            raise error

        monkeypatch.setattr(f"kiseki.commands.{command}.main", stopped)
        return main([command]), capsys.readouterr().err

    saved = "; what was done before is saved, the same command with --resume goes on" if command == "batch" else ""
    assert stopped_by(KeyboardInterrupt()) == (130, f"kiseki: interrupted{saved}\n")
    assert stopped_by(OSError(28, "No space left on device", "f")) == (1, f"kiseki: f: No space left on device{saved}\n")
