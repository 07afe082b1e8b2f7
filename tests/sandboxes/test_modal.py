"""Sandboxes at Modal: the real SDK against a local server that speaks its protocol (modal_server.py)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import engines
import msgspec
import pytest
from modal_proto import api_pb2 as api
from modal_server import TOKEN_SECRET, ModalServer, modal_server
from support import children, kiseki

from kiseki.errors import ImageError, SandboxError, SandboxTimeout
from kiseki.sandboxes import owners
from kiseki.sandboxes.base import Limits, Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.modal import backend as modal
from kiseki.sandboxes.modal import machine as modal_machine
from kiseki.sandboxes.modal import sdk as modal_sdk
from kiseki.sandboxes.settings import Pull, SandboxSettings

QUICK = 30.0
"""Seconds that nothing here needs, also on a machine under load."""
LONG_PATH = f"/data/{'a-long-folder-name/' * 9}run.lock"


@pytest.fixture
def server() -> Iterator[ModalServer]:
    if not shutil.which("busybox") or not shutil.which("nsenter"):
        pytest.skip("the stand-in for Modal needs the programs busybox and nsenter")
    with modal_server() as found:
        yield found


def settings(label: str = "4f2a9c.3", owner: str = "", limits: Limits | None = None) -> SandboxSettings:
    return SandboxSettings(backend="modal", label=label, owner=owner, limits=limits or Limits())


def within(body: Callable[[Sandbox], Awaitable[None]], image: str = engines.BUSYBOX, limits: Limits | None = None) -> None:
    """Run `body` with an open sandbox."""

    async def main() -> None:
        box = await Sandboxes(settings(limits=limits)).open(image=image)
        try:
            await body(box)
        finally:
            await box.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + QUICK
    while not condition():
        assert time.monotonic() < end, "it does not come true"
        await asyncio.sleep(0.01)


def failure_of(image: str) -> ImageError:
    """Of opening a sandbox."""

    async def main() -> None:
        await Sandboxes(settings()).open(image=image)

    with pytest.raises(ImageError) as raised:
        asyncio.run(main())
    return raised.value


# ---- what a sandbox is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", [engines.BUSYBOX, engines.BASH])
def test_a_session_programs_and_files(server: ModalServer, image: str) -> None:
    async def body(box: Sandbox) -> None:
        await box.exec("cd /tmp; export GREETING=hello", timeout=QUICK)
        assert (await box.exec('echo "$GREETING from $(pwd)"', timeout=QUICK)).output == "hello from /tmp\n"
        await box.write_file("deep/data", bytes(range(256)) * 10_000)
        assert await box.read_file("/tmp/deep/data") == bytes(range(256)) * 10_000
        assert await box.run(["wc", "-c"], stdin=b"x" * 300_000, timeout=QUICK) == (0, b"300000\n")
        assert len(server.running()) == 1

    within(body, image)
    assert not server.running()


def test_a_session_that_ends_while_a_job_holds_its_output(server: ModalServer) -> None:
    async def body(box: Sandbox) -> None:
        result = await box.exec("sleep 1000 & exit 7", timeout=QUICK)
        assert (result.exit_code, result.session_restarted) == (7, True)
        assert (await box.exec("echo back", timeout=QUICK)).output == "back\n"

    within(body)


def test_what_the_image_says_holds(server: ModalServer) -> None:
    async def body(box: Sandbox) -> None:
        result = await box.exec('pwd; echo "$GREETING"; echo "$PATH"', timeout=QUICK)
        assert result.output.splitlines()[:2] == ["/srv/code", "hello"]
        assert result.output.endswith(":/opt/bin\n")

    within(body, engines.CONFIGURED)


def test_without_a_working_folder_of_the_image_it_is_home(server: ModalServer) -> None:
    server.images["plain"] = server.images[engines.BUSYBOX]._replace(folder="/")

    async def body(box: Sandbox) -> None:
        assert (await box.exec("pwd", timeout=QUICK)).output == "/root\n"

    within(body, "plain")


def test_limits_and_network_are_asked_of_modal(server: ModalServer) -> None:
    async def body(box: Sandbox) -> None:
        result = await box.exec("dd if=/dev/zero of=big bs=1M count=5 2>&1; wc -c <big", timeout=QUICK)
        assert result.output.splitlines()[-1] == str(3 << 20)
        described = box.describe()
        assert (described["memory"], described["cpus"], described["disk"]) == ("512 MB", "0.5", "3 MB per file")

    within(body, limits=Limits(memory_mb=512, cpus=0.5, disk_mb=3))
    within(body, limits=Limits(memory_mb=512, cpus=0.5, disk_mb=3, network=True))
    closed, opened = (create.definition for create in server.creates)
    assert closed.network_access.network_access_type == api.NetworkAccess.BLOCKED
    assert opened.network_access.network_access_type == api.NetworkAccess.OPEN
    for definition in (closed, opened):
        resources = definition.resources
        assert (resources.memory_mb, resources.memory_mb_max) == (128, 512)
        assert (resources.milli_cpu, resources.milli_cpu_max) == (125, 500)
        assert definition.timeout_secs == 24 * 3600


def test_the_token_stays_here(server: ModalServer) -> None:
    async def body(box: Sandbox) -> None:
        result = await box.exec("env; cat /proc/*/environ", timeout=QUICK)
        assert "MODAL_TOKEN" not in result.output and TOKEN_SECRET not in result.output

    within(body)
    assert TOKEN_SECRET.encode() not in server.creates[0].SerializeToString()


# ---- images -------------------------------------------------------------------------------------------------------------


def test_an_image_is_asked_for_once_and_without_its_entrypoint(server: ModalServer) -> None:
    async def main() -> None:
        boxes = Sandboxes(settings())
        opened = await asyncio.gather(*(boxes.open(image=engines.BUSYBOX) for _ in range(5)))
        await asyncio.gather(*(box.close() for box in opened))

    asyncio.run(main())
    assert server.dockerfiles == [(f"FROM {engines.BUSYBOX}", "ENTRYPOINT []")]


def test_an_image_that_cannot_be_had_fails_in_modals_words(server: ModalServer) -> None:
    failure = failure_of("nobody/nothing:1")
    assert "nobody/nothing:1" in str(failure) and "manifest unknown" in str(failure) and "\n" not in str(failure)
    assert not failure.retryable
    server.image_faults[engines.BASH] = "a builder went away"
    failure = failure_of(engines.BASH)
    assert "a builder went away" in str(failure) and failure.retryable
    assert not server.creates


def test_an_image_name_is_no_way_into_a_dockerfile(server: ModalServer) -> None:
    assert "not the name of an image" in str(failure_of(f"{engines.BUSYBOX}\nRUN curl evil"))
    assert not server.dockerfiles


def test_an_image_without_a_shell_is_refused(server: ModalServer) -> None:
    assert "has no `sh`" in str(failure_of(engines.NOSHELL))
    assert not server.running()


def test_the_image_store_builds_at_modal(server: ModalServer) -> None:
    store = modal.open_images(settings())
    said: list[Pull] = []
    assert not store.has(engines.BUSYBOX)
    store.pull(engines.BUSYBOX, said.append)
    assert store.has(engines.BUSYBOX) and said[0].words == "Modal builds it"
    with pytest.raises(ImageError, match="manifest unknown"):
        store.pull("nobody/nothing:1", said.append)
    store.close()


# ---- what goes wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (api.GenericResult.GENERIC_STATUS_TERMINATED, "terminated from outside"),
        (api.GenericResult.GENERIC_STATUS_TIMEOUT, "the end of its 24 hours"),
        (api.GenericResult.GENERIC_STATUS_FAILURE, "out of memory, or killed"),
    ],
)
def test_an_instance_that_ends_in_mid_command_is_the_sandboxes_failure(
    server: ModalServer, status: api.GenericResult.GenericStatus.ValueType, words: str
) -> None:
    async def body(box: Sandbox) -> None:
        command = asyncio.ensure_future(box.exec("echo begun >/tmp/begun; sleep 1000", timeout=1000))
        while (await box.run(["cat", "/tmp/begun"], timeout=QUICK))[0]:
            await asyncio.sleep(0.01)
        server.end(server.running()[0], api.GenericResult(status=status, exitcode=137))
        with pytest.raises(SandboxError, match=words):
            await asyncio.wait_for(command, QUICK)
        assert not await box.healthy()

    within(body)


def test_no_instance_to_be_had(server: ModalServer) -> None:
    server.refuse_create = "Workspace limit of sandboxes reached"

    async def main() -> None:
        await Sandboxes(settings()).open(image=engines.BUSYBOX)

    with pytest.raises(SandboxError, match="Modal does not start a sandbox: Workspace limit of sandboxes reached") as raised:
        asyncio.run(main())
    assert not isinstance(raised.value, ImageError) and raised.value.retryable


def test_what_a_cancelled_start_leaves_is_ended(server: ModalServer) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(Sandboxes(settings()).open(image=engines.BUSYBOX))
        server.hold_creates(True)
        await until(lambda: bool(server.instances))
        opening.cancel()
        server.hold_creates(False)
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(main())
    assert len(server.instances) == 1 and not server.running()


def test_a_start_that_is_given_up_comes_back_where_modal_hangs(server: ModalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for its turn to start."""
    monkeypatch.setattr(modal, "END_GRACE", 0.1)
    monkeypatch.setattr(modal_machine, "REMOVE_SECONDS", 0.1)
    server.hanging.add("SandboxTerminateV2")
    boxes = Sandboxes(msgspec.structs.replace(settings(), start_timeout=0.5))

    async def given_up(*hanging: str) -> None:
        server.hanging.update(hanging)
        async with asyncio.timeout(QUICK):
            with pytest.raises(SandboxTimeout):
                await boxes.open(image=engines.BUSYBOX)
        server.hanging.difference_update(hanging)

    async def main() -> None:
        await boxes._backend._image(engines.BUSYBOX)  # type: ignore[attr-defined]
        await given_up("TaskExecStart")
        server.hold_creates(True)
        opening = asyncio.ensure_future(given_up())
        await until(lambda: len(server.instances) == 2)
        await asyncio.sleep(2 * boxes._settings.start_timeout)
        server.hold_creates(False)
        await opening
        monkeypatch.setattr(modal, "CREATE_GRACE", 0.1)
        await given_up("SandboxCreateV2")
        server.hanging.clear()
        boxes._settings = msgspec.structs.replace(boxes._settings, start_timeout=QUICK)
        box = await boxes.open(image=engines.BUSYBOX)
        await box.close()

    asyncio.run(main())


