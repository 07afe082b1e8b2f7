"""Files that pages give: from the browser's folder into the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from kiseki.errors import SandboxError, ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.results import MAX_FILE_BYTES, save_file

if TYPE_CHECKING:
    from playwright.async_api import Download

DOWNLOAD_SECONDS = 60.0
MAX_NAME = 60
"""Characters."""


async def keep_download(context: ToolContext, download: Download) -> str:
    """Put a download into the sandbox, and tell in a sentence what became of it. Raises nothing."""
    name, ending = file_name(download.suggested_filename)
    shown = f"{name}.{ending}"
    try:
        async with asyncio.timeout(DOWNLOAD_SECONDS):
            file = Path(await download.path())
        size = await asyncio.to_thread(os.path.getsize, file)
        if size > MAX_FILE_BYTES:
            return f"the download {shown} was dropped: it has {size:,} bytes, more than {MAX_FILE_BYTES:,}"
        path = await save_file(context, await asyncio.to_thread(file.read_bytes), name, ending)
        return f"downloaded {path} ({size:,} bytes)" if path else f"the download {shown} was dropped: there is no sandbox"
    except TimeoutError:
        return f"the download {shown} was given up: it took more than {DOWNLOAD_SECONDS:g} s"
    except (ToolError, SandboxError, OSError) as error:
        return f"the download {shown} could not be kept: {error}"
    except Exception as error:  # Playwright's, whose class is not imported here: it broke off
        return f"the download {shown} failed: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    finally:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(DOWNLOAD_SECONDS):
                await download.cancel()
                await download.delete()


def file_name(suggested: str) -> tuple[str, str]:
    """Name and ending as they may stand in a path."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", suggested).lstrip(".-_")
    name, dot, ending = clean.rpartition(".")
    if not dot:
        name, ending = clean, "bin"
    return name[:MAX_NAME].rstrip(".") or "download", ending[:10] or "bin"
