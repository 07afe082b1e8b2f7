"""Images of a run, with a real Docker and a registry of our own: there before the first model call, each pulled once."""

from __future__ import annotations

import io
import json
import signal
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from engines import BUSYBOX, busybox_root, docker_host
from registry import HANG, Registry
from support import FAST, SECONDS, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.agent.agent import AIAgent
from kiseki.commands.main import main
from kiseki.errors import UsageError
from kiseki.ledger.opening import open_ledger
from kiseki.models.mock_server import MockServer
from kiseki.sandboxes import images

LOOK = {"reasoning": "r", "tool_calls": [{"name": "terminal", "arguments": {"command": "cat /which"}}]}
SCRIPT = [{"turns": [LOOK, {"content": "ok", "reasoning": "r"}]}]
CALLS = 2
"""Of the model, in a rollout of this script."""
ON_DOCKER = ("--sandbox=docker", "--distribution=terminal_only", *FAST)


@cache
def root(which: str) -> bytes:
    """A root filesystem whose file /which holds its name."""
    buffer = io.BytesIO(busybox_root())
    with tarfile.open(fileobj=buffer, mode="a") as tar:
        entry = tarfile.TarInfo("./which")
        entry.size = len(which)
        tar.addfile(entry, io.BytesIO(which.encode()))
    return buffer.getvalue()


def flags(server: MockServer, *more: str) -> tuple[str, ...]:
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=10", "--model=m", f"--base_url={server.base_url}")
    return (*base, *more)


def rows(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "data/r/trajectories.jsonl")


def seen(row: dict[str, Any]) -> str:
    """What the row's command found in /which."""
    return str(json.loads(row["conversations"][3]["value"].split("\n")[1])["content"]["output"])


def failures(folder: Path) -> list[tuple[str, str, int, float]]:
    """(class, words, model calls, cost) of each failed rollout."""
    with open_ledger(folder / "data/r", create=False) as ledger:
        query = "SELECT error_class, error, api_calls, cost FROM attempts WHERE outcome = 'failed' ORDER BY id"
        return ledger.db.execute(query).fetchall()


def test_each_missing_image_is_pulled_once_for_the_whole_run(tmp_path: Path) -> None:
    engine = docker_host()
    with Registry() as registry, MockServer(SCRIPT) as server:
        names = [registry.add(name, "latest", root(name)) for name in ("one", "two", "three", "four")]
        write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{n}", "image": names[n % 4]} for n in range(40)])
        on_docker = ("--sandbox=docker", "--distribution=terminal_only", "--engine=processes", "--num_workers=4")
        done = kiseki(*flags(server, *on_docker, "--concurrency=8"), cwd=tmp_path, DOCKER_HOST=engine)
        assert registry.pulls == {"one": 1, "two": 1, "three": 1, "four": 1}
    assert "images pulled 4/4" in done.stdout
    assert [seen(row) for row in rows(tmp_path)] == 10 * ["one", "two", "three", "four"]


def test_an_image_that_cannot_be_had_fails_its_rows_alone_and_they_run_once_it_can(tmp_path: Path) -> None:
    engine = docker_host()
    with Registry() as registry, MockServer(SCRIPT) as server:
        there, late = registry.add("there", "latest", root("there")), f"{registry.host}/late:latest"
        write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{n}", "image": (there, late)[n % 2]} for n in range(6)])
        done = kiseki(*flags(server, *ON_DOCKER), cwd=tmp_path, status=3, DOCKER_HOST=engine)
        assert server.stats()["calls"] == 3 * CALLS, "none for a row without its image"
        assert [seen(row) for row in rows(tmp_path)] == 3 * ["there"]
        for kind, words, calls, cost in failures(tmp_path):
            assert (kind, calls, cost) == ("ImageError", 0, 0.0)
            assert late in words
            assert "manifest_unknown by order of the test" in words
        assert len(failures(tmp_path)) == 3, "an attempt each: another would not help"
        assert "(rows that need it: 3)" in done.stdout.splitlines()[-1]
        registry.add("late", "latest", root("late"))
        kiseki(*flags(server, *ON_DOCKER, "--resume"), cwd=tmp_path, DOCKER_HOST=engine)
        assert server.stats()["calls"] == 6 * CALLS
        assert registry.pulls == {"there": 1, "late": 1}
    assert [seen(row) for row in rows(tmp_path)] == 3 * ["there", "late"]


