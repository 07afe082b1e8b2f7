"""What bubblewrap sandboxes keep from the host, and the host from them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support import open_sandbox

from kiseki.errors import ToolError
from kiseki.sandboxes import bubblewrap, folders, processes
from kiseki.sandboxes.base import Limits, Sandbox
from kiseki.sandboxes.reaper import reap
from kiseki.sandboxes.settings import SandboxSettings

pytestmark = pytest.mark.skipif(bool(bubblewrap.working_program()[1]), reason=bubblewrap.working_program()[1] or "-")
LABEL = f"bubblewrap-{os.getpid()}"
QUICK = 20.0
FIND_WRITABLE = """
import os
for top, folders, files in os.walk("/proc"):
    if top == "/proc":
        # The memory pressure files take a watcher's threshold and are open to every user.
        folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self", "pressure")]
    for name in files:
        try:
            os.close(os.open(os.path.join(top, name), os.O_WRONLY | os.O_NONBLOCK))  # Opened, never written.
            print(os.path.join(top, name))
        except OSError:
            pass
"""


def within(body: Callable[[Sandbox], Awaitable[None]], limits: Limits | None = None) -> None:
    async def main() -> None:
        box = await open_sandbox(SandboxSettings(backend="bubblewrap", label=LABEL, limits=limits or Limits()))
        try:
            await body(box)
        finally:
            await box.close()

    asyncio.run(main())


async def out(box: Sandbox, command: str) -> str:
    return (await box.exec(command, timeout=QUICK)).output


def test_nothing_of_the_host_is_there() -> None:
    async def body(box: Sandbox) -> None:
        assert await out(box, "cat /etc/shadow /etc/ssl/private/* 2>/dev/null; ls /home; ls /tmp /var/tmp") == (
            "user\n/tmp:\n\n/var/tmp:\n"
        )
        assert "root:x:0:0" in await out(box, "cat /etc/passwd")
        assert len((await out(box, "cat /etc/passwd")).splitlines()) == 3
        assert await out(box, "id -u; id -un; hostname; echo ~") == "1000\nuser\nsandbox\n/home/user\n"
        assert await out(box, "cat /proc/self/comm; ls /proc | grep -c '^[0-9]'") != ""
        assert await out(box, "grep -E 'Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs' /proc/self/status | awk '{print $2}' | sort -u") == (
            "0000000000000000\n1\n"
        )
        assert await out(box, "touch /usr/x /run/kiseki/x 2>&1 | grep -c 'Read-only'") == "2\n"
        assert await out(box, "unshare -Ur true 2>/dev/null || echo refused") == "refused\n"
        assert await out(box, "ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo\n"
        if "python3" in await out(box, "command -v python3"):
            await box.write_file("find.py", FIND_WRITABLE.encode())
            assert await out(box, "python3 find.py") == ""

    within(body)


def test_links_are_resolved_inside(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")

    async def body(box: Sandbox) -> None:
        await out(box, f"ln -s /etc/passwd link; ln -s {secret} host; ln -s {tmp_path} folder; ln -s / top")
        assert b"user:x:1000" in await box.read_file("link")
        assert await box.read_file("link") != Path("/etc/passwd").read_bytes()
        for path in ("host", "folder/secret", str(secret), f"top{secret}", f"../../..{secret}"):
            with pytest.raises(ToolError, match="no such file"):
                await box.read_file(path)
        await box.write_file(f"top{tmp_path}/written", b"inside")
        assert await box.read_file(f"{tmp_path}/written") == b"inside"

    within(body)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_the_disk_has_an_end() -> None:
    async def body(box: Sandbox) -> None:
        said = await out(box, "for i in 1 2 3 4 5; do head -c 9000000 /dev/zero >f$i || break; done; rm f*; echo after")
        assert "No space left on device" in said
        assert said.endswith("after\n")
        full = await out(box, "head -c 99000000 /dev/zero | split -b 1000000 2>&1; echo -n")
        assert "No space" in full
        with pytest.raises(ToolError, match="No space left"):
            await box.write_file("more", b"x" * 9_000_000)

    within(body, Limits(disk_mb=30, memory_mb=200))


def test_network_is_a_policy() -> None:
    async def body(box: Sandbox) -> None:
        assert box.describe()["network"] == "the host's"
        assert await out(box, "readlink /proc/self/ns/net") == f"{Path('/proc/self/ns/net').readlink()}\n"

    within(body, Limits(network=True))


def test_commands_cannot_reach_the_supervisor() -> None:
    async def body(box: Sandbox) -> None:
        await box.exec("kill -9 1; kill -9 -1", timeout=QUICK)
        assert await out(box, "kill -9 -1 2>/dev/null; echo on") == "on\n"
        await box.exec("kill -9 0", timeout=QUICK)
        assert await box.healthy()
        assert await out(box, "echo next") == "next\n"

    within(body)


def test_a_removed_root_folder_does_not_end_it() -> None:
    async def body(box: Sandbox) -> None:
        await box.exec("rm -rf --no-preserve-root / ~ 2>/dev/null; exit", timeout=QUICK)
        assert await out(box, "/bin/echo on") == "on\n"
        assert await box.healthy()
        await box.write_file("~/again", b"x")
        assert await box.read_file("/home/user/again") == b"x"

    within(body)


def test_orphans_do_not_use_up_the_processes() -> None:
    async def body(box: Sandbox) -> None:
        assert (await out(box, "for i in $(seq 100); do (true &); done; echo done")).endswith("done\n")

    within(body, Limits(processes=30))


def test_a_killed_worker_leaves_no_process_and_the_rest_is_reaped() -> None:
    code = f"""
