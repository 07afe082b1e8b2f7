"""A local stand-in for Modal that speaks its SDK's own protocol, so that the tests run the real SDK against it.

Only the calls that our backend makes: both services (the control plane, and the worker's command router) on one loopback port in
cleartext, which the SDK allows for a server on this host. Each instance is a real one, of namespaces (bubblewrap, entered with
nsenter), with the image's root filesystem below a layer of its own. What it cannot show: Modal's scheduling, isolation and limits
(they are recorded in `creates`), and the words of its errors.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import io
import json
import os
import re
import secrets
import shutil
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from grpclib.events import RecvRequest, listen
from grpclib.server import Server
from modal_instances import FAILURE, IMAGES, START_SECONDS, SUCCESS, TERMINATED, Image, Instance, Program
from modal_proto import api_pb2 as api
from modal_proto import task_command_router_pb2 as router
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

TOKEN_ID, TOKEN_SECRET = "ak-test", "as-test-secret"
TAG = re.compile(r"[A-Za-z0-9._-]{1,63}")
"""What the SDK documents of the tags of apps."""
HANG_PAUSE = 0.01
PAGE = 3
"""Instances per answer to a list."""


def rpc(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A call with one request and one answer."""

    @functools.wraps(method)
    async def handler(self: Any, stream: Any) -> None:
        request = await stream.recv_message()
        while method.__name__ in self._server.hanging:
            await asyncio.sleep(HANG_PAUSE)
        await stream.send_message(await method(self, request))

    return handler


class ControlPlane(ModalClientBase):
    """Calls that nobody makes here have no answer."""

    def __init__(self, server: ModalServer) -> None:
        self._server = server

    @rpc
    async def ClientHello(self, request: Any) -> api.ClientHelloResponse:
        return api.ClientHelloResponse()

    @rpc
    async def AuthTokenGet(self, request: api.AuthTokenGetRequest) -> api.AuthTokenGetResponse:
        parts = ({"alg": "none"}, {"exp": time.time() + 3600})
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        return api.AuthTokenGetResponse(token=".".join([*encoded, "signature"]))

    @rpc
    async def EnvironmentGetOrCreate(self, request: api.EnvironmentGetOrCreateRequest) -> api.EnvironmentGetOrCreateResponse:
        settings = api.EnvironmentSettings(image_builder_version="2025.06")
        metadata = api.EnvironmentMetadata(name="main", settings=settings)
        return api.EnvironmentGetOrCreateResponse(environment_id="en-test", metadata=metadata)

    @rpc
    async def AppGetOrCreate(self, request: api.AppGetOrCreateRequest) -> api.AppGetOrCreateResponse:
        apps = self._server.apps
        if request.app_name not in apps:
            if request.object_creation_type != api.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found in environment 'main'.")
            apps[request.app_name] = f"ap-{secrets.token_hex(11)}"
        return api.AppGetOrCreateResponse(app_id=apps[request.app_name])

    @rpc
    async def ImageGetOrCreate(self, request: api.ImageGetOrCreateRequest) -> api.ImageGetOrCreateResponse:
        lines = tuple(request.image.dockerfile_commands)
        self._server.dockerfiles.append(lines)
        number = f"im-{abs(hash(lines)):022d}"
        built = number in self._server.built
        self._server.built.setdefault(number, "") if built else self._server.building.setdefault(number, lines[0].split()[-1])
        return api.ImageGetOrCreateResponse(image_id=number, result=api.GenericResult(status=SUCCESS) if built else None)

    async def ImageJoinStreaming(self, stream: Any) -> None:
        number = (await stream.recv_message()).image_id
        name = self._server.building.pop(number)
        await stream.send_message(api.ImageJoinStreamingResponse(task_logs=[api.TaskLogs(data=f"Building {name}\n")]))
        result = api.GenericResult(status=SUCCESS)
        if reason := self._server.image_faults.get(name):
            result = api.GenericResult(status=TERMINATED, exception=reason)
        elif name in self._server.images:
            self._server.built[number] = name
        else:
            result = api.GenericResult(status=FAILURE, exception=f"fetching {name}: manifest unknown")
        await stream.send_message(api.ImageJoinStreamingResponse(result=result, eof=True))

    @rpc
    async def SandboxCreateV2(self, request: api.SandboxCreateV2Request) -> api.SandboxCreateV2Response:
        server = self._server
        for tag in request.tags:
            if not TAG.fullmatch(tag.tag_name) or not TAG.fullmatch(tag.tag_value):
                raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid tag: {tag}")
        server.creates.append(request)
        if server.refuse_create:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, server.refuse_create)
        name = server.built[request.definition.image_id]
        instance = Instance(request, server.images[name])
        server.instances[instance.id] = server.tasks[instance.task] = instance
        # On a thread's time as at Modal: an answer that nobody waits for any more leaves an instance.
        await asyncio.shield(asyncio.ensure_future(instance.start(await server.root(name), request.definition)))
        await server.create_gate.wait()
        access = api.CommandRouterAccess(url=server.url, jwt="router-token")
        return api.SandboxCreateV2Response(sandbox_id=instance.id, task_id=instance.task, command_router_access=access)

    @rpc
    async def SandboxGetCommandRouterAccess(self, request: Any) -> api.SandboxGetCommandRouterAccessResponse:
        return api.SandboxGetCommandRouterAccessResponse(url=self._server.url, jwt="router-token")

    @rpc
    async def SandboxWaitV2(self, request: api.SandboxWaitRequest) -> api.SandboxWaitResponse:
        instance = self._server.instance(request.sandbox_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.timeout):
                await instance.ended.wait()
        return api.SandboxWaitResponse(result=instance.result)

    @rpc
    async def SandboxTerminateV2(self, request: api.SandboxTerminateRequest) -> api.SandboxTerminateResponse:
        self._server.instance(request.sandbox_id).end(api.GenericResult(status=TERMINATED, exitcode=137))
        return api.SandboxTerminateResponse()

    @rpc
    async def SandboxListV2(self, request: api.SandboxListRequest) -> api.SandboxListResponse:
        wanted = {(tag.tag_name, tag.tag_value) for tag in request.tags}
        found = [
            instance
            for instance in self._server.instances.values()
            if instance.app == request.app_id and not instance.ended.is_set() and wanted <= instance.tags.items()
            if not request.before_timestamp or instance.created < request.before_timestamp
        ]
        found.sort(key=lambda instance: -instance.created)
        return api.SandboxListResponse(sandboxes=[instance.info() for instance in found[:PAGE]])

    @rpc
    async def SandboxTagsGetV2(self, request: api.SandboxTagsGetRequest) -> api.SandboxTagsGetResponse:
        tags = self._server.instance(request.sandbox_id).tags.items()
        return api.SandboxTagsGetResponse(tags=[api.SandboxTag(tag_name=name, tag_value=value) for name, value in tags])


