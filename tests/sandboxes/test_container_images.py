"""Images of a real Docker and a real Podman, pulled from a registry on loopback."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator

import engines
import pytest
from engine_standin import engine_standin
from registry import Registry

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes.containers import backend as containers
from kiseki.sandboxes.settings import ImageStore, Pull, SandboxSettings

HOSTS = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture(scope="module")
def root() -> bytes:
    return engines.busybox_root()


@pytest.fixture(params=["docker", "podman"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageStore]:
    kind = str(request.param)
    monkeypatch.setenv(HOSTS[kind], engines.engine_host(kind))
    with contextlib.closing(containers.open_images(SandboxSettings(backend=kind))) as store:
        yield store


def name(request: pytest.FixtureRequest) -> str:
    """One that no other test and process has."""
    return f"t{os.getpid()}/{zlib.crc32(request.node.nodeid.encode()):x}"


def failure(store: ImageStore, image: str) -> ImageError:
    with pytest.raises(ImageError) as caught:
        store.pull(image, lambda _: None)
    assert not store.has(image)
    assert "\n" not in str(caught.value)
    return caught.value


def test_an_image_is_pulled(store: ImageStore, registry: Registry, root: bytes, request: pytest.FixtureRequest) -> None:
    image = registry.add(name(request), "v1", root, unique=name(request))
    assert not store.has(image)
    told: list[Pull] = []
    store.pull(image, told.append)
    assert store.has(image)
    assert registry.pulls[name(request)] == 1
    assert told
    assert all(pull.words for pull in told)
    assert all(pull.done <= pull.total for pull in told)


def test_docker_says_how_far_it_is(registry: Registry, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", engines.docker_host())
    image = registry.add(name(request), "v1", engines.bash_root() + bytes(1024 * os.getpid()))  # A layer that nobody has.
    told: list[Pull] = []
    with contextlib.closing(containers.open_images(SandboxSettings(backend="docker"))) as store:
        store.pull(image, told.append)
    assert told[-1].done == told[-1].total > 1_000_000


def test_an_image_by_digest(store: ImageStore, registry: Registry, root: bytes, request: pytest.FixtureRequest) -> None:
    image = registry.add(name(request), "v1", root, unique=name(request))
    by_digest = f"{image.rpartition(':')[0]}@{registry.digest(name(request), 'v1')}"
    store.pull(by_digest, lambda _: None)
    assert store.has(by_digest)


def test_what_does_not_exist_is_final(store: ImageStore, registry: Registry, request: pytest.FixtureRequest) -> None:
    error = failure(store, f"{registry.host}/{name(request)}:v1")
    assert not error.retryable
    assert "manifest unknown" in str(error)


@pytest.mark.parametrize("image", ["Not A Name", "x/y@sha256:abc", "-"])
def test_what_is_no_name_is_final(store: ImageStore, image: str) -> None:
    assert not store.has(image)
    assert not failure(store, image).retryable


def test_no_registry_passes(store: ImageStore) -> None:
    error = failure(store, "127.0.0.1:1/none/there:v1")
    assert error.retryable
    assert "connection refused" in str(error)


@pytest.mark.parametrize(("status", "retryable"), [(500, True), (403, False), (401, False)])
def test_a_registrys_refusal(
    store: ImageStore, registry: Registry, root: bytes, status: int, retryable: bool, request: pytest.FixtureRequest
) -> None:
    image = registry.add(name(request), "v1", root, unique=name(request))
    registry.fail(name(request), 2, status)  # Docker asks twice.
    assert failure(store, image).retryable == retryable
    registry.fail(name(request), 0, status)
    store.pull(image, lambda _: None)
    assert store.has(image)


def test_too_many_requests_pass(
    registry: Registry, root: bytes, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Docker: Podman waits for minutes by itself."""
    monkeypatch.setenv("DOCKER_HOST", engines.docker_host())
    image = registry.add(name(request), "v1", root, unique=name(request))
    registry.fail(name(request), 2, 429)
    with contextlib.closing(containers.open_images(SandboxSettings(backend="docker"))) as store:
        error = failure(store, image)
    assert error.retryable
    assert "toomanyrequests" in str(error)


@pytest.mark.parametrize("last", [b'{"status": "Pull', b"[]", b"\xff"])
def test_an_engine_that_breaks_off_in_a_line(last: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine_standin() as engine:
        engine.answers = [("POST /images/create", 200, b'{"status": "Pulling"}\r\n' + last)]
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        told: list[Pull] = []
        store = containers.open_images(SandboxSettings(backend="docker"))
        with contextlib.closing(store), pytest.raises(ImageError, match="docker broke off") as caught:
            store.pull("any", told.append)
        assert caught.value.retryable
        assert [pull.words for pull in told] == ["Pulling"]


def test_an_engine_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with contextlib.closing(containers.open_images(SandboxSettings(backend="docker"))) as store:
        with pytest.raises(SandboxError, match=r"nowhere\.sock"):
            store.has("any")
        with pytest.raises(SandboxError, match=r"nowhere\.sock"):
            store.pull("any", lambda _: None)
