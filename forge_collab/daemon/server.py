"""The local socket: newline-delimited JSON-RPC 2.0, the version in the first message.

A client that goes away while its request is being answered has the request cancelled: a claim
that nobody waits for is not kept.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketStream, TaskGroup
from anyio.streams.buffered import BufferedByteReceiveStream

from forge_collab.core.errors import BugError, ForgeError
from forge_collab.files.atomic import explained

log = logging.getLogger("forge")
Handler = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
_LINE_BYTES = 4 * 1024 * 1024
_CHECK_SECONDS = 2.0


class Server:
    """Answers clients of one user on one socket until it is cancelled.

    `place` gives the socket's path, each time it has to be made.
    """

    def __init__(
        self,
        place: Callable[[], Path],
        handler: Handler,
        greeting: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        report: Callable[[Exception], BugError],
    ) -> None:
        self.path = place()
        self._place = place
        self._handler = handler
        self._greeting = greeting
        self._report = report

    async def serve(self) -> None:
        """Listen; the socket is made again when it vanishes."""
        while True:
            with explained("listen on", self.path):
                self.path.unlink(missing_ok=True)
                listener = await anyio.create_unix_listener(self.path, mode=0o600)
            inode = os.stat(self.path).st_ino
            async with listener, anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, self._talk)
                await self._until_gone(inode)
                log.warning("the socket %s vanished; making it again", self.path)
                tasks.cancel_scope.cancel()
            self.path = self._place()

    async def _until_gone(self, inode: int) -> None:
        while True:
            await anyio.sleep(_CHECK_SECONDS)
            try:
                if os.stat(self.path).st_ino != inode:
                    return
            except OSError:
                return

    async def _talk(self, stream: SocketStream) -> None:
        async with stream:
            if not _is_same_user(stream):
                return
            lines = BufferedByteReceiveStream(stream)
            try:
                async with anyio.create_task_group() as tasks:
                    await self._read(lines, stream, tasks)
                    tasks.cancel_scope.cancel()
            except* (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass  # The client went away; its requests were cancelled with the group.

    async def _read(
        self, lines: BufferedByteReceiveStream, stream: SocketStream, tasks: TaskGroup
    ) -> None:
        turn = anyio.Lock()
        while True:
            try:
                line = await lines.receive_until(b"\n", _LINE_BYTES)
            except (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.EndOfStream):
                return
            tasks.start_soon(self._answer, line, stream, turn)

    async def _answer(self, line: bytes, stream: SocketStream, turn: anyio.Lock) -> None:
        answer = await self._reply(line)
        async with turn:
            await stream.send(answer + b"\n")

    async def _reply(self, line: bytes) -> bytes:
        try:
            request = json.loads(line)
            method, number = request["method"], request.get("id")
            params = request.get("params") or {}
            if not isinstance(method, str) or not isinstance(params, dict):
                raise TypeError("method is a string, params an object")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return _error(None, -32600, f"not a request: {error}")
        try:
            if method == "hello":
                result: Any = dict(self._greeting(params))
            else:
                result = await self._handler(method, params)
            return _line({"id": number, "result": result})
        except ForgeError as error:
            return _error(number, error.exit_code, error.message, error.to_json())
        except Exception as error:  # One request's bug must not take everybody's leases along.
            bug = self._report(error)
            return _error(number, bug.exit_code, bug.message, bug.to_json())


def _error(number: object, code: int, message: str, data: Mapping[str, Any] | None = None) -> bytes:
    return _line({"id": number, "error": {"code": code, "message": message, "data": data}})


def _line(answer: Mapping[str, Any]) -> bytes:
    """One line of plain ASCII: what isn't text (an undecodable path) arrives as it was."""
    return json.dumps({"jsonrpc": "2.0", **answer}).encode("ascii")


def _is_same_user(stream: SocketStream) -> bool:
    """Whether the other end runs as this user; where the system can't say, the folder's mode
    has kept others out."""
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    packed = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", packed)
    return bool(uid == os.getuid())
