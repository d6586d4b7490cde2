"""This clone in its session: carries out claims, beats, settling and losing as the core decides.

Written against anyio and the transport contract alone, so it runs on virtual time over the
memory transport. Everything it must remember over a crash is in the journal.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup

from forge_collab import __version__, faults
from forge_collab.clock import Clock
from forge_collab.core import audit, carry, keys, lease, overview, pacing, session, turnover
from forge_collab.core.board import Board
from forge_collab.core.change import Absent, Change, Urgency, View, readable
from forge_collab.core.errors import BlockedError, ForgeError, HeldError, UnavailableError
from forge_collab.core.lease import Me
from forge_collab.core.overview import Sightings
from forge_collab.core.records import Claimant, Lease, Meta, Participant, shown_lease
from forge_collab.core.session import DuplicateIdentityError
from forge_collab.core.tasks import Task
from forge_collab.daemon.holdings import Holdings, is_there, was_given_back
from forge_collab.files.journal import Granted, Journal, Unsettled
from forge_collab.files.tasks import dump_task
from forge_collab.transport import Transport

T = TypeVar("T")
log = logging.getLogger("forge")
_SETTLE_TRIES_REFUSED = 5
_SETTLE_PAUSE_SECONDS = 2.0
_SETTLE_PAUSE_AT_MOST = 60.0
_PLAN_SECONDS = 15.0


class Plan(Protocol):
    """Where the board comes from."""

    @property
    def board(self) -> Board:
        """The tasks as last read."""
        ...

    async def refresh(self, *, older_than: float = 0.0) -> None:
        """Read the tasks again if the last look was more than so many seconds ago."""
        ...


@dataclass(frozen=True)
class Settings:
    """What a participant needs to know of the configuration; durations in seconds."""

    timing: lease.Timing = field(default_factory=lease.Timing)
    idle_release_seconds: float = 3600.0
    presence: str = "full"
    email_hash: str | None = None


class SessionParticipant:
    """One clone in its session, under one instance and one run."""

    def __init__(
        self,
        transport: Transport,
        journal: Journal,
        plan: Plan,
        *,
        clock: Clock,
        handle: str,
        instance: str,
        run: str,
        new_nonce: Callable[[], str],
        settings: Settings | None = None,
        branch_tip: Callable[[str, int], Awaitable[str | None]] | None = None,
    ) -> None:
        self.transport = transport
        self.journal = journal
        self.plan = plan
        self.clock = clock
        self.handle = handle
        self.instance = instance
        self.settings = settings or Settings()
        self.sightings = Sightings()
        self.lost: dict[str, str] = {}
        self.meta: Meta | None = None
        self.is_closing = False
        self.duplicate = anyio.Event()
        self.new_nonce = new_nonce
        self._branch_tip = branch_tip
        self._tasks: TaskGroup | None = None
        self._grants_changed = anyio.Event()
        self.held = Holdings(
            journal, self.settings.timing, clock, changed=lambda: self._grants_changed.set()
        )
        self._beaten_at = clock.now()
        self._beat_turn = anyio.Lock()
        self._turns: dict[tuple[str, str | None], anyio.Lock] = {}
        self._presence = Participant(
            handle=handle,
            run=run,
            email_hash=self.settings.email_hash if self.settings.presence == "full" else None,
            version=__version__ if self.settings.presence == "full" else None,
        )

    # Life

    async def arrive(
        self,
        *,
        session_id: str,
        repo: str,
        target: str | None,
        alone: Mapping[str, carry.Alone] | None = None,
    ) -> Meta:
        """Join: find or make the session's meta record and say that this run is here.

        In the same change goes what this clone had `alone`; whatever its workers held and can't
        hold on to is told them.

        :raises ForgeError: as the transport and `session.found` do.
        """
        board = self.plan.board if alone else Board(())
        ttl = self.settings.timing.ttl

        def rule(view: View) -> tuple[Meta, carry.Joined, float]:
            judged_at = self.clock.now()
            meta = session.found(view, session=session_id, repo=repo, target=target)
            session.arrive(view, self.instance, self._presence)
            carried = carry.join(view, alone or {}, board, self.me, ttl=ttl)
            return meta, carried, judged_at

        arrival = Change(rule, f"{self.handle} is here")
        meta, carried, judged_at = await self.transport.commit(arrival)
        self.meta = meta
        for grant in carried.granted.values():
            assert grant.lease.claimant is not None
            self.held.add(grant.lease.claimant.worker, grant, judged_at)
        for key, error in carried.lost.items():
            name = keys.lease_name(key)
            self.say(key, f"lease lost: {name} was held alone; {error.message}")
        self.look()
        return meta

    async def run(self, tasks: TaskGroup) -> None:
        """Start what goes on by itself, in `tasks`: beats, watching, settling what a crash left."""
        self._tasks = tasks
        now = self.clock.now()
        if self.held.all:
            self._beaten_at = now - self.settings.timing.ttl
        for unsettled in list(self.journal.unsettled.values()):
            tasks.start_soon(self._settle, unsettled)
        tasks.start_soon(self._watch)
        tasks.start_soon(self._beats)

    def look(self) -> None:
        """Note what the newest snapshot says, and which of our leases it says are lost."""
        snapshot, now = self.transport.snapshot, self.clock.now()
        self.sightings.look(snapshot, now)
        view = View(snapshot)
        for key, granted in list(self.held.all.items()):
            try:
                found = view.document(Lease, key)
            except ForgeError:
                continue
            if not is_there(found, granted):
                self._lose(granted, found)

    async def _watch(self) -> None:
        seen = self.transport.snapshot
        self.look()
        while True:
            seen = await self.transport.wait_moved(seen)
            try:
                self.look()
            except ForgeError as error:
                log.warning("what was lost couldn't be written down: %s", error.message)

    def me(self, worker: str, key: str | None = None) -> Me:
        """`worker` of this clone at this moment, with what it may compare."""
        return Me(
            claimant=Claimant(handle=self.handle, instance=self.instance, worker=worker),
            watch=self.sightings.leases,
            now=self.clock.now(),
            ts=self.clock.wall(),
            own_deadline=self.held.own_deadline(key, worker),
        )

    async def commit(
        self,
        rule: Callable[[View], T],
        what: str,
        urgency: Urgency = Urgency.NOW,
        refs: Mapping[str, tuple[str | Absent, str | Absent]] | None = None,
    ) -> T:
        """Carry out a rule as this run of this instance, and no other.

        :raises ForgeError, ConflictError: as the transport and the rule do.
        """

        def as_this_run(view: View) -> T:
            if self.is_closing:
                why = "this clone is leaving the session"
                raise BlockedError(why, hint="forge collaborate start")
            session.check_session(view, self.meta.repo if self.meta else None)
            session.check_run(view, self.instance, self._presence)
            return rule(view)

        try:
            return await self.transport.commit(Change(as_this_run, what, urgency, refs or {}))
        except DuplicateIdentityError as error:
            self._stop_all(error)
            raise

    def _stop_all(self, error: DuplicateIdentityError) -> None:
        """Another run writes as this instance: nothing here is held any more."""
        self.say("", f"duplicate_identity: {error.message}; all work of this clone stops")
        self.held.end_all()
        self.duplicate.set()

    def say(self, key: str, text: str) -> None:
        """Tell of what happened to `key`, until somebody here has it again."""
        log.warning(text)
        self.lost[key] = f"{self.clock.wall()} {text}"

    # Claims

    async def claim(self, worker: str, task_id: str | None) -> dict[str, Any]:
        """Take a task, or whatever is next (None); the answer is true or it is an error.

        :raises HeldError, BlockedError, UsageError: when it can't be had, with why.
        :raises UnavailableError: when nobody knows; then it is undone as soon as it can be.
        """
        await self.know(task_id)
        turn = self._turns.setdefault((worker, task_id), anyio.Lock())
        async with turn:  # Asked twice at once is asked twice: the second has it already.
            return await self._claim(worker, task_id)

    async def _claim(self, worker: str, task_id: str | None) -> dict[str, Any]:
        key = None if task_id is None else keys.claim(task_id)
        board, ttl = self.plan.board, self.settings.timing.ttl
        nonce = self.new_nonce()

        def rule(view: View) -> tuple[lease.Grant | None, float]:
            me = self.me(worker, key)
            if task_id is None:
                return session.claim_next(view, board, me, nonce=nonce, ttl=ttl), me.now
            return session.claim(view, task_id, board, me, nonce=nonce, ttl=ttl), me.now

        what = f"claim {task_id or 'next'}"
        grant, judged_at = await self._grant(Unsettled(nonce, key, worker), rule, what)
        if grant is None:
            return {"task": None, "acquired": False, "lease": None}
        return self._granted(worker, grant, judged_at)

    async def take_over(self, worker: str, task_id: str, reason: str) -> dict[str, Any]:
        """Take a task from whoever holds it; the holder is told.

        :raises BlockedError, UsageError: when the task isn't open.
        :raises UnavailableError: when nobody knows; then it is undone as soon as it can be.
        """
        await self.know(task_id)
        key, nonce = keys.claim(task_id), self.new_nonce()
        board, ttl = self.plan.board, self.settings.timing.ttl

        def rule(view: View) -> tuple[lease.Grant | None, float]:
            me = self.me(worker, key)
            task = session.check_open(view, task_id, board)
            grant = lease.take_over(
                view,
                key,
                me,
                nonce=nonce,
                ttl=ttl,
                reason=reason,
                definition=task.definition_hash,
            )
            if grant.took_over is not None and key in view.writes:
                told = {"task": task_id, "fence": grant.lease.fence, "reason": reason}
                to = grant.took_over.instance
                session.post(view, self.instance, "taken_over", told, to=to, ts=me.ts)
            return grant, me.now

        claim = Unsettled(nonce, key, worker)
        grant, judged_at = await self._grant(claim, rule, f"take over {task_id}")
        assert grant is not None
        return self._granted(worker, grant, judged_at)

    async def know(self, task_id: str | None) -> None:
        """Look at the plan again before an id is called unknown, or all is called done."""
        if task_id is None:
            await self.plan.refresh(older_than=_PLAN_SECONDS)
        elif task_id not in self.plan.board.tasks:
            await self.transport.refresh()
            await self.plan.refresh()

    async def _grant(
        self,
        claim: Unsettled,
        rule: Callable[[View], tuple[lease.Grant | None, float]],
        what: str,
    ) -> tuple[lease.Grant | None, float]:
        """Carry out a claim; where its end isn't known, see to it that it is undone."""
        faults.at("claim.before_journal")
        self.journal.sent(claim)
        faults.at("claim.after_journal")
        try:
            grant, judged_at = await self.commit(rule, what)
        except ForgeError as error:
            is_unknown = isinstance(error, UnavailableError)
            if error.data.get("unsettled", is_unknown):
                self._settle_later(claim)
            else:
                self.held.settled(claim.nonce)
            raise
        except BaseException:
            self._settle_later(claim)
            raise
        if grant is None or grant.already:
            self.held.settled(claim.nonce)
        return grant, judged_at

    def _granted(self, worker: str, grant: lease.Grant, judged_at: float) -> dict[str, Any]:
        """Remember a grant and give it as commands show it."""
        faults.at("claim.before_grant")
        record = grant.lease
        if not self.held.all:
            self._beaten_at = self.clock.now()
        granted = self.held.add(worker, grant, judged_at)
        self.lost.pop(grant.key, None)
        faults.at("claim.after_grant")
        self._check_still_ours(granted, record)
        faults.at("claim.before_answer")
        answer: dict[str, Any] = {
            "task": keys.claimed_task(grant.key),
            "acquired": True,
            "lease": self._shown(grant.key, record),
        }
        if grant.already:
            answer |= {"already": True, "since": granted.since}
        if grant.took_over is not None:
            answer["took_over"] = grant.took_over.model_dump()
        return answer

    def _check_still_ours(self, granted: Granted, record: Lease) -> None:
        """A grant that was recognised late may have been overtaken by now."""
        key, view = granted.key, View(self.transport.snapshot)
        now_there = view.document(Lease, key)
        if is_there(now_there, granted):
            return
        self._lose(granted, now_there)
        if now_there is not None and now_there.claimant is not None:
            raise lease.held(view, key, now_there, self.me("-"))
        raise HeldError(
            f"{keys.claimed_task(key)} was granted under fence {record.fence} and is gone again",
            hint="claim it again",
            data={
                "task": keys.claimed_task(key),
                "acquired": False,
                "reason": "lost_race",
                "holder": None,
            },
        )

    def _shown(self, key: str, record: Lease) -> dict[str, Any]:
        return shown_lease(
            keys.lease_name(key),
            record,
            last_seen_seconds=0.0,
            takeover_in_seconds=record.ttl_seconds,
        )

    async def add_task(self, worker: str, make: Callable[[set[str]], Task]) -> Task:
        """Add the task that `make` gives, told which files are taken, to the session's plan.

        :raises UsageError: when it can't be added.
        """
        nonce = self.new_nonce()
        made: list[Task] = []

        def rule(view: View) -> Task:
            me = self.me(worker)
            if made and audit.has(view, me.claimant, nonce):
                return made[-1]
            names = {key.removeprefix(keys.SHARED_TASKS) for key in view.keys(keys.SHARED_TASKS)}
            task = make(names)
            made.append(task)
            view.put(f"{keys.SHARED_TASKS}{task.id}.yaml", dump_task(task))
            said = task.title
            audit.append(view, me.claimant, "task_added", ts=me.ts, nonce=nonce, text=said)
            return task

        return await self.commit(rule, "add a task")

    # What isn't known is undone

    def soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do `work` beside everything else, while this run lasts; nobody waits for it."""
        if self._tasks is not None:
            self._tasks.start_soon(work)

    def _settle_later(self, claim: Unsettled) -> None:
        """The journal has it, so a run that is at its end leaves it to the next one."""
        is_over = self.duplicate.is_set() or self._tasks is None
        if self._tasks is not None and not is_over and claim.nonce in self.journal.unsettled:
            self._tasks.start_soon(self._settle, claim)

    async def _settle(self, claim: Unsettled) -> None:
        """Find out what became of a claim nobody waits for any more, and undo it."""
        pause, refusals = _SETTLE_PAUSE_SECONDS, 0

        def rule(view: View) -> bool:
            if claim.nonce not in self.journal.unsettled:
                return False  # Its worker has asked again since, and has it.
            return lease.settle(view, claim.key, self.me(claim.worker), nonce=claim.nonce)

        while refusals < _SETTLE_TRIES_REFUSED and claim.nonce in self.journal.unsettled:
            faults.at("settle.before")
            try:
                landed = await self.commit(rule, "settle a claim")
            except UnavailableError:
                pass
            except DuplicateIdentityError:
                return
            except ForgeError as error:
                refusals += 1
                log.warning("a claim can't be settled: %s", error.message)
            else:
                if landed:
                    self.say(
                        claim.key or "",
                        f"a claim of '{claim.worker}' that nobody waited for was given back",
                    )
                break
            await anyio.sleep(pause)
            pause = min(pause * 2, _SETTLE_PAUSE_AT_MOST)
        self.held.settled(claim.nonce)
        faults.at("settle.after")

    # What a holder does

    async def renew(self, worker: str, task_id: str, fence: int | None) -> dict[str, Any]:
        """Say that the work goes on: renewed now, and kept renewed by the beats.

        :raises LeaseLostError, HeldError, BlockedError: when `worker` doesn't hold it.
        """
        key = keys.claim(task_id)

        def check(view: View) -> Lease:
            return lease.check_holder(view, key, self.me(worker, key), fence=fence)

        record, judged_at = await self._beat(check)
        assert record is not None
        self._called(worker, key, record, judged_at)
        return {"task": task_id, "renewed": True, "lease": self._shown(key, record)}

    async def note(self, worker: str, task_id: str, text: str, fence: int | None) -> dict[str, Any]:
        """Say something about held work; it is in the log for everybody.

        :raises LeaseLostError, HeldError, BlockedError: when `worker` doesn't hold it.
        """
        key, nonce = keys.claim(task_id), self.new_nonce()

        def rule(view: View) -> tuple[Lease, float]:
            me = self.me(worker, key)
            record = lease.note(view, key, me, nonce=nonce, text=text, fence=fence)
            return record, me.now

        faults.at("note.before")
        record, judged_at = await self.commit(rule, f"note on {task_id}")
        faults.at("note.after")
        self._called(worker, key, record, judged_at)
        return {"task": task_id, "noted": True, "lease": self._shown(key, record)}

    async def release(self, worker: str, task_id: str, fence: int | None) -> dict[str, Any]:
        """Give a task back; giving it back twice is nothing.

        :raises LeaseLostError, HeldError, BlockedError: when somebody else holds it, or nobody.
        """
        key = keys.claim(task_id)
        record = await self._release(worker, key, fence, "released")
        return {"task": task_id, "released": True, "lease": self._shown(key, record)}

    async def _release(self, worker: str, key: str, fence: int | None, event: str) -> Lease:
        nonce = self.new_nonce()

        def rule(view: View) -> Lease:
            me = self.me(worker, key)
            return lease.release(view, key, me, nonce=nonce, fence=fence, event=event)

        faults.at("release.before")
        what = f"release {keys.claimed_task(key)}"
        record = await self.commit(rule, what, Urgency.AHEAD)
        faults.at("release.after_send")
        self.held.end(key)
        return record

    def _called(self, worker: str, key: str, record: Lease, judged_at: float) -> None:
        """A worker that holds `key` gave a sign of life; keep the lease renewed."""
        if self.held.is_known(key, worker, record.fence):
            self.held.called(key)
        else:
            self._granted(worker, lease.Grant(key, record), judged_at)

    # Beats

    async def _beats(self) -> None:
        """Renew what is held at every beat; say that we are here now and then."""
        while True:
            await self._until_beat_is_due()
            if not await self._has_beaten():
                await anyio.sleep(self.settings.timing.beat / 4)

    async def _until_beat_is_due(self) -> None:
        while (left := self._beaten_at + self._pause() - self.clock.now()) > 0:
            self._grants_changed = anyio.Event()
            with anyio.move_on_after(left):
                await self._grants_changed.wait()

    def _pause(self) -> float:
        if not self.held.all:
            return pacing.PRESENCE_SECONDS
        timing = self.settings.timing
        records, _ = readable(Lease, self.transport.snapshot, keys.LEASES)
        holders = {lease.claimant.instance for lease in records.values() if lease.claimant}
        return pacing.beat_seconds(timing.beat, timing.ttl, len(holders))

    async def _has_beaten(self) -> bool:
        """Try a beat; one whose end isn't known is tried again: the leases may still be ours."""
        try:
            await self._beat()
            self._beaten_at = self.clock.now()
            await self._give_back_idle()
        except DuplicateIdentityError:
            await anyio.sleep_forever()
        except ForgeError as error:
            log.warning("a beat failed: %s", error.message)
            for key in self.held.paused():
                log.warning("%s couldn't be renewed in time: its work pauses", key)
            return False
        return True

    async def _beat(
        self, check: Callable[[View], Lease | None] | None = None
    ) -> tuple[Lease | None, float]:
        """Renew all that is held, in one change, if `check` has nothing against it.

        What isn't ours any more is lost. Returns what `check` gave, and when that was. One at a
        time: a beat that finds a later one of this run's takes it for a copy's.
        """
        async with self._beat_turn:
            return await self._beat_now(check)

    async def _beat_now(
        self, check: Callable[[View], Lease | None] | None
    ) -> tuple[Lease | None, float]:
        faults.at("beat.before")
        held = self.held.to_renew()
        beat = self._presence.beat + 1
        self._presence = self._presence.but(beat=beat, nonce=self.new_nonce())
        presence = self._presence

        def rule(view: View) -> tuple[Lease | None, session.Beat, float]:
            judged_at = self.clock.now()
            checked = check(view) if check else None
            return checked, session.beat(view, self.instance, presence, held), judged_at

        urgency = Urgency.AHEAD if held or check else Urgency.RIDE
        checked, found, judged_at = await self.commit(rule, f"beat of {self.handle}", urgency)
        for key, there in found.lost.items():
            granted = self.held.all.get(key)
            if granted is not None and granted.nonce == held[key].nonce:
                self._lose(granted, there)
        self.held.renewed(held.keys() - found.lost.keys(), judged_at)
        faults.at("beat.after")
        return checked, judged_at

    def _lose(self, granted: Granted, there: Lease | None) -> None:
        """A lease isn't ours any more; unless we gave it back, say so, with who has it now."""
        self.held.end(granted.key)
        if was_given_back(there, granted, self.instance):
            return
        holder = there.claimant if there else None
        now = "nobody has it" if holder is None else f"{holder.handle} has it"
        fence = there.fence if there else 0
        self.say(
            granted.key,
            f"lease lost: {keys.lease_name(granted.key)} of worker '{granted.worker}' under fence "
            f"{granted.fence}; {now} under fence {fence}",
        )

    async def _give_back_idle(self) -> None:
        """Give back leases whose worker hasn't called and whose branch hasn't moved for long."""
        for key, granted in list(self.held.all.items()):
            tip = await self._tip(key, granted.fence)
            if self.held.idle_seconds(key, tip) < self.settings.idle_release_seconds:
                continue
            try:
                await self._release(granted.worker, key, granted.fence, "released_idle")
                self.say(
                    key, f"{keys.lease_name(key)} was given back: '{granted.worker}' is silent"
                )
            except ForgeError as error:
                log.warning("%s couldn't be given back: %s", key, error.message)

    async def _tip(self, key: str, fence: int) -> str | None:
        task = keys.claimed_task(key)
        return await self._branch_tip(task, fence) if self._branch_tip and task else None

    # Leaving

    async def depart(self) -> tuple[str, ...]:
        """Give back every lease and go; the queue is closed from here on.

        :raises UnavailableError: when that couldn't be said; the leases lapse by themselves.
        """
        nonce, me = self.new_nonce(), self.me("-")
        self.is_closing = True

        def rule(view: View) -> tuple[str, ...]:
            session.check_run(view, self.instance, self._presence)
            return session.depart(view, self.instance, me, nonce=nonce)

        what = f"{self.handle} leaves"
        freed = await self.transport.commit(Change(rule, what, Urgency.AHEAD))
        self.held.end_all()
        return freed

    async def end_session(self, *, is_forced: bool) -> None:
        """Mark the session as ended for everybody; nothing is held by anybody then.

        :raises BlockedError: when others are present, unless `is_forced`.
        """
        nonce = self.new_nonce()

        def rule(view: View) -> None:
            turnover.end(view, self.me("-"), nonce=nonce, is_forced=is_forced)

        await self.commit(rule, f"{self.handle} ends the session", Urgency.AHEAD)
        self.held.end_all()

    def overview(self) -> dict[str, Any]:
        """The session as this clone sees it now."""
        snapshot, now = self.transport.snapshot, self.clock.now()
        return overview.overview(snapshot, self.plan.board, self.sightings, now)
