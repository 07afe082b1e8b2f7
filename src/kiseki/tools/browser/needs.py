"""Whether there is a browser, and which."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from kiseki.models.endpoints import ModelSettings
from kiseki.tools.needs import missing_packages
from kiseki.tools.settings import ToolSettings

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_INSTALLED = (
    "chromium-*/chrome-linux*/chrome",
    "chromium_headless_shell-*/chrome-*/*headless*shell",
    "chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
)
"""What `playwright install chromium` puts into its folder, best first: with that one, the package was tested."""


def find_browser(environ: Mapping[str, str]) -> str:
    """Path of a Chromium, "" where there is none."""
    for pattern in _INSTALLED:
        if found := sorted(_playwrights_folder(environ).glob(pattern), key=_revision):
            return str(found[-1])
    return next((path for name in PROGRAMS if (path := shutil.which(name, path=environ.get("PATH")))), "")


def _playwrights_folder(environ: Mapping[str, str]) -> Path:
    if named := environ.get("PLAYWRIGHT_BROWSERS_PATH"):
        return Path(named)
    home = Path(environ.get("HOME") or "/nonexistent")
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "ms-playwright"


def _revision(program: Path) -> int:
    found = re.search(r"chromium\w*-(\d+)/", str(program))
    return int(found[1]) if found else 0


def why_no_browser(settings: ToolSettings, model: ModelSettings | None, environ: Mapping[str, str]) -> str:
    """Why pages cannot be opened, "" when they can."""
    if why := missing_packages("playwright"):
        return why
    return "" if find_browser(environ) else "no Chromium found; `playwright install chromium`, or your system's package, is one"
