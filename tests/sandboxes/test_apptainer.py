"""Apptainer: what its sandboxes are beyond the contract that all share, and how its images come here.

With the machine's own Apptainer where there is one; what needs a certain installation, or a registry, uses the stand-in.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import engines
import pytest
from apptainer_standin import Apptainer, apptainer, standin, unpacked

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes import cgroup, folders, processes, reaper
from kiseki.sandboxes.apptainer import backend
from kiseki.sandboxes.base import Limits
from kiseki.sandboxes.settings import Pull, SandboxSettings
from kiseki.sandboxes.shell import ShellSandbox

LABEL = f"apptainer-test-{os.getpid()}"
SECONDS = 60.0
"""A bound for what takes a second or two."""
SMALL = Limits(disk_mb=64, memory_mb=128, processes=32)

Body = Callable[[ShellSandbox], Awaitable[None]]


@pytest.fixture
def fake() -> Iterator[Apptainer]:
    with standin() as made:
        yield made


@pytest.fixture
def any_apptainer() -> Iterator[Apptainer]:
    with apptainer() as made:
        yield made


def settings(limits: Limits = SMALL, label: str = LABEL) -> SandboxSettings:
    return SandboxSettings(backend="apptainer", label=label, limits=limits)


def within(image: str, body: Body, limits: Limits = SMALL) -> None:
    """Run `body` with an open sandbox, and see that nothing of it is left."""

    async def main() -> None:
        box = await backend.open_backend(settings(limits)).open(image)
        try:
            await body(box)
        finally:
            await box.close()

    asyncio.run(main())
    assert nothing_left()


async def out(box: ShellSandbox, command: str, timeout: float = SECONDS) -> str:
    return (await box.exec(command, timeout=timeout)).output


def traces(label: str = LABEL) -> list[str]:
    """What sandboxes of this label left on the host."""
    groups = [str(path) for group in cgroup.left_over(folders.group_prefix(label)) for path in group.folders.values()]
    running = [str(pid) for pid in processes.marked(*folders.cookies(label))]
    loops = [path.read_text() for path in Path("/sys/block").glob("loop*/loop/backing_file")]
    layers = [file for file in loops if f"/{label}/" in file]
    return groups + running + layers + [str(folder) for folder in folders.left_over(label)]


def nothing_left(label: str = LABEL) -> bool:
    """The kernel lets go of a mount, and so of its loop device, some time after the last process in there is gone."""
    end = time.monotonic() + SECONDS
    while traces(label) and time.monotonic() < end:
        time.sleep(0.01)
    return traces(label) == []


# Images


def test_a_folder_a_sif_file_and_a_registrys_image(fake: Apptainer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.add("tools/busybox:1", engines.busybox_root())
    (fake.folder / "one.sif").write_bytes(engines.busybox_root())
    monkeypatch.chdir(fake.folder)
    images = backend.open_images(settings())
    images.pull("tools/busybox:1", lambda _: None)

    async def body(box: ShellSandbox) -> None:
        assert await out(box, "ls -d /bin/busybox") == "/bin/busybox\n"

    for image in (fake.image, "./busybox", "one.sif", "docker://tools/busybox:1", "tools/busybox:1"):
        assert images.has(image)
        within(image, body)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("/no/such/folder", "no file or folder /no/such/folder"),
        ("nosuch.sif", "no file or folder /"),
        ("docker://never/pulled:2", "`kiseki images --pull`"),
    ],
)
def test_an_image_that_is_not_here(fake: Apptainer, image: str, words: str) -> None:
    assert not backend.open_images(settings()).has(image)
    with pytest.raises(ImageError) as caught:
        asyncio.run(backend.open_backend(settings()).open(image))
    assert image in str(caught.value) and words in str(caught.value)
    assert not caught.value.retryable


def rootfs(folder: Path) -> Path:
    """By its looks."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "sh").symlink_to("busybox")
    return folder