@pytest.mark.parametrize("status", [500, 429])
def test_a_registry_that_fails_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(images, "BACKOFF_SECONDS", 0.0)
    with Registry() as registry:
        image = registry.add("shaky", "latest", root("shaky"), unique=str(status))
        write_dataset(tmp_path / "p.jsonl", [{"prompt": "p", "image": image}])
        assert main(["images", "--dataset_file=p.jsonl"]) == 3
        registry.fail("shaky", 2, status)
        assert main(["images", "--dataset_file=p.jsonl", "--pull"]) == 0
        assert (registry.refusals, registry.pulls) == ({"shaky": 2}, {"shaky": 1})
        assert main(["images", "--dataset_file=p.jsonl"]) == 0
    assert "try 2 of 3" in capsys.readouterr().out


def test_an_interrupt_while_pulling_ends_it_at_once_and_loses_nothing(tmp_path: Path) -> None:
    engine = docker_host()
    with Registry() as registry, MockServer(SCRIPT) as server:
        quick, slow = (registry.add(name, "latest", root(name)) for name in ("quick", "slow"))
        write_dataset(tmp_path / "p.jsonl", [{"prompt": "a", "image": quick}])
        kiseki(*flags(server, *ON_DOCKER), cwd=tmp_path, DOCKER_HOST=engine)
        write_dataset(tmp_path / "p.jsonl", [{"prompt": "a", "image": quick}, {"prompt": "b", "image": slow}])
        registry.fail("slow", 1, HANG)
        process = start_kiseki(*flags(server, *ON_DOCKER, "--resume"), cwd=tmp_path, DOCKER_HOST=engine)
        assert process.stdout
        while "images pulled 0/1" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 130, output
        assert output.splitlines()[-1].startswith("kiseki: interrupted")
        assert server.stats()["calls"] == CALLS
        kiseki(*flags(server, *ON_DOCKER, "--resume"), cwd=tmp_path, DOCKER_HOST=engine)
    assert [seen(row) for row in rows(tmp_path)] == ["quick", "slow"]
    kiseki("verify", "data/r", cwd=tmp_path)


def test_rows_without_an_image_run_in_the_runs_own(tmp_path: Path) -> None:
    engine = docker_host()
    with Registry() as registry, MockServer(SCRIPT) as server:
        own, default = (registry.add(name, "latest", root(name)) for name in ("own", "default"))
        write_dataset(tmp_path / "p.jsonl", [{"prompt": "a", "image": own}, {"prompt": "b"}])
        done = kiseki(*flags(server, *ON_DOCKER), cwd=tmp_path, status=2, DOCKER_HOST=engine)
        assert "row 1 (from 0) names no image, and sandbox docker needs one; --sandbox_image" in done.stderr
        assert not (tmp_path / "data/r").exists()
        assert not registry.pulls
        kiseki(*flags(server, *ON_DOCKER, f"--sandbox_image={default}"), cwd=tmp_path, DOCKER_HOST=engine)
        assert registry.pulls == {"own": 1, "default": 1}
    assert [seen(row) for row in rows(tmp_path)] == ["own", "default"]


def test_a_run_without_a_tool_that_needs_a_sandbox_needs_no_image(tmp_path: Path) -> None:
    engine = docker_host()
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a", "image": "127.0.0.1:9/nowhere"}, {"prompt": "b"}])
    with MockServer(turns=0) as server:
        done = kiseki(*flags(server, "--sandbox=docker", *light_tools(tmp_path), *FAST), cwd=tmp_path, DOCKER_HOST=engine)
    assert "images" not in done.stdout
    assert len(rows(tmp_path)) == 2


