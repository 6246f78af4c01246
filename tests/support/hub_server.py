"""A hub on the loopback, as far as downloads need one, written from the hub's documented protocol.

Files of LFS are redirected to another host, as the hub does to its content network; others are sent at once.
`tests/hub/test_server.py` holds it against the hub's own client.
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from ftagent import demo

LARGE = (".safetensors", ".ftw", ".bin", ".gguf", ".pth")


def commit_of(files: dict[str, bytes]) -> str:
    """An identity of content, in the form of a commit."""
    whole = repr(sorted((name, git_id(data)) for name, data in files.items()))
    return hashlib.sha1(whole.encode()).hexdigest()


@dataclass
class Request:
    """What arrived, as far as tests ask."""

    method: str
    path: str
    range: str | None
    authorization: str | None
    program: str  # as it names itself


@dataclass
class Repository:
    """Files at `main`, and faults to serve them with. `sent` replaces the content of a file, behind the back
    of the listing; `cuts` says after how many bytes the connection breaks, once for each entry.
    """

    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False
    ranges: bool = True
    sent: dict[str, bytes] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)  # of the next answers about a file

    @property
    def commit(self) -> str:
        return commit_of(self.files)

    def listed(self, repo: str) -> dict[str, Any]:
        return {"id": repo, "sha": self.commit, "siblings": [self._sibling(name) for name in self.files]}

    def _sibling(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        sibling: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_id(data)}
        if name.endswith(LARGE):
            digest = lfs_id(data)
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n"
            sibling["blobId"] = git_id(pointer.encode())
            sibling["lfs"] = {"size": len(data), "sha256": digest, "pointerSize": len(pointer)}
        return sibling


@lru_cache(256)
def lfs_id(data: bytes) -> str:
    """What `sha256sum` says."""
    return hashlib.sha256(data).hexdigest()


@lru_cache(256)
def git_id(data: bytes) -> str:
    """What `git hash-object` says."""
    return hashlib.sha1(b"blob " + str(len(data)).encode() + b"\x00" + data).hexdigest()


@dataclass
class Hold:
    """A file whose sending stops after some bytes, until `go`."""

    after: int
    reached: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)


class HubServer:
    """Repositories by name, at `url`; `seen` has every request. A `page` is the answer to all of them."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.seen: list[Request] = []
        self.holds: dict[str, Hold] = {}
        self.page: bytes | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def hold(self, name: str, after: int) -> Hold:
        """Hold the next sending of a file."""
        self.holds[name] = Hold(after)
        return self.holds[name]

    def content(self, name: str) -> list[Request]:
        """Requests for the content of a file, where it is sent."""
        return [item for item in self.seen if item.method == "GET" and item.path.endswith("/" + name)]

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # the base's name
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        authorization, wanted = self.headers.get("Authorization"), self.headers.get("Range")
        program = self.headers.get("User-Agent", "")
        self.hub.seen.append(Request(self.command, path, wanted, authorization, program))
        if self.hub.page is not None:
            return self._send(200, self.hub.page, {})
        parts = path.strip("/").split("/")
        if parts[0] == "cdn":
            return self._send_content("/".join(parts[1:3]), "/".join(parts[3:]))
        if len(parts) < 4:
            return self._send(404, b"", {})
        if parts[:2] == ["api", "models"]:
            repo, revision, name = "/".join(parts[2:4]), "/".join(parts[5:]) or "main", None
        else:
            repo, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        found = self.hub.repositories.get(repo)
        if found and found.token and authorization not in (None, f"Bearer {found.token}"):
            message = "Invalid credentials in Authorization header"
            return self._send(
                401, b'{"error": "Invalid username or password."}', {"X-Error-Message": message}
            )
        if found is None or (found.token and authorization is None):
            gated = found is not None and found.gated
            code = "GatedRepo" if gated else "RepoNotFound"
            return self._send(401, b"{}", {"X-Error-Code": code, "X-Error-Message": "Invalid username"})
        if revision not in ("main", "refs/pr/1", found.commit):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if name is None:
            body = json.dumps(found.listed(repo)).encode()
            return self._send(200, body, {"Content-Type": "application/json"})
        if name not in found.files or name in found.gone:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": found.commit}
            return self._send(404, b"", headers)
        if not name.endswith(LARGE):
            return self._send_content(repo, name)
        digest, size = lfs_id(found.files[name]), len(found.files[name])
        headers = {
            "Location": f"http://localhost:{self.hub.port}/cdn/{repo}/{name}?Signature=s1gned",
            "X-Repo-Commit": found.commit,
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(size),
        }
        return self._send(302, b"", headers)

    def _send_content(self, repo: str, name: str) -> None:
        found = self.hub.repositories[repo]
        if found.statuses.get(name):
            return self._send(found.statuses[name].pop(0), b"", {})
        data = found.sent.get(name, found.files[name])
        headers = {"X-Repo-Commit": found.commit, "ETag": f'"{git_id(found.files[name])}"'}
        status, wanted = 200, self.headers.get("Range")
        if wanted and found.ranges:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last or len(data)), len(data) - 1)
            if begin > end:
                return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status = 206
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
            data = data[begin : end + 1]
        cuts = found.cuts.get(name)
        if self.command == "GET" and (hold := self.hub.holds.pop(name, None)):
            return self._send_held(status, data, headers, hold)
        return self._send(status, data, headers, cuts.pop(0) if cuts and self.command == "GET" else None)

    def _send_held(self, status: int, body: bytes, headers: dict[str, str], hold: Hold) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: hold.after])
        hold.reached.set()
        hold.go.wait(60)
        with suppress(OSError):  # whoever asked has gone
            self.wfile.write(body[hold.after :])

    def _send(self, status: int, body: bytes, headers: dict[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with suppress(OSError):  # whoever asked has gone
                self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True


@contextmanager
def serving(repository: Repository, name: str = "lab/tiny") -> Iterator[HubServer]:
    """A hub with one repository."""
    with HubServer() as hub:
        hub.repositories[name] = repository
        yield hub


def small_repository() -> Repository:
    """Config and tokenizer of the embedded model, two shards of noise, and much that nobody needs."""
    beside = (file for file in sorted(demo.directory().iterdir()) if file.suffix != ".ftw")
    files = {file.name: file.read_bytes() for file in beside}
    shards = [f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    index = {"metadata": {}, "weight_map": {f"tensor.{part}": name for part, name in enumerate(shards)}}
    noise = random.Random(7)
    return Repository(
        {
            **files,
            "model.safetensors.index.json": json.dumps(index).encode(),
            shards[0]: noise.randbytes(3_000_000),
            shards[1]: noise.randbytes(1_234_567),
            "consolidated.safetensors": noise.randbytes(5000),
            "pytorch_model.bin": noise.randbytes(5000),
            "tiny-q4.gguf": noise.randbytes(5000),
            "onnx/model.onnx": b"onnx",
            "original/consolidated.00.pth": b"pth",
            "figures/logo.png": b"png",
            ".gitattributes": b"*.safetensors filter=lfs",
        }
    )
