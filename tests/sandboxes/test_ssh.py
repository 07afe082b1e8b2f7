"""Sandboxes over SSH, against a real sshd: who is let in, what a lost connection means, and that nothing is left there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from ssh_server import Server, make_key, sshd
from support import environment, until

from kiseki.errors import SandboxError, UsageError
from kiseki.sandboxes import owners
from kiseki.sandboxes.base import Limits, Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.sandboxes.ssh import backend as ssh
from kiseki.sandboxes.ssh import login as ssh_login
from kiseki.sandboxes.ssh.connections import Pool

QUICK = 20.0
CLIENT = """
import asyncio, sys
import msgspec
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings

async def main():
    settings = msgspec.json.decode(sys.argv[1], type=SandboxSettings)
    sandboxes = Sandboxes(settings)
    boxes = [await sandboxes.open() for _ in range(3)]
    for box in boxes:
        await box.exec("sleep 1000 & setsid sleep 1000 & touch file", timeout=20)
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with sshd() as server:
        at_home(server, monkeypatch)
        yield server


def at_home(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def settings(server: Server, label: str = "run", **more: object) -> SandboxSettings:
    return msgspec.structs.replace(SandboxSettings(backend="ssh", host=server.host, label=label), **more)


def within(server: Server, body: Callable[[Sandboxes], Awaitable[None]], limits: Limits | None = None) -> None:
    async def main() -> None:
        sandboxes = Sandboxes(settings(server, limits=limits or Limits()))
        try:
            await body(sandboxes)
        finally:
            await sandboxes.close()

    asyncio.run(main())


async def out(box: Sandbox, command: str) -> str:
    return (await box.exec(command, timeout=QUICK)).output


def test_a_sandbox_is_a_private_folder_with_a_clean_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of this machine")

    async def body(sandboxes: Sandboxes) -> None:
        box = await sandboxes.open()
        (folder,) = (server.sandboxes / "run").iterdir()
        assert await out(box, "pwd; echo ~; echo $TMPDIR") == f"{folder}/home\n{folder}/home\n{folder}/tmp\n"
        assert folder.stat().st_mode & 0o777 == 0o700 == server.sandboxes.stat().st_mode & 0o777
        names = {line.partition("=")[0] for line in (await out(box, "env")).splitlines()}
        assert names == {
            "HOME",
            "KISEKI_SANDBOX",
            "LANG",
            "PATH",
            "PWD",
            "PYTHONDONTWRITEBYTECODE",
            "SHLVL",
            "TERM",
            "TMPDIR",
            "USER",
            "_",
        }
        assert await out(box, "ulimit -f; ulimit -c") == f"{7 * 1024}\n0\n"
        assert (await box.run(["sh", "-c", "head -c 9000000 /dev/zero >big; wc -c <big"], timeout=QUICK))[1] == b"7340032\n"
        assert box.describe() == {
            "backend": "ssh",
            "isolation": "own folders and environment on another host, no protection of that host",
            "network": "the host's",
            "disk": "7 MB per file",
            "memory": "not limited",
            "cpus": "not limited",
            "processes": "not limited",
        }
        other = await sandboxes.open(cwd="/code/here")
        assert (await out(other, "pwd")).endswith("/root/code/here\n")
        assert await out(other, "ls -A ~") == ""
        await box.close()
        assert await out(other, "echo still here") == "still here\n"
        await other.close()
        with pytest.raises(UsageError, match="leads out"):
            await sandboxes.open(cwd="../..")
        assert server.left() == []

    within(server, body, Limits(disk_mb=7))


def test_much_goes_both_ways(server: Server) -> None:
    async def body(sandboxes: Sandboxes) -> None:
        box = await sandboxes.open()
        data = os.urandom(5_000_000)
        await box.write_file("data", data)
        assert await box.read_file("data") == data
        status, zeros = await box.run(["head", "-c", "30000000", "/dev/zero"], timeout=QUICK * 3)
        assert (status, len(zeros), zeros.strip(b"\0")) == (0, 30_000_000, b"")
        result = await box.exec("head -c 30000000 /dev/zero | tr '\\0' x; echo; echo end", timeout=QUICK * 3)
        assert result.truncated and result.output.endswith("x\nend\n")
        await box.close()

    within(server, body)


def test_close_leaves_nothing(server: Server) -> None:
    async def body(sandboxes: Sandboxes) -> None:
        box = await sandboxes.open()
        await box.exec(
            "sleep 1000 & setsid sleep 1000 & env -i sleep 1000 & mkdir -p a/b; touch a/b/c; chmod 0 a/b a .", timeout=QUICK
        )
        await box.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"], timeout=QUICK)
        assert len(server.left()) > 5
        await box.close()
        await box.close()
        assert server.left() == []

    within(server, body)  # Imports what it needs.
    before = {entry.name for entry in os.scandir("/proc/self/fd")}
    within(server, body)
    assert {entry.name for entry in os.scandir("/proc/self/fd")} <= before


def test_a_machine_that_starts_again_keeps_its_files(server: Server) -> None:
    async def main() -> None:
        pool = Pool(ssh_login.parse_address(server.host))
        machine = ssh.SSHMachine(pool, settings(server))
        await machine.make()
        stream = await machine.open(["sh", "-c", "touch ~/file; setsid sleep 1000 & echo $KISEKI_SANDBOX; read line"])
        said = bytearray()
        stream.follow(said.extend)
        await until(lambda: b"\n" in said)
        assert f"KISEKI_SANDBOX={said.decode().strip()}" == machine.mark
        assert await machine.restart()
        assert await stream.exited == 128 + signal.SIGKILL
        assert {path.name for path in server.left()} == {
            server.sandboxes.name,
            ".new",
            "run",
            said.decode().strip()[-16:],
            "home",
            "tmp",
            "owner",
            "file",
        }
        assert await machine.why_dead() == ""
        await machine.remove()
        await machine.remove()
        assert server.left() == []
        await pool.close()

    asyncio.run(main())


def test_cancelled_opens_leave_nothing(server: Server) -> None:
    async def body(sandboxes: Sandboxes) -> None:
        box = await sandboxes.open()
        for steps in (1, 3, 10, 30, 100, 300):
            opening = asyncio.ensure_future(sandboxes.open())
            for _ in range(steps):
                await asyncio.sleep(0)
            opening.cancel()
            done = (await asyncio.gather(opening, return_exceptions=True))[0]
            if not isinstance(done, BaseException):
                await done.close()
        assert len(list((server.sandboxes / "run").iterdir())) == 1
        await box.close()
        assert server.left() == []

    within(server, body)


def test_the_last_one_may_go_while_the_first_one_comes(server: Server) -> None:
    async def main() -> None:
        pool = Pool(ssh_login.parse_address(server.host))

        async def again() -> None:
            for _ in range(12):
                machine = ssh.SSHMachine(pool, settings(server))
                await machine.make()
                await machine.remove()

        await asyncio.gather(*(again() for _ in range(4)))
        await pool.close()
        assert server.left() == []

    asyncio.run(main())


def test_many_sandboxes_share_few_connections(server: Server) -> None:
    async def body(sandboxes: Sandboxes) -> None:
        boxes = await asyncio.gather(*(sandboxes.open() for _ in range(25)))
        said = await asyncio.gather(*(out(box, f"x={number}; echo $x >x; cat x") for number, box in enumerate(boxes)))
        assert said == [f"{number}\n" for number in range(25)]
        ran = await asyncio.gather(*(box.run(["cat", "x"], timeout=QUICK) for box in boxes))
        assert ran == [(0, f"{number}\n".encode()) for number in range(25)]
        assert 3 <= server.connections() <= 6  # A shell and a runner for each, ten of them per connection.
        await asyncio.gather(*(box.close() for box in boxes))
        assert server.left() == []

    within(server, body)


def test_a_server_may_allow_fewer_programs_per_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with sshd("MaxSessions 2\n") as server:
        at_home(server, monkeypatch)

        async def body(sandboxes: Sandboxes) -> None:
            boxes = await asyncio.gather(*(sandboxes.open() for _ in range(5)))
            assert await asyncio.gather(*(out(box, "echo $((6 * 7))") for box in boxes)) == ["42\n"] * 5
            await asyncio.gather(*(box.close() for box in boxes))
            assert server.left() == []

        within(server, body)


def test_a_lost_connection_ends_its_sandboxes_and_no_others(server: Server) -> None:
    async def body(sandboxes: Sandboxes) -> None:
        box, idle = await sandboxes.open(), await sandboxes.open()
        running = asyncio.ensure_future(box.exec("touch started; sleep 1000", timeout=1000))
        await until(lambda: any(server.sandboxes.glob("run/*/home/started")))
        server.signal_connections(signal.SIGKILL)
        with pytest.raises(SandboxError, match=f"the SSH connection to {server.host} was lost"):
            await running
        for call in (box.exec("true", timeout=QUICK), idle.exec("true", timeout=QUICK), idle.write_file("x", b"")):
            with pytest.raises(SandboxError, match="was lost"):
                await call
        assert not await box.healthy()
        new = await sandboxes.open()
        assert await out(new, "echo works") == "works\n"
        await box.close()
        await idle.close()
        assert len(list((server.sandboxes / "run").iterdir())) == 1
        assert await out(new, "echo still") == "still\n"
        await new.close()
        assert server.left() == []

    within(server, body)


def test_a_host_that_does_not_answer_any_more_is_noticed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_login, "KEEPALIVE_SECONDS", 0.3)

    async def body(sandboxes: Sandboxes) -> None:
        box = await sandboxes.open()
        server.signal_connections(signal.SIGSTOP)
        with pytest.raises(SandboxError, match="was lost"):
            await box.exec("true", timeout=1000)
        await box.close()
        assert server.left() == []

    within(server, body)


