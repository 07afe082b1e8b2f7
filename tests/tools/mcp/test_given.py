"""What servers are given is taken out of results, whatever the names under which they get it."""

from __future__ import annotations

from kiseki.agent.settings import RolloutSettings, secrets_of_run
from kiseki.models.endpoints import ModelSettings
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.redact import redact
from kiseki.tools.settings import McpServer, ToolSettings

SERVER = McpServer(
    "s",
    env={"DSN": "Kx93-secret-of-ours", "MODE": "verbose", "ENDPOINT": "https://api.example.org/v1"},
    headers={"Authorization": "Bearer hq7-Zk2-opaque", "Accept": "application/json"},
    secrets=("from-a-variable-77",),
)


def test_values_are_secret_and_words_are_not() -> None:
    settings = RolloutSettings(ModelSettings("m"), SandboxSettings(), tools=ToolSettings(mcp_servers=(SERVER,)))
    said = "Kx93-secret-of-ours hq7-Zk2-opaque from-a-variable-77"
    kept = "Bearer verbose https://api.example.org/v1 application/json"
    text, count = redact(f"{said} {kept}", secrets_of_run(settings))
    assert count == 3 and text.endswith(kept)
    assert not any(secret in text for secret in said.split())
