"""One clone's daemon from its lock to its end: connecting, joining, leaving, starting again."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import signal
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from forge_collab import __version__, faults
from forge_collab.clock import SystemClock
from forge_collab.core import choice, keys
from forge_collab.core.change import ABSENT, View
from forge_collab.core.errors import (
    BlockedError,
    BugError,
    ForgeError,
    UnavailableError,
)
from forge_collab.core.lease import Timing
from forge_collab.core.lifecycle import EXPLANATION, Class, classify
from forge_collab.core.records import Meta
from forge_collab.daemon.participant import SessionParticipant, Settings
from forge_collab.daemon.plan import SessionPlan
from forge_collab.daemon.process import Lock, Place, log_to, runtime_dir
from forge_collab.daemon.server import Server
from forge_collab.daemon.service import Service
from forge_collab.files.atomic import write_atomic
from forge_collab.files.config import Config, load_config
from forge_collab.files.journal import load_journal
from forge_collab.files.markers import Identity, Markers
from forge_collab.git import ssh
from forge_collab.git.repository import Repository, check_version, discover
from forge_collab.git.store import Store
from forge_collab.transport import Context, Transport, installed, load

log = logging.getLogger("forge")
_GUARD_SECONDS = 1.0
_UNSTARTED_SECONDS = 60.0
_RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0)
_FIRST_WAIT_SECONDS = 5.0
HANDED_OVER = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GIT_ASKPASS", "SSH_ASKPASS", "PATH", "DISPLAY")


class Daemon:
    """The daemon of one clone; `run` is its whole life."""

    def __init__(self, common_dir: Path, environ: Mapping[str, str]) -> None:
        self.place = Place(common_dir)
        self.markers = Markers(common_dir)
        self.environ = dict(environ)
        self._given_ssh = environ.get("GIT_SSH_COMMAND")
        self.repository: Repository = discover(common_dir, self.environ)
        self.clock = SystemClock()
        self.current: tuple[SessionParticipant, SessionPlan] | None = None
        self.poll_seconds = 2.5
        self._started_at = self.clock.now()
        self._transport_name = "polling"
        self._remote_name = "origin"
        self._problem: ForgeError | None = None
        self._wanted: bool | None = None
        self._begin = anyio.Event()
        self._settled = anyio.Event()
        self._stop = anyio.Event()
        self._is_left = False

    # Life

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
        socket = self.place.new_socket(self.environ)
        server = Server(socket, Service(self).handle, self._greet, self.report)
        self.place.note_pid()
        self.place.point_to(socket)
        log.info("forge %s begins, process %d", __version__, os.getpid())
        if self.markers.is_enabled():
            self._begin.set()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve)
                tasks.start_soon(self._live)
                tasks.start_soon(self._guard, lock)
                tasks.start_soon(self._obey_signals)
                await self._stop.wait()
                await anyio.sleep(0.1)  # The answer to the request that stopped us goes out.
                tasks.cancel_scope.cancel()
        finally:
            if lock.is_mine():
                self.place.tidy(socket)
            lock.drop()
            log.info("forge ends")

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                self._stop.set()

    async def _guard(self, lock: Lock) -> None:
        """End when this isn't the clone's daemon any more, or there is nothing to serve."""
        while True:
            await anyio.sleep(_GUARD_SECONDS)
            if not lock.is_mine():
                log.error("the lock file was replaced: another daemon may run, so this one ends")
                self._stop.set()
            elif self.markers.is_enabled() or self._is_left:
                continue
            elif self.current is not None:
                log.warning("the session was left from outside")
                self._stop.set()
            elif self._wanted is None and self._waited() > _UNSTARTED_SECONDS:
                self._stop.set()

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

    # In the session

    async def _live(self) -> None:
        await self._begin.wait()
        tries = 0
        while not self._is_left:
            try:
                await self._join_once()
                tries = 0
            except ForgeError as error:
                self._problem = error
                self._settled.set()
                log.warning("not in the session: %s", error.message)
                if self._wanted is not None and not self.markers.is_enabled():
                    self._stop.set()
                    return
                await anyio.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1

    async def _join_once(self) -> None:
        """Connect, join, and serve until this identity is found to be somebody else's."""
        identity = self._identity()
        config = self._config(identity)
        remote = self.repository.remote(config.remote)
        self._share_ssh(remote.push_url)
        context = self._context(identity, config)
        self._transport_name = choice.transport(
            identity.transport if identity.transport != "auto" else config.transport,
            has_key="ABLY_KEY" in self.environ,
            installed=installed(),
        )
        async with load(self._transport_name)(context) as transport:
            store = Store(
                self.repository,
                remote,
                environ=lambda: self.environ,
                network_seconds=context.network_seconds,
            )
            await store.ensure()
            try:
                await self._serve(identity, config, transport, store)
            finally:
                self.current = None
                store.close()

    async def _serve(
        self, identity: Identity, config: Config, transport: Transport, store: Store
    ) -> None:
        target = await self._target(config, transport, store)
        participant = self._participant(identity, config, transport, store, target)
        session_id = config.session or identity.session
        if transport.snapshot.get(keys.META) is ABSENT and self._wanted is False:
            raise BlockedError(
                "there is no session on this remote yet", hint="forge collaborate start"
            )
        self._check_same_session(identity, transport)
        meta = await participant.arrive(
            session_id=session_id, repo=secrets.token_hex(8), target=target
        )
        plan = participant.plan
        assert isinstance(plan, SessionPlan)
        await plan.refresh()
        faults.at("start.after_connect")
        identity = replace(identity, session=meta.session, repo=meta.repo, target=meta.target)
        self.markers.write(identity)
        self.markers.enable(identity)
        faults.at("start.after_enabled")
        async with anyio.create_task_group() as tasks:
            await participant.run(tasks)
            tasks.start_soon(plan.keep_fresh, config.idle_poll_seconds)
            self.current = (participant, plan)
            self._problem = None
            self._settled.set()
            await participant.duplicate.wait()
            tasks.cancel_scope.cancel()
        self.markers.rename(identity, secrets.token_hex(8))

    def _check_same_session(self, identity: Identity, transport: Transport) -> None:
        meta = View(transport.snapshot).document(Meta, keys.META)
        found = classify(
            has_participant=True,
            is_readable=True,
            is_enabled=True,
            own_repo=identity.repo,
            remote_repo=meta.repo if meta else None,
        )
        if found is Class.SESSION_MISMATCH:
            raise BlockedError(
                EXPLANATION[found],
                hint="forge collaborate recover",
                data={"class": found.value, "status": found.value, "waits_for": []},
            )

    def _identity(self) -> Identity:
        """Who this clone is; a new instance when the one on record belongs to another place."""
        identity = self.markers.read()
        if identity is None:
            raise BlockedError("this clone is in no session", hint="forge collaborate start")
        if self.markers.is_here(identity):
            return identity
        log.warning("this clone is a copy of another: it takes an instance of its own")
        return self.markers.rename(identity, secrets.token_hex(8))

    def _config(self, identity: Identity) -> Config:
        root = Path(identity.roots[0]) if identity.roots else self.repository.root
        home = Path(self.environ.get("HOME", "/"))
        config, warnings = load_config(
            flags={},
            environ=self.environ,
            git_config=self.repository.config_pairs(),
            root=root,
            home=home,
        )
        for warning in warnings:
            log.warning(warning)
        self.poll_seconds = float(config.poll_seconds)
        self._remote_name = config.remote
        return config

    def _context(self, identity: Identity, config: Config) -> Context:
        return Context(
            instance=identity.instance,
            handle=identity.handle,
            common_dir=self.repository.common_dir,
            remote=config.remote,
            state_ref=config.state_ref,
            commit_subject=config.commit_subject,
            poll_seconds=float(config.poll_seconds),
            idle_poll_seconds=float(config.idle_poll_seconds),
            network_seconds=float(config.network_timeout_seconds),
            environ=self.environ,
            clock=self.clock,
        )

    def _share_ssh(self, url: str) -> None:
        configured = self.repository.config("core.sshCommand")
        given = {**self.environ, "GIT_SSH_COMMAND": self._given_ssh or ""}
        command = ssh.command(url, given, configured, runtime_dir(self.environ))
        if command is not None:
            self.environ["GIT_SSH_COMMAND"] = command

    async def _target(self, config: Config, transport: Transport, store: Store) -> str | None:
        """The target branch: what the session says, where there is one, decides."""
        if transport.snapshot.get(keys.META) is not ABSENT:
            return config.target
        return choice.target(
            config.target,
            await store.remote_head(),
            self.repository.upstream(config.remote),
            self.repository.branch(),
        )

    def _participant(
        self,
        identity: Identity,
        config: Config,
        transport: Transport,
        store: Store,
        target: str | None,
    ) -> SessionParticipant:
        mail = self.repository.author()[1]
        return SessionParticipant(
            transport,
            load_journal(self.place.journal_path, identity.instance),
            SessionPlan(store, transport, clock=self.clock, target=target),
            clock=self.clock,
            handle=identity.handle,
            instance=identity.instance,
            run=secrets.token_hex(8),
            new_nonce=lambda: secrets.token_hex(8),
            settings=Settings(
                timing=Timing(float(config.claim_ttl_seconds), float(config.heartbeat_seconds)),
                idle_release_seconds=float(config.idle_release_minutes) * 60,
                presence=config.presence,
                email_hash=hashlib.sha256(mail.encode()).hexdigest()[:16],
            ),
            branch_tip=self._branch_tip,
        )

    async def _branch_tip(self, task_id: str, fence: int) -> str | None:
        ref = f"refs/heads/forge/task/{task_id}@{fence}"
        args = ("rev-parse", "--verify", "--quiet", ref)
        result = await anyio.to_thread.run_sync(self.repository.git, *args)
        return result.out.decode().strip() or None

    # For the service

    async def joined(self) -> tuple[SessionParticipant, SessionPlan]:
        """This clone in its session; waits a moment for a connection being made.

        :raises UnavailableError: when the session can't be reached now.
        """
        if self.current is None and not self._settled.is_set():
            with anyio.move_on_after(_FIRST_WAIT_SECONDS):
                await self._settled.wait()
        if self.current is not None:
            return self.current
        if self._problem is not None:
            raise type(self._problem)(
                self._problem.message, hint=self._problem.hint, data=self._problem.data
            )
        raise UnavailableError("the session isn't connected yet", hint="try again in a moment")

    def about(self) -> dict[str, Any]:
        """Version, pid, uptime, transport, whether the session can be reached."""
        participant = self.current[0] if self.current else None
        transport = participant.transport if participant else None
        trouble = transport.trouble if transport else (self._problem and self._problem.message)
        synced = transport.last_sync if transport else None
        identity = self.markers.read()
        return {
            "running": True,
            "pid": os.getpid(),
            "version": __version__,
            "uptime_seconds": round(self._waited(), 1),
            "transport": self._transport_name,
            "online": transport is not None and trouble is None,
            "last_sync_seconds": None if synced is None else round(self.clock.now() - synced, 1),
            "queued": len(participant.journal.unsettled) if participant else 0,
            "session": identity.session if identity else None,
            "repo": identity.repo if identity else None,
            "class": "healthy" if self.markers.is_enabled() else "stale_participant",
            "me": identity.short if identity else None,
            "target": identity.target if identity else None,
            "remote": self._remote_name,
            "clone": str(self.place.common_dir),
            "holding": len(participant.holdings()) if participant else 0,
            "warnings": [trouble] if trouble else [],
        }

    async def start(self, *, create: bool) -> dict[str, Any]:
        """Join the session; with `create`, begin it where there is none.

        :raises ForgeError: why it can't be; nothing is left behind then.
        """
        self._wanted = create
        self._begin.set()
        await self._settled.wait()
        participant, _ = await self.joined()
        about = self.about()
        seen = participant.overview()
        assert participant.meta is not None
        return {
            "session": participant.meta.session,
            "repo": participant.meta.repo,
            "target": participant.meta.target,
            "transport": about["transport"],
            "me": about["me"],
            "claimable": seen["claimable"],
            "participants": seen["participants"],
        }

    async def leave(self) -> dict[str, Any]:
        """Leave: enabled goes first, participant.json last; out of reach, leases lapse alone."""
        identity = self.markers.read()
        current = self.current
        faults.at("leave.after_close")
        self._is_left = True
        self.markers.disable(identity)
        faults.at("leave.after_enabled")
        freed, lapsing = await self._depart(current)
        faults.at("leave.after_release")
        self.markers.forget(identity)
        faults.at("leave.after_participant")
        self._stop.set()
        return {"left": True, "released": freed, "lapsing": lapsing}

    async def _depart(
        self, current: tuple[SessionParticipant, SessionPlan] | None
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """What was given back, and what lapses by itself because nobody could be told."""
        if current is None:
            return [], []
        participant, _ = current
        held = list(participant.holdings().values())
        try:
            freed = await participant.depart()
        except ForgeError as error:
            log.warning("left without saying so: %s", error.message)
            return [], [
                {"key": keys.lease_name(g.key), "fence": g.fence, "in_seconds": g.ttl_seconds}
                for g in held
            ]
        return [keys.lease_name(key) for key in freed], []

    def stop(self) -> dict[str, Any]:
        """End; what is held stays held until it lapses or a daemon carries on."""
        held = [keys.lease_name(k) for k in (self.current[0].holdings() if self.current else {})]
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
        raise _expected(error) or daemon.report(error) from None


def _expected(error: BaseException) -> ForgeError | None:
    """The one expected failure that `error` is, or is a group of, or None."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ForgeError) else None