import asyncio
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings

async def main():
    for backend in ("bubblewrap", "local"):
        box = await Sandboxes(SandboxSettings(backend=backend, label="{LABEL}-killed")).open()
        await box.exec("(setsid sleep 91{os.getpid()} &); sleep 92{os.getpid()} &", timeout=20)
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout
        assert worker.stdout.readline() == b"ready\n"
        inside = processes.descendants(worker.pid)
        bwraps = [pid for pid in inside if "bwrap" in Path(f"/proc/{pid}/comm").read_text()]
        wrapped = {pid for bwrap in bwraps for pid in processes.below(inside, bwrap)}
        assert len(wrapped) >= 5
        worker.send_signal(signal.SIGKILL)
    end = time.monotonic() + QUICK
    while (left := [pid for pid in wrapped if (found := processes.look(pid)) and found.running]) and time.monotonic() < end:
        time.sleep(0.01)
    assert left == []
    assert reap(SandboxSettings(backend="bubblewrap", label=f"{LABEL}-killed")) == 2
    marks = (f"91{os.getpid()}".encode(), f"92{os.getpid()}".encode())
    commands = [(pid, Path(f"/proc/{pid}/cmdline")) for pid in processes.every_pid()]
    assert not [pid for pid, path in commands if path.exists() and path.read_bytes().rstrip(b"\0").endswith(marks)]
    assert not (folders.base() / f"{LABEL}-killed").exists()
    assert reap(SandboxSettings(backend="bubblewrap", label=f"{LABEL}-killed")) == 0


def stalling(folder: Path) -> Path:
    """A bwrap that stays for ever where it is for some microseconds: its child waits for word from it, and does not yet die with
    it."""
    os.mkfifo(folder / "never")
    program = folder / "bwrap"
    program.write_text(
        f"#!/bin/bash\nexport -n PWD OLDPWD\nexec 8>/dev/null 9<>{folder}/never\n"
        f'for word; do shift; [ "$word" = --disable-userns ] || set -- "$@" "$word"; done\n'  # Excluded by the next options.
        f'exec {bubblewrap.working_program()[0]} --info-fd 8 --userns-block-fd 9 "$@"\n'
    )
    program.chmod(0o755)
    return program


