"""One login by SSH: who we are and which host is trusted is what `~/.ssh` says, as with the `ssh` command (agent, config, keys,
known hosts).

The host's key is always checked, nobody is asked for a password, and nothing of ours goes along: no agent, no environment, no
display. Imports asyncssh, so it is imported itself when a login is wanted.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, cast

import asyncssh

from kiseki.errors import SandboxError, UsageError

TRIES = 5
"""For a connection that the server drops before it says anything, as it does when too many come at once (MaxStartups)."""
PAUSE = 0.3
"""Seconds before the second try, at most; twice that before each next."""
CONNECT_TIMEOUT = 20.0
"""Seconds to reach the host; a TCP connection takes one round trip."""
LOGIN_TIMEOUT = 40.0
"""Seconds for keys and authentication, which take ten round trips and, on a busy host, a second."""
KEEPALIVE_SECONDS = 15.0
KEEPALIVE_COUNT = 3
"""A host that doesn't answer for so many times is gone: found out within a minute."""
KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
"""As of OpenSSH: the files that are read where the config names none."""
NOBODY: tuple[list[str], list[str], list[str]] = ([], [], [])
"""No key is trusted. Nothing at all would mean the defaults."""


class Address(NamedTuple):
    user: str
    """ "" for what the config says, or else the current user."""
    host: str
    port: int
    """0 for what the config says, or else 22."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.user + "@" * bool(self.user) + host + (f":{self.port}" if self.port else "")

    def arguments(self) -> str:
        """Of the `ssh` command."""
        return (f"-p {self.port} " if self.port else "") + self.user + "@" * bool(self.user) + self.host


def parse_address(text: str) -> Address:
    """Of `[user@]host[:port]`; an IPv6 address stands in brackets. Raises UsageError."""
    user, _, rest = text.rpartition("@")
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%\w+)?)\]|([^\s:@\[\]/-][^\s:@\[\]/]*))(?::(\d{1,5}))?", rest)
    if not match or (match[3] and not 0 < int(match[3]) < 65536) or re.search(r"\s|^-", user):
        raise UsageError(f"{text!r} is no SSH host; it is written [user@]host[:port]")
    return Address(user, match[1] or match[2], int(match[3] or 0))


async def log_in(address: Address, lost: Callable[[Exception | None], None]) -> asyncssh.SSHClientConnection:
    """A connection that stands; `lost` is called when it doesn't any more. Raises SandboxError, in one line with the way out."""
    for tries_left in reversed(range(TRIES)):
        client = _Client(lost)
        try:
            return await _connect(address, client)
        except (asyncssh.Error, OSError, ValueError, KeyError) as error:
            dropped = isinstance(error, (asyncssh.ConnectionLost, ConnectionResetError, BrokenPipeError))
            if not tries_left or not dropped:
                raise SandboxError(_explain(address, error, client.refused_key)) from error
        await asyncio.sleep(random.uniform(0.5, 1) * PAUSE * 2 ** (TRIES - 1 - tries_left))
    raise AssertionError("the last try returns or raises")


class _Client(asyncssh.SSHClient):
    """Hears of a host key that is not known, and of the connection's end."""

    def __init__(self, lost: Callable[[Exception | None], None]) -> None:
        self.refused_key = ""
        self._lost = lost
        self._stands = False

    def auth_completed(self) -> None:
        self._stands = True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._stands:
            self._lost(exc)

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        self.refused_key = f"{key.get_algorithm()} {key.get_fingerprint()}"
        return False


async def _connect(address: Address, client: _Client) -> asyncssh.SSHClientConnection:
    given: dict[str, object] = {
        "config": (),
        "client_factory": lambda: client,
        "agent_forwarding": False,
        "connect_timeout": CONNECT_TIMEOUT,
        "login_timeout": LOGIN_TIMEOUT,
        "keepalive_interval": KEEPALIVE_SECONDS,
        "keepalive_count_max": KEEPALIVE_COUNT,
    }
    if address.user:
        given["username"] = address.user
    if address.port:
        given["port"] = address.port
    # Without keys, since asyncssh fails for a key that the config names and that isn't there. It may be an agent's.
    read = await asyncssh.SSHClientConnectionOptions.construct(None, host=address.host, client_keys=None, **given)
    if named := cast("list[str]", read.config.get("IdentityFile", [])):
        given |= {"client_keys": _files(named), "ignore_encrypted": True}
        if read.config.get("IdentitiesOnly"):
            given["agent_identities"] = _files(f"{name}.pub" for name in named) or _files(named) or None
    # None, by a config that says "UserKnownHostsFile none", would trust every host.
    hosts = _files(cast("list[str] | None", read.known_hosts) or KNOWN_HOSTS)
    return await asyncssh.connect(address.host, known_hosts=hosts or NOBODY, **given)


def _files(names: Iterable[str]) -> list[str]:
    return [str(path) for path in (Path(name).expanduser() for name in names) if path.is_file()]


def _explain(address: Address, error: Exception, refused_key: str) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, asyncssh.HostKeyNotVerifiable) or "host key" in words.lower():
        key = f" (it shows {refused_key})" if refused_key else ""
        return (
            f"{address}: the host's key is not the one that known_hosts has for it, or there is none{key}; "
            f"`ssh {address.arguments()}` says which, and adds a new one once you have checked it"
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return (
            f"{address}: no key of ours is accepted ({words}); `ssh -o BatchMode=yes {address.arguments()} true` must work: "
            "ssh-copy-id brings a key there, ssh-add unlocks one with a passphrase"
        )
    return f"{address} cannot be reached by SSH: {words}; `ssh {address.arguments()}` must work"
