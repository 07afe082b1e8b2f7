"""Containers of a real Docker and a real Podman: what they may do, how they end, and what they leave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import forward
import pytest
import requests
from docker.errors import APIError
from engine_standin import engine_standin, refusal

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes import owners
from kiseki.sandboxes.base import Limits, Sandbox
from kiseki.sandboxes.containers import backend as containers
from kiseki.sandboxes.containers import disk as containers_disk
from kiseki.sandboxes.containers import engine as containers_engine
from kiseki.sandboxes.containers.create import CAPABILITIES
from kiseki.sandboxes.containers.engine import Engine
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.sandboxes.streams import remote

QUICK = 60.0
"""Seconds that no command here needs, also on a machine under load."""
CAPABILITY_NUMBERS = {"CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "FSETID": 4, "KILL": 5, "SETGID": 6, "SETUID": 7, "SETFCAP": 31}
HOSTS = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}


@pytest.fixture(params=["docker", "podman"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine's, which the environment names."""
    monkeypatch.setenv(HOSTS[request.param], engines.engine_host(request.param))
    return str(request.param)


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> str:
    """Docker's host, which the environment names."""
    monkeypatch.setenv("DOCKER_HOST", engines.docker_host())
    return engines.docker_host()


@pytest.fixture
def label(request: pytest.FixtureRequest) -> str:
    """One that only this test has, in this session."""
    return f"t{zlib.crc32(request.node.nodeid.encode()):x}-{os.getpid()}"


@contextlib.contextmanager
def asking(kind: str) -> Iterator[Any]:
    api = engines.client(engines.engine_host(kind))
    try:
        yield api
    finally:
        api.close()


def of_label(api: Any, label: str) -> list[dict[str, Any]]:
    return [one for one in api.containers(all=True) if (one["Labels"] or {}).get("kiseki.label", "").startswith(label)]


def within(
    settings: SandboxSettings, body: Callable[[Sandbox], Awaitable[None]], image: str = engines.BUSYBOX, cwd: str = ""
) -> None:
    """Run `body` with an open sandbox."""

    async def main() -> None:
        sandboxes = Sandboxes(settings)
        try:
            box = await sandboxes.open(image=image, cwd=cwd)
            try:
                await body(box)
            finally:
                await box.close()
        finally:
            await sandboxes.close()

    asyncio.run(main())


def refusal_of(settings: SandboxSettings, image: str = engines.BUSYBOX) -> BaseException:
    """Why no sandbox can be had."""

    async def body(_: Sandbox) -> None:
        raise AssertionError("it opened")

    with pytest.raises(Exception) as caught:
        within(settings, body, image)
    return caught.value


async def out(box: Sandbox, command: str) -> str:
    return (await box.exec(command, timeout=QUICK)).output


