"""This clone's membership in its session: connecting, joining, serving, leaving."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from forge_collab import faults
from forge_collab.clock import Clock
from forge_collab.core import choice, keys, session
from forge_collab.core.change import ABSENT, View
from forge_collab.core.errors import BlockedError, ForgeError, UnavailableError, expected
from forge_collab.core.lease import Timing
from forge_collab.daemon import connecting
from forge_collab.daemon.landing import Landing
from forge_collab.daemon.participant import SessionParticipant, Settings
from forge_collab.daemon.plan import SessionPlan
from forge_collab.daemon.process import Place, runtime_dir
from forge_collab.files.config import Config, load_config
from forge_collab.files.journal import load_journal
from forge_collab.files.markers import Identity, Markers
from forge_collab.git import ssh
from forge_collab.git.repository import Repository
from forge_collab.git.store import Store
from forge_collab.transport import Transport, load

log = logging.getLogger("forge")
_RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0)
_FIRST_WAIT_SECONDS = 5.0


class Membership:
    """What a clone's daemon is to the session; `live` goes on until it has left.

    `current` is this clone's participant and plan while it is connected; `problem` why it isn't.
    """

    def __init__(
        self,
        repository: Repository,
        place: Place,
        environ: dict[str, str],
        *,
        clock: Clock,
        end: Callable[[], None],
    ) -> None:
        self.markers = Markers(repository.common_dir)
        self.current: tuple[SessionParticipant, SessionPlan] | None = None
        self.landing: Landing | None = None
        self.problem: ForgeError | None = None
        self.poll_seconds = 2.5
        self.transport_name = "polling"
        self.remote_name = "origin"
        self.is_wanted = False
        self.is_left = False
        self._repository = repository
        self._place = place
        self._environ = environ
        self._given_ssh = environ.get("GIT_SSH_COMMAND")
        self._clock = clock
        self._end = end
        self._may_create = True
        self._begin = anyio.Event()
        self._settled = anyio.Event()

    async def live(self) -> None:
        """Be in the session whenever that is possible, from when it is wanted until it is left."""
        if not self.markers.is_enabled():
            await self._begin.wait()
        tries = 0
        while not self.is_left:
            try:
                await self._join_once()
                tries = 0
            except Exception as error:
                problem = expected(error)
                if problem is None:
                    raise
                self.problem = problem
                self._settled.set()
                log.warning("not in the session: %s", problem.message)
                if self.is_wanted and not self.markers.is_enabled():
                    self._end()
                    return
                await anyio.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1

    async def _join_once(self) -> None:
        """Connect, join, and serve until this identity is found to be somebody else's."""
        identity = self._identity()
        config = self._config(identity)
        remote = self._repository.remote(config.remote)
        self._share_ssh(remote.push_url)
        context = connecting.context(
            self._repository,
            config,
            instance=identity.instance,
            handle=identity.handle,
            environ=self._environ,
            clock=self._clock,
        )
        self.transport_name = connecting.transport_name(identity, config, self._environ)
        store = Store(
            self._repository,
            remote,
            environ=lambda: self._environ,
            network_seconds=context.network_seconds,
        )
        if identity.repo is None:
            store.forget()  # What an earlier membership saw needn't hold for this one.
        async with load(self.transport_name)(context) as transport:
            await store.ensure()
            try:
                await self._serve(identity, config, transport, store)
            finally:
                if self.current is not None:
                    self.current, self._settled = None, anyio.Event()
                store.close()

    async def _serve(
        self, identity: Identity, config: Config, transport: Transport, store: Store
    ) -> None:
        target = await self._target(config, transport, store)
        participant = self._participant(identity, config, transport, store, target)
        session_id = config.session or identity.session
        if transport.snapshot.get(keys.META) is ABSENT and not self._may_create:
            raise BlockedError(
                "there is no session on this remote yet", hint="forge collaborate start"
            )
        session.check_session(View(transport.snapshot), identity.repo)
        meta = await participant.arrive(
            session_id=session_id, repo=secrets.token_hex(8), target=target
        )
        plan = participant.plan
        assert isinstance(plan, SessionPlan)
        await plan.refresh()
        faults.at("start.after_connect")
        if self.is_left:
            return
        identity = replace(identity, session=meta.session, repo=meta.repo, target=meta.target)
        self.markers.write(identity)
        self.markers.enable(identity)
        faults.at("start.after_enabled")
        async with anyio.create_task_group() as tasks:
            await participant.run(tasks)
            self.landing = Landing(participant, plan, store)
            tasks.start_soon(self.landing.keep_fresh, float(config.idle_poll_seconds))
            self.current = (participant, plan)
            self.problem = None
            self._settled.set()
            await participant.duplicate.wait()
            tasks.cancel_scope.cancel()
        self.markers.rename(identity, secrets.token_hex(8))

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
        root = Path(identity.roots[0]) if identity.roots else self._repository.root
        home = Path(self._environ.get("HOME", "/"))
        config, warnings = load_config(
            flags={},
            environ=self._environ,
            git_config=self._repository.config_pairs(),
            root=root,
            home=home,
        )
        for warning in warnings:
            log.warning(warning)
        self.poll_seconds = float(config.poll_seconds)
        self.remote_name = config.remote
        return config

    def _share_ssh(self, url: str) -> None:
        configured = self._repository.config("core.sshCommand")
        given = {**self._environ, "GIT_SSH_COMMAND": self._given_ssh or ""}
        command = ssh.command(url, given, configured, runtime_dir(self._environ))
        if command is not None:
            self._environ["GIT_SSH_COMMAND"] = command

    async def _target(self, config: Config, transport: Transport, store: Store) -> str | None:
        """The target branch: what the session says, where there is one, decides."""
        if transport.snapshot.get(keys.META) is not ABSENT:
            return config.target
        return choice.target(
            config.target,
            await store.remote_head(),
            self._repository.upstream(config.remote),
            self._repository.branch(),
        )

    def _participant(
        self,
        identity: Identity,
        config: Config,
        transport: Transport,
        store: Store,
        target: str | None,
    ) -> SessionParticipant:
        mail = self._repository.author()[1]
        return SessionParticipant(
            transport,
            load_journal(self._place.journal_path, identity.instance),
            SessionPlan(store, transport, clock=self._clock, target=target),
            clock=self._clock,
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
        result = await anyio.to_thread.run_sync(self._repository.git, *args)
        return result.out.decode().strip() or None

    async def joined(self) -> tuple[SessionParticipant, SessionPlan]:
        """This clone in its session; waits a moment for a connection being made.

        :raises UnavailableError: when the session can't be reached now.
        """
        if self.current is None and not self._settled.is_set():
            with anyio.move_on_after(_FIRST_WAIT_SECONDS):
                await self._settled.wait()
        if self.current is not None:
            return self.current
        if self.problem is not None:
            raise self.problem.again()
        raise UnavailableError("the session isn't connected yet", hint="try again in a moment")

    async def start(self, *, create: bool) -> dict[str, Any]:
        """Join the session; with `create`, begin it where there is none.

        :raises ForgeError: why it can't be; nothing is left behind then.
        """
        self.is_wanted, self._may_create = True, create
        self._begin.set()
        await self._settled.wait()
        participant, _ = await self.joined()
        seen = participant.overview()
        assert participant.meta is not None
        return {
            "session": participant.meta.session,
            "repo": participant.meta.repo,
            "target": participant.meta.target,
            "transport": self.transport_name,
            "me": participant.me("-").claimant.model_dump(include={"handle", "instance"}),
            "claimable": seen["claimable"],
            "participants": seen["participants"],
        }

    async def leave(self) -> dict[str, Any]:
        """Leave: enabled goes first, participant.json last; out of reach, leases lapse alone."""
        identity = self.markers.read()
        try:
            await self.joined()
        except ForgeError as error:
            log.warning("leaving while out of reach: %s", error.message)
        told: dict[str, Any] = {"left": True}
        with anyio.CancelScope(shield=True):  # Half a leave would leave a daemon that has left.
            told["released"], told["lapsing"] = await self._leave(identity)
        return told

    async def _leave(self, identity: Identity | None) -> tuple[list[str], list[dict[str, Any]]]:
        self.is_left = True
        faults.at("leave.after_close")
        self.markers.disable(identity)
        faults.at("leave.after_enabled")
        freed, lapsing = await self._depart(identity)
        faults.at("leave.after_release")
        self.markers.forget(identity)
        faults.at("leave.after_participant")
        self._end()
        return freed, lapsing

    async def _depart(self, identity: Identity | None) -> tuple[list[str], list[dict[str, Any]]]:
        """What was given back, and what lapses by itself because nobody could be told."""
        instance = identity.instance if identity else ""
        held = load_journal(self._place.journal_path, instance).granted.values()
        try:
            participant, _ = await self.joined()
            freed = await participant.depart()
        except ForgeError as error:
            log.warning("left without saying so: %s", error.message)
            return [], [
                {"key": keys.lease_name(g.key), "fence": g.fence, "in_seconds": g.ttl_seconds}
                for g in held
            ]
        return [keys.lease_name(key) for key in freed], []
