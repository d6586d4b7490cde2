"""A tiny HTTP proxy on loopback that notes what it was asked, and asks one server for all of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from e2e.httpremote import Server, body_of

_OF_THE_CONNECTION = {"connection", "proxy-connection", "transfer-encoding", "content-length"}
_OF_THE_PROXY = {*_OF_THE_CONNECTION, "server", "date"}


class Proxy(ThreadingHTTPServer):
    """Asks the server behind it, whatever host is named; `asked` has each request's method, URL."""

    daemon_threads = True

    def __init__(self, server: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = server
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        """What ``http.proxy`` is set to."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(body_of(self))

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _pass_on(self, body: bytes | None) -> None:
        self.server.asked.append((self.command, self.path))
        url = urlsplit(self.path)
        there = HTTPConnection("127.0.0.1", self.server.behind.server_address[1], timeout=60)
        place = f"{url.path}?{url.query}" if url.query else url.path
        fields = {k: v for k, v in self.headers.items() if k.lower() not in _OF_THE_CONNECTION}
        there.request(self.command, place, body, fields)
        answer = there.getresponse()
        content = answer.read()
        there.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_THE_PROXY:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def proxying(server: Server) -> Iterator[Proxy]:
    """A proxy in front of a server while the block runs."""
    proxy = Proxy(server)
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()