def test_what_a_container_may_do(kind: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_HOST", "here")
    settings = SandboxSettings(
        backend=kind, label=label, owner="/run/owner", limits=Limits(memory_mb=300, cpus=0.5, processes=50, disk_mb=100)
    )
    mask = sum(1 << CAPABILITY_NUMBERS[name] for name in CAPABILITIES)

    async def body(box: Sandbox) -> None:
        status = dict(line.split(":\t") for line in (await out(box, "cat /proc/self/status")).splitlines() if ":\t" in line)
        assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {mask}
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert await out(box, "ls /sys/class/net") == "lo\n"
        assert "A_SECRET" not in await out(box, "env; cat /proc/1/environ")
        assert await out(box, "ulimit -n; ulimit -c; ulimit -f") == "4096\n0\n204800\n"  # blocks of 512 bytes
        mounts = [line.split() for line in (await out(box, "cat /proc/mounts")).splitlines()]
        on_disk = {mount[1] for mount in mounts if mount[0].startswith("/dev/")}
        assert on_disk <= {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv"}, mounts
        sizes = {mount[1]: mount[3] for mount in mounts if mount[2] == "tmpfs"}
        assert "size=65536k" in sizes["/dev/shm"]
        assert await out(box, "ls /var/run/docker.sock /run/podman 2>/dev/null") == ""
        assert await out(box, "head -c 1 /proc/kcore 2>/dev/null | wc -c") == "0\n"
        assert await out(box, "mount -t tmpfs none /mnt 2>/dev/null || mknod /m b 8 0 2>/dev/null || echo no") == "no\n"
        described = box.describe()
        assert (described["backend"], described["network"], described["image"]) == (kind, "none", engines.BUSYBOX)
        assert (described["memory"], described["cpus"], described["processes"]) == ("300 MB", "0.5", "50")
        assert described["disk"] in ("100 MB", "100 MB, watched")
        with asking(kind) as api:
            (mine,) = of_label(api, label)
            found = api.inspect_container(mine["Id"])
        host = found["HostConfig"]
        assert host["Memory"] == host["MemorySwap"] == 300 << 20
        assert host["NanoCpus"] == 500_000_000
        assert 50 <= host["PidsLimit"] <= 60
        assert not host["Privileged"]
        assert not host["Binds"]
        assert not host["AutoRemove"]
        assert host["LogConfig"]["Type"] == "none"
        assert host["NetworkMode"] == "none"
        labels = found["Config"]["Labels"]
        assert labels["kiseki.label"] == label
        assert labels["kiseki.owner"] == "/run/owner"
        assert labels["kiseki.machine"] == owners.machine_id()

    within(settings, body)


def test_an_images_user_environment_and_folder_count(kind: str, label: str) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, "id -u; pwd; echo $GREETING $HOME; echo $PATH | tail -c 9") == (
            "1000\n/srv/code\nhello /home/agent\n/opt/bin\n"
        )
        await box.write_file("here", b"\0\xff")
        assert await box.run(["cat", "/srv/code/here"], timeout=QUICK) == (0, b"\0\xff")
        assert await box.read_file("here") == b"\0\xff"
        assert box.describe()["disk"].endswith("; volumes not limited")

    within(SandboxSettings(backend=kind, label=label), body, engines.CONFIGURED)


def test_a_working_folder_is_made(kind: str, label: str) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, "pwd") == "/deep/er\n"

    within(SandboxSettings(backend=kind, label=label), body, cwd="/deep/er")


def test_a_fork_bomb_a_hog_and_a_long_line_are_tool_results(kind: str, label: str) -> None:
    async def body(box: Sandbox) -> None:
        await out(box, "cd /tmp; kept=1")
        bomb = await box.exec("bomb() { bomb | bomb & }; bomb; sleep 60", timeout=3)
        assert bomb.exit_code != 0
        assert (await box.exec("echo still", timeout=QUICK)).output.endswith("still\n")
        hog = await box.exec("head -c 1000000000 /dev/zero | tail -c 1000000000 | wc -c; echo after", timeout=QUICK)
        assert "after" in hog.output
        assert "1000000000" not in hog.output
        size = 1_000_000_000 if kind == "docker" else 100_000_000
        line = await box.exec(f"head -c {size} /dev/zero | tr '\\0' x", timeout=QUICK * 2)
        assert line.exit_code == 0
        assert line.truncated
        assert len(line.output) < 60_000
        assert await out(box, "echo still") == "still\n"

    within(SandboxSettings(backend=kind, label=label, limits=Limits(memory_mb=200, processes=40)), body, engines.BASH)


