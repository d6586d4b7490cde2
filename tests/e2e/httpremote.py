"""A git server over HTTP on loopback: `git http-backend` behind a user and a password."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Server(ThreadingHTTPServer):
    """Serves the repositories in `root`; `asked` has each request's method, path and user."""

    daemon_threads = True

    def __init__(self, root: Path, user: str, password: str, environ: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.environ = dict(environ)
        self.user = user
        self.let_in(password)
        self.asked: list[tuple[str, str, str | None]] = []

    def let_in(self, password: str) -> None:
        """From now on this is the user's password."""
        login = base64.b64encode(f"{self.user}:{password}".encode()).decode()
        self.expected = f"Basic {login}"

    def url(self, name: str, login: str = "") -> str:
        """The URL of the repository called `name`, with `login` (user:password) in it."""
        at = f"{login}@" if login else ""
        return f"http://{at}127.0.0.1:{self.server_address[1]}/{name}"


def body_of(handler: BaseHTTPRequestHandler) -> bytes:
    """The body of a request, chunked or not."""
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    chunks = []
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        chunks.append(handler.rfile.read(size))
        handler.rfile.readline()
    handler.rfile.readline()
    return b"".join(chunks)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(body_of(self))

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, body: bytes) -> None:
        is_known = self.headers.get("Authorization") == self.server.expected
        user = self.server.user if is_known else None
        self.server.asked.append((self.command, self.path, user))
        if not is_known:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="forge"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        done = subprocess.run(
            ["git", "http-backend"],
            env=self._environ(body),
            input=body,
            capture_output=True,
            check=False,
        )
        self._pass_on(done.stdout)

    def _environ(self, body: bytes) -> dict[str, str]:
        path, _, query = self.path.partition("?")
        found = {
            "GIT_PROJECT_ROOT": str(self.server.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "REMOTE_USER": self.server.user,
            "REMOTE_ADDR": "127.0.0.1",
            "CONTENT_LENGTH": str(len(body)),
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        return self.server.environ | found

    def _pass_on(self, output: bytes) -> None:
        head, _, content = output.partition(b"\r\n\r\n")
        lines = [line.partition(": ") for line in head.decode().split("\r\n") if line]
        fields = {name: value for name, _, value in lines}
        self.send_response(int(fields.pop("Status", "200 OK").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(root: Path, *, user: str = "ada", password: str) -> Iterator[Server]:
    """A server for the repositories in `root` while the block runs."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environ |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    server = Server(root, user, password, environ)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
