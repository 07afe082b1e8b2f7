"""A run whose only tools are those of MCP servers, as a user starts it."""

from __future__ import annotations

import json
from pathlib import Path

from mcp_servers import config, git, odd
from support import kiseki, read_rows, write_dataset

from kiseki.models.mock_server import MockServer

SECRET = "s3cret-word-of-mine"


def test_a_run_with_mcp_servers(tmp_path: Path) -> None:
    place = str(tmp_path / "repository")
    bad = odd(env={"FAIL": "${MY_WORD}"})
    servers = {"git": git(tmp_path / "repository"), "odd": odd(env={"WORD": "${MY_WORD}"}, scope="rollout"), "bad": bad}
    calls = [
        {"name": "mcp_git_git_status", "arguments": {"repo_path": place}},
        {"name": "mcp_odd_look", "arguments": {}},
        {"name": "mcp_odd_die", "arguments": {}},
        {"name": "mcp_git_git_log", "arguments": {}},
    ]
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(4)])
    (tmp_path / "tools.yaml").write_text("mcp-git: 100\nmcp-odd: 100\nmcp-bad: 100\n")
    script = [{"turns": [{"reasoning": "r", "tool_calls": [call]} for call in calls] + [{"content": "ok"}]}]
    with MockServer(script) as server:
        flags = ["batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=2", f"--base_url={server.base_url}"]
        flags += ["--model=m", "--api_key=k", "--distribution=tools.yaml", "--num_workers=1", "--concurrency=2"]
        flags += [f"--mcp_config={config(tmp_path, **servers)}"]
        refused = kiseki(*flags, cwd=tmp_path, status=2, MY_WORD=SECRET)
        assert "mcp-bad: the MCP server bad did not start" in refused.stderr and SECRET not in refused.stderr
        done = kiseki(*flags, "--skip_unavailable", cwd=tmp_path, MY_WORD=SECRET)
    assert SECRET not in done.stdout + done.stderr
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert len(rows) == 4
    for row in rows:
        assert row["completed"] and row["toolsets_used"] == ["mcp-git", "mcp-odd"]
        assert row["tool_stats"]["mcp_git_git_status"] == {"count": 1, "success": 1, "failure": 0}
        assert row["tool_stats"]["mcp_odd_die"] == {"count": 1, "success": 0, "failure": 1}
        assert row["tool_stats"]["mcp_git_git_log"] == {"count": 1, "success": 0, "failure": 1}
        assert row["tool_stats"]["mcp_git_git_commit"] == {"count": 0, "success": 0, "failure": 0}
        assert SECRET not in json.dumps(row) and "[redacted: secret of this run]" in json.dumps(row)
    assert all(SECRET.encode() not in file.read_bytes() for file in (tmp_path / "data/r").iterdir())