def test_a_disk_filler_is_a_tool_result(kind: str, label: str) -> None:
    async def body(box: Sandbox) -> None:
        assert "watched" in box.describe()["disk"]
        one = await box.exec("cd /tmp && head -c 60000000 /dev/zero >one", timeout=QUICK)
        assert one.exit_code != 0  # the largest file
        assert await out(box, "wc -c <one") == f"{40 << 20}\n"
        many = await box.exec("i=0; while :; do i=$((i+1)); head -c 10000000 /dev/zero >f$i; sleep 0.2; done", timeout=QUICK)
        assert "disk full: this sandbox may hold 40 MB" in many.output
        assert not many.timed_out
        assert await out(box, "rm f* one; pwd") == "/tmp\n"
        status, _ = await box.run(["sh", "-c", "while :; do i=$((i+1)); cat /bin/bash /bin/bash >g$i; done"], timeout=QUICK)
        assert status == 137
        assert (await out(box, "rm *; echo after")).endswith("after\n")

    within(SandboxSettings(backend=kind, label=label, limits=Limits(disk_mb=40)), body, engines.BASH)


def test_a_disk_is_watched_however_long_a_look_takes(docker: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as by an ordinary user, to whom the engine's folders are closed."""
    looked = threading.Event()
    original, statvfs = Engine.call, os.statvfs

    def call(engine: Engine, method: str, *arguments: Any, **named: Any) -> Any:
        if named.get("size"):
            time.sleep(QUICK / containers_disk.COST_FACTOR * 2)
            looked.set()
        return original(engine, method, *arguments, **named)

    def closed(path: str) -> os.statvfs_result:
        if "/overlay2" in str(path):
            raise PermissionError
        return statvfs(path)

    monkeypatch.setattr(Engine, "call", call)
    monkeypatch.setattr(os, "statvfs", closed)

    async def body(box: Sandbox) -> None:
        await out(box, "cd /tmp; head -c 25000000 /dev/zero >some")
        assert await asyncio.to_thread(looked.wait, QUICK)
        many = await box.exec("i=0; while :; do i=$((i+1)); head -c 10000000 /dev/zero >f$i; sleep 0.5; done", timeout=QUICK)
        assert "disk full" in many.output
        assert not many.timed_out

    within(SandboxSettings(backend="docker", label=label, limits=Limits(disk_mb=40)), body, engines.BASH)


def test_busyboxs_shell_keeps_its_lines_to_itself(kind: str, label: str) -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, "kept=1; sleep 0.1 & echo a:b | cut -d: -f1") == "a\n"
        await asyncio.sleep(0.5)  # The job ends while the shell waits for its next line.
        after = await box.exec("echo $kept", timeout=QUICK)
        assert (after.output, after.session_restarted) == ("1\n", False)
        assert "syntax error" in await out(box, "if")
        assert "nothing: parameter not set" in await out(box, "set -u; echo $nothing")
        assert await out(box, "set +u; echo $kept") == "1\n"

    within(SandboxSettings(backend=kind, label=label), body)


def test_the_first_process_cannot_be_killed_from_inside(kind: str, label: str) -> None:
    async def body(box: Sandbox) -> None:
        await out(box, "kill -9 1; kill -TERM 1; kill -HUP 1; kill -INT 1; kill -STOP 1")
        assert await out(box, "echo alive") == "alive\n"
        await out(box, "kill -9 -1")
        assert (await box.exec("echo alive", timeout=QUICK)).output.endswith("alive\n")
        await out(box, "for i in 1 2 3 4 5; do (sleep 0.1 &); done; sleep 0.5")
        assert await out(box, "cat /proc/*/stat 2>/dev/null | grep -c ' Z '") == "0\n"

    within(SandboxSettings(backend=kind, label=label), body)


@pytest.mark.parametrize("how", ["kill", "stop", "remove", "pause"])
def test_a_container_that_is_ended_from_outside_is_an_infrastructure_failure(kind: str, how: str, label: str) -> None:
    words = {"kill": "has ended", "stop": "has ended", "remove": "is gone", "pause": "was paused"}[how]

    async def body(box: Sandbox) -> None:
        with asking(kind) as api:
            (mine,) = of_label(api, label)
            if how == "kill":
                api.kill(mine["Id"])
            elif how == "stop":
                api.stop(mine["Id"], timeout=0)
            elif how == "remove":
                api.remove_container(mine["Id"], force=True)
            else:
                api.pause(mine["Id"])
        with pytest.raises(SandboxError, match=words):
            if how == "pause":
                await box.run(["true"], timeout=QUICK)
            else:
                await box.exec("true", timeout=QUICK)
        assert not await box.healthy()

    within(SandboxSettings(backend=kind, label=label), body)
    with asking(kind) as api:
        assert of_label(api, label) == []


