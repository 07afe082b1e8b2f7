"""`read_file`, `write_file` and `patch` in real sandboxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kiseki.errors import ToolError
from kiseki.tools import file

Play = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_writing_and_reading(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box.sh("mkdir -p fresh; cd fresh")
        written = await box("write_file", path="new/deep/a.txt", content="one\ntwo あ\n")
        assert written == {"bytes_written": 12, "status": "created"}
        assert await box("read_file", path="new/deep/a.txt") == {"content": "1|one\n2|two あ", "total_lines": 2}
        assert (await box.sh("cat ~/fresh/new/deep/a.txt")) == "one\ntwo あ\n"
        assert (await box("read_file", path="~/fresh/new/deep/a.txt"))["total_lines"] == 2
        assert (await box("write_file", path="new/deep/a.txt", content=""))["status"] == "replaced"
        empty = await box("read_file", path="new/deep/a.txt")
        assert empty == {"content": "", "total_lines": 0, "note": "the file is empty"}
        await box.sh("echo '#!/bin/sh' > run.sh; chmod 755 run.sh")
        await box("write_file", path="run.sh", content="#!/bin/sh\necho ran\n")
        assert await box.sh("./run.sh") == "ran\n"
        await box("write_file", path='-n odd\' "$x".txt', content="odd\n")
        assert (await box("read_file", path='-n odd\' "$x".txt'))["content"] == "1|odd"

    play(scenario)


def test_what_a_file_may_hold(play: Play) -> None:
    async def scenario(box: Any) -> None:
        odd = "</tool_call>\u2028still line 1\x1b[31m\x0c\nline 2"
        await box("write_file", path="odd", content=odd)
        answer = await box("read_file", path="odd")
        assert answer == {
            "content": "1|</tool_call>\u2028still line 1\x1b[31m\x0c\n2|line 2",
            "total_lines": 2,
            "note": "the last line has no line break at its end",
        }
        await box.sh(r"printf 'a\377b\n' >latin; printf 'x\r\ny\r\n' >crlf")
        assert await box("read_file", path="latin") == {
            "content": "1|a\ufffdb",
            "total_lines": 1,
            "note": "it is not valid UTF-8: wrong bytes are shown as \ufffd",
        }
        crlf = await box("read_file", path="crlf")
        assert (crlf["content"], crlf["note"]) == ("1|x\n2|y", "its lines end with CRLF")

    play(scenario)


def test_pages(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box.sh("seq 1 5000 >many")
        first = await box("read_file", path="many", limit=2)
        assert first == {"content": "1|1\n2|2", "total_lines": 5000, "next_offset": 3}
        assert not box.run.truncated
        last = await box("read_file", path="many", offset=4999, limit=9999)
        assert last == {"content": "4999|4999\n5000|5000", "total_lines": 5000}
        assert (await box("read_file", path="many", limit=9999))["next_offset"] == 2001
        assert await box.error("read_file", path="many", offset=5001) == "offset 5001 is past the end: many has 5000 lines"
        await box.sh("yes あいうえおかきくけこ | head -n 3000 >wide; head -c 100000 /dev/zero | tr '\\0' x >long")
        wide = await box("read_file", path="wide", limit=2000)
        assert wide["truncated"] is True and box.run.truncated and wide["note"] == "cut at 50,000 bytes"
        assert wide["content"].count("\n") + 2 == wide["next_offset"]
        assert len(wide["content"].encode()) <= file.MAX_BYTES
        long = await box("read_file", path="long")
        assert long["content"].endswith("x [... 98,000 more characters in this line ...]") and long["truncated"] is True

    play(scenario)


def test_what_cannot_be_read(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box.sh(
            "mkdir -p src/pkg; touch src/utils.py src/util.py src/README; printf 'a\\0b' >nul; printf '\\211PNG\\r\\n\\0' >p"
        )
        error = await box.error("read_file", path="src/utlis.py")
        assert error == "no such file: src/utlis.py; similar names there: src/utils.py, src/util.py"
        assert (await box.error("read_file", path="src/readme")).endswith("similar names there: src/README")
        assert await box.error("read_file", path="zzz") == "no such file: zzz"
        assert await box.error("read_file", path="nowhere/x") == "no such file: nowhere/x (there is no folder nowhere)"
        error = await box.error("read_file", path="src")
        assert error == 'src is a folder; search_files(pattern="*", target="files", path=\'src\') lists its files'
        assert (await box.error("read_file", path="nul")).startswith("nul is a binary file (data with NUL bytes, 3 bytes)")
        assert (await box.error("read_file", path="p")).startswith("p is a binary file (PNG image, 7 bytes)")
        assert await box.error("read_file", path="") == "path is empty"
        assert await box.error("read_file", path="a\0b") == "path contains a NUL character"
        assert "src" in await box.error("write_file", path="src", content="x")
        assert (await box.error("write_file", path="src/util.py/x", content="x")) != ""
        assert await box.sh("ls src") == "README\npkg\nutil.py\nutils.py\n"

    play(scenario)


def test_patch_replaces(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box.sh(r"printf 'def f():\r\n\treturn 1\r\n# caf\351\r\n' >a.py; chmod 750 a.py")
        answer = await box("patch", path="a.py", old_string="def f():\n    return 1\n", new_string="def f():\n    return 2\n")
        assert answer == {
            "success": True,
            "replacements": 1,
            "diff": "--- a.py\n+++ a.py\n@@ -1,3 +1,3 @@\n def f():\r\n-\treturn 1\r\n+\treturn 2\r\n # caf\ufffd\r\n",
            "note": "old_string was found by ignoring indentation; check the diff",
        }
        assert await box.sh("od -An -c a.py | tr -d ' \\n'; stat -c %a a.py") == (
            "deff():\\r\\n\\treturn2\\r\\n#caf351\\r\\n750\n"
        )
        missing = await box.error("patch", path="a.py", old_string="return 3", new_string="x")
        assert missing.startswith("old_string is not in the file. The closest lines are:\n2|\treturn 2")
        no_file = await box.error("patch", path="b.py", old_string="a", new_string="b")
        assert no_file == "no such file: b.py; similar names there: a.py"
        assert await box.error("patch") == "give either path with old_string and new_string, or patch alone"
        both = await box.error("patch", path="a.py", patch="*** Begin Patch")
        assert both == "give either patch alone, or path with old_string and new_string, not both"
        await box.sh("printf 'a\\0' >nul")
        assert "it cannot be patched as text" in await box.error("patch", path="nul", old_string="a", new_string="b")
        await box.sh("seq 1 20000 >big")
        big = await box("patch", path="big", old_string="7", new_string="seven", replace_all=True)
        assert big["replacements"] == 8000 and len(big["diff"]) < 13_000

    play(scenario)


PATCH = """\
*** Begin Patch
*** Update File: src/a.txt
@@
 one
