"""A hub on 127.0.0.1: as much of the Hugging Face Hub's API as a snapshot download uses, with gates, faults and counters."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit


class FakeHub:
    """Serves `files` as the model `model_id`; `gated`: files need a token of `members`; `strangers` are valid tokens without access."""

    members = frozenset({"hf_member"})
    strangers = frozenset({"hf_stranger"})

    def __init__(self, model_id: str, files: dict[str, bytes], gated: bool = False) -> None:
        self.model_id = model_id
        self.files = files
        self.gated = gated
        self.commit = hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(files.items()))).hexdigest()
        self.down = False
        self.n_requests = 0
        self.sent_bytes = 0
        self.downloads: Counter[str] = Counter()
        self.url = ""

    @contextmanager
    def running(self) -> Iterator[FakeHub]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class Handler(BaseHTTPRequestHandler):
    """One request to the hub; answers as huggingface.co does."""

    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def _answer(self) -> None:
        hub = self.hub
        hub.n_requests += 1
        path = unquote(urlsplit(self.path).path).strip("/")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        api = f"api/models/{hub.model_id}"
        if hub.down:
            self._send(503, b"down")
        elif token and token not in hub.members | hub.strangers:
            self._send(401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif path == api or path.startswith(f"{api}/revision/"):
            self._revision(path.removeprefix(api).removeprefix("/revision/") or "main")
        elif path.startswith(f"{api}/tree/"):
            self._tree(path.removeprefix(f"{api}/tree/").partition("/")[2], "recursive=true" in self.path.lower())
        elif path.startswith(f"{hub.model_id}/resolve/"):
            self._file(path.removeprefix(f"{hub.model_id}/resolve/").partition("/")[2], token)
        else:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    def _revision(self, revision: str) -> None:
        hub = self.hub
        if revision not in ("main", hub.commit):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": f"Invalid rev id: {revision}"})
            return
        siblings = [{"rfilename": name} for name in hub.files]
        self._json({"id": hub.model_id, "sha": hub.commit, "gated": "manual" if hub.gated else False, "siblings": siblings})

    def _tree(self, folder: str, recursive: bool) -> None:
        """What is in a folder: files, and, unless `recursive`, the folders in it."""
        prefix = f"{folder}/" if folder else ""
        found: dict[str, dict[str, object]] = {}
        for name, data in self.hub.files.items():
            path, _, below = name.removeprefix(prefix).partition("/")
            if not name.startswith(prefix):
                continue
            if below and not recursive:
                found[path] = {"type": "directory", "path": prefix + path, "oid": sha1(path.encode())}
            else:
                found[name] = {"type": "file", "path": name, "size": len(data), "oid": sha1(data)}
        if found:
            self._json(list(found.values()))
        else:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Error-Message": f"{folder} does not exist"})

    def _file(self, name: str, token: str) -> None:
        hub = self.hub
        if hub.gated and token not in hub.members:
            restricted = {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to model {hub.model_id} is restricted"}
            self._send(403 if token else 401, b"", restricted)
        elif name not in hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found", "X-Repo-Commit": hub.commit})
        else:
            data = hub.files[name]
            if self.command == "GET":
                hub.downloads[name] += 1
            self._send(200, data, {"X-Repo-Commit": hub.commit, "ETag": f'"{sha1(data)}"', "Accept-Ranges": "bytes"})

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.hub.sent_bytes += len(body)
            self.wfile.write(body)


def sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