def test_a_container_that_goes_in_the_middle_of_a_command(kind: str, label: str) -> None:
    async def body(box: Sandbox) -> None:
        with asking(kind) as api:
            (mine,) = of_label(api, label)
            running = asyncio.ensure_future(box.exec("sleep 100", timeout=QUICK))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(api.remove_container, mine["Id"], force=True)
        with pytest.raises(SandboxError, match=r"is gone|has ended"):
            await running

    within(SandboxSettings(backend=kind, label=label), body)


@pytest.mark.parametrize("refused", ["inspect_container", "exec_create"])
def test_an_engine_that_says_with_500_that_a_container_is_gone(
    kind: str, label: str, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Podman does while it is being removed."""
    original, removed = Engine.call, False

    def call(engine: Engine, method: str, *arguments: Any, **named: Any) -> Any:
        if removed and method == refused:
            response = requests.Response()
            response.status_code = 500
            raise APIError("refused", response, "container 5a8a does not exist in database: no such container")
        return original(engine, method, *arguments, **named)

    monkeypatch.setattr(Engine, "call", call)

    async def body(box: Sandbox) -> None:
        nonlocal removed
        with asking(kind) as api:
            (mine,) = of_label(api, label)
            removed = True
            running = asyncio.ensure_future(box.exec("sleep 100", timeout=QUICK))
            if refused == "inspect_container":
                await asyncio.sleep(0.2)
                await asyncio.to_thread(api.remove_container, mine["Id"], force=True)
        with pytest.raises(SandboxError, match="is gone"):
            await running

    within(SandboxSettings(backend=kind, label=label), body)


def test_an_engine_that_is_late_to_know_that_a_container_is_dead(kind: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    late = 0
    original = Engine.call

    def call(engine: Engine, method: str, *arguments: Any, **named: Any) -> Any:
        nonlocal late
        if method == "inspect_container" and late:
            late -= 1
            return {"State": {"Running": True}}
        return original(engine, method, *arguments, **named)

    monkeypatch.setattr(Engine, "call", call)

    async def body(box: Sandbox) -> None:
        nonlocal late
        with asking(kind) as api:
            (mine,) = of_label(api, label)
            running = asyncio.ensure_future(box.run(["sh", "-c", "touch /begun; sleep 100"], timeout=QUICK))
            while (await box.run(["test", "-e", "/begun"], timeout=QUICK))[0]:
                await asyncio.sleep(0.01)
            late = 3
            await asyncio.to_thread(api.kill, mine["Id"])
        with pytest.raises(SandboxError, match="has ended"):
            await running

    within(SandboxSettings(backend=kind, label=label), body)


def test_an_image_without_a_shell(kind: str, label: str) -> None:
    error = refusal_of(SandboxSettings(backend=kind, label=label), engines.NOSHELL)
    assert isinstance(error, ImageError)
    assert "has no `sh`" in str(error)
    assert "executable file not found" in str(error)
    with asking(kind) as api:
        assert of_label(api, label) == []


@pytest.mark.parametrize(
    ("words", "final"),
    [
        ('OCI runtime create failed: exec: "sh": executable file not found in $PATH: unknown', True),
        ("crun: executable file `sh` not found in $PATH: No such file or directory: OCI runtime error", True),
        ("exec /bin/sh: no such file or directory", True),
        ("mkdir /sys/fs/cgroup/memory/docker/3f: no such file or directory", False),
        ('error creating overlay mount to "/var/lib/docker/overlay2/3f/merged": no such file or directory', False),
        ("fork/exec /usr/bin/containerd-shim-runc-v2: no such file or directory", False),
    ],
)
def test_only_an_image_without_a_shell_is_final(words: str, final: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_standin() as engine:
        engine.answers = [("POST /containers/.*/start", 500, refusal(words))]
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        error = refusal_of(SandboxSettings(backend="docker"))
        assert isinstance(error, SandboxError)
        assert words in str(error)
        assert isinstance(error, ImageError) == final
        assert error.retryable != final
        assert engine.asked[-1][0].startswith("DELETE /containers/kiseki-")


def test_the_users_proxies_stay_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://me:SECRET@proxy:3128"}}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with engine_standin() as engine:
        engine.answers = [("POST /containers/.*/start", 500, refusal("no more"))]
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        assert "no more" in str(refusal_of(SandboxSettings(backend="docker")))
        created = [body for asked, body in engine.asked if asked == "POST /containers/create"]
        assert b'"Image"' in created[0]
        assert not any(b"SECRET" in body for _, body in engine.asked)


def test_an_image_that_is_not_there(kind: str) -> None:
    error = refusal_of(SandboxSettings(backend=kind), "127.0.0.1:9/nowhere:1")
    assert isinstance(error, ImageError)
    assert "nowhere" in str(error)
    assert "no such image" in str(error).lower()


@pytest.mark.parametrize(("backend", "way"), [("docker", "DOCKER_HOST"), ("podman", "podman system service")])
def test_no_engine_is_said_with_the_way_out(backend: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOSTS[backend], f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr(containers, "DOWN_SECONDS", 0.1)
    settings = SandboxSettings(backend=backend)
    error = refusal_of(settings)
    assert isinstance(error, SandboxError)
    for said in (str(error), containers.why_unavailable(settings)):
        assert "none.sock: No such file or directory" in said
        assert way in said
        assert "\n" not in said
    with pytest.raises(SandboxError, match=r"none\.sock"):
        containers.reap(settings)
    with pytest.raises(SandboxError, match=r"none\.sock"):
        containers.left_over(settings)


def test_an_engine_by_ssh_is_said_how_to_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    assert "ssh -nNT -L" in containers.why_unavailable(SandboxSettings(backend="docker"))


def test_without_docker_py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    assert "pip install 'kiseki[docker]'" in containers.why_unavailable(SandboxSettings(backend="podman"))


def test_an_engine_that_goes_away(kind: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forward.Forward(engines.engine_host(kind), path=tmp_path / "s") as door:
        monkeypatch.setenv(HOSTS[kind], door.host)

        async def body(box: Sandbox) -> None:
            assert await out(box, "echo here") == "here\n"
            running = asyncio.ensure_future(box.exec("sleep 100", timeout=QUICK))
            await asyncio.sleep(0.1)
            door.cut()
            with pytest.raises(SandboxError, match="does not answer"):
                await running
            with pytest.raises(SandboxError):
                await box.run(["true"], timeout=QUICK)

        within(SandboxSettings(backend=kind, label=label), body)
    monkeypatch.setenv(HOSTS[kind], engines.engine_host(kind))
    assert containers.reap(SandboxSettings(backend=kind, label=label)) == 1


def test_opening_waits_for_an_engine_that_is_down(kind: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it has been asked before or not, and whether its socket is gone or nobody listens there."""
    down = threading.Event()
    original = Engine.call

    def call(engine: Engine, method: str, *arguments: Any, **named: Any) -> Any:
        try:
            return original(engine, method, *arguments, **named)
        except SandboxError:
            down.set()
            raise

    monkeypatch.setattr(Engine, "call", call)
    path = tmp_path / "s"
    monkeypatch.setenv(HOSTS[kind], f"unix://{path}")

    async def main() -> None:
        sandboxes = Sandboxes(SandboxSettings(backend=kind, label=label))
        for _ in range(2):
            down.clear()
            opening = [asyncio.ensure_future(sandboxes.open(image=engines.BUSYBOX)) for _ in range(2)]
            assert await asyncio.to_thread(down.wait, QUICK)
            await asyncio.sleep(0)
            assert not any(one.done() for one in opening)
            path.unlink(missing_ok=True)
            with forward.Forward(engines.engine_host(kind), path=path):
                for box in await asyncio.gather(*opening):
                    assert await out(box, "echo here") == "here\n"
                    await box.close()
        await sandboxes.close()

    asyncio.run(main())
    with asking(kind) as api:
        assert of_label(api, label) == []


def test_an_engine_that_breaks_off_while_it_makes_a_container(
    docker: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    door = forward.Forward(docker, path=path)
    original = Engine.call
    made: list[str] = []

    def call(engine: Engine, method: str, *arguments: Any, **named: Any) -> Any:
        found = original(engine, method, *arguments, **named)
        if method == "create_container":
            made.append(found["Id"])
            if len(made) == 1:
                door.cut()
                path.unlink()
                threading.Timer(0.5, lambda: stack.enter_context(forward.Forward(docker, path=path))).start()
        return found

    monkeypatch.setattr(Engine, "call", call)
    monkeypatch.setenv("DOCKER_HOST", door.host)

    async def body(box: Sandbox) -> None:
        with asking("docker") as api:
            assert [one["Id"] for one in of_label(api, label)] == made[1:]

    with contextlib.ExitStack() as stack:
        stack.enter_context(door)
        within(SandboxSettings(backend="docker", label=label), body)
    assert len(made) == 2


def test_an_engine_that_refuses_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_standin() as engine:
        engine.answers = [("POST /containers/create", 503, refusal("the engine is shutting down"))]
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        assert "shutting down" in str(refusal_of(SandboxSettings(backend="docker")))
        assert [asked for asked, _ in engine.asked].count("POST /containers/create") == 1


def test_more_processors_than_there_are_is_no_limit(kind: str, label: str) -> None:
    with asking(kind) as api:
        count = api.info()["NCPU"]

    async def body(box: Sandbox) -> None:
        assert box.describe()["cpus"] == str(count)
        assert await out(box, "echo here") == "here\n"

    within(SandboxSettings(backend=kind, label=label, limits=Limits(cpus=count + 62.5)), body)


def test_an_engine_that_hangs(docker: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers_engine, "QUESTION_TIMEOUT", 1.0)
    monkeypatch.setattr(remote, "OPEN_TIMEOUT", 1.0)
    with forward.Forward(docker, path=tmp_path / "s") as door:
        monkeypatch.setenv("DOCKER_HOST", door.host)

        async def body(box: Sandbox) -> None:
            assert await out(box, "echo here") == "here\n"
            door.hold()
            try:
                async with asyncio.timeout(QUICK):
                    with pytest.raises(SandboxError, match="the engine does not answer"):
                        await box.run(["true"], timeout=QUICK)
            finally:
                door.release()

        within(SandboxSettings(backend="docker", label=label), body)
    with asking("docker") as api:
        assert of_label(api, label) == []


def test_who_is_cancelled_waits_for_no_engine(docker: str, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forward.Forward(docker, path=tmp_path / "s") as door:
        monkeypatch.setenv("DOCKER_HOST", door.host)

        async def body(box: Sandbox) -> None:
            shells = await out(box, "ls /proc/[0-9]*/exe | wc -l")
            door.hold()
            try:
                running = asyncio.ensure_future(box.run(["sleep", "100"], timeout=QUICK))
                await asyncio.sleep(0.2)
                running.cancel()
                done, _ = await asyncio.wait([running], timeout=QUICK)
            finally:
                door.release()
            assert done
            async with asyncio.timeout(QUICK):  # The shell that came too late goes.
                while await out(box, "ls /proc/[0-9]*/exe | wc -l") != shells:
                    await asyncio.sleep(0.1)

        within(SandboxSettings(backend="docker", label=label), body)


@pytest.mark.parametrize("tls", [False, True])
def test_an_engine_by_tcp(docker: str, tls: bool, label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = forward.certificates(tmp_path) if tls else None
    with forward.Forward(docker, tls=context) as door:
        monkeypatch.setenv("DOCKER_HOST", door.host)
        if tls:
            assert containers.why_unavailable(SandboxSettings(backend="docker"))
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/dev/null")  # It must not come before the engine's own.
            monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
            monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))

        async def body(box: Sandbox) -> None:
            await out(box, "cd /tmp")
            result = await box.exec("head -c 3000000 /dev/zero | tr '\\0' x; pwd", timeout=QUICK, max_output=4_000_000)
            assert result.output == "x" * 3_000_000 + "/tmp\n"
            data = os.urandom(3_000_000)
            await box.write_file("big", data)
            assert await box.read_file("big") == data
            assert (await box.exec("sleep 100", timeout=1)).timed_out
            assert await out(box, "pwd") == "/tmp\n"

        within(SandboxSettings(backend="docker", label=label), body)


def test_reaping_takes_a_label_and_those_below_it_alone(kind: str, label: str) -> None:
    def settings(name: str) -> SandboxSettings:
        return SandboxSettings(backend=kind, label=name, owner=f"/run/{name}")

    async def main() -> None:
        names = [label, f"{label}.1", f"{label}.1", f"{label}x", f"{label}x.1"]
        sandboxes = [Sandboxes(settings(name)) for name in names]
        boxes = await asyncio.gather(*(one.open(image=engines.CONFIGURED) for one in sandboxes))
        left = [one for one in containers.left_over(settings(label)) if one.label.startswith(label)]
        assert sorted(one.label for one in left) == sorted(names)
        assert {(one.owner.machine, one.owner.file) for one in left} == {(owners.machine_id(), f"/run/{name}") for name in names}
        assert all(one.created > 1e9 for one in left)
        assert await asyncio.to_thread(containers.reap, settings(label)) == 3
        assert [await box.healthy() for box in boxes] == [False, False, False, True, True]
        assert await asyncio.to_thread(containers.reap, settings(f"{label}x.1")) == 1
        assert [await box.healthy() for box in boxes] == [False, False, False, True, False]
        for box in boxes:
            await box.close()

    with asking(kind) as api:
        volumes = len(api.volumes()["Volumes"] or [])
        asyncio.run(main())
        assert of_label(api, label) == []
        assert len(api.volumes()["Volumes"] or []) <= volumes


def test_cancelled_at_any_step_nothing_is_left(docker: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each opening is cancelled when it makes its next call to the engine."""
    settings = SandboxSettings(backend="docker", label=label)
    calls = 0
    reached = threading.Event()
    wanted = 0
    original = Engine.call

    def call(engine: Engine, method: str, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == wanted:
            reached.set()
        return original(engine, method, *arguments, **named)

    async def main() -> int:
        nonlocal calls, wanted
        monkeypatch.setattr(Engine, "call", call)
        for wanted in range(1, 100):
            calls = 0
            reached.clear()
            sandboxes = Sandboxes(settings)
            opening = asyncio.ensure_future(sandboxes.open(image=engines.BUSYBOX))
            while not reached.is_set() and not opening.done():
                await asyncio.sleep(0.001)
            if opening.done():
                await (await opening).close()
                await sandboxes.close()
                return wanted
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close()
            await sandboxes.close()
            with asking("docker") as api:
                assert of_label(api, label) == [], wanted
        raise AssertionError

    assert asyncio.run(main()) > 5


def test_many_at_once(kind: str, label: str) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(SandboxSettings(backend=kind, label=label))
        boxes = await asyncio.gather(*(sandboxes.open(image=engines.BUSYBOX) for _ in range(8)))
        said = await asyncio.gather(*(out(box, f"echo {number}; pwd") for number, box in enumerate(boxes)))
        assert said == [f"{number}\n/root\n" for number in range(8)]
        await asyncio.gather(*(box.close() for box in boxes))
        await sandboxes.close()

    asyncio.run(main())
    with asking(kind) as api:
        assert of_label(api, label) == []
