"""Whether there is a way to search and to read pages."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from kiseki.models.endpoints import ModelSettings
from kiseki.tools.needs import missing_packages
from kiseki.tools.settings import ToolSettings

PROVIDER_KEYS = {
    "brave": "BRAVE_API_KEY",
    "tavily": "TAVILY_API_KEY",
    "exa": "EXA_API_KEY",
    "serper": "SERPER_API_KEY",
    "searxng": "SEARXNG_URL",
}
"""Provider → environment variable with its key; SearXNG's is the address of an instance."""


def choose_provider(settings: ToolSettings, environ: Mapping[str, str]) -> str:
    """The search provider that this run uses: the one asked for, else a corpus, else the first that has a key, else ddgs."""
    if settings.search_provider:
        return settings.search_provider
    if settings.corpus:
        return "corpus"
    return next((name for name, key in PROVIDER_KEYS.items() if environ.get(key, "").strip()), "ddgs")


def why_no_search(settings: ToolSettings, model: ModelSettings | None, environ: Mapping[str, str]) -> str:
    """Why `web_search` cannot be had, "" when it can."""
    if settings.web_replay:
        return ""
    provider = choose_provider(settings, environ)
    if provider == "corpus":
        return "" if settings.corpus else "--search_provider=corpus needs --corpus"
    if provider == "ddgs":
        return missing_packages("ddgs")
    name = PROVIDER_KEYS[provider]
    key = environ.get(name, "").strip()
    if not key:
        return f"--search_provider={provider} needs {name} in the environment"
    if provider == "searxng":
        return "" if _is_address(key) else f"{name} is no address of an instance; as in http://localhost:8080"
    good = key.isascii() and key.isprintable() and " " not in key
    return "" if good else f"{name} is no key: there is a space, a line break or the like in it"


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and text.isprintable()
    except ValueError:
        return False


def why_no_web(settings: ToolSettings, model: ModelSettings | None, environ: Mapping[str, str]) -> str:
    """Why `web_search` and `web_extract` cannot be had, "" when they can."""
    if settings.web_replay:
        return ""
    # the last is what trafilatura needs and lxml no longer has; not every installer finds that out
    return why_no_search(settings, model, environ) or missing_packages("trafilatura", "pypdf", "lxml_html_clean")
