"""A bucket of Google Cloud Storage, as far as reading from it goes: `python bucket.py FOLDER` serves a folder.

It prints its port. A process of its own, since clients in C++ may wait for an answer without letting Python run.
After a file `stop` has appeared in the folder nothing is answered but that the service is not available.
"""

import functools
import http.server
import json
import sys
import urllib.parse
from pathlib import Path

BUCKET = "/storage/v1/b/bucket"


class Bucket(http.server.BaseHTTPRequestHandler):
    """Metadata of an object, the list of all below a prefix, and the content of an object, whole or a range of it."""

    def __init__(self, root: Path, *arguments) -> None:
        self.root = root
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        file = self.root / urllib.parse.unquote(path.removeprefix(f"{BUCKET}/o/"))
        if (self.root / "stop").exists():
            self.answer(503, b"{}")
        elif path == f"{BUCKET}/o":
            files = sorted(file for file in self.root.rglob("*") if file.is_file())
            items = [self.about(file) for file in files if self.name(file).startswith(asked.get("prefix", ""))]
            self.answer(200, json.dumps({"items": items}).encode())
        elif not path.startswith(f"{BUCKET}/o/") or not file.is_file():
            self.answer(404, b"{}")
        elif asked.get("alt") != "media":
            self.answer(200, json.dumps(self.about(file)).encode())
        else:
            self.content(file.read_bytes(), self.headers.get("Range", ""))

    def content(self, content: bytes, wanted: str) -> None:
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if not wanted:
            return self.answer(200, content)
        start = int(first) if first else len(content) - int(last)
        stop = min(int(last) + 1, len(content)) if first and last else len(content)
        self.answer(206, content[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"})

    def answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), "x-goog-generation": "1", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def name(self, file: Path) -> str:
        return file.relative_to(self.root).as_posix()

    def about(self, file: Path) -> dict[str, str]:
        return {"name": self.name(file), "bucket": "bucket", "size": str(file.stat().st_size), "generation": "1"}

    def log_message(self, *arguments) -> None:
        pass


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Bucket, Path(sys.argv[1])))
    print(server.server_port, flush=True)
    server.serve_forever()
