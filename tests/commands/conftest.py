"""`kiseki models check` as a function."""

from __future__ import annotations

import pytest
from commands.checked import Check, Found

from kiseki.commands.main import main


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    def run(base_url: str, *flags: str, model: str = "m") -> Found:
        status = main(["models", "check", "--json", f"--model={model}", f"--base_url={base_url}", *flags])
        said = capsys.readouterr()
        return Found(status, said.out, said.err)

    return run