def test_this_machine_is_no_image(fake: Apptainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of a dataset can name any folder; as root, its commands would read every secret in there."""
    home, work, cache = (rootfs(fake.folder / name) / name for name in ("homes", "work", "caches"))
    for folder in (home, work, cache):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.chdir(work)
    (work / "link").symlink_to("/")
    (work / "link.sif").symlink_to("/usr")
    (work / "round.sif").symlink_to("round.sif")
    above = [str(folder.parent) for folder in (home, work, cache)]
    system = ["/", "//", "/.", "/usr", "/etc", "/root", "/var", "/dev", "/proc/1/root", "/proc/self/root", "/proc/self/cwd"]
    files = ["/dev/zero", "/proc/kcore", "./link", "link.sif", "round.sif", "./", "../", "~/", "/a\0b", str(work)]
    store = backend.open_images(settings())
    for image in (*above, *system, *files):
        assert not store.has(image), image
        with pytest.raises(ImageError) as pulled:
            store.pull(image, lambda _: None)
        with pytest.raises(ImageError) as opened:
            asyncio.run(backend.open_backend(settings()).open(image))
        assert str(pulled.value) == str(opened.value) and not opened.value.retryable
    assert not any("start" in call for call in fake.calls())


def test_a_file_that_is_no_image(fake: Apptainer) -> None:
    (fake.folder / "text.sif").write_text("hello")
    with pytest.raises(ImageError, match="image format not recognized"):
        asyncio.run(backend.open_backend(settings()).open(str(fake.folder / "text.sif")))
    assert nothing_left()


def test_an_image_without_a_shell(fake: Apptainer) -> None:
    (fake.folder / "noshell.sif").write_bytes(engines.noshell_root())
    with pytest.raises(ImageError, match='"sh": executable file not found'):
        asyncio.run(backend.open_backend(settings()).open(str(fake.folder / "noshell.sif")))
    with pytest.raises(ImageError, match="has no bin/sh, so it is not a root filesystem"):
        asyncio.run(backend.open_backend(settings()).open(unpacked(engines.noshell_root(), fake.folder / "noshell")))
    assert nothing_left()


def test_a_pull_tells_how_it_goes_and_is_kept(fake: Apptainer) -> None:
    fake.add("once", engines.busybox_root())
    images = backend.open_images(settings())
    assert not images.has("once")
    told: list[Pull] = []
    images.pull("once", told.append)
    images.pull("docker://once", told.append)
    assert images.has("once")
    assert told[-1].words == "Creating SIF file..."
    assert sum("pull" in call for call in fake.calls()) == 1


def test_an_image_is_pulled_once_however_many_ask_for_it(fake: Apptainer) -> None:
    fake.add("shared", engines.busybox_root())
    stores = [backend.open_images(settings()) for _ in range(4)]
    threads = [threading.Thread(target=store.pull, args=("shared", lambda _: None)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert stores[0].has("shared")
    assert sum("pull" in call for call in fake.calls()) == 1


@pytest.mark.parametrize(
    ("words", "again"),
    [
        ("", False),  # "manifest unknown", as the registry says of a name that it has not
        ("unable to retrieve auth token: invalid username/password: unauthorized: authentication required", False),
        ("reading manifest latest in docker.io/library/nosuch: errors: denied: access to the resource is denied", False),
        ('Get "https://registry.example/v2/": dial tcp: lookup registry.example: no such host', True),
        ('Get "https://registry.example/v2/": dial tcp 10.0.0.1:443: i/o timeout', True),
        ("read tcp 10.0.0.1:443: read: connection reset by peer", True),
        ("toomanyrequests: You have reached your pull rate limit", True),
        ("received unexpected HTTP status: 503 Service Unavailable", True),
    ],
)
def test_a_pull_that_fails_says_why_and_whether_to_try_again(fake: Apptainer, words: str, again: bool) -> None:
    if words:
        fake.add("wanted", engines.busybox_root())
        fake.fail("wanted", words)
    images = backend.open_images(settings())
    with pytest.raises(ImageError) as caught:
        images.pull("wanted", lambda _: None)
    assert caught.value.retryable == again
    assert (words or "manifest unknown") in str(caught.value) and "FATAL" not in str(caught.value)
    if words:
        images.pull("wanted", lambda _: None)
        assert images.has("wanted")


def test_a_closed_store_ends_its_pulls_and_leaves_no_part(fake: Apptainer) -> None:
    fake.add("slow", engines.busybox_root())
    fake.fail("slow", "hang")
    images = backend.open_images(settings())
    begun = threading.Event()
    failed: list[ImageError] = []

    def pull() -> None:
        try:
            images.pull("slow", lambda _: begun.set())
        except ImageError as error:
            failed.append(error)

    thread = threading.Thread(target=pull)
    thread.start()
    assert begun.wait(SECONDS)
    images.close()
    thread.join(SECONDS)
    assert not thread.is_alive() and len(failed) == 1 and not failed[0].retryable
    assert not images.has("slow")
    assert [path.suffix for path in (fake.folder / "cache" / "kiseki" / "images").iterdir()] == [".lock"]


# What is inside


def test_nothing_of_the_host_is_inside(any_apptainer: Apptainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET", "APPTAINERENV_SECRET", "SINGULARITYENV_SECRET", "APPTAINER_BIND"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "mine").touch()
    monkeypatch.chdir(tmp_path)

    async def body(box: ShellSandbox) -> None:
        assert str(tmp_path) not in await out(box, "env")
        assert (
            await out(box, "pwd; echo $HOME; ls -A $HOME /tmp /sys") == "/home/user\n/home/user\n/home/user:\n\n/sys:\n\n/tmp:\n"
        )
        assert await out(box, f"ls {tmp_path} 2>&1 >/dev/null | wc -l") == "1\n"
        inside = await out(box, "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -c KISEKI_RUN; ls /proc | grep -c '^[0-9]'")
        assert int(inside.split()[-1]) < 12  # its own processes alone

    within(any_apptainer.image, body)


def test_the_images_variables_hold(fake: Apptainer) -> None:
    image = Path(unpacked(engines.busybox_root(), fake.folder / "variables"))
    (image / ".singularity.d" / "env").mkdir(parents=True)
    (image / ".singularity.d" / "env" / "10-docker2singularity.sh").write_text('export GREETING="hello"\n')

    async def body(box: ShellSandbox) -> None:
        assert await out(box, "echo $GREETING $HOME") == "hello /home/user\n"

    within(str(image), body)


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user's root inside is nobody's root outside")
def test_root_inside_cannot_change_the_kernel(any_apptainer: Apptainer) -> None:
    async def body(box: ShellSandbox) -> None:
        for path in ("/proc/sys/kernel/core_pattern", "/proc/irq/default_smp_affinity"):
            assert "Read-only file system" in await out(box, f"echo b >{path}")
        held = int((await out(box, "grep CapEff /proc/self/status")).split()[1], 16)
        assert held & ~0xFB == 0, "chown, dac_override, fowner, fsetid, kill, setgid, setuid"
        assert await out(box, "grep NoNewPrivs /proc/self/status | tr -dc 01") == "1"
        assert (await box.exec("mount -t tmpfs none /mnt || mknod /x b 254 0", timeout=SECONDS)).exit_code != 0

    within(any_apptainer.image, body)


def test_no_network_unless_it_is_asked_for(any_apptainer: Apptainer) -> None:
    async def only_loopback(box: ShellSandbox) -> None:
        assert await out(box, "tail -n +3 /proc/net/dev | grep -vc lo:") == "0\n"
        assert box.describe()["network"] == "none"

    async def the_hosts(box: ShellSandbox) -> None:
        interfaces = Path("/proc/net/dev").read_text().count(":")
        assert await out(box, "grep -c : /proc/net/dev") == f"{interfaces}\n"
        assert box.describe()["network"] == "the host's"

    within(any_apptainer.image, only_loopback)
    within(any_apptainer.image, the_hosts, Limits(disk_mb=64, network=True))


def test_where_the_network_cannot_be_had_apart_nothing_starts(fake: Apptainer) -> None:
    fake.refuse(network="you are not permitted to use network namespaces")
    with pytest.raises(SandboxError, match="not permitted to use network namespaces"):
        asyncio.run(backend.open_backend(settings()).open(fake.image))
    starts = [call for call in fake.calls() if "start" in call]
    assert starts and all("--network" in call for call in starts)
    assert nothing_left()


# Limits


def test_the_whole_file_system_is_writable_and_bounded(any_apptainer: Apptainer) -> None:
    async def body(box: ShellSandbox) -> None:
        assert await out(
            box, "echo 1 >/bin/new && echo 2 >/etc/new && rm -rf /var && ls /bin/new /etc/new; ls -d /var 2>/dev/null"
        ) == ("/bin/new\n/etc/new\n")
        filled = await box.exec(
            "for i in 1 2 3 4; do dd if=/dev/zero of=/tmp/$i bs=1M count=30 2>&1 | grep space; done", timeout=SECONDS
        )
        assert "No space left on device" in filled.output
        assert await out(box, "rm /tmp/*; echo fine >/tmp/a; cat /tmp/a") == "fine\n"
        assert box.describe()["disk"] == "64 MB"

    within(any_apptainer.image, body)
    assert not (Path(any_apptainer.image) / "bin" / "new").exists()


def test_without_file_systems_in_files_a_file_is_bounded(fake: Apptainer) -> None:
    fake.refuse(overlay_create="mkfs.ext3 seems too old as it doesn't support -d", memory="no control groups")

    async def body(box: ShellSandbox) -> None:
        result = await box.exec(
            "echo 1 >/bin/new; dd if=/dev/zero of=/tmp/x bs=1M count=80; ls -l /tmp/x | grep -c 67108864", timeout=SECONDS
        )
        assert result.output.endswith("1\n")
        assert box.describe()["disk"] == "64 MB per file"

    within(fake.image, body)


def test_memory_and_processes_are_bounded_by_our_own_group(fake: Apptainer) -> None:
    if not {"memory", "pids"} <= cgroup.parents().keys():
        pytest.skip("no control groups can be made here")

    async def body(box: ShellSandbox) -> None:
        described = box.describe()
        assert (described["memory"], described["processes"]) == ("128 MB", "32")
        hog = await box.exec("tail /dev/zero >/dev/null", timeout=SECONDS)
        assert hog.exit_code != 0 and not hog.timed_out
        assert await out(box, "echo alive") == "alive\n"
        bomb = await box.exec("sh -c 'f() { f | f & }; f; sleep 1'; echo over", timeout=SECONDS)
        assert "over" in bomb.output or "can't fork" in bomb.output
        # The bomb's own words may come first.
        assert (await out(box, "echo alive")).endswith("alive\n")

    within(fake.image, body)


def test_apptainers_own_limits_are_used_where_it_has_them(fake: Apptainer) -> None:
    fake.refuse()

    async def body(box: ShellSandbox) -> None:
        described = box.describe()
        assert [described[what] for what in ("memory", "cpus", "processes")] == ["128 MB", "1", "32"]

    within(fake.image, body)
    (start,) = (call for call in fake.calls() if "start" in call)
    asked = {name: start[start.index(name) + 1] for name in ("--memory", "--cpus", "--pids-limit")}
    assert asked == {"--memory": "128M", "--cpus": "1", "--pids-limit": str(32 + cgroup.OWN_PROCESSES)}


def test_what_was_found_to_work_is_not_tried_again(fake: Apptainer) -> None:
    async def main() -> None:
        opened = backend.open_backend(settings())
        boxes = await asyncio.gather(*(opened.open(fake.image) for _ in range(3)))
        await asyncio.gather(*(box.close() for box in boxes))

    asyncio.run(main())
    assert sum("start" in call and "--memory" in call for call in fake.calls()) == backend.TRIES


def test_a_way_that_failed_once_is_not_given_up(fake: Apptainer) -> None:
    """What was in the way may have passed; a lesser way would leave limits out for all that this process opens."""
    allowed = {"memory": "no control groups"}
    disks = []

    async def main() -> None:
        opened = backend.open_backend(settings())

        async def disk(**refused: str) -> None:
            fake.refuse(**allowed, **refused)
            box = await opened.open(fake.image)
            disks.append(box.describe()["disk"])
            await box.close()

        await disk(overlay_create="no space left on device")
        await disk()

    asyncio.run(main())
    assert disks == ["64 MB per file", "64 MB"]


def test_an_image_that_starts_in_no_way_says_nothing_of_the_ways(fake: Apptainer) -> None:
    (fake.folder / "text.sif").write_text("hello")

    async def main() -> None:
        opened = backend.open_backend(settings())
        for _ in range(backend.TRIES + 1):
            with pytest.raises(ImageError):
                await opened.open(str(fake.folder / "text.sif"))
        box = await opened.open(fake.image)
        assert box.describe()["disk"] == "64 MB"
        await box.close()

    asyncio.run(main())


# Ends


def test_a_dead_instance_is_an_infrastructure_failure(fake: Apptainer) -> None:
    async def body(box: ShellSandbox) -> None:
        folder = folders.left_over(LABEL)[0]
        stop = ["apptainer", "instance", "stop", "--force", f"kiseki-{LABEL}-{folder.name}"]
        subprocess.run(stop, env=os.environ | {"APPTAINER_CONFIGDIR": str(folder / "apptainer")}, check=True)
        with pytest.raises(SandboxError, match="the instance is gone"):
            await box.exec("echo 1", timeout=SECONDS)
        assert not await box.healthy()

    within(fake.image, body)


def test_a_cancelled_start_leaves_nothing(fake: Apptainer) -> None:
    async def main(after: str) -> None:
        seen = len(fake.calls())
        task = asyncio.create_task(backend.open_backend(settings()).open(fake.image))
        while not any(after in call for call in fake.calls()[seen:]):
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not folders.left_over(LABEL) and not alive(LABEL)

    for after in ("overlay", "start", "stop", "list", "exec"):  # "stop": of a way that this installation refuses
        asyncio.run(main(after))
        assert nothing_left()


def test_what_a_killed_process_left_is_reaped(fake: Apptainer) -> None:
    program = f"""
import asyncio
from kiseki.sandboxes.apptainer import backend as apptainer
from kiseki.sandboxes.base import Limits
from kiseki.sandboxes.settings import SandboxSettings

async def main():
    for label in ("{LABEL}.1", "{LABEL}.2", "{LABEL}9"):
        backend = apptainer.open_backend(SandboxSettings(backend="apptainer", label=label, limits=Limits(disk_mb=64)))
        box = await backend.open("{fake.image}")
        await box.exec("sleep 1000 & setsid sleep 1001 &", timeout=60)
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""
    victim = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert victim.stdout and victim.stdout.readline() == "ready\n"
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    assert reaper.reap(settings()) == 2
    assert nothing_left() and nothing_left(f"{LABEL}.1") and nothing_left(f"{LABEL}.2")
    assert len(folders.left_over(f"{LABEL}9")) == 1
    assert alive(f"{LABEL}9")
    assert reaper.reap(settings(label=f"{LABEL}9")) == 1
    assert nothing_left(f"{LABEL}9")


def alive(label: str) -> bool:
    return bool(processes.marked(*folders.cookies(label)))


# The program


def test_singularity_is_taken_where_there_is_no_apptainer(fake: Apptainer, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake.folder / "other").mkdir()
    (fake.folder / "bin" / "apptainer").rename(fake.folder / "other" / "singularity")
    monkeypatch.setenv("PATH", str(fake.folder / "other"))
    assert backend.why_unavailable(settings()) == ""

    async def body(box: ShellSandbox) -> None:
        assert await out(box, "echo 1") == "1\n"

    within(fake.image, body)


def test_without_a_program_there_is_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "install Apptainer" in backend.why_unavailable(settings())
    with pytest.raises(ImageError):
        asyncio.run(backend.open_backend(settings()).open("/no/such/image"))
