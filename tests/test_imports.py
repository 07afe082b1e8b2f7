"""The layers: imports point one way only, and the light commands stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import kiseki

SOURCE = Path(kiseki.__file__).parent
ALLOWED = {
    "errors": set[str](),
    "trajectory": {"errors"},
    "models": {"trajectory", "errors"},
    "sandboxes": {"trajectory", "errors"},
    "tools": {"models", "sandboxes", "trajectory", "errors"},
    "agent": {"tools", "models", "sandboxes", "trajectory", "errors"},
    "ledger": {"trajectory", "errors"},
    "formats": {"trajectory", "errors"},
    "views": {"formats", "ledger", "trajectory", "errors"},
    "exports": {"formats", "views", "ledger", "trajectory", "errors"},
    "doctor": {"exports", "formats", "views", "ledger", "trajectory", "errors"},
    "hub": {"exports", "formats", "views", "ledger", "tools", "trajectory", "errors"},
    "integrations": {"batch", "agent", "tools", "sandboxes", "models", "formats", "trajectory", "errors"},
    "compress": {"models", "trajectory", "errors"},
    "sampling": {"compress", "formats", "models", "trajectory", "errors"},
    "batch": {"formats", "hub", "views", "ledger", "agent", "tools", "models", "sandboxes", "trajectory", "errors"},
    "commands": {
        "batch",
        "doctor",
        "exports",
        "formats",
        "hub",
        "sampling",
        "compress",
        "views",
        "ledger",
        "agent",
        "tools",
        "models",
        "sandboxes",
        "trajectory",
        "errors",
    },
}


def imported(path: Path) -> set[str]:
    """Packages of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("kiseki.")}
    return found


def test_imports_point_one_way() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in sorted(SOURCE.rglob("*.py"))
        for package in [path.relative_to(SOURCE).parts[0].removesuffix(".py")]
        if package in ALLOWED
        for other in imported(path) - ALLOWED[package] - {package}
    ]
    assert not wrong


def test_every_package_has_its_place() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {"errors"}
    assert packages == set(ALLOWED)


def test_light_commands_import_nothing_heavy() -> None:
    heavy = ("aiohttp", "rich", "datasets", "pyarrow", "sqlite3", "asyncio")
    for argv in (
        ["--help"],
        ["batch", "--list_distributions"],
        ["agent", "--help"],
        ["compress", "--help"],
        ["sample", "--help"],
        ["doctor", "--help"],
        ["export", "--help"],
        ["push", "--help"],
        ["models"],
        ["models", "check", "--help"],
        ["tools", "--help"],
        ["tools", "call", "--help"],
    ):
        code = (
            "import sys\nfrom kiseki.commands.main import main\n"
            f"try:\n    main({argv!r})\nexcept SystemExit:\n    pass\n"
            f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stderr.strip() == "[]", argv
