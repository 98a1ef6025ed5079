"""A bucket of Google Cloud Storage, as far as its JSON API is used here: `python bucket.py FOLDER` serves a folder.

It prints its port. A process of its own, since clients in C++ may wait for an answer without letting Python run.
A file FAULT in the folder makes the service fail: its first word is the HTTP status, 503 or 403, and the methods after
it, such as POST, are those that fail (all if there are none). Other buckets than `bucket` do not exist.
"""

import contextlib
import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

BUCKET = "/storage/v1/b/bucket"
FAULT = "fault"
PAGE = 100
"""Objects in a page of a list."""


class Objects:
    """The files of a folder by name, with their generations: 1 for what lay there when the service began."""

    def __init__(self, root: Path) -> None:
        self.root, self.generations, self.latest, self.lock = root, {}, 1, threading.Lock()

    def path(self, name: str) -> Path:
        return self.root / name

    def names(self) -> list[str]:
        files = (os.path.join(here, name) for here, _, names in os.walk(self.root) for name in names)
        return sorted(set(os.path.relpath(file, self.root) for file in files) - {FAULT})

    def generation(self, name: str) -> int:
        """0 if there is no such object."""
        return self.generations.get(name, 1) if self.path(name).is_file() else 0

    def put(self, name: str, content: bytes) -> None:
        draft = self.root.with_name(f"{self.root.name}.draft")
        draft.write_bytes(content)
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        draft.replace(self.path(name))
        self.latest += 1
        self.generations[name] = self.latest

    def delete(self, name: str) -> None:
        self.path(name).unlink()
        with contextlib.suppress(OSError):  # folders are nothing that a bucket has
            for folder in list(Path(name).parents)[:-1]:
                self.path(str(folder)).rmdir()

    def about(self, name: str) -> dict[str, str]:
        size, generation = self.path(name).stat().st_size, self.generation(name)
        return {"name": name, "bucket": "bucket", "size": str(size), "generation": str(generation)}


class Service(http.server.BaseHTTPRequestHandler):
    """Objects listed below a prefix, described, read whole or in part, written in one piece, deleted; each if its
    generation is, or is not, the one that is asked for."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: between two, the system waits 40 ms

    def __init__(self, objects: Objects, *arguments) -> None:
        self.objects = objects
        super().__init__(*arguments)

    def handle_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        fault = self.objects.path(FAULT)
        status, *methods = fault.read_text().split() if fault.exists() else [""]
        if status and self.command in (methods or [self.command]):
            return self.answer(int(status))
        uploading = path.startswith("/upload")
        path = path.removeprefix("/upload")
        if not path.startswith(f"{BUCKET}/o"):
            return self.answer(404)
        name = asked.get("name", "") if uploading else urllib.parse.unquote(path.removeprefix(f"{BUCKET}/o")[1:])
        if not name:
            return self.list(asked)
        with self.objects.lock:
            there = self.objects.generation(name)
            if int(asked.get("ifGenerationMatch", there)) != there:
                return self.answer(412)
            if there and int(asked.get("ifGenerationNotMatch", -1)) == there:
                return self.answer(304)
            if uploading:
                self.objects.put(name, body)
                return self.answer(200, self.objects.about(name))
            if not there:
                return self.answer(404)
            if self.command == "DELETE":
                self.objects.delete(name)
                return self.answer(204)
            if asked.get("alt") != "media":
                return self.answer(200, self.objects.about(name))
            self.content(self.objects.path(name).read_bytes(), self.headers.get("Range", ""), there)

    do_GET = do_POST = do_DELETE = handle_one

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client was killed
            super().handle()

    def list(self, asked: dict[str, str]) -> None:
        first, end = max(asked.get("startOffset", ""), asked.get("pageToken", "")), asked.get("endOffset")
        names = [
            name
            for name in self.objects.names()
            if name.startswith(asked.get("prefix", "")) and name >= first and (end is None or name < end)
        ]
        page = {"items": [self.objects.about(name) for name in names[:PAGE]]}
        self.answer(200, {**page, **({"nextPageToken": names[PAGE]} if len(names) > PAGE else {})})

    def content(self, content: bytes, wanted: str, generation: int) -> None:
        headers = {"x-goog-generation": str(generation)}
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if not wanted:
            return self.answer(200, content, headers)
        start = int(first) if first else len(content) - int(last)
        stop = min(int(last) + 1, len(content)) if first and last else len(content)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
        self.answer(206 if start < len(content) else 416, content[start:stop], headers)

    def answer(self, code: int, body: bytes | dict = b"", headers: dict[str, str] | None = None) -> None:
        body = json.dumps(body).encode() if isinstance(body, dict) else body
        if code >= 400:
            body = json.dumps({"error": {"code": code, "message": "as the test wants it"}}).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments) -> None:
        if os.environ.get("BUCKET_LOG"):
            print(arguments[0] % arguments[1:], file=sys.stderr, flush=True)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serve `folder` as long as this is open; the port."""
    folder.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def reached(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve `folder` as gs://bucket to this process and those it starts, which give up on it soon."""
    from rove_jax.storage import bucket

    with served(folder) as port:
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "a word")
        monkeypatch.setattr(bucket, "RETRIES", {"max_retries": 2, "initial_delay": "50ms", "max_delay": "50ms"})
        bucket.store.cache_clear()
        yield
    bucket.store.cache_clear()


if __name__ == "__main__":
    service = functools.partial(Service, Objects(Path(sys.argv[1])))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), service)
    print(server.server_port, flush=True)
    server.serve_forever()
