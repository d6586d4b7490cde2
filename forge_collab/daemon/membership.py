"""This clone's membership in its session: connecting, joining, serving, leaving; and, while it
is in none, its workers' membership in a session of their own.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from forge_collab import faults
from forge_collab.clock import Clock
from forge_collab.core import carry, choice, keys, session, turnover
from forge_collab.core.change import ABSENT, Change, Snapshot, View, readable
from forge_collab.core.errors import BlockedError, ForgeError, UnavailableError, expected
from forge_collab.core.lease import Me, Timing, Watch
from forge_collab.core.lifecycle import Class
from forge_collab.core.records import Claimant, Meta
from forge_collab.daemon import connecting
from forge_collab.daemon.alone import OwnRecords, settle_target
from forge_collab.daemon.landing import Landing
from forge_collab.daemon.participant import SessionParticipant, Settings
from forge_collab.daemon.plan import CheckoutPlan, SessionPlan, TaskPlan, asked_from, target_of
from forge_collab.daemon.process import Place, runtime_dir
from forge_collab.daemon.target import Target
from forge_collab.files.config import Config, load_config
from forge_collab.files.journal import Journal, load_journal
from forge_collab.files.markers import ALONE, Identity, Markers
from forge_collab.git import ssh
from forge_collab.git.repository import Remote, Repository
from forge_collab.git.store import Push, Store
from forge_collab.transport import Context, Transport, load

log = logging.getLogger("forge")
_RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 15.0)
_FIRST_WAIT_SECONDS = 5.0


class Membership:
    """What a clone's daemon is to the session; `live` goes on until it has left.

    `current` is this clone's participant and plan while it is connected; `problem` why it isn't.
    `alone` is who its workers' own session knows it as, while it is in no other; `is_agreed`
    whether they were told, or asked, before they began to work alone.
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
        self.current: tuple[SessionParticipant, TaskPlan] | None = None
        self.landing: Landing | None = None
        self.alone: Identity | None = None
        self.is_agreed = False
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
        self._own = OwnRecords(repository.common_dir)
        self._is_ending = False
        self._notice_seconds = 0.0
        self._state_ref = ""
        self._is_fresh = False
        self._is_forced = False
        self._begin = anyio.Event()
        self._wanted = anyio.Event()
        self._alone_over: anyio.Event | None = None
        self._asked_root: Path | None = None
        self._settled = anyio.Event()

    async def live(self) -> None:
        """Be in the session whenever that is possible, from when it is wanted until it is left;
        before, alone, once a worker asks for something."""
        if not self.markers.is_enabled():
            await self._begin.wait()
        if not self.is_wanted and self.markers.is_absent():
            await self._live_alone()
        if self.is_wanted or self.markers.is_enabled():
            await self._live_joined()

    async def _live_joined(self) -> None:
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
                if problem.data.get("status") == session.ENDED and self.markers.is_enabled():
                    await self._forget_session()
                    return
                log.warning("not in the session: %s", problem.message)
                if self.is_wanted and not self.markers.is_enabled():
                    self._end()
                    return
                await anyio.sleep(_RETRY_SECONDS[min(tries, len(_RETRY_SECONDS) - 1)])
                tries += 1

    # Alone

    async def _live_alone(self) -> None:
        """Serve this clone's workers until the session is wanted, or that can't be any more."""
        self._alone_over = over = anyio.Event()
        try:
            await self._serve_alone()
        except Exception as error:
            self.problem = expected(error)
            if self.problem is None:
                raise
            log.warning("can't work alone: %s", self.problem.message)
            self._settled.set()
        if self.is_wanted:
            self.problem, self._settled = None, anyio.Event()
        else:
            self._end()
        over.set()

    async def _serve_alone(self) -> None:
        config = self._config(self._asked_root)
        identity = self.markers.be_alone(self._repository.handle(config.handle))
        context = self._context(identity, config)
        self.transport_name = ALONE
        async with load(ALONE)(context) as transport:
            target = await settle_target(transport, self._repository, config)
            journal = load_journal(self._place.alone_journal_path, identity.instance)
            store = self._store(Remote.own(self._repository.common_dir), context)
            await store.ensure()
            where = Target(store, lambda: target_of(transport, target), clock=self._clock)
            plan = CheckoutPlan(where, transport)
            participant = self._participant(identity, config, transport, journal, plan)
            meta = await participant.arrive(
                session_id=ALONE, repo=secrets.token_hex(8), target=target
            )
            await plan.refresh()
            self.alone = replace(identity, repo=meta.repo, target=meta.target)
            async with anyio.create_task_group() as tasks:
                await participant.run(tasks)
                self.landing = Landing(participant, plan)
                self.current = (participant, plan)
                self._settled.set()
                await _first_of(self._wanted, participant.duplicate)
                participant.is_closing = True
                tasks.cancel_scope.cancel()
            store.close()
        self.current, self.alone = None, None

    def _ask_alone(self) -> None:
        """A worker asks for something: begin to work alone, where this clone is in no session."""
        if not self._begin.is_set() and self.markers.is_absent():
            self._asked_root = asked_from.get()
            self._begin.set()

    def clone_class(self) -> Class:
        """What this clone is, as far as its markers alone say."""
        if self.markers.is_enabled():
            return Class.HEALTHY
        return Class.INACTIVE if self.markers.is_absent() else Class.STALE_PARTICIPANT

    def is_out_of_step(self) -> bool:
        """Whether this clone was taken out of its session, or put into one, past its daemon."""
        if self.is_left or self.current is None:
            return False
        if self.alone is not None:
            return self.markers.is_enabled()
        return not self.markers.is_enabled()

    def is_at_rest(self) -> bool:
        """Whether nothing is held, nor waits to be settled."""
        if self.current is None:
            return True
        journal = self.current[0].journal
        return not journal.granted and not journal.unsettled

    # In the session

    async def _join_once(self) -> None:
        """Connect, join, and serve until this identity is found to be somebody else's."""
        identity = self._identity()
        config = self._config(Path(identity.roots[0]) if identity.roots else None)
        remote = self._repository.remote(config.remote)
        self._share_ssh(remote.push_url)
        context = self._context(identity, config)
        self.transport_name = connecting.transport_name(identity, config, self._environ)
        store = self._store(remote, context)
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
        where = Target(store, lambda: target_of(transport, target), clock=self._clock)
        plan = SessionPlan(where, transport)
        journal = load_journal(self._place.journal_path, identity.instance)
        participant = self._participant(identity, config, transport, journal, plan)
        session_id = config.session or identity.session
        if transport.snapshot.get(keys.META) is ABSENT and not self._may_create:
            raise BlockedError(
                "there is no session on this remote yet", hint="forge collaborate start"
            )
        if self._is_fresh:
            await self._begin_anew(identity, config, transport, target)
        session.check_session(View(transport.snapshot), identity.repo)
        alone = await self._had_alone()
        await plan.refresh()
        with self._half_done_if_unknown(alone):
            meta = await participant.arrive(
                session_id=session_id, repo=secrets.token_hex(8), target=target, alone=alone
            )
        faults.at("carry.after")
        faults.at("start.after_connect")
        if self.is_left:
            return
        identity = replace(identity, session=meta.session, repo=meta.repo, target=meta.target)
        self.markers.write(identity)
        self.markers.enable(identity)
        faults.at("start.after_enabled")
        if alone:
            await self._take_home(transport)
        async with anyio.create_task_group() as tasks:
            await participant.run(tasks)
            self.landing = Landing(participant, plan)
            tasks.start_soon(self.landing.keep_fresh, float(config.idle_poll_seconds))
            tasks.start_soon(self._leave_when_ended, transport)
            self.current = (participant, plan)
            self.problem = None
            self._settled.set()
            await participant.duplicate.wait()
            tasks.cancel_scope.cancel()
        self.markers.rename(identity, secrets.token_hex(8))

    async def _had_alone(self) -> dict[str, carry.Alone]:
        """What is to be brought into the session; one that is joined already does without."""
        try:
            return await self._own.had()
        except ForgeError as error:
            if not self.markers.is_enabled():
                raise
            log.warning("what was held alone can't be brought over: %s", error.message)
            return {}

    @contextmanager
    def _half_done_if_unknown(self, alone: Mapping[str, carry.Alone]) -> Iterator[None]:
        """Marks an error after which what is held alone may be held in the session already."""
        try:
            yield
        except UnavailableError as error:
            is_held = any(mine.worker for mine in alone.values())
            error.data["half_done"] = is_held and error.data.get("unsettled", True)
            raise

    async def _take_home(self, transport: Transport) -> None:
        """Nothing is held alone any more; not having written that is mended at the next start."""
        try:
            await self._own.take_home(transport.snapshot)
        except ForgeError as error:
            log.warning("this clone's own records weren't written: %s", error.message)

    async def _begin_anew(
        self, identity: Identity, config: Config, transport: Transport, target: str | None
    ) -> None:
        """Put a session of a new id in the place of what is on the branch."""
        if target is None:
            raise BlockedError(
                "the session has no target branch", hint="git config forge.target NAME"
            )
        meta = Meta(
            session=config.session or identity.session, repo=secrets.token_hex(8), target=target
        )
        claimant = Claimant(handle=identity.handle, instance=identity.instance, worker="-")
        nonce = secrets.token_hex(8)

        def rule(view: View) -> None:
            me = Me(claimant, Watch(), self._clock.now(), self._clock.wall())
            turnover.begin_anew(view, meta, me, nonce=nonce, is_forced=self._is_forced)

        await transport.commit(Change(rule, "begin anew"))
        self._is_fresh = False

    def _identity(self) -> Identity:
        """Who this clone is; a new instance when the one on record belongs to another place."""
        identity = self.markers.read()
        if identity is None:
            raise BlockedError("this clone is in no session", hint="forge collaborate start")
        if self.markers.is_here(identity):
            return identity
        log.warning("this clone is a copy of another: it takes an instance of its own")
        return self.markers.rename(identity, secrets.token_hex(8))

    def _context(self, identity: Identity, config: Config) -> Context:
        return connecting.context(
            self._repository,
            config,
            instance=identity.instance,
            handle=identity.handle,
            environ=self._environ,
            clock=self._clock,
        )

    def _store(self, remote: Remote, context: Context) -> Store:
        return Store(
            self._repository,
            remote,
            environ=lambda: self._environ,
            network_seconds=context.network_seconds,
        )

    def _config(self, root: Path | None) -> Config:
        home = Path(self._environ.get("HOME", "/"))
        config, warnings = load_config(
            flags={},
            environ=self._environ,
            git_config=self._repository.config_pairs(),
            root=root or self._repository.root,
            home=home,
        )
        for warning in warnings:
            log.warning(warning)
        self.poll_seconds = float(config.poll_seconds)
        self._notice_seconds = 1.2 * float(config.idle_poll_seconds)
        self._state_ref = config.state_ref
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
        if transport.snapshot.get(keys.META) is not ABSENT and not self._is_fresh:
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
        journal: Journal,
        plan: TaskPlan,
    ) -> SessionParticipant:
        mail = self._repository.author()[1]
        return SessionParticipant(
            transport,
            journal,
            plan,
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

    def remote_repo(self) -> str | None:
        """The id of the session on the remote, as far as it was seen."""
        if self.current is None:
            return self.problem.data.get("repo") if self.problem else None
        snapshot = self.current[0].transport.snapshot
        meta = readable(Meta, snapshot, keys.META)[0].get(keys.META)
        return meta.repo if meta else None

    async def joined(self) -> tuple[SessionParticipant, TaskPlan]:
        """This clone in its session, or alone; waits a moment for a connection being made.

        :raises UnavailableError: when the session can't be reached now.
        """
        self._ask_alone()
        if self.current is None and not self._settled.is_set():
            with anyio.move_on_after(_FIRST_WAIT_SECONDS):
                await self._settled.wait()
        if self.current is not None:
            return self.current
        if self.problem is not None:
            raise self.problem.again()
        raise UnavailableError("the session isn't connected yet", hint="try again in a moment")

    async def start(
        self, *, create: bool, fresh: bool = False, is_forced: bool = False
    ) -> dict[str, Any]:
        """Join the session; with `create`, begin it where there is none, with `fresh` anyway.

        `is_forced` begins it anew where others may be at work.

        :raises ForgeError: why it can't be; nothing is left behind then.
        """
        self.is_wanted, self._may_create = True, create
        self._is_fresh, self._is_forced = fresh, is_forced
        self._begin.set()
        self._wanted.set()
        if self._alone_over is not None:
            await self._alone_over.wait()
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
        if self.current is not None:
            await self._go_home(self.current[0])
        self.markers.disable(identity)
        faults.at("leave.after_enabled")
        freed, lapsing = await self._depart(identity)
        faults.at("leave.after_release")
        self.markers.forget(identity)
        faults.at("leave.after_participant")
        self._end()
        return freed, lapsing

    # The end for everybody

    async def end(self, *, is_forced: bool) -> dict[str, Any]:
        """End the session for everybody: mark it, then remove its branch and what has landed.

        :raises BlockedError: when others are present, unless `is_forced`.
        :raises UnavailableError: when the remote can't be reached.
        """
        participant, plan = await self.joined()
        self._is_ending = True
        try:
            await participant.end_session(is_forced=is_forced)
        except BaseException:
            self._is_ending = False
            raise
        faults.at("end.after_mark")
        others = [p for p in participant.overview()["participants"] if not _is_me(p, participant)]
        with anyio.CancelScope(shield=True):
            if others:
                await anyio.sleep(self._notice_seconds)  # Their daemons see the mark, and leave.
            removed = await self._remove(participant, plan.target.store)
            faults.at("end.after_remove")
            await self._forget_session()
        return {"ended": True, "removed": removed}

    async def _remove(self, participant: SessionParticipant, store: Store) -> list[str]:
        """Take the state branch, and task branches that have landed, off the remote."""
        ref = self._state_ref
        tips = await store.branches_in("forge/task/")
        landed = turnover.landed_branches(View(participant.transport.snapshot), tips)
        moves: dict[str, tuple[str | None, str | None]] = {
            f"refs/heads/{branch}": (tips[branch], None) for branch in landed
        }
        state = (await store.tips([ref])).get(ref)
        if state is not None:
            moves[ref] = (state, None)
        removed = []
        for name, move in moves.items():
            pushed = await store.push_all({name: move})
            if pushed.how is Push.DONE:
                removed.append(name.removeprefix("refs/heads/"))
            else:
                log.warning("%s couldn't be removed: %s", name, pushed.words)
        return removed

    async def _leave_when_ended(self, transport: Transport) -> None:
        seen = transport.snapshot
        while not _has_ended(seen):
            seen = await transport.wait_moved(seen)
        if not self._is_ending:
            log.warning("the session has ended: this clone leaves it")
            await self._forget_session()

    async def _forget_session(self) -> None:
        """Leave without a word: there is nobody to say it to."""
        identity = self.markers.read()
        if self.current is not None:
            await self._go_home(self.current[0])
        self.is_left = True
        self.markers.disable(identity)
        self.markers.forget(identity)
        self._end()

    async def _go_home(self, participant: SessionParticipant) -> None:
        """Remember the session's fences and statuses, so that working alone goes on above them."""
        participant.is_closing = True
        try:
            await self._own.take_home(participant.transport.snapshot)
        except ForgeError:
            self.is_left = participant.is_closing = False
            raise

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


def _has_ended(snapshot: Snapshot) -> bool:
    meta = readable(Meta, snapshot, keys.META)[0].get(keys.META)
    return meta is not None and meta.ended is not None


def _is_me(shown: Mapping[str, Any], participant: SessionParticipant) -> bool:
    return bool(shown["instance"] == participant.instance)


async def _first_of(*events: anyio.Event) -> None:
    """Wait until one of `events` is set."""

    async def wait(event: anyio.Event) -> None:
        await event.wait()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for event in events:
            tasks.start_soon(wait, event)
