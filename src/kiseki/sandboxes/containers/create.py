"""Creates, starts and removes a sandbox's container: its limits, what it may do, and its labels. Blocks."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes import folders, owners
from kiseki.sandboxes.base import OPEN_FILES, Limits
from kiseki.sandboxes.cgroup import MEGABYTE, OWN_PROCESSES
from kiseki.sandboxes.containers.engine import Abilities, Engine, not_there, reason
from kiseki.sandboxes.settings import SandboxSettings

LABEL, OWNER, MACHINE = "kiseki.label", "kiseki.owner", "kiseki.machine"

CAPABILITIES = (
    "CHOWN",  # packages own files as other users than root
    "DAC_OVERRIDE",  # root writes in folders of those users
    "FOWNER",  # and sets modes and times of their files
    "FSETID",  # and keeps their setgid bits meanwhile
    "SETGID",  # apt fetches, and servers run, as a group and
    "SETUID",  # a user of their own
    "SETFCAP",  # rpm fails on packages whose files have capabilities
    "KILL",  # root ends what runs as such a user
)
"""What installing packages as the container's root needs; all others are dropped. They are bounded by the container."""
SHM_MB = 64
"""Of /dev/shm; counts as memory too. What containers usually have, and Python's multiprocessing and PostgreSQL live with."""
FIRST_PROCESS = "trap : TERM INT HUP; while :; do sleep 86400 & wait $!; [ $? != 127 ] || exit 127; done"
"""Collects orphans, for which a shell in `wait` is enough, and outlives the signals that a first process can get."""
NO_SLEEP = 127
"""What it ends with where the image has no `sleep`."""
NPROC = 16_384
"""For engines that would raise this limit by themselves (Podman, as root) where they may not. High, since it counts all
processes of one user in all containers; the bound that matters is the container's own."""
REMOVE_ROUNDS = 20
REMOVE_PAUSE = 0.25
"""Seconds; a removal that another began, or that met a busy mount, is over soon."""
_SIZE_WORDS = ("storage-opt", "storage opt", "storage_opt", "quota")
"""In what engines say when their storage cannot bound a container's disk."""
_NOT_FOUND = ("executable file not found", "no such file or directory", "not found in $path")
_SHELL = re.compile(r"""["'`]sh\\?["'`]|\bexec:? \S*/sh:""")
"""Together they are an engine's words for an image without `sh`. Alone, the first stand also where a path of the engine's own is
gone, which passes."""


class Made(msgspec.Struct, frozen=True):
    """A running container."""

    name: str
    identity: str
    """The engine's own."""
    folder: str
    """The image's working folder; "" where it says none."""
    layer: str
    """Folder in which the engine keeps what the container writes, as the engine names it; "" where it does not."""
    watched: bool
    """Its disk has no bound but a watch."""
    description: dict[str, str]


def create(engine: Engine, settings: SandboxSettings, image: str, name: str) -> Made:
    """Raises ImageError and SandboxError; a container of that name may be there then."""
    from docker.errors import APIError

    if (cpus := engine.cpus) and settings.limits.cpus > cpus:  # Docker refuses more than there is.
        settings = msgspec.structs.replace(settings, limits=msgspec.structs.replace(settings.limits, cpus=cpus))
    while True:
        abilities = engine.abilities
        doing = "create"
        try:
            _create(engine, settings, image, name, abilities)
            doing = "start"
            engine.call("start", name)
            found = engine.call("inspect_container", name)
            break
        except APIError as error:
            said = reason(error)
            learnt = _learn(abilities, said.lower())
            if learnt == abilities:
                if doing == "create" and not_there(error):
                    raise ImageError(f"image {image!r}: {said}") from error
                if doing == "start" and _SHELL.search(said) and any(words in said.lower() for words in _NOT_FOUND):
                    raise ImageError(f"image {image!r} has no `sh`, which a sandbox needs: {said}") from error
                raise SandboxError(f"{engine.kind} does not {doing} a container of {image!r}: {said}") from error
            engine.abilities = learnt
            remove(engine, name)
    folder = found["Config"].get("WorkingDir") or ""
    return Made(
        name=name,
        identity=found["Id"],
        folder="" if folder == "/" else folder,
        layer=((found.get("GraphDriver") or {}).get("Data") or {}).get("UpperDir") or "",
        watched=not abilities.sizes,
        description=_describe(engine.kind, image, settings.limits, abilities, found),
    )