def test_a_modal_that_does_not_answer_is_said_to_be_so(server: ModalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modal_machine, "ANSWER_SECONDS", 0.1)

    async def main() -> None:
        backend = modal.ModalBackend(settings())
        machine = modal_machine.ModalMachine(await backend._create(await backend._image(engines.BUSYBOX)), Limits())
        assert await machine.why_dead() == ""
        server.hanging.add("SandboxWaitV2")
        async with asyncio.timeout(QUICK):
            assert await machine.why_dead() == "the sandbox at Modal does not answer: no answer in time"
        server.hanging.clear()
        await machine.remove()

    asyncio.run(main())


def test_a_program_whose_start_is_given_up_leaves_the_rest_as_it_is(server: ModalServer) -> None:
    async def main() -> None:
        backend = modal.ModalBackend(settings())
        machine = modal_machine.ModalMachine(await backend._create(await backend._image(engines.BUSYBOX)), Limits())
        server.hanging.add("TaskExecStart")
        opening = asyncio.ensure_future(machine.open(["cat"]))
        await asyncio.sleep(0.1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(opening, QUICK)
        server.hanging.clear()
        stream, said = await machine.open(["echo", "on"]), bytearray()
        stream.follow(said.extend)
        assert await asyncio.wait_for(stream.exited, QUICK) == 0
        assert said == bytearray(b"on\n")
        stream.close()
        await machine.remove()

    asyncio.run(main())


def test_a_program_that_closes_its_output_has_not_broken_off(server: ModalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modal_machine, "EXIT_SECONDS", 0.0)

    async def main() -> None:
        backend = modal.ModalBackend(settings())
        machine = modal_machine.ModalMachine(await backend._create(await backend._image(engines.BUSYBOX)), Limits())
        stream = await machine.open(["sh", "-c", "exec >&-; sleep 0.3; exit 5"])
        stream.follow(lambda data: None)
        assert await asyncio.wait_for(stream.exited, QUICK) == 5
        await machine.remove()

    asyncio.run(main())


def test_tags_that_others_have_set_are_nobodys(server: ModalServer) -> None:
    for tags in ({"kiseki_owner_0": "a"}, {"kiseki_owner_0": "____", "kiseki_created": "²"}, {"kiseki_created": "nan"}):
        left = modal._left_over({"kiseki_label": "abc", "kiseki_machine": owners.machine_id(), **tags})
        assert (left.label, owners.state(left.owner), left.created) == ("abc", "unknown", 0.0)


def test_a_token_is_needed(server: ModalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert modal.why_unavailable(settings()) == ""
    _forget_client()
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-wrong")
    assert "`modal token new`" in (words := modal.why_unavailable(settings())) and "as-wrong" not in words
    _forget_client()
    monkeypatch.delenv("MODAL_TOKEN_ID")
    assert "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET" in modal.why_unavailable(settings())
    with pytest.raises(SandboxError, match="modal token new"):
        modal.reap(settings())


def test_nobody_answers(server: ModalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODAL_SERVER_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(modal_sdk, "ANSWER_SECONDS", 0.5)
    assert "Modal does not answer" in modal.why_unavailable(settings())


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modal", None)
    assert "pip install 'kiseki[modal]'" in modal.why_unavailable(settings())
    with pytest.raises(SandboxError, match="pip install"):
        modal.left_over(settings())


def _forget_client() -> None:
    """The SDK keeps one for the process."""
    import modal as sdk

    sdk.Client.from_env().close()


# ---- nothing left behind ------------------------------------------------------------------------------------------------


def test_reap_takes_a_label_and_those_below_it(server: ModalServer) -> None:
    assert modal.reap(settings("4f2a9c")) == 0  # nobody has ever been here
    labels = ["4f2a9c", "4f2a9c.1", "4f2a9c.2", "4f2a9c.2.7", "4f2a9cd", "4f2a9cd.1", "4f2a", "agent-77-0a1b2c3d"]

    async def main() -> None:
        for label in labels:
            await Sandboxes(settings(label, LONG_PATH)).open(image=engines.BUSYBOX)

    asyncio.run(main())
    found = modal.left_over(settings(""))
    assert sorted(left.label for left in found) == sorted(labels)
    assert {left.owner for left in found} == {owners.Owner(owners.machine_id(), LONG_PATH)}
    assert all(abs(left.created - time.time()) < 3600 for left in found)
    assert modal.reap(settings("4f2a9c.2")) == 2
    assert modal.reap(settings("4f2a9c")) == 2
    assert sorted(left.label for left in modal.left_over(settings(""))) == sorted(labels[4:])
    assert len(server.running()) == 4


_OPENS_ONE = """
import asyncio, sys
from kiseki.sandboxes import owners
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings
label = owners.process_label("agent")
settings = SandboxSettings(backend="modal", label=label, owner=owners.hold(label))
async def main():
    box = await Sandboxes(settings).open(image=sys.argv[1])
    print((await box.exec("echo up", timeout=30)).output, flush=True)
    await box.exec("sleep 1000", timeout=1000)
asyncio.run(main())
"""


def test_kiseki_reap_ends_what_a_killed_process_left(server: ModalServer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _OPENS_ONE, engines.BUSYBOX]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout and process.stdout.readline() == "up\n"
        processes[0].kill()
        processes[0].wait()
        assert len(server.running()) == 2
        kiseki("reap", "--sandbox=modal", cwd=tmp_path, TMPDIR=str(tmp_path))
        (left,) = modal.left_over(settings(""))
        assert f"agent-{processes[1].pid}-" in left.label
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_an_instance_hears_from_its_owner(server: ModalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modal_machine, "PULSE", 0.01)

    async def body(box: Sandbox) -> None:
        await until(lambda: server.running()[0].pulses > 3)
        assert await box.healthy()

    within(body)


def first_program(shell: str, stdin: int) -> subprocess.Popen[bytes]:
    """What an instance runs, here; it waits for a second."""
    found = shutil.which(shell)
    if not found:
        pytest.skip(f"there is no {shell} on this machine")
    path = "/usr/bin:/bin" if shell == "bash" else "/nowhere"
    words = [found, *(["sh"] if shell == "busybox" else []), *modal_machine.first_program(silence=1)[1:]]
    return subprocess.Popen(words, stdin=stdin, env={"PATH": path})


@pytest.mark.parametrize("shell", ["bash", "busybox"])
def test_an_instance_that_hears_nothing_ends(shell: str) -> None:
    """Also where nobody comes to reap, it is not paid for longer."""
    quiet = first_program(shell, subprocess.PIPE)
    try:
        assert quiet.wait(QUICK) == 0
    finally:
        quiet.kill()
        quiet.communicate()


def test_an_instance_that_cannot_hear_stays() -> None:
    deaf = first_program("bash", subprocess.DEVNULL)
    try:
        asyncio.run(until(lambda: any("sleep" in Path(f"/proc/{pid}/comm").read_text() for pid in children(deaf.pid))))
    finally:
        for pid in (*children(deaf.pid), deaf.pid):
            os.kill(pid, signal.SIGKILL)
        deaf.wait()


# ---- streams ------------------------------------------------------------------------------------------------------------


def test_a_program_that_nobody_follows_is_held_back_and_loses_nothing(server: ModalServer) -> None:
    size = 40 << 20

    async def main() -> None:
        backend = modal.ModalBackend(settings())
        instance = await backend._create(await backend._image(engines.BUSYBOX))
        machine = modal_machine.ModalMachine(instance, Limits())
        stream = await machine.open(["sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x; echo end; exit 3"])
        program = next(iter(server.running()[0].programs.values()))
        await until(lambda: program.size > modal_machine.HELD_BYTES)
        before = -1
        while before != program.size:
            before = program.size
            await asyncio.sleep(0.3)
        assert program.size < size // 2
        got = bytearray()
        stream.follow(got.extend)
        assert await asyncio.wait_for(stream.exited, QUICK) == 3
        assert len(got) == size + 4 and got.endswith(b"xend\n") and not got[:-4].strip(b"x")
        await machine.remove()
        await machine.remove()

    asyncio.run(main())
    assert not server.running()
