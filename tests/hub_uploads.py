"""A stand-in for the hub of Hugging Face: dataset repositories that are made, filled in commits, listed and read.

It speaks what `huggingface_hub` speaks without Xet: data files of more than `LFS_BYTES` are stored first, as large files (of
more than `PARTS_BYTES` in parts), the others come within the commit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

import yaml
from hub_server import Answering, serving

LFS_BYTES, PARTS_BYTES, PART_BYTES = 2_000, 20_000, 15_000
TOKEN = "hf_" + "Ab3" * 12
HEADERS = {"Content_Type": "application/json"}


@dataclass
class Repo:
    private: bool
    commits: list[dict[str, str]] = field(default_factory=lambda: [{}])
    """Each commit's files: path → hash."""
    messages: list[str] = field(default_factory=lambda: ["initial commit"])
    seed: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Commits of two repositories of one name are two: clients keep what they have read of a commit."""

    @property
    def files(self) -> dict[str, str]:
        return self.commits[-1]

    @property
    def sha(self) -> str:
        return hashlib.sha1(f"{self.seed} {len(self.commits)}".encode()).hexdigest()


@dataclass
class Fault:
    """What happens to requests instead of an answer, so many times."""

    request: str
    """A regular expression for `METHOD path`."""
    times: int = 1
    status: int = 0
    """0: the connection is cut, after half of what the client sends."""
    headers: dict[str, str] = field(default_factory=dict)
    skip: int = 0
    """Requests that go well before."""
    after: bool = False
    """The request is done first: only its answer is lost."""
    until: threading.Event | None = None
    """What it waits for before that."""


class UploadHub:
    """Its state, which tests may change and look at."""

    def __init__(self) -> None:
        self.address = ""
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.large: set[str] = set()
        self.faults: list[Fault] = []
        self.asked: list[str] = []
        """`METHOD path` of each request."""
        self.bodies: list[bytes] = []
        """What came with those that were taken."""
        self.stored: list[str] = []
        """SHA-256 of each large file that came whole."""
        self.owners = {"org": "write", "readers": "read"}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.lock = threading.RLock()
        self.committing: Callable[[], None] = lambda: None
        """Is called before each commit is looked at."""

    def text(self, name: str, path: str) -> str:
        return self.blobs[self.repos[name].files[path]].decode()

    def put(self, name: str, path: str, content: bytes) -> None:
        """As somebody else's commit."""
        repo = self.repos[name]
        repo.commits.append({**repo.files, path: self.keep(content)})

    def keep(self, content: bytes) -> str:
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        self.blobs[oid] = content
        return oid

    def count(self, request: str) -> int:
        return sum(1 for each in self.asked if re.search(request, each))


@contextmanager
def upload_hub() -> Iterator[UploadHub]:
    hub = UploadHub()

    class Handler(_Handler):
        state = hub

    with serving(Handler) as address:
        hub.address = address
        yield hub


