"""Where a sandbox's session starts, what image it has, and that no sandbox sees the host or another one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.backends import APART, WITH_IMAGES, WITHOUT_IMAGES, Place, only
from contract.opening import LABEL, out, sandbox, sandboxes, settings, sh, within, within_each

from kiseki.errors import ImageError, UsageError
from kiseki.sandboxes.base import Limits, Sandbox

USUAL = {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "USER", "PYTHONDONTWRITEBYTECODE", "PWD", "OLDPWD", "SHLVL", "_"}
"""Variables that a sandbox may have."""

# The working folder


def test_cwd_is_made(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        assert (await out(box, "pwd")).endswith("/project/re po\n")
        assert (await out(box, "touch x && ls")) == "x\n"

    within_each(place, body, ("/project/re po", "project/re po", "~/project/re po", "/../project/./re po/"))


def test_cwd_starts_at_the_home_folder(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, '[ "$PWD" = ~/sub ] && echo there; ls -A ~') == "there\nsub\n"

    within_each(place, body, ("~/sub", "sub"))

    async def at_home(box: Sandbox) -> None:
        assert await out(box, '[ "$PWD" = ~ ] && echo there; ls -A ~') == "there\n"

    within_each(place, at_home, ("", "~", "~/", "."))


def test_a_cwd_that_cannot_be_is_the_users_error(place: Place) -> None:
    async def main() -> None:
        async with sandboxes(settings(place)) as opener:
            for cwd, words in {"x" * 300: "File name too long", "a\0b": "NUL", **place.bad_folders}.items():
                with pytest.raises(UsageError, match=words) as caught:
                    await opener.open(cwd=cwd)
                assert not caught.value.retryable
                assert "\n" not in str(caught.value)
            assert place.traces(LABEL) == []

    asyncio.run(main())


# The image


@only(*WITHOUT_IMAGES)  # The others have images.
def test_no_image_is_run_elsewhere(place: Place) -> None:
    async def body(_: Sandbox) -> None:
        raise AssertionError("it opened")

    with pytest.raises(ImageError, match="python:3"):
        within(place, body, image="python:3")


@only(*WITH_IMAGES)  # The others have none.
def test_each_prompt_has_its_image(place: Place) -> None:
    find_bash = "command -v bash >/dev/null && echo bash; cd ~ && echo home"

    async def main() -> None:
        async with sandboxes(settings(place)) as opener:
            first, second, third = await asyncio.gather(
                opener.open(), opener.open(image=place.small_image), opener.open(image=place.small_image, cwd="/project/re po")
            )
            try:
                assert await out(first, find_bash) == "bash\nhome\n"
                assert await out(second, find_bash) == "home\n"
                assert await out(third, f"pwd; {find_bash}") == "/project/re po\nhome\n"
                assert (first.describe()["image"], second.describe()["image"]) == (place.image, place.small_image)
            finally:
                await asyncio.gather(*(box.close() for box in (first, second, third)))

    asyncio.run(main())


@only(*WITH_IMAGES)  # The others have none.
def test_an_image_that_cannot_be_had_is_an_error_of_the_image(place: Place) -> None:
    async def main() -> None:
        async with sandboxes(settings(place)) as opener:
            for image, words in ((place.lost_image, "nosuch"), (place.bare_image, "sh")):
                with pytest.raises(ImageError, match=words) as caught:
                    await opener.open(image=image)
                assert image in str(caught.value)
                assert not caught.value.retryable
                assert "\n" not in str(caught.value)
            assert place.traces(LABEL) == []
            # What fails for one image is nothing to the others.
            box = await opener.open()
            assert await out(box, "echo ok") == "ok\n"
            await box.close()

    asyncio.run(main())


# From each other and the host


def test_two_sandboxes_and_the_host_are_apart(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")

    async def main() -> None:
        async with sandbox(place) as first, sandbox(place) as second:
            await sh(first, 'echo secret >~/x; echo secret >"${TMPDIR:-/tmp}/x"; export LEAK=1; sleep 7777 &')
            assert await out(second, 'cat ~/x "${TMPDIR:-/tmp}/x" 2>/dev/null; echo "$LEAK"') == "\n"
            mine = await out(second, "env; tr '\\0' '\\n' </proc/self/environ")
            names = {line.partition("=")[0] for line in mine.splitlines()}
            assert names <= USUAL | place.variables
            ran = (await second.run(["env"], timeout=20))[1].decode()
            assert {line.partition("=")[0] for line in ran.splitlines()} <= USUAL | place.variables | {"KISEKI_RUN"}
            parents = await out(second, "tr '\\0' '\\n' </proc/$PPID/environ")
            assert "sk-very-secret" not in mine + ran + parents

    asyncio.run(main())


@only(*APART)  # The others keep nothing from their commands.
def test_neither_files_nor_processes_of_others_are_seen(place: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")

    async def main() -> None:
        async with sandbox(place) as first, sandbox(place) as second:
            await sh(first, "echo secret >/tmp/x; sleep 7777 & sleep 7777 &")
            assert (
                await out(second, f"cat /tmp/x {tmp_path}/secret 2>/dev/null; ls -A /tmp /home/[!au]* 2>/dev/null") == "/tmp:\n"
            )
            assert "sleep\n" * 2 not in await out(second, "cat /proc/[0-9]*/comm")
            assert await out(second, "tr '\\0' ' ' 2>/dev/null </proc/1/environ | grep -c -e KISEKI -e sk-very") == "0\n"
            assert not Path("/tmp/x").exists() or "secret" not in Path("/tmp/x").read_text()

    asyncio.run(main())


@only(*APART)  # The others would end the host.
def test_a_command_that_kills_everything_ends_no_sandbox(place: Place) -> None:
    async def main() -> None:
        async with sandbox(place) as box, sandbox(place) as other:
            await sh(other, "sleep 7777 & X=kept")
            for command in (
                "kill -9 -1",
                "sh -c 'kill -9 -1'",
                "kill -9 1",
                "kill -TERM 1; kill -QUIT 1",
            ):
                await sh(box, f"sleep 7777 & {command}")
                assert await out(box, "echo ok") == "ok\n", command
                assert await box.run(["printf", "ok"], timeout=20) == (0, b"ok"), command
                await box.write_file("x", b"1")
                assert await box.read_file("x") == b"1", command
            assert await out(other, 'kill -0 $! && echo "$X"') == "kept\n"

    asyncio.run(main())


def test_the_network_is_what_it_says(place: Place) -> None:
    """What listens on the host's loopback is reached where the sandbox has the host's network, and only there."""

    async def reached(network: bool, port: int) -> tuple[str, str]:
        async with sandbox(place, limits=Limits(network=network)) as box:
            text = await out(box, f"bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached' 2>/dev/null")
            return box.describe()["network"], text

    with listening() as port:
        said, text = asyncio.run(reached(False, port))
        assert (said, text) == (("none", "") if place.apart else ("the host's", "reached\n"))
        said, text = asyncio.run(reached(True, port))
        assert said != "none"
        assert text == ("reached\n" if place.host_network else "")


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]