def opening(label: str) -> list[int]:
    """Processes of a bwrap that opens a sandbox with this label: it and its child."""
    found = []
    for pid in processes.every_pid():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            process = processes.look(pid)
            if process and process.running and words[0].endswith(b"bwrap") and f"/{label}/".encode() in b" ".join(words):
                found.append(pid)
    return found


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + QUICK
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize("outer_too", [False, True])
def test_a_worker_killed_while_one_opens_leaves_what_reap_finds(tmp_path: Path, outer_too: bool) -> None:
    label = f"{LABEL}-opening"
    code = f"""
import asyncio
from kiseki.sandboxes import bubblewrap
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings

bubblewrap.working_program = lambda: ({str(stalling(tmp_path))!r}, "")
asyncio.run(Sandboxes(SandboxSettings(backend="bubblewrap", label="{label}.1")).open())
"""
    with subprocess.Popen([sys.executable, "-c", code]) as worker:
        assert until(lambda: len(opening(f"{label}.1")) == 2)
        outer, inner = sorted(opening(f"{label}.1"), key=lambda pid: pid not in processes.children(worker.pid))
        worker.send_signal(signal.SIGKILL)
    if outer_too:
        os.kill(outer, signal.SIGKILL)
        assert until(lambda: opening(f"{label}.1") == [inner])
    assert reap(SandboxSettings(backend="bubblewrap", label=f"{label}.2")) == 0
    assert inner in opening(f"{label}.1")
    assert reap(SandboxSettings(backend="bubblewrap", label=label)) == 1
    assert opening(f"{label}.1") == []


def test_cancelling_while_one_opens_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = str(stalling(tmp_path))
    monkeypatch.setattr(bubblewrap, "working_program", lambda: (program, ""))
    label = f"{LABEL}-cancelled"

    async def main() -> None:
        task = asyncio.create_task(open_sandbox(SandboxSettings(backend="bubblewrap", label=label)))
        assert await asyncio.to_thread(until, lambda: len(opening(label)) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert opening(label) == []
    assert not (folders.base() / label).exists()


def test_a_cwd_leads_nowhere_on_the_host(tmp_path: Path) -> None:
    async def main() -> None:
        # While bwrap builds the sandbox, the host's root is there under this name.
        cwd = f"/proc/self/root/oldroot{tmp_path}/made"
        box = await open_sandbox(SandboxSettings(backend="bubblewrap", label=LABEL), cwd=cwd)
        await box.close()

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_an_ordinary_user_can_have_them(tmp_path: Path) -> None:
    import msgspec

    import kiseki

    interpreter = "/usr/bin/python3"
    nobody = 65534
    if os.getuid() != 0 or not Path(interpreter).exists():
        pytest.skip("needs root, to become somebody else, and a python3 that everybody may run")
    shared = tmp_path / "packages"
    for module in (kiseki, msgspec):
        assert module.__file__
        source = Path(module.__file__).parent
        shutil.copytree(source, shared / source.name)
    bwrap = shared / "bwrap"
    bwrap.write_text(f'#!/bin/sh\nexec {bubblewrap.working_program()[0]} "$@"\n')
    bwrap.chmod(0o755)
    for folder in (shared, *shared.parents):
        if folder.is_relative_to(tmp_path.parent.parent):
            folder.chmod(0o755)
    code = (
        "import asyncio\nfrom kiseki.sandboxes.factory import *\n"
        "async def main():\n"
        f"    box = await Sandboxes(SandboxSettings(backend='bubblewrap', label='{LABEL}-nobody')).open()\n"
        "    print((await box.exec('id -u; sleep 100', timeout=0.3)).exit_code, await box.run(['echo', 'x'], timeout=20))\n"
        "    await box.write_file('f', b'data'); print(await box.read_file('f')); await box.close()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [interpreter, "-B", "-c", code],
        user=nobody,
        group=nobody,
        extra_groups=[],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(shared), "PATH": f"{shared}:/usr/bin:/bin"},
        cwd="/",
        timeout=60,
    )
    if "No module named" in done.stderr or "ImportError" in done.stderr:
        pytest.skip("that python3 cannot load this environment's packages")
    assert (done.stdout, done.stderr) == ("124 (0, b'x\\n')\nb'data'\n", "")