class _Handler(Answering):
    state: UploadHub
    body: bytes = b""

    def do_GET(self) -> None:
        hub, path = self.state, unquote(self.path.partition("?")[0])
        request = f"{self.command} {path}"
        hub.asked.append(request)
        fault = next((each for each in hub.faults if each.times and re.search(each.request, request)), None)
        if fault and fault.skip:
            fault.skip -= 1
            fault = None
        length = int(self.headers.get("Content-Length") or 0)
        if fault and not fault.after:
            fault.times -= 1
            if fault.until:
                fault.until.wait()
            if not fault.status:
                self.rfile.read(length // 2)
                self.close_connection = True
                self.connection.shutdown(2)
                return
        self.body = self.rfile.read(length) if length else self._chunks()
        hub.bodies.append(self.body)
        if fault and not fault.after:
            self.answer(fault.status, b'{"error": "as the test wants it"}', **HEADERS, **fault.headers)
            return
        with hub.lock:
            status, answer, headers = self.route(path)
        if fault:
            fault.times -= 1
            self.close_connection = True
            self.connection.shutdown(2)
            return
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.answer(status, body, **(HEADERS | headers))

    do_HEAD = do_POST = do_PUT = do_GET

    def _chunks(self) -> bytes:
        """A body of chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return b""
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def route(self, path: str) -> tuple[int, Any, dict[str, str]]:
        hub = self.state
        if found := re.fullmatch(r"/large/(\w+)(?:/(\d+|complete|verify))?", path):
            return self.large(found[1], found[2] or "")
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}, {}
        if path == "/api/whoami-v2":
            return 200, {"name": "somebody", "orgs": [{"name": "org"}]}, {}
        if path == "/api/repos/create":
            return self.create()
        if path == "/api/validate-yaml":
            yaml.safe_load(json.loads(self.body)["content"].split("---")[1])
            return 200, {"warnings": [], "errors": []}, {}
        found = re.fullmatch(r"(?:/api)?/datasets/([^/]+/[^/]+?)(?:\.git)?(?:/(.*))?", path)
        if not found or found[1] not in hub.repos:
            return 404, {"error": "Repository not found"}, {"X_Error_Code": "RepoNotFound"}
        return self.in_repo(found[1], hub.repos[found[1]], found[2] or "")

    def create(self) -> tuple[int, Any, dict[str, str]]:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        right = self.state.owners.get(asked["organization"])
        if right != "write":
            return (403, {"error": "You don't have the rights to create a dataset there"}, {}) if right else (404, {}, {})
        if name in self.state.repos:
            return 409, {"error": "You already created this dataset repo"}, {}
        self.state.repos[name] = Repo(private=asked.get("visibility") == "private")
        self.state.put(name, ".gitattributes", b"*.parquet filter=lfs\n")
        return 200, {"url": f"{self.state.address}/datasets/{name}"}, {}

    def in_repo(self, name: str, repo: Repo, rest: str) -> tuple[int, Any, dict[str, str]]:
        hub = self.state
        what, _, rest = rest.partition("/")
        if what in ("", "revision"):
            siblings = [{"rfilename": path} for path in repo.files]
            return 200, {"id": name, "sha": repo.sha, "private": repo.private, "siblings": siblings, "tags": []}, {}
        if what == "auth-check":
            return (200, {}, {}) if hub.owners[name.partition("/")[0]] == "write" else (403, {"error": "Forbidden"}, {})
        if what == "tree":
            under = rest.partition("/")[2]
            deep = parse_qs(self.path.partition("?")[2]).get("recursive", ["false"])[0].lower() == "true"
            return 200, list(self.entries(repo, under, deep)), {}
        if what == "paths-info":
            asked = [path.rstrip("/") for path in json.loads(self.body)["paths"]]
            return 200, [each for each in self.entries(repo, "", True) if each["path"] in asked], {}
        if what == "preupload":
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["size"] > LFS_BYTES and each["path"].endswith("l") else "regular",
                    "shouldIgnore": False,
                    "oid": repo.files.get(each["path"]),
                }
                for each in json.loads(self.body)["files"]
            ]
            return 200, {"files": files}, {}
        if what == "info":
            objects = [self.action(each["oid"], each["size"]) for each in json.loads(self.body)["objects"]]
            return 200, {"transfer": "basic", "objects": objects}, {}
        if what == "commit":
            return self.commit(name, repo)
        if what == "resolve":
            path = rest.partition("/")[2]
            if path not in repo.files:
                return 404, {}, {"X_Error_Code": "EntryNotFound"}
            oid = repo.files[path]
            return 200, hub.blobs[oid], {"ETag": f'"{oid}"', "X_Repo_Commit": repo.sha, "Accept_Ranges": "bytes"}
        return 404, {}, {}

    def entries(self, repo: Repo, under: str, deep: bool) -> Iterator[dict[str, Any]]:
        folders = set()
        for path, oid in sorted(repo.files.items()):
            if under and not path.startswith(f"{under}/"):
                continue
            parents = path.removeprefix(f"{under}/" if under else "").split("/")[:-1]
            for at in range(1, len(parents) + 1):
                folders.add("/".join(([under] if under else []) + parents[:at]))
            if deep or not parents:
                size = len(self.state.blobs[oid])
                entry = {"type": "file", "path": path, "size": size, "oid": oid[:40]}
                yield entry | ({"lfs": {"oid": oid, "size": size, "pointerSize": 130}} if oid in self.state.large else {})
        for folder in sorted(folders):
            if deep or "/" not in folder.removeprefix(f"{under}/"):
                yield {"type": "directory", "path": folder, "oid": "0" * 40}

    def action(self, oid: str, size: int) -> dict[str, Any]:
        """Where to put a large file; nowhere where it is there."""
        if oid in self.state.blobs:
            return {"oid": oid, "size": size}
        place = f"{self.state.address}/large/{oid}"
        if size <= PARTS_BYTES:
            actions: dict[str, Any] = {"upload": {"href": place}, "verify": {"href": f"{place}/verify"}}
        else:
            parts = {str(at + 1): f"{place}/{at + 1}" for at in range(-(-size // PART_BYTES))}
            actions = {"upload": {"href": f"{place}/complete", "header": {"chunk_size": str(PART_BYTES), **parts}}}
        return {"oid": oid, "size": size, "actions": actions}

    def large(self, oid: str, what: str) -> tuple[int, Any, dict[str, str]]:
        hub = self.state
        if what == "verify":
            return (200, {}, {}) if oid in hub.blobs else (404, {}, {})
        if what.isdigit():
            hub.parts[oid, int(what)] = self.body
            return 200, {}, {"ETag": f'"{what}"'}
        if what == "complete":
            self.body = b"".join(hub.parts.pop((oid, each["partNumber"])) for each in json.loads(self.body)["parts"])
        if hashlib.sha256(self.body).hexdigest() != oid:
            return 400, {"error": "not what was promised"}, {}
        hub.blobs[oid] = self.body
        hub.large.add(oid)
        hub.stored.append(oid)
        return 200, {}, {}

    def commit(self, name: str, repo: Repo) -> tuple[int, Any, dict[str, str]]:
        hub = self.state
        hub.committing()
        if hub.owners[name.partition("/")[0]] != "write":
            return 403, {"error": "Forbidden"}, {}
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = lines[0]["value"]
        if header.get("parentCommit") not in (None, repo.sha):
            return 412, {"error": "A commit has happened since. Please refresh and try again."}, {}
        files = dict(repo.files)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = hub.keep(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                assert value["oid"] in hub.blobs, "a large file is committed that was never stored"
                files[value["path"]] = value["oid"]
            else:
                del files[value["path"]]
        repo.commits.append(files)
        repo.messages.append(header["summary"])
        return 200, {"success": True, "commitOid": repo.sha, "commitUrl": f"{hub.address}/datasets/{name}/commit/{repo.sha}"}, {}
