"""What tools may connect to: nothing private, in whatever spelling or behind whatever name, but for what the user allows."""

from __future__ import annotations

import asyncio

import pytest

from kiseki.errors import ToolError, UsageError
from kiseki.tools.web import addresses
from kiseki.tools.web.addresses import Guard

PRIVATE = (
    *("127.0.0.1", "127.1", "2130706433", "017700000001", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.0.0.1.", "0.0.0.0", "0"),
    *("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254", "2852039166", "224.0.0.1", "255.255.255.255"),
    *("::1", "[::1]", "::", "::ffff:127.0.0.1", "[::ffff:7f00:1]", "::127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe"),
    *("64:ff9b:1::7f00:1", "2002:7f00:1::", "fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "100::1"),
    *("2001:db8::1", "3fff::1", "192.88.99.1", "168.63.129.16", "192.0.0.192", "64:ff9b::168.63.129.16"),
)
PUBLIC = ("93.184.216.34", "1.1.1.1", "2606:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1", "134744072")


def resolve(host: str, *allow: str, port: int = 80) -> list[str]:
    return asyncio.run(Guard(allow).resolve(host, port))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Names that resolve, for as long as the test runs; all others do not."""
    known: dict[str, list[str]] = {}

    def look_up(host: str, port: int) -> list[str]:
        if host not in known:
            raise OSError("no such name")
        return known[host]

    monkeypatch.setattr(addresses, "look_up", look_up)
    return known


@pytest.mark.parametrize("host", PRIVATE)
def test_a_private_address_is_refused_in_every_spelling(host: str) -> None:
    with pytest.raises(ToolError, match="private or reserved"):
        resolve(host)


@pytest.mark.parametrize("host", PUBLIC)
def test_a_public_one_is_given(host: str) -> None:
    assert len(resolve(host)) == 1


def test_localhost_is_refused_as_what_it_resolves_to() -> None:
    with pytest.raises(ToolError, match="private"):
        resolve("localhost")


def test_names_are_judged_by_their_addresses(names: dict[str, list[str]]) -> None:
    names["public.test"] = ["93.184.216.34", "2606:4700::1111"]
    names["rebound.test"] = ["127.0.0.1"]
    names["both.test"] = ["10.0.0.1", "93.184.216.34", "::1"]
    assert resolve("public.test") == ["93.184.216.34", "2606:4700::1111"]
    assert resolve("PUBLIC.test.") == ["93.184.216.34", "2606:4700::1111"]
    assert resolve("both.test") == ["93.184.216.34"]
    with pytest.raises(ToolError, match=r"rebound\.test is in a private"):
        resolve("rebound.test")
    for unknown in ("unknown.test", "", "a" * 300, "..", "name with spaces", "127.0.0.1 x"):
        with pytest.raises(ToolError):
            resolve(unknown)


def test_an_answer_is_good_for_the_connection_after_the_check(names: dict[str, list[str]]) -> None:
    """A name that resolves to something else a moment later gets nothing by it."""

    async def scenario() -> None:
        guard = Guard(())
        names["rebinding.test"] = ["93.184.216.34"]
        assert await guard.resolve("rebinding.test", 80) == ["93.184.216.34"]
        names["rebinding.test"] = ["127.0.0.1"]
        assert await guard.resolve("rebinding.test", 80) == ["93.184.216.34"]
        with pytest.raises(ToolError):
            await guard.resolve("rebinding.test", 81)

    asyncio.run(scenario())


def test_what_the_user_allows_is_given(names: dict[str, list[str]]) -> None:
    names |= {"intranet.test": ["10.0.0.7"], "other.test": ["10.0.0.8"]}
    assert resolve("intranet.test", "intranet.test") == ["10.0.0.7"]
    assert resolve("intranet.test", "Intranet.test:80") == ["10.0.0.7"]
    assert resolve("intranet.test", "10.0.0.0/8") == resolve("intranet.test", "10.0.0.7:80") == ["10.0.0.7"]
    assert resolve("127.1", "127.0.0.1") == ["127.0.0.1"]
    assert resolve("::ffff:127.0.0.1", "127.0.0.0/8") == ["::ffff:7f00:1"]
    assert resolve("[::1]", "[::1]:80") == ["::1"]
    for allow in ("intranet.test:81", "10.0.0.7:81", "10.0.0.8", "other.test", "192.168.0.0/16", "test"):
        with pytest.raises(ToolError):
            resolve("intranet.test", allow)


def test_what_is_named_by_the_user_is_known() -> None:
    guard = Guard(("docs.test", "10.0.0.0/8", "192.168.0.1:8080"))
    assert guard.is_named("docs.test", 443, ["93.184.216.34"])
    assert guard.is_named("any.test", 80, ["10.2.3.4"])
    assert guard.is_named("192.168.0.1", 8080, ["192.168.0.1"])
    assert not guard.is_named("192.168.0.1", 80, ["192.168.0.1"])
    assert not guard.is_named("www.docs.test", 443, ["93.184.216.34"])


@pytest.mark.parametrize(
    "entry", ["", "http://localhost", "localhost:http", "a b", "user@host", "10.0.0.0/99", "*", ":80", "/", "h:0", "h:65536"]
)
def test_an_entry_that_means_nothing_is_a_usage_error(entry: str) -> None:
    with pytest.raises(UsageError, match="--web_allow"):
        Guard((entry,))
