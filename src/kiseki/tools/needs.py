"""What toolsets need beside Kiseki itself: optional packages, keys. Looks, and imports nothing of what it looks for."""

from __future__ import annotations

from importlib.util import find_spec

EXTRAS = {
    "trafilatura": "web",
    "pypdf": "web",
    "lxml_html_clean": "web",
    "ddgs": "web",
    "playwright": "browser",
    "mcp": "mcp",
    "PIL": "vision",
}
"""Module → the extra of Kiseki that installs it."""


def missing_packages(*modules: str) -> str:
    """Which of `modules` are not installed and how they are, without a full stop; "" when all are there."""
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return ""
    extras = ",".join(dict.fromkeys(EXTRAS[name] for name in missing))
    return f"{', '.join(missing)} not installed; pip install 'kiseki[{extras}]' does that"
