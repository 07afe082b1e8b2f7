"""Where a sandbox finds programs: the standard folders, and a python3 when those have none; and how that python3 behaves."""

from __future__ import annotations

import functools
import shutil
import sys

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Python takes a module's .pyc for current when the source has the same size and the same time in whole seconds. An agent that
# edits a file and runs it again is quicker than that, and would see what the old code does.
PYTHON_VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1"}


@functools.cache
def python_folder() -> str:
    """The prefix of the running interpreter's installation (not of its venv) where STANDARD_PATH has no python3, else ""."""
    return "" if shutil.which("python3", path=STANDARD_PATH) else sys.base_prefix