def test_what_a_killed_client_left_is_reaped_by_label(server: Server) -> None:
    lock = owners.hold(label := owners.process_label("test"))
    other = settings(server, f"{label}0", owner=lock)
    mine = settings(server, f"{label}.1", owner="/runs/mine/run.lock")
    command = [sys.executable, "-c", CLIENT, msgspec.json.encode(mine).decode()]
    with subprocess.Popen(command, env=environment(HOME=str(server.home)), stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout and client.stdout.readline() == "ready\n"
        client.kill()

    async def main() -> None:
        sandboxes = Sandboxes(other)
        box = await sandboxes.open()
        await box.exec("sleep 1000 &", timeout=QUICK)
        found = ssh.left_over(mine)
        assert sorted((sandbox.label, sandbox.owner) for sandbox in found) == [
            *[(f"{label}.1", owners.Owner(owners.machine_id(), "/runs/mine/run.lock"))] * 3,
            (f"{label}0", owners.Owner(owners.machine_id(), lock)),
        ]
        assert all(sandbox.created > 1.7e9 for sandbox in found)
        assert ssh.reap(msgspec.structs.replace(mine, label=label)) == 3
        assert ssh.reap(msgspec.structs.replace(mine, label=label)) == 0
        assert [sandbox.label for sandbox in ssh.left_over(mine)] == [f"{label}0"]
        assert await out(box, "jobs | grep -c sleep") == "1\n"
        await box.close()
        await sandboxes.close()
        assert server.left() == []
        assert ssh.left_over(mine) == []

    asyncio.run(main())


FORGED = r"""
forged='{"machine":"MACHINE","file":"/gone/run.lock"}'
printf '%s' 'x\nforged 0 '"$forged" >../owner
mkdir -p '../../../U/v' && printf '%s' "x SEPARATORforged 0 $forged" >../../../U/v/owner
mkdir -p "../../../x
forged nan {}/v"
touch -d @100000000000 ../../../U/v
"""


def test_no_sandbox_can_be_forged(server: Server) -> None:
    """By line ends: those in names, those that dash's echo makes, and those that only Python takes for some."""

    async def body(sandboxes: Sandboxes) -> None:
        box = await sandboxes.open()
        await box.exec(FORGED.replace("MACHINE", owners.machine_id()).replace("SEPARATOR", "\u2028"), timeout=QUICK)
        found = await asyncio.to_thread(ssh.left_over, settings(server))
        assert sorted(sandbox.label for sandbox in found) == ["U", "run"]
        assert {sandbox.owner for sandbox in found} == {owners.Owner()}
        await box.exec("rm -r ../../../U ../../../x*", timeout=QUICK)
        await box.close()

    within(server, body)


def test_a_sandbox_that_forges_its_owner_is_nobodys(server: Server) -> None:
    async def body(sandboxes: Sandboxes) -> None:
        box = await sandboxes.open()
        await box.exec("echo '{' >../owner", timeout=QUICK)
        fifo = await sandboxes.open()
        await fifo.exec("rm ../owner; mkfifo ../owner; mkdir -p '../../../a b/c' '../../../a\nb/c'", timeout=QUICK)
        found = await asyncio.to_thread(ssh.left_over, settings(server))
        assert [sandbox.owner for sandbox in found if sandbox.label == "run"] == [owners.Owner()] * 2
        await fifo.exec("rm -r ../../../a*", timeout=QUICK)
        await box.close()
        await fifo.close()

    within(server, body)


def test_an_unknown_host_is_refused(server: Server) -> None:
    server.trust(None)
    reason = ssh.why_unavailable(settings(server))
    assert "known_hosts" in reason and "ssh-ed25519 SHA256:" in reason and "`ssh -p " in reason and "\n" not in reason


def test_known_hosts_are_those_of_the_config_and_cannot_be_done_without(server: Server) -> None:
    hosts = server.home / ".ssh" / "hosts"
    for config in ("UserKnownHostsFile none", "UserKnownHostsFile /dev/null", "UserKnownHostsFile ~/.ssh/other"):
        server.write_config(config, "StrictHostKeyChecking no")
        assert "there is none (it shows ssh-ed25519" in ssh.why_unavailable(settings(server))
    hosts.rename(hosts.with_name("known_hosts"))
    assert "there is none" in ssh.why_unavailable(settings(server))  # The config still names another.
    (server.home / ".ssh" / "config").unlink()
    assert ssh.why_unavailable(settings(server)) == ""


def test_a_host_whose_key_has_changed_is_refused(server: Server, tmp_path: Path) -> None:
    server.trust(make_key(tmp_path / "another"))
    assert "the host's key is not the one that known_hosts has for it" in ssh.why_unavailable(settings(server))


def test_a_key_that_is_not_accepted(server: Server) -> None:
    key = server.home / ".ssh" / "id_ed25519"
    key.unlink()
    make_key(key)
    reason = ssh.why_unavailable(settings(server))
    assert "no key of ours is accepted" in reason and "ssh-copy-id" in reason and "\n" not in reason


def test_keys_may_be_an_agents(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh_folder, socket = server.home / ".ssh", server.home / "agent"
    key = ssh_folder / "id_ed25519"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        asyncio.run(asyncio.wait_for(until(socket.exists), QUICK))
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", key], check=True)
        server.write_config("IdentityFile ~/.ssh/not_there")
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "a passphrase", "-f", key], check=True, stdout=subprocess.DEVNULL)
        assert ssh.why_unavailable(settings(server)) == ""
        key.unlink()
        assert ssh.why_unavailable(settings(server)) == ""
        key.with_name("id_ed25519.pub").rename(ssh_folder / "key.pub")
        (ssh_folder / "config").write_text("UserKnownHostsFile ~/.ssh/hosts\n")
        assert ssh.why_unavailable(settings(server)) == ""
        server.write_config("IdentityAgent ~/nowhere")
        assert "ssh-add unlocks one with a passphrase" in ssh.why_unavailable(settings(server))
    finally:
        agent.kill()
        agent.wait()


