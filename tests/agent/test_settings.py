"""What is secret in a run."""

from __future__ import annotations

from kiseki.agent.settings import RolloutSettings, secrets_of_run
from kiseki.models.endpoints import ModelSettings
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.redact import redact

BODY = {
    "api_key": "Kx93-horse-battery-77",
    "options": [{"api_key": "Zq41-other-battery-55", "AUTH_TOKEN": 7, "secret_key": {"note": "not-a-string-under-1-name"}}],
    "service_tier": "flexible-tier-20",
}


def test_secrets_in_an_extra_body_are_secrets_of_the_run() -> None:
    said = "Kx93-horse-battery-77 Zq41-other-battery-55"
    kept = "flexible-tier-20"
    secrets = secrets_of_run(RolloutSettings(ModelSettings("m", extra_body=BODY), SandboxSettings()))
    text, count = redact(f"{said} {kept}", secrets)
    assert count == 2 and text.endswith(kept) and not any(each in text for each in said.split())