class Worker(TaskCommandRouterBase):
    """The service that programs are run through."""

    def __init__(self, server: ModalServer) -> None:
        self._server = server

    def _running(self, request: Any) -> Instance:
        instance = self._server.tasks.get(request.task_id)
        if instance is None or instance.ended.is_set():
            raise GRPCError(Status.NOT_FOUND, f"task {request.task_id} is not running on this worker")
        return instance

    def _program(self, request: Any) -> Program:
        program = self._running(request).programs.get(request.exec_id)
        if program is None:
            raise GRPCError(Status.NOT_FOUND, f"no exec {request.exec_id}")
        return program

    @rpc
    async def TaskExecStart(self, request: router.TaskExecStartRequest) -> router.TaskExecStartResponse:
        await self._running(request).run(request)
        return router.TaskExecStartResponse()

    @rpc
    async def TaskExecStdinWrite(self, request: router.TaskExecStdinWriteRequest) -> router.TaskExecStdinWriteResponse:
        try:
            await self._program(request).write(request.offset, request.data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise GRPCError(Status.FAILED_PRECONDITION, "the process has closed its stdin") from error
        return router.TaskExecStdinWriteResponse()

    async def TaskExecStdioRead(self, stream: Any) -> None:
        request = await stream.recv_message()
        self._server.reads += 1
        program, offset = self._program(request), request.offset
        while data := await program.read(offset):
            await stream.send_message(router.TaskExecStdioReadResponse(data=data))
            offset += len(data)

    @rpc
    async def TaskExecWait(self, request: router.TaskExecWaitRequest) -> router.TaskExecWaitResponse:
        status = await self._program(request).exit()
        self._running(request)
        return router.TaskExecWaitResponse(code=status) if status >= 0 else router.TaskExecWaitResponse(signal=-status)

    @rpc
    async def SandboxStdinWriteV2(self, request: router.SandboxStdinWriteV2Request) -> router.SandboxStdinWriteV2Response:
        await self._running(request).stdin(request.data)
        return router.SandboxStdinWriteV2Response()


def _serving(service: type[Any], server: ModalServer) -> Any:
    """One of those, though it lacks most of what the SDK's stubs ask for."""
    service.__abstractmethods__ = frozenset()
    return service(server)


class ModalServer:
    """As the tests see it. Its own thread and event loop run it."""

    def __init__(self, images: dict[str, Image]) -> None:
        self.images = images
        self.url = ""
        self.apps: dict[str, str] = {}
        self.dockerfiles: list[tuple[str, ...]] = []
        """Of every image that was asked for."""
        self.built: dict[str, str] = {}
        """Number → name of the images that are there."""
        self.building: dict[str, str] = {}
        self.image_faults: dict[str, str] = {}
        """Image → why its build is shut down."""
        self.creates: list[api.SandboxCreateV2Request] = []
        self.refuse_create = ""
        """Why no instance is to be had."""
        self.hanging: set[str] = set()
        """Calls that get no answer as long as they are in here."""
        self.create_gate = asyncio.Event()
        """Answers to creates wait for it."""
        self.instances: dict[str, Instance] = {}
        self.tasks: dict[str, Instance] = {}
        self.reads = 0
        """Streams of output that were opened."""
        self._folder = Path(tempfile.mkdtemp(prefix="kiseki-modal-"))
        self._roots: dict[str, Path] = {}
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def instance(self, number: str) -> Instance:
        if number not in self.instances:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {number} not found")
        return self.instances[number]

    def running(self) -> list[Instance]:
        return [instance for instance in self.instances.values() if not instance.ended.is_set()]

    def end(self, instance: Instance, result: api.GenericResult) -> None:
        """From outside: a time limit, the owner at the dashboard."""
        self._loop.call_soon_threadsafe(instance.end, result)

    def hold_creates(self, held: bool) -> None:
        self._loop.call_soon_threadsafe(self.create_gate.clear if held else self.create_gate.set)

    async def root(self, name: str) -> Path:
        if name not in self._roots:
            folder = self._folder / f"root-{len(self._roots)}"
            with tarfile.open(fileobj=io.BytesIO(self.images[name].root())) as tar:
                tar.extractall(folder, filter="tar")
            self._roots[name] = folder
        return self._roots[name]

    def start(self) -> None:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(START_SECONDS), "the stand-in for Modal does not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.create_gate.set()
        server = Server([_serving(ControlPlane, self), _serving(Worker, self)])
        listen(server, RecvRequest, self._authenticate)
        await server.start("127.0.0.1", 0)
        port = server._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{port}"
        ready.set()
        await self._stop.wait()
        server.close()
        for instance in self.instances.values():
            await instance.close()

    async def _authenticate(self, event: RecvRequest) -> None:
        if "TaskCommandRouter" in event.method_name:
            right = event.metadata.get("authorization") == "Bearer router-token"
        else:
            given = event.metadata.get("x-modal-token-id"), event.metadata.get("x-modal-token-secret")
            right = given == (TOKEN_ID, TOKEN_SECRET)
        if not right:
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed. Could not authenticate client.")


@contextlib.contextmanager
def modal_server(images: dict[str, Image] | None = None) -> Iterator[ModalServer]:
    """A server, and an environment (also of child processes) in which the SDK uses it."""
    import modal

    server = ModalServer(IMAGES if images is None else images)
    server.start()
    environment = {"MODAL_SERVER_URL": server.url, "MODAL_TOKEN_ID": TOKEN_ID, "MODAL_TOKEN_SECRET": TOKEN_SECRET}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield server
    finally:
        with contextlib.suppress(modal.Error):
            modal.Client.from_env().close()  # The SDK keeps one for the process.
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        server.stop()
