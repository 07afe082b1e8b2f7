"""Which addresses tools may connect to: public ones, and those that `--web_allow` names.

A name is judged by what it resolves to, and what was judged is what must be connected to: a name that resolves to something else
a moment later (DNS rebinding) gets nothing by it. Whoever follows redirects asks again for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kiseki.errors import ToolError, UsageError

LOOK_UP_SECONDS = 10.0
"""For one name: twice what a resolver waits for a server that does not answer."""
_KEPT_SECONDS = 30.0
"""An answer is good for as long, so that a check and the connection after it cost one look-up."""
_KEPT_NAMES = 2_000
_THREADS = 16
"""Look-ups at once. Of their own: names that nobody answers for would fill those that everything else waits for."""
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "168.63.129.16/32",  # a machine's own host in Azure, which gives it its secrets
            "192.0.0.0/24",  # protocols' own; one of Oracle's clouds has its metadata there
            "192.88.99.0/24",  # relays
            "3fff::/20",  # documentation
        ),
    )
)
"""What Python, or some release of it, takes for public."""
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_look_ups = ThreadPoolExecutor(_THREADS, "kiseki-dns")


class Guard:
    """Belongs to one event loop."""

    def __init__(self, allow: Sequence[str]) -> None:
        """`allow`: hosts, host:port pairs, addresses and networks (CIDR) that may be reached though they are private.

        Raises `UsageError` for one that is none of these.
        """
        self._names: set[tuple[str, int | None]] = set()
        self._networks: list[tuple[Network, int | None]] = []
        for entry in allow:
            host, port = _read_entry(entry.strip())
            network = _network(host)
            if network is None:
                self._names.add((host, port))
            else:
                self._networks.append((network, port))
        self._kept: dict[tuple[str, int], tuple[float, list[str]]] = {}

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of `host` that may be connected to, in the resolver's order.

        Raises `ToolError` where there is none: the name does not resolve, or only to what is private.
        """
        host = _plain(host)
        kept = self._kept.get((host, port))
        if kept is not None and time.monotonic() < kept[0]:
            return kept[1]
        found = await _addresses(host, port)
        good = [text for text, address in found if self._names_it(host, port, address) or is_public(address)]
        if not good:
            what = "a private or reserved address" if _literal(host) else "in a private or reserved network"
            raise ToolError(f"{host} is {what}, which cannot be reached from here; only public addresses can")
        if len(self._kept) >= _KEPT_NAMES:
            self._kept.clear()
        self._kept[host, port] = time.monotonic() + _KEPT_SECONDS, good
        return good

    def is_named(self, host: str, port: int, addresses: Sequence[str]) -> bool:
        """Whether the user allowed this place by name, address or network. `addresses`: what `resolve` said."""
        return any(self._names_it(_plain(host), port, ipaddress.ip_address(each)) for each in addresses)

    def _names_it(self, host: str, port: int, address: Address) -> bool:
        if (host, None) in self._names or (host, port) in self._names:
            return True
        address = _inner(address)
        return any(address in network and wanted in (None, port) for network, wanted in self._networks)


def is_public(address: Address) -> bool:
    """Whether anybody may know what is at `address`: it is no machine, network or service of the one that asks."""
    address = _inner(address)
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, where it does: a packet to the one arrives at the other."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


async def _addresses(host: str, port: int) -> list[tuple[str, Address]]:
    if not host:
        raise ToolError("the address has no host")
    if literal := _literal(host):
        return [(str(literal), literal)]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOK_UP_SECONDS):
            found = await loop.run_in_executor(_look_ups, look_up, host, port)
    except (OSError, UnicodeError, ValueError) as error:  # TimeoutError is an OSError
        raise ToolError(f"there is no host named {host[:300]!r}") from error
    return [(text, ipaddress.ip_address(text)) for text in dict.fromkeys(found)]


def look_up(host: str, port: int) -> list[str]:
    """What the system's resolver says. Raises OSError, UnicodeError."""
    return [str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _literal(host: str) -> Address | None:
    """The address that `host` is, in any spelling that some system takes (017700000001, 0x7f.1, 2130706433), None for a name."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    # Only what begins with a digit: inet_aton takes what follows a space for a comment, and names may have such parts
    if host[:1].isdigit() and not host.isspace() and " " not in host:
        with contextlib.suppress(OSError, UnicodeError):
            return ipaddress.IPv4Address(socket.inet_aton(host))
    return None


def _plain(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _network(host: str) -> Network | None:
    try:
        return ipaddress.ip_network(host, strict=False)
    except ValueError:
        return None


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 2**16)


def _read_entry(entry: str) -> tuple[str, int | None]:
    """Host, address or network, and the port if there is one."""
    host, port = entry, ""
    if entry.startswith("["):
        host, _, port = entry[1:].partition("]")
        port = port.removeprefix(":")
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    host = _plain(host)
    odd = "/" in host and _network(host) is None
    if not host or odd or any(each.isspace() or each in "@?#*" for each in host) or not _is_port(port):
        raise UsageError(
            f"--web_allow: {entry!r} is no host, host:port, address or network; as in localhost:8000, 10.0.0.0/8 or [::1]:80"
        )
    return host, int(port) if port else None
