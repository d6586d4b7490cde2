"""One clone's daemon as a process, from its lock to its end."""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from forge_collab import __version__
from forge_collab.clock import Clock, SystemClock
from forge_collab.core import keys
from forge_collab.core.errors import BlockedError, BugError, expected
from forge_collab.daemon.membership import Membership
from forge_collab.daemon.process import Lock, Place, log_to
from forge_collab.daemon.server import Server
from forge_collab.daemon.service import Service
from forge_collab.files.atomic import write_atomic
from forge_collab.files.journal import load_journal
from forge_collab.git.repository import check_version, discover
from forge_collab.git.runner import HANDED_OVER

log = logging.getLogger("forge")
_GUARD_SECONDS = 1.0
_UNUSED_SECONDS = 60.0
_LAST_ANSWER_SECONDS = 0.1


class Daemon:
    """The daemon of one clone; `run` is its whole life."""

    def __init__(
        self, common_dir: Path, environ: Mapping[str, str], *, clock: Clock | None = None
    ) -> None:
        self.place = Place(common_dir)
        self.environ = dict(environ)
        self.clock = clock or SystemClock()
        self.membership = Membership(
            discover(common_dir, self.environ),
            self.place,
            self.environ,
            clock=self.clock,
            end=lambda: self._stop.set(),
        )
        self.service = Service(self)
        self._started_at = self.clock.now()
        self._stop = anyio.Event()

    async def run(self) -> None:
        """Serve until stopped, left, or no longer this clone's one daemon.

        :raises BlockedError: when another daemon runs.
        """
        lock = Lock(self.place.lock_path)
        if not lock.take():
            raise BlockedError(
                "this clone's daemon runs already",
                hint="forge daemon status",
                data={"status": "running", "waits_for": []},
            )
        server = Server(self._new_socket, self.service.handle, self._greet, self.report)
        self.place.note_pid()
        log.info("forge %s begins, process %d", __version__, os.getpid())
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve)
                tasks.start_soon(self.membership.live)
                tasks.start_soon(self._guard, lock)
                tasks.start_soon(self._obey_signals)
                await self._stop.wait()
                # The answer to the request that stopped us goes out.
                await anyio.sleep(_LAST_ANSWER_SECONDS)
                tasks.cancel_scope.cancel()
        finally:
            if lock.is_mine():
                self.place.tidy(server.path)
            lock.drop()
            log.info("forge ends")

    def _new_socket(self) -> Path:
        socket = self.place.new_socket(self.environ)
        self.place.point_to(socket)
        return socket

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                self._stop.set()

    async def _guard(self, lock: Lock) -> None:
        """End when this isn't the clone's daemon any more, or there is nothing to serve."""
        member = self.membership
        while True:
            await anyio.sleep(_GUARD_SECONDS)
            if not lock.is_mine():
                log.error("the lock file was replaced: another daemon may run, so this one ends")
                self._stop.set()
            elif not member.is_wanted and not member.markers.is_enabled() and self._is_unused():
                self._stop.set()
            elif member.is_out_of_step():
                log.warning("the session was left, or joined, from outside")
                self._stop.set()

    def _is_unused(self) -> bool:
        """Whether nobody has asked for anything for a while, and nothing is held alone."""
        seconds = self.service.unused_seconds()
        return self.membership.is_at_rest() and seconds > _UNUSED_SECONDS

    def _waited(self) -> float:
        return self.clock.now() - self._started_at

    def _greet(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take over what the caller's terminal can authenticate with."""
        handed = params.get("environ")
        if isinstance(handed, dict):
            self.environ.update(
                {k: v for k, v in handed.items() if k in HANDED_OVER and isinstance(v, str)}
            )
        return {"version": __version__, "pid": os.getpid(), "clone": self.place.identity()}

    def report(self, error: Exception) -> BugError:
        """Log a defect and keep it in the crash file."""
        text = "".join(traceback.format_exception(error))
        log.error("a defect: %s", text)
        write_atomic(self.place.crash_path, text.encode())
        return BugError(
            f"a defect in forge: {type(error).__name__}",
            hint=f"please report {self.place.crash_path}",
            data={"path": str(self.place.crash_path)},
        )

    def about(self) -> dict[str, Any]:
        """Version, pid, uptime, transport, whether the session can be reached."""
        member = self.membership
        participant = member.current[0] if member.current else None
        transport = participant.transport if participant else None
        trouble = transport.trouble if transport else (member.problem and member.problem.message)
        synced = transport.last_sync if transport else None
        identity = member.alone or member.markers.read()
        instance = identity.instance if identity else ""
        journal = (
            participant.journal if participant else load_journal(self.place.journal_path, instance)
        )
        return {
            "running": True,
            "pid": os.getpid(),
            "version": __version__,
            "uptime_seconds": round(self._waited(), 1),
            "transport": member.transport_name,
            "online": transport is not None and trouble is None,
            "last_sync_seconds": None if synced is None else round(self.clock.now() - synced, 1),
            "queued": len(journal.unsettled),
            "session": identity.session if identity else None,
            "repo": member.remote_repo(),
            "class": member.clone_class().value,
            "me": identity.short if identity else None,
            "target": identity.target if identity else None,
            "remote": None if member.alone else member.remote_name,
            **({"agreed": member.is_agreed} if member.alone else {}),
            "clone": str(self.place.common_dir),
            "holding": len(journal.granted),
            "warnings": [trouble] if trouble else [],
        }

    def stop(self) -> dict[str, Any]:
        """End; what is held stays held until it lapses or a daemon carries on."""
        current = self.membership.current
        held = [keys.lease_name(key) for key in (current[0].held.all if current else {})]
        self._stop.set()
        return {"stopped": True, "held": held}


def run(common_dir: Path, environ: Mapping[str, str], *, is_foreground: bool = False) -> None:
    """Be the daemon of a clone until stopped.

    :raises ForgeError: when it can't be.
    """
    check_version(common_dir, environ)
    daemon = Daemon(common_dir, environ)
    log_to(daemon.place.log_path, also_stderr=is_foreground)
    os.chdir("/")
    try:
        anyio.run(daemon.run)
    except Exception as error:
        raise expected(error) or daemon.report(error) from None
