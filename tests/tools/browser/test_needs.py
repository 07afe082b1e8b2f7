"""Which Chromium is used, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiseki.tools.browser.needs import find_browser, why_no_browser
from kiseki.tools.settings import ToolSettings


def program(path: Path) -> str:
    path.parent.mkdir(parents=True)
    path.write_text("")
    path.chmod(0o755)
    return str(path)


def test_playwrights_own_comes_first_then_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiseki.tools.browser.needs.missing_packages", lambda *names: "")
    environ = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}
    assert find_browser(environ) == ""
    assert "playwright install chromium" in why_no_browser(ToolSettings(), None, environ)
    system = program(tmp_path / "bin/chromium-browser")
    assert find_browser(environ) == system
    cache = tmp_path / ".cache/ms-playwright"
    shell = program(cache / "chromium_headless_shell-1300/chrome-headless-shell-linux64/chrome-headless-shell")
    assert find_browser(environ) == shell
    program(cache / "chromium-999/chrome-linux/chrome")
    newest = program(cache / "chromium-1255/chrome-linux64/chrome")
    assert find_browser(environ) == newest
    assert why_no_browser(ToolSettings(), None, environ) == ""
    assert find_browser(environ | {"PLAYWRIGHT_BROWSERS_PATH": str(tmp_path / "none")}) == system


def test_the_package_is_needed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiseki.tools.needs.find_spec", lambda name: None)
    assert "kiseki[browser]" in why_no_browser(ToolSettings(), None, {})
