"""Where a sandbox finds programs: the standard folders, and a python3 when those have none."""

from __future__ import annotations

import functools
import shutil
import sys

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@functools.cache
def python_folder() -> str:
    """The prefix of the running interpreter's installation (not of its venv) where STANDARD_PATH has no python3, else ""."""
    return "" if shutil.which("python3", path=STANDARD_PATH) else sys.base_prefix
