"""Talks to the clone's daemon over its socket, and starts it where a command may."""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forge_collab import __version__
from forge_collab.cli import output
from forge_collab.cli.here import Here
from forge_collab.core.errors import EnvironmentError_, UnavailableError, from_json
from forge_collab.git.runner import HANDED_OVER

CALL_SECONDS = 120.0
_HELLO_SECONDS = 5.0
_START_SECONDS = 20.0


class Client:
    """One connection to a daemon, from the work tree `root`."""

    def __init__(self, connection: socket.socket, root: Path | None = None) -> None:
        self._connection = connection
        self._where = {} if root is None else {"root": str(root)}
        self._lines = connection.makefile("rb")
        self._numbers = itertools.count(1)

    def call(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        seconds: float | None = CALL_SECONDS,
    ) -> Any:
        """The daemon's answer.

        :raises ForgeError: what it answered instead.
        :raises UnavailableError: when it gave no answer; nobody knows then what became of it.
        """
        number = next(self._numbers)
        request = {
            "jsonrpc": "2.0",
            "id": number,
            "method": method,
            "params": {**self._where, **(params or {})},
        }
        try:
            self._connection.settimeout(seconds)
            self._connection.sendall(json.dumps(request).encode() + b"\n")
            if seconds is not None and seconds > output.PATIENCE_SECONDS:
                self._say_if_it_takes_long()
            line = self._lines.readline()
        except TimeoutError as error:
            raise _no_answer(f"the daemon gave no answer in {seconds:g} s") from error
        except OSError as error:
            raise _no_answer("the daemon ended before it answered") from error
        if not line.endswith(b"\n"):
            raise _no_answer("the daemon ended before it answered")
        answer = json.loads(line)
        if "error" in answer:
            raise from_json(answer["error"].get("data") or {"message": answer["error"]["message"]})
        return answer["result"]

    def _say_if_it_takes_long(self) -> None:
        if not select.select([self._connection], [], [], output.PATIENCE_SECONDS)[0]:
            output.notice("waiting for the remote; Ctrl-C ends that")

    def close(self) -> None:
        """End the connection."""
        self._lines.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class NoAnswerError(UnavailableError):
    """The daemon was asked and ended, or is silent: nobody knows what it did."""


def _no_answer(why: str) -> NoAnswerError:
    return NoAnswerError(
        f"{why}; whether the request took effect isn't known yet",
        hint="forge collaborate status shows what is; forge daemon logs says why",
    )


def running(here: Here, *, seconds: float = _HELLO_SECONDS) -> tuple[Client, dict[str, Any]] | None:
    """A connection to this clone's daemon and its greeting, or None where none runs.

    :raises UnavailableError: when one runs and doesn't answer.
    """
    try:
        path = (here.markers.folder / "socket").read_text("utf-8", "surrogateescape").strip()
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(seconds)
        connection.connect(path)
    except OSError:
        return None
    client = Client(connection, here.repository.root)
    environ = {k: v for k, v in here.repository.environ.items() if k in HANDED_OVER}
    try:
        hello = client.call("hello", {"version": __version__, "environ": environ}, seconds=seconds)
    except UnavailableError as error:
        client.close()
        raise UnavailableError(
            "this clone's daemon runs and doesn't answer",
            hint="forge daemon stop, or look at forge daemon logs",
        ) from error
    status = os.stat(here.repository.common_dir)
    if hello.get("clone") != [status.st_dev, status.st_ino]:
        client.close()
        return None
    return client, hello


def start(here: Here) -> Client:
    """A connection to this clone's daemon, which is started where none runs.

    :raises ForgeError: why it couldn't be.
    """
    found = running(here)
    if found is not None:
        return _of_this_version(here, *found)
    from forge_collab.daemon import process

    spawned = process.spawn(here.repository.common_dir, here.repository.environ)
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        found = running(here)
        if found is not None:
            return found[0]
        if spawned.poll() is not None:
            _raise_unless_another_runs(process.failure(here.repository.common_dir))
        time.sleep(0.02)
    raise EnvironmentError_(
        "the daemon didn't come up", hint=f"look at {here.markers.folder / 'daemon.err'}"
    )


def _raise_unless_another_runs(why: Mapping[str, Any] | None) -> None:
    if why is not None and (why.get("data") or {}).get("status") != "running":
        raise from_json(why)


def _of_this_version(here: Here, client: Client, hello: Mapping[str, Any]) -> Client:
    """An idle daemon of another version is restarted, a busy one is named."""
    if hello["version"] == __version__:
        return client
    about = client.call("about")
    if about["queued"] or about["holding"]:
        raise EnvironmentError_(
            f"this clone's daemon is version {hello['version']}, this command {__version__}, "
            "and it is at work",
            hint="forge daemon stop, then forge daemon start: what is held stays held",
        )
    last_call("stop", client, hello)
    return start(here)


def session(here: Here) -> Client:
    """A connection for a command that acts in the session, or alone; starts the daemon if need be.

    :raises BlockedError: when a crash left this clone half in a session.
    :raises EnvironmentError_: when it is in none and has no work tree to work in alone.
    """
    if here.is_alone():
        here.root  # noqa: B018 - alone the plan is the checkout's
    return start(here)


def stop(here: Here) -> dict[str, Any] | None:
    """End this clone's daemon and wait until it is gone; None where none runs."""
    found = running(here)
    return None if found is None else last_call("stop", *found)


def last_call(
    method: str,
    client: Client,
    hello: Mapping[str, Any],
    params: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The answer to a request after which the daemon ends; returns when it has ended."""
    with client:
        answer: dict[str, Any] = client.call(method, params)
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and _is_alive(int(hello["pid"])):
        time.sleep(0.02)
    return answer


def _is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self").exists():
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
