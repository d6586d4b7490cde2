"""The daemon's socket as its clients see it: a real one, and real connections to it."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from forge_collab.core.errors import BugError, EnvironmentError_, HeldError, UsageError
from forge_collab.daemon.server import Server

pytestmark = pytest.mark.anyio
SECONDS = 5.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Daemon:
    """What answers: a few methods that show what became of each request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bugs: list[Exception] = []
        self.began = anyio.Event()
        self.may_end = anyio.Event()
        self.was_cancelled = anyio.Event()
        self.server = Server(self.place, self.handle, self.greet, self.report)

    def place(self) -> Path:
        """Where the socket goes; its folder may have vanished with it."""
        self.path.parent.mkdir(exist_ok=True)
        return self.path

    def greet(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if params.get("version") == "0":
            raise UsageError("too old", hint="upgrade")
        return {"version": "1", "you": params.get("version")}

    def report(self, error: Exception) -> BugError:
        self.bugs.append(error)
        return BugError("a bug", hint="tell us", data={"file": "crash.txt"})

    async def handle(self, method: str, params: Mapping[str, Any]) -> Any:
        if method == "echo":
            return params["text"]
        if method == "wait":
            return await self.wait()
        if method == "held":
            raise HeldError("T1 is held", hint="wait", data={"reason": "held"})
        if method == "bug":
            raise ZeroDivisionError("oh")
        if method == "object":
            return object()
        raise UsageError(f"there is no method '{method}'")

    async def wait(self) -> str:
        self.began.set()
        try:
            await self.may_end.wait()
        except anyio.get_cancelled_exc_class():
            self.was_cancelled.set()
            raise
        return "waited"


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[Daemon]:
    """A daemon that serves; the time of all that is done with it is limited."""
    daemon = Daemon(path)
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.server.serve)
            yield daemon
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()


class Client:
    """One connection."""

    def __init__(self, stream: SocketStream) -> None:
        self.stream = stream
        self._lines = BufferedByteReceiveStream(stream)

    async def send(self, line: bytes) -> None:
        await self.stream.send(line + b"\n")

    async def ask(self, number: int, method: str, **params: Any) -> None:
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        await self.send(json.dumps(request).encode())

    async def receive(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", 2**20))
        assert answer["jsonrpc"] == "2.0"
        return answer

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        await self.ask(1, method, **params)
        answer = await self.receive()
        assert answer["id"] == 1
        return answer


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Client]:
    """A client that waits until the server listens."""
    while True:
        try:
            stream = await anyio.connect_unix(path)
            break
        except OSError:
            await anyio.sleep(0.01)
    async with stream:
        yield Client(stream)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with serving(tmp_path / "s.sock") as made:
        yield made


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with connected(daemon.path) as made:
        yield made


async def goes_on(daemon: Daemon) -> bool:
    """Whether a new client is answered."""
    async with connected(daemon.path) as another:
        return (await another.call("echo", text="ä"))["result"] == "ä"


# Answers


async def test_hello_is_answered_with_the_greeting(client: Client) -> None:
    answer = await client.call("hello", version="1")
    assert answer["result"] == {"version": "1", "you": "1"}


async def test_a_greeting_that_is_refused_says_why(client: Client) -> None:
    answer = await client.call("hello", version="0")
    assert (answer["error"]["code"], answer["error"]["message"]) == (2, "too old")


async def test_a_request_is_answered_with_what_its_handler_says(client: Client) -> None:
    answer = await client.call("echo", text="zwölf\n☃")
    assert answer == {"jsonrpc": "2.0", "id": 1, "result": "zwölf\n☃"}


async def test_a_method_that_is_not_known_is_the_handlers_error(client: Client) -> None:
    answer = await client.call("dance")
    assert answer["error"]["code"] == 2
    assert answer["error"]["message"] == "there is no method 'dance'"


async def test_an_expected_failure_has_its_exit_code_and_all_that_the_error_says(
    client: Client,
) -> None:
    answer = await client.call("held")
    assert answer["error"] == {
        "code": 3,
        "message": "T1 is held",
        "data": {
            "code": "held",
            "message": "T1 is held",
            "hint": "wait",
            "data": {"reason": "held"},
        },
    }


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"hello",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b'{"id": 1}',
        b'{"method": 7}',
        b'{"method": "echo", "params": [1]}',
        b'{"method": "echo", "params": "text"}',
        b"[" * 100_000,
    ],
)
async def test_what_is_no_request_is_refused_and_the_connection_goes_on(
    client: Client, line: bytes
) -> None:
    await client.send(line)
    answer = await client.receive()
    assert (answer["id"], answer["error"]["code"]) == (None, -32600)
    assert answer["error"]["message"].startswith("not a request: ")
    assert (await client.call("echo", text="on"))["result"] == "on"