-two
+2
*** Add File: src/new/b.txt
+fresh
*** Delete File: gone.txt
*** Update File: tool.sh
*** Move to: bin/tool.sh
@@
-echo old
+echo new
*** End Patch
"""
FILES = (
    "mkdir -p src; printf 'one\\ntwo\\n' >src/a.txt; echo x >gone.txt; "
    "printf '#!/bin/sh\\necho old\\n' >tool.sh; chmod +x tool.sh"
)
LIST = "find . -type f -not -name '.*' | sort; cat src/a.txt"


def test_patch_in_several_files(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box.sh(f"mkdir work; cd work; {FILES}")
        answer = await box("patch", patch=PATCH)
        assert answer["files_changed"] == ["src/a.txt", "src/new/b.txt", "gone.txt", "tool.sh", "bin/tool.sh"]
        assert "--- gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n" in answer["diff"]
        assert "--- tool.sh\n+++ bin/tool.sh\n@@ -1,2 +1,2 @@\n #!/bin/sh\n-echo old\n+echo new\n" in answer["diff"]
        assert await box.sh(f"{LIST}; bin/tool.sh") == "./bin/tool.sh\n./src/a.txt\n./src/new/b.txt\none\n2\nnew\n"

    play(scenario)


def test_a_patch_deletes_binary_files(play: Play) -> None:
    async def scenario(box: Any) -> None:
        make = r"printf '\211PNG\r\n\0\377\n' >p.png; cp p.png q.png; echo a >a"
        look = "for f in a p.png q.png r; do [ -e $f ] && md5sum $f; done"
        await box.sh(f"mkdir work; cd work; {make}")
        before = await box.sh(look)

        # What fails after the deletion brings the same bytes back.
        write = box.sandbox.write_file

        async def failing(path: str, data: bytes) -> None:
            if path == "r":
                raise ToolError("disk full")
            await write(path, data)

        patch = "*** Begin Patch\n*** Delete File: p.png\n*** Add File: r\n+r\n*** End Patch"
        box.sandbox.write_file = failing
        assert "nothing was changed: disk full" in await box.error("patch", patch=patch)
        assert await box.sh(look) == before
        box.sandbox.write_file = write

        answer = await box("patch", patch=patch)
        assert answer["diff"] == "Binary files p.png and /dev/null differ\n--- /dev/null\n+++ r\n@@ -0,0 +1 @@\n+r\n"
        assert answer["files_changed"] == ["p.png", "r"]
        assert await box.sh("ls") == "a\nq.png\nr\n"

        update = "*** Begin Patch\n*** Delete File: a\n*** Update File: q.png\n@@\n-x\n+y\n*** End Patch"
        assert "it cannot be patched as text" in await box.error("patch", patch=update)
        replace = "*** Begin Patch\n*** Delete File: q.png\n*** Add File: q.png\n+text\n*** End Patch"
        assert (await box("patch", patch=replace))["diff"] == "Binary files q.png and q.png differ\n"
        assert await box.sh("ls; cat q.png") == "a\nq.png\nr\ntext\n"

    play(scenario)


def test_a_patch_is_done_whole_or_not_at_all(play: Play) -> None:
    async def scenario(box: Any) -> None:
        await box.sh(f"mkdir work; cd work; {FILES}")
        before = await box.sh(LIST)
        wrong = PATCH.replace("-echo old", "-echo odl")
        error = await box.error("patch", patch=wrong)
        assert "does not fit tool.sh" in error and "2|echo old" in error
        assert await box.sh(LIST) == before
        gone = await box.error("patch", patch=PATCH.replace("gone.txt", "gnoe.txt"))
        assert gone == "no such file: gnoe.txt; similar names there: gone.txt"
        assert await box.sh(LIST) == before

        # A write that fails in the middle: everything before it is taken back.
        write = box.sandbox.write_file

        async def failing(path: str, data: bytes) -> None:
            if path.endswith("new/b.txt"):
                raise ToolError("disk full")
            await write(path, data)

        box.sandbox.write_file = failing
        error = await box.error("patch", patch=PATCH)
        assert error == "the patch could not be written, so nothing was changed: disk full"
        assert await box.sh(f"{LIST}; ./tool.sh") == before + "old\n"

    play(scenario)
