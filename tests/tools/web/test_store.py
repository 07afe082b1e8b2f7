"""What was asked for is kept: for the run, for good, or read back; and two processes do not ask for the same."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kiseki.errors import SandboxError, ToolError, UsageError
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.web.recording import check_recording, open_to_read, open_to_write
from kiseki.tools.web.store import Made, Make, Store

CLAIM = """
import sys
from kiseki.tools.web.recording import open_to_write
print(open_to_write(sys.argv[1]).claim("fetch", "page"), flush=True)
sys.stdin.read()
"""


def make(response: bytes, made: list[bytes], *, failed: bool = False) -> Make:
    async def go(begun: Callable[[], None]) -> Made:
        begun()
        made.append(response)
        return Made(response, failed)

    return go


async def with_store(use: Callable[[Store], Any], **settings: str) -> Any:
    services = Services(ToolSettings(**settings))  # type: ignore[arg-type]
    try:
        return await use(services.get(Store))
    finally:
        await services.close()


def once(response: bytes, made: list[bytes], request: str = "r", *, failed: bool = False, **settings: str) -> bytes:
    """What a worker of its own gets."""

    async def use(store: Store) -> bytes:
        return await store.once("fetch", request, make(response, made, failed=failed))

    found = asyncio.run(with_store(use, **settings))
    assert isinstance(found, bytes)
    return found


def test_the_workers_of_a_run_share_what_was_answered_and_no_failures(tmp_path: Path) -> None:
    cache, made = str(tmp_path / "cache.db"), list[bytes]()
    assert once(b"no", made, failed=True, web_cache=cache) == b"no"
    assert once(b"one", made, web_cache=cache) == b"one"
    assert once(b"two", made, web_cache=cache) == b"one"
    assert once(b"alone", made) == b"alone"
    assert made == [b"no", b"one", b"alone"]


def test_a_recording_keeps_failures_too_and_is_all_that_a_replay_knows(tmp_path: Path) -> None:
    file, made = str(tmp_path / "a recording?.db"), list[bytes]()
    assert once(b"no", made, failed=True, web_record=file) == b"no"
    assert once(b"yes", made, web_record=file) == b"no"
    assert [path.name for path in tmp_path.iterdir()] == ["a recording?.db"]  # one file to pass on
    (tmp_path / "a recording?.db").chmod(0o400)
    before = Path(file).read_bytes()

    async def use(store: Store) -> None:
        assert await store.once("fetch", "r", make(b"new", made)) == b"no"
        with pytest.raises(ToolError, match=r"that page is not in the recording a recording\?\.db"):
            await store.once("fetch", "other", make(b"new", made), what="that page")
        await store.put("browser", "r", b"x")
        assert await store.get("browser", "r") is None

    asyncio.run(with_store(use, web_replay=file))
    assert made == [b"no"]
    assert Path(file).read_bytes() == before


def test_what_one_process_has_gone_for_no_other_does_unless_the_first_is_gone(tmp_path: Path) -> None:
    file = str(tmp_path / "cache.db")
    command = [sys.executable, "-c", CLAIM, file]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    assert first.stdout.readline() == "(None, True)\n"
    recording = open_to_write(file)
    assert recording.claim("fetch", "page") == (None, False)
    assert recording.claim("fetch", "other") == (None, True)
    recording.release("fetch", "page")  # not ours
    assert recording.claim("fetch", "page") == (None, False)
    first.kill()
    first.communicate()
    assert recording.claim("fetch", "page") == (None, True)
    recording.put("fetch", "page", b"text")
    assert recording.claim("fetch", "page") == (b"text", False)
    recording.close()


def test_a_cache_that_breaks_costs_requests_and_nothing_else(tmp_path: Path) -> None:
    cache = tmp_path / "cache.db"
    cache.write_bytes(b"no database" * 1000)
    made: list[bytes] = []
    assert [once(each, made, web_cache=str(cache)) for each in (b"one", b"two")] == [b"one", b"two"]
    assert made == [b"one", b"two"]


def test_a_recording_that_breaks_ends_the_rollout(tmp_path: Path) -> None:
    file = tmp_path / "recording.db"
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(SandboxError, match=r"recording\.db"):
        once(b"one", [], web_record=str(file))


def test_a_full_cache_takes_no_more_and_answers_all_the_same(tmp_path: Path) -> None:
    recording = open_to_write(str(tmp_path / "c.db"), max_bytes=100_000)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        for number in range(100):
            recording.put("fetch", str(number), os.urandom(10_000))
    assert recording.get("fetch", "0")
    recording.close()


def test_files_that_cannot_be_used_are_said_before_the_run(tmp_path: Path) -> None:
    recording = open_to_write(str(tmp_path / "good.db"))
    recording.close()
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE responses (kind)")
    other.close()
    (tmp_path / "text").write_text("hello")
    good, bad, text = (str(tmp_path / name) for name in ("good.db", "other.db", "text"))
    for settings, words in (
        (ToolSettings(web_replay=str(tmp_path / "missing")), "there is no file .*missing"),
        (ToolSettings(web_replay=str(tmp_path)), "there is no file"),
        (ToolSettings(web_replay=bad), "is no recording"),
        (ToolSettings(web_replay=text), "is no recording"),
        (ToolSettings(web_record=text), "something else than a recording"),
        (ToolSettings(web_record=bad), "something else than a recording"),
        (ToolSettings(web_record=str(tmp_path / "no" / "f")), "there is no folder"),
        (ToolSettings(web_record=str(tmp_path)), "cannot be written"),
        (ToolSettings(web_record=good, web_replay=good), "cannot go together"),
        (ToolSettings(web_allow=("http://x",)), "--web_allow"),
    ):
        with pytest.raises(UsageError, match=words):
            check_recording(settings)
    assert check_recording(ToolSettings(web_record=good)).web_record == good
    assert check_recording(ToolSettings(web_record=str(tmp_path / "new"))).web_record == str(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    open_to_read(good).close()