def remove(engine: Engine, container: str) -> None:
    """Remove a container, running or not, with its volumes, and wait until it is gone. Blocks. Raises SandboxError."""
    from docker.errors import APIError

    for rounds_left in reversed(range(REMOVE_ROUNDS)):
        try:
            engine.call("remove_container", container, v=True, force=True)
            return
        except APIError as error:
            if not_there(error):
                return
            if not rounds_left:
                raise SandboxError(f"{engine.kind} does not remove the container {container[:40]}: {reason(error)}") from error
        time.sleep(REMOVE_PAUSE)


def _learn(abilities: Abilities, said: str) -> Abilities:
    """What an engine's refusal says of it; the same where nothing."""
    if abilities.sizes and any(word in said for word in _SIZE_WORDS):
        return msgspec.structs.replace(abilities, sizes=False)
    if abilities.own_nproc and "rlimit" in said:
        return msgspec.structs.replace(abilities, own_nproc=False)
    return abilities


def why_not_running(state: dict[str, Any], memory_mb: int) -> str:
    """From what the engine says of a container's state; "" while programs can run in it."""
    if state.get("Paused"):
        return "the container was paused from outside"
    if state.get("Running"):
        return ""
    status = state.get("ExitCode")
    if state.get("OOMKilled"):
        return f"out of memory: the container's limit is {memory_mb} MB"
    if status == NO_SLEEP:
        return "the container ended by itself: its image has no `sleep`, which a sandbox needs"
    words = f": {said}" if (said := " ".join(str(state.get("Error") or "").split())) else ""
    return f"the container has ended (status {status}){words}: it was stopped or killed from outside"


def _create(engine: Engine, settings: SandboxSettings, image: str, name: str, abilities: Abilities) -> None:
    limits = settings.limits
    host = engine.call(
        "create_host_config",
        cap_drop=["ALL"],
        cap_add=list(CAPABILITIES),
        security_opt=["no-new-privileges"],
        mem_limit=limits.memory_mb * MEGABYTE,
        memswap_limit=limits.memory_mb * MEGABYTE,  # memory and swap together: no swap
        nano_cpus=int(limits.cpus * 1e9),
        pids_limit=limits.processes + OWN_PROCESSES,
        shm_size=min(SHM_MB, max(limits.memory_mb // 2, 1)) * MEGABYTE,
        ulimits=[
            {"Name": "nofile", "Soft": OPEN_FILES, "Hard": OPEN_FILES},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": limits.disk_mb * MEGABYTE, "Hard": limits.disk_mb * MEGABYTE},
            *([] if abilities.own_nproc else [{"Name": "nproc", "Soft": NPROC, "Hard": NPROC}]),
        ],
        network_mode=None if limits.network else "none",
        log_config={"Type": "none", "Config": {}},
        storage_opt={"size": f"{limits.disk_mb}M"} if abilities.sizes else None,
    )
    engine.call(
        "create_container",
        image,
        name=name,
        entrypoint=["sh", "-c", FIRST_PROCESS],
        labels={
            LABEL: folders.clean_label(settings.label),
            OWNER: settings.owner,
            MACHINE: owners.machine_id(),
        },
        host_config=host,
        use_config_proxy=False,  # Its address may have a password in it.
    )


def _describe(kind: str, image: str, limits: Limits, abilities: Abilities, found: dict[str, Any]) -> dict[str, str]:
    """`found`: what the engine says of the container."""
    held = found.get("HostConfig") or {}  # A limit that its platform cannot enforce is zero there.
    disk = f"{limits.disk_mb} MB" if abilities.sizes else f"{limits.disk_mb} MB, watched"
    return {
        "backend": kind,
        "isolation": "container: own file system, processes" + ("" if limits.network else ", network"),
        "network": "the engine's default" if limits.network else "none",
        "disk": f"{disk}; volumes not limited" if found.get("Mounts") else disk,
        "memory": f"{limits.memory_mb} MB" if held.get("Memory") else "not limited",
        "cpus": f"{limits.cpus:g}" if held.get("NanoCpus") or held.get("CpuQuota") else "not limited",
        "processes": f"{limits.processes}" if held.get("PidsLimit") else "not limited",
        "image": image,
    }