def test_one_prompt_in_an_image(tmp_path: Path) -> None:
    engine = docker_host()
    ask = ("agent", "--query", "look", "--model=m", "--enabled_toolsets=terminal", "--sandbox=docker")
    with Registry() as registry, MockServer(SCRIPT) as server:
        image = registry.add("single", "latest", root("single"))
        endpoint = f"--base_url={server.base_url}"
        done = kiseki(*ask, endpoint, f"--sandbox_image={image}", cwd=tmp_path, DOCKER_HOST=engine)
        assert "single" in next(line for line in done.stdout.splitlines() if line.startswith("result"))
        assert registry.pulls == {"single": 1}
        done = kiseki(*ask, endpoint, f"--sandbox_image={registry.host}/none", cwd=tmp_path, status=3, DOCKER_HOST=engine)
        assert "manifest_unknown by order of the test" in done.stdout.splitlines()[-1]
        done = kiseki(*ask, endpoint, cwd=tmp_path, status=2, DOCKER_HOST=engine)
        assert "--sandbox=docker needs --sandbox_image" in done.stderr
        assert server.stats()["calls"] == CALLS


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--sandbox=docker", "--ssh_host=h"), "(--ssh_host) is for sandbox backend 'ssh', and the backend is 'docker'"),
        (("--ssh_host=h",), "(--ssh_host) is for sandbox backend 'ssh', and the backend is 'auto'"),
        (("--sandbox=ssh",), "sandbox backend 'ssh' needs ssh_host (--ssh_host"),
        (("--sandbox_image=debian",), "(--sandbox_image): sandbox backend 'auto' has no images; docker, podman"),
        (("--sandbox=bubblewrap", "--sandbox_image=debian"), "sandbox backend 'bubblewrap' has no images; docker, podman"),
        (("--sandbox=dokcer",), "there is no sandbox backend 'dokcer'; the backends are auto, bubblewrap"),
        (("--network=maybe",), "--network: 'maybe' cannot be used: it must be one of none, on"),
        (("--sandbox_memory=0",), "--sandbox_memory: '0' cannot be used: it must be at least 16"),
        (("--sandbox_processes=1",), "--sandbox_processes: '1' cannot be used: it must be at least 12"),
        (
            ("--sandbox=local", "--dataset_file=i.jsonl"),
            "row 0 (from 0) asks for image 'debian', and sandbox local has no images",
        ),
        (("--sandbox=docker",), "docker"),  # where no engine answers
    ],
)
def test_what_cannot_be_is_one_line_before_anything_is_made(tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}])
    write_dataset(tmp_path / "i.jsonl", [{"prompt": "a", "image": "debian"}])
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=1", "--model=builtin/practice")
    done = kiseki(*base, *more, cwd=tmp_path, status=2, DOCKER_HOST="unix:///nowhere/docker.sock")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "data/r").exists()


def test_the_library_has_the_same_settings() -> None:
    unusable: list[dict[str, Any]] = [{"network": "maybe"}, {"sandbox_image": "debian"}, {"ssh_host": "h"}, {"sandbox": "ssh"}]
    for wrong in unusable:
        with pytest.raises(UsageError):
            AIAgent("builtin/practice", **wrong)
    agent = AIAgent("builtin/practice", sandbox="local", sandbox_memory=100, sandbox_processes=50, network="on")
    assert (agent.sandbox.limits.memory_mb, agent.sandbox.limits.processes, agent.sandbox.limits.network) == (100, 50, True)


def test_what_the_commands_find_makes_the_kind_of_rows_and_limits_do_not(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}])
    with MockServer(turns=0) as server:
        base = flags(server, *light_tools(tmp_path), *FAST, "--sandbox=local")
        kiseki(*base, cwd=tmp_path)
        with open_ledger(tmp_path / "data/r", create=False) as ledger:  # as a version without these settings left it
            began = json.loads(ledger.get_meta("run"))
            before = {name: began[name] for name in began if name not in ("environment", "sandbox_image", "network")}
            ledger.set_meta("run", json.dumps(before))
        write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
        done = kiseki(*base, "--resume", "--network=on", cwd=tmp_path, status=2)
        assert "network: 'none' → 'on'" in done.stderr
        kiseki(*base, "--resume", "--sandbox_memory=500", cwd=tmp_path)
        more = ("--resume", "--sandbox=docker", f"--sandbox_image={BUSYBOX}")
        done = kiseki(*base, *more, cwd=tmp_path, status=2, DOCKER_HOST=docker_host())
        assert "environment: 'host' → 'image'" in done.stderr
        assert f"sandbox_image: '' → '{BUSYBOX}'" in done.stderr
    assert len(rows(tmp_path)) == 2


def test_help_names_every_backend(tmp_path: Path) -> None:
    from kiseki.sandboxes.factory import BACKENDS

    said = kiseki("batch", "--help", cwd=tmp_path).stdout
    assert all(backend in said for backend in BACKENDS)


def test_only_open_rollouts_count(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{n}"} for n in range(3)])
    with MockServer(turns=0) as server:
        kiseki(*flags(server, *light_tools(tmp_path), *FAST), cwd=tmp_path)
    with open_ledger(tmp_path / "data/r", create=False) as ledger:
        assert ledger.open_images(1) == {}
        with ledger.transaction():
            ledger.db.execute("UPDATE rollouts SET outcome = 'failed' WHERE id = 1")
        assert ledger.open_images(1) == {"": 1}