async def test_a_request_may_come_in_pieces(client: Client) -> None:
    line = b'{"id": 1, "method": "echo", "params": {"text": "whole"}}\n'
    for at in range(0, len(line), 7):
        await client.stream.send(line[at : at + 7])
    assert (await client.receive())["result"] == "whole"


async def test_two_requests_at_once_on_one_connection_are_answered_by_their_ids(
    daemon: Daemon, client: Client
) -> None:
    await client.ask(1, "wait")
    await client.ask(2, "echo", text="first")
    assert await client.receive() == {"jsonrpc": "2.0", "id": 2, "result": "first"}
    daemon.may_end.set()
    assert await client.receive() == {"jsonrpc": "2.0", "id": 1, "result": "waited"}


async def test_large_answers_to_many_requests_at_once_are_each_whole(client: Client) -> None:
    for number in range(10):
        await client.ask(number, "echo", text=str(number) * 200_000)
    answers = [await client.receive() for _ in range(10)]
    found = {answer["id"]: answer["result"] for answer in answers}
    assert found == {number: str(number) * 200_000 for number in range(10)}


# Clients that go, and bugs


async def test_a_client_that_goes_away_has_its_request_cancelled(daemon: Daemon) -> None:
    async with connected(daemon.path) as client:
        await client.ask(1, "wait")
        await daemon.began.wait()
    await daemon.was_cancelled.wait()
    assert await goes_on(daemon)


async def test_a_client_that_goes_away_leaves_the_requests_of_others(
    daemon: Daemon, client: Client
) -> None:
    await client.ask(1, "wait")
    await daemon.began.wait()
    async with connected(daemon.path) as other:
        await other.ask(1, "echo", text="x" * 500_000)
    assert await goes_on(daemon)
    daemon.may_end.set()
    assert (await client.receive())["result"] == "waited"
    assert not daemon.was_cancelled.is_set()


async def test_a_bug_in_a_handler_is_reported_and_answered_and_the_server_goes_on(
    daemon: Daemon, client: Client
) -> None:
    answer = await client.call("bug")
    assert (answer["error"]["code"], answer["error"]["message"]) == (70, "a bug")
    assert answer["error"]["data"]["data"] == {"file": "crash.txt"}
    assert [type(error) for error in daemon.bugs] == [ZeroDivisionError]
    assert (await client.call("echo", text="on"))["result"] == "on"
    assert await goes_on(daemon)


async def test_an_answer_that_is_no_json_is_a_bug_too_and_the_server_goes_on(
    daemon: Daemon, client: Client
) -> None:
    answer = await client.call("object")
    assert answer["error"]["code"] == 70
    assert len(daemon.bugs) == 1
    assert await goes_on(daemon)


async def test_bytes_that_are_no_text_come_back_in_the_answer_and_the_server_goes_on(
    daemon: Daemon, client: Client
) -> None:
    """A path or an argument that isn't UTF-8 reaches the daemon as lone surrogates."""
    odd = os.fsdecode(b"caf\xe9")
    assert (await client.call("echo", text=odd))["result"] == odd
    assert odd in (await client.call(odd))["error"]["message"]
    assert await goes_on(daemon)


# The socket


async def test_the_socket_is_open_to_its_user_alone(daemon: Daemon) -> None:
    assert await goes_on(daemon)
    assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o600


async def test_a_client_of_another_user_is_told_nothing(
    daemon: Daemon, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.call("hello")
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    async with connected(daemon.path) as stranger:
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError, anyio.IncompleteRead)):
            await stranger.call("hello")
    monkeypatch.undo()
    assert await goes_on(daemon)


async def test_what_a_killed_daemon_left_under_the_sockets_name_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_bytes(b"left")
    async with serving(path) as daemon:
        assert await goes_on(daemon)


async def test_a_socket_that_was_deleted_with_its_folder_is_made_again(tmp_path: Path) -> None:
    async with serving(tmp_path / "run" / "s.sock") as daemon:
        assert await goes_on(daemon)
        shutil.rmtree(daemon.path.parent)
        assert await goes_on(daemon)
        assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o600


async def test_a_socket_that_can_not_be_made_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.mkdir()
    with anyio.fail_after(SECONDS), pytest.raises(EnvironmentError_, match="can't listen on"):
        await Daemon(path).server.serve()