def test_names_and_ports_come_from_the_ssh_config(server: Server) -> None:
    user, _, rest = server.host.partition("@")
    host, _, port = rest.partition(":")
    server.write_config("Host farm", f"Hostname {host}", f"Port {port}", f"User {user}", "Host *")
    assert ssh.why_unavailable(settings(server, host="farm")) == ""


def test_nothing_of_this_machine_goes_along(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with sshd("AcceptEnv *\n") as server:
        at_home(server, monkeypatch)
        monkeypatch.setenv("SECRET", "of this machine")
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        server.write_config("ForwardAgent yes", "SendEnv SECRET", "SetEnv OTHER=secret", "RequestTTY force", "RemoteCommand id")

        async def ask() -> tuple[int, str]:
            pool = Pool(ssh_login.parse_address(server.host))
            try:
                return await pool.run("echo ${SECRET-none} ${OTHER-none} ${SSH_AUTH_SOCK-none}; tty", QUICK)
            finally:
                await pool.close()

        assert asyncio.run(ask()) == (1, "none none none\nnot a tty\n")


def test_what_start_up_files_say_is_not_taken_for_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with sshd('ForceCommand echo Welcome; echo to you >&2; eval "$SSH_ORIGINAL_COMMAND"\n') as server:
        at_home(server, monkeypatch)

        async def body(sandboxes: Sandboxes) -> None:
            box = await sandboxes.open()
            assert await out(box, "echo mine") == "mine\n"
            assert await box.run(["echo", "mine"], timeout=QUICK) == (0, b"mine\n")
            await box.close()

        within(server, body)


def test_a_host_that_runs_no_programs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with sshd("ForceCommand echo This account is closed.; exit 1\n") as server:
        at_home(server, monkeypatch)
        assert "This account is closed." in ssh.why_unavailable(settings(server))
        with pytest.raises(SandboxError, match="This account is closed"):
            ssh.reap(settings(server))


def test_a_folder_of_someone_else_is_not_used(server: Server, tmp_path: Path) -> None:
    victim = tmp_path / "run" / "sandbox"
    victim.mkdir(parents=True)
    server.sandboxes.symlink_to(tmp_path)
    assert f"{server.sandboxes} belongs to someone else" in ssh.why_unavailable(settings(server))
    assert ssh.left_over(settings(server)) == []
    assert ssh.reap(settings(server)) == 0
    assert victim.is_dir()


def test_a_host_that_is_not_there() -> None:
    there_is_none = SandboxSettings(backend="ssh", host="127.0.0.1:1")
    reason = ssh.why_unavailable(there_is_none)
    assert "127.0.0.1:1 cannot be reached by SSH" in reason and "`ssh -p 1 127.0.0.1` must work" in reason and "\n" not in reason
    with pytest.raises(SandboxError, match="cannot be reached"):
        ssh.reap(there_is_none)
    with pytest.raises(SandboxError, match="cannot be reached"):
        ssh.left_over(there_is_none)


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=id", "a b", "host:", "host:0", "host:65536", "::1", "user@", "-x@host", "@[zz]"]
)
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(UsageError, match=r"it is written \[user@\]host\[:port\]"):
        Sandboxes(SandboxSettings(backend="ssh", host=host))


@pytest.mark.parametrize(
    "host, parts",
    [
        ("farm", ("", "farm", 0)),
        ("me@farm.example:2222", ("me", "farm.example", 2222)),
        ("me@home@10.0.0.1", ("me@home", "10.0.0.1", 0)),
        ("[fe80::1%eth0]:22", ("", "fe80::1%eth0", 22)),
    ],
)
def test_what_is_a_host(host: str, parts: tuple[str, str, int]) -> None:
    assert ssh_login.parse_address(host) == parts
    assert str(ssh_login.parse_address(host)) == host


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--ssh_host"):
        Sandboxes(SandboxSettings(backend="ssh"))
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    with pytest.raises(UsageError, match=r"pip install 'kiseki\[ssh\]'"):
        Sandboxes(SandboxSettings(backend="ssh", host="farm"))
    assert "kiseki[ssh]" in ssh.why_unavailable(SandboxSettings(backend="ssh", host="farm"))
    with pytest.raises(SandboxError, match=r"kiseki\[ssh\]"):
        ssh.reap(SandboxSettings(backend="ssh", host="farm"))
