"""PollingTransport: changes are commits on the state branch, pushed with the expected tip named.

What waits goes out in one commit; while a push is under way, new changes gather. After a push
that didn't land the branch is read and every rule is run again on the new tip: a refused push
is not a lost claim, and only a rule can say no.

What a push came to is decided by the branch itself, never by git's wording. Our commit in its
history: landed. Another tip without it: lost for good, since the push named the old tip. The
same tip: try again; a second commit on it is safe, because only one of the two can land. Three
times the same tip is a refusal.

A tip that isn't ours and doesn't descend from what we saw is a compaction, which names what it
has swallowed, or the branch was set back. What was lost is pushed again before anything is
decided: until then `snapshot` stays what it was, and so does the memory on disk.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import anyio
import anyio.to_thread

from forge_collab import faults
from forge_collab.core import healing, keys, pacing
from forge_collab.core.change import Absent, Change, Snapshot, Urgency, View, overlay
from forge_collab.core.errors import (
    BlockedError,
    ConflictError,
    CorruptError,
    EnvironmentError_,
    ForgeError,
    RefusedError,
    UnavailableError,
)
from forge_collab.core.records import Claimant, Meta
from forge_collab.core.session import check_not_ended
from forge_collab.git.repository import Repository
from forge_collab.git.store import FETCHED, STATE, Moves, Push, Pushed, Store, commit
from forge_collab.transport import Capability, Context, Transport
from forge_transport_polling import compaction
from forge_transport_polling.files import Files, build, load
from forge_transport_polling.queue import Pending, Queue

T = TypeVar("T")
_TRIES = 3
_TRY_AGAIN_SECONDS = 0.7
_SIMULTANEOUS_SECONDS = 0.12
_WRITER = "Forge-Writer: "


@dataclass
class _Batch:
    """Changes that said yes on one tip: what they write together, what each would answer."""

    writes: dict[str, bytes | Absent] = field(default_factory=dict)
    answers: dict[Pending, Any] = field(default_factory=dict)

    @property
    def refs(self) -> Moves:
        """The code refs to move; a change that has some goes alone."""
        found = (pending.change.refs.items() for pending in self.answers)
        return {ref: (old or None, new or None) for refs in found for ref, (old, new) in refs}

    def open(self) -> list[Pending]:
        """Those whose asker still waits."""
        return [pending for pending in self.answers if not pending.done.is_set()]

    @property
    def what(self) -> str:
        words = list(dict.fromkeys(pending.change.what for pending in self.answers))
        return ", ".join(words[:3]) + (f" and {len(words) - 3} more" if len(words) > 3 else "")


@dataclass(frozen=True)
class _Verdict:
    """What a rule said: an answer and what it writes, or why not."""

    answer: Any = None
    no: Exception | None = None
    writes: Mapping[str, bytes | Absent] = field(default_factory=dict)


class NotHealedError(UnavailableError):
    """The branch was set back, and others' pushes came before all tries to mend it."""


class PollingTransport(Transport):
    """Records on a branch of the git remote; see the module for how a change lands."""

    name: ClassVar[str] = "polling"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.REFS})

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if context.common_dir is None:
            raise EnvironmentError_("the polling transport needs a git repository")
        place = context.common_dir.resolve()
        repository = Repository(place, place, None, context.environ)
        self.store = Store(
            repository,
            repository.remote(context.remote),
            environ=lambda: context.environ,
            network_seconds=context.network_seconds,
            is_look=context.is_look,
        )
        self._ref = context.state_ref
        self._author = repository.author()
        self._now = context.clock.now
        self._chance = context.random.random
        self._files = Files()
        self._last_sync: float | None = None
        self._seen_at = self._now()
        self._trouble: str | None = None
        self._trouble_since = 0.0
        self._queue = Queue()
        self._turn = anyio.Lock()
        self._fairness = pacing.Fairness()
        self._active_at = self._now()
        self._active = anyio.Event()
        self._untidy = 0
        self._silence = compaction.Silence()
        self._commits_at_most = compaction.COMMITS * (1 + self._chance())
        self._is_atomic: bool | None = None

    # Life

    async def _open(self) -> None:
        try:
            await self._first_sync()
        except BaseException:
            self.store.close()
            raise

    async def _work(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._pump)
            tasks.start_soon(self._poll)

    async def _close(self) -> None:
        for pending in list(self._queue.waiting):
            self._queue.fail(pending, UnavailableError("forge ended before this was decided"))
        self.store.close()

    async def _first_sync(self) -> None:
        await self.store.ensure()
        try:
            await self._remember()
            await self._sync()
        except NotHealedError:
            raise
        except (CorruptError, UnavailableError):
            await self.store.tips([self._ref])  # within reach, so the damage is here
            await self.store.remake()
            await self._sync(is_remade=True)
        if self._files.commit is None:
            await self._check_room()

    async def _remember(self) -> None:
        """Begin with the branch as this clone last saw it, so that a fall of it is noticed."""
        tip = None if self.context.is_look else await self.store.resolve(STATE)
        if tip is not None:
            age = time.time() - (self.store.seen_at(STATE) or 0.0)
            self._seen_at = self._now() - max(0.0, age)
            tree = (await self.store.head(tip)).tree
            self._files = await anyio.to_thread.run_sync(load, self.store, tip, tree, Files())

    async def _check_room(self) -> None:
        """Whether the remote has room for the state branch, which isn't there yet."""
        branches = await self.store.branches()
        if not branches:
            raise BlockedError(
                f"the remote '{self.store.remote.name}' has no branches yet",
                hint=f"push a first commit: git push {self.store.remote.name} HEAD",
                data={"status": "empty_remote", "waits_for": []},
            )
        in_the_way = [b for b in branches if self._ref.startswith(f"refs/heads/{b}/")]
        if in_the_way:
            raise EnvironmentError_(
                f"the remote has a branch called '{in_the_way[0]}'; git can't keep "
                f"{self._ref} beside it",
                hint="rename that branch, or git config forge.state-ref refs/heads/NAME "
                "in every clone",
                data={"branch": in_the_way[0], "state_ref": self._ref},
            )

    @property
    def snapshot(self) -> Snapshot:
        """The records at the newest commit seen."""
        return self._files

    @property
    def last_sync(self) -> float | None:
        """When the remote was last asked and answered."""
        return self._last_sync

    @property
    def trouble(self) -> str | None:
        """Why the remote couldn't be reached the last time, or None."""
        return self._trouble

    async def refresh(self) -> None:
        """Ask the remote for its tip, and read it if it is new."""
        self._became_active()
        asked_at = self._now()
        async with self._turn:
            if self._last_sync is None or self._last_sync < asked_at:
                await self._sync()

    async def moves_refs(self) -> bool:
        """Whether the server takes several refs as a whole; asked once."""
        if self._is_atomic is None and self._files.commit is not None:
            self._is_atomic = await self.store.is_atomic(self._files.commit, self._ref)
        return bool(self._is_atomic)

    # Polling

    def _became_active(self) -> None:
        self._active_at = self._now()
        self._active.set()
        self._active = anyio.Event()

    async def _poll(self) -> None:
        while True:
            await self._pause(self._now(), self._chance())
            try:
                async with self._turn:
                    await self._sync()
            except ForgeError as error:
                self._has_trouble(error)

    async def _pause(self, since: float, chance: float) -> None:
        """Sleep to the next poll; anything that happens meanwhile may bring it forward."""
        while True:
            interval = pacing.poll_seconds(
                self.context.poll_seconds,
                self.context.idle_poll_seconds,
                quiet_for=self._now() - self._active_at,
                chance=chance,
            )
            left = max(since, self._last_sync or 0.0) + interval - self._now()
            if left <= 0:
                return
            with anyio.move_on_after(left):
                await self._active.wait()

    async def _sync(self, *, has_moved: bool = False, is_remade: bool = False) -> None:
        """Bring the snapshot up to the remote's tip; `has_moved` saves asking for it first."""
        asked_at = self._now()
        try:
            is_remade |= await self.store.ensure()
            if has_moved and not is_remade:
                await self._fetch_moved()
            else:
                await self._fetch_if_moved(is_remade)
        except ForgeError as error:
            self._has_trouble(error)
            raise
        self._trouble, self._last_sync, self._seen_at = None, asked_at, asked_at
        self.store.seen(STATE)

    async def _fetch_moved(self) -> None:
        try:
            tip = await self.store.fetch(self._ref, FETCHED)
        except UnavailableError:
            await self._fetch_if_moved()  # out of reach, or gone for good?
        else:
            await self._follow(tip)

    async def _fetch_if_moved(self, is_remade: bool = False) -> None:
        known = self._files.commit
        tip = (await self.store.tips([self._ref])).get(self._ref)
        if tip is None and known is not None:
            check_not_ended(View(self._files).document(Meta, keys.META))
            await self._become(await self._healed(Files()))
        elif tip is not None and (tip != known or is_remade):
            await self._follow(await self.store.fetch(self._ref, FETCHED))

    def _has_trouble(self, error: ForgeError) -> None:
        if self._trouble is None:
            self._trouble_since = self._now()
        self._trouble = error.message

    async def _follow(self, tip: str) -> None:
        """Become what the branch is at `tip`, mended where it was set back."""
        if tip == self._files.commit:
            return
        writers, is_reached = await self._writers(tip, self._files.commit)
        files = await self._load(tip)
        if await self._has_lost(files, is_descendant=is_reached):
            files = await self._healed(files)
        self._fairness.saw_commits(writers)
        await self._become(files)

    async def _load(self, tip: str) -> Files:
        tree = (await self.store.head(tip)).tree
        return await anyio.to_thread.run_sync(load, self.store, tip, tree, self._files)

    async def _become(self, files: Files) -> None:
        """Let `files` be the newest state, and recognise our own commits in it."""
        assert files.commit is not None
        for pending in [pending for pending in self._queue.waiting if pending.sent]:
            await self._recognise(pending, files.commit)
        self.store.record(STATE, files.commit)
        self._untidy += 1
        self._show(files)

    async def _recognise(self, pending: Pending, tip: str) -> None:
        for ours, answer in list(pending.sent.items()):
            if await self._descends(tip, ours):
                self._queue.answer(pending, answer)
        pending.sent.clear()

    async def _descends(self, tip: str, commit: str) -> bool:
        """Whether `commit` is in the history of `tip`, as far as that can be known."""
        if await self.store.contains(tip, commit):
            return True
        root = await self.store.root(tip)
        message = (await self.store.head(root)).message if root else ""
        return commit in compaction.compacted(message)

    # Healing

    async def _has_lost(self, there: Files, *, is_descendant: bool = False) -> bool:
        known = self._files.commit
        if known is None:
            return False
        if not is_descendant and there.commit is not None:
            is_descendant = await self._descends(there.commit, known)
        instance = self.context.instance
        return bool(healing.lost(self._files, there, instance, is_descendant=is_descendant))

    async def _healed(self, there: Files) -> Files:
        """The branch with what it has lost pushed again; `there` when it is no loss any more.

        Two that heal at once make the same records, so whoever comes second finds nothing to do.

        :raises CorruptError: when the branch is gone, and this clone has not seen it for too long.
        :raises RefusedError: when the server won't have it.
        :raises UnavailableError: when others' pushes always came first, or nobody knows.
        """
        pushed = Pushed(Push.FAILED)
        for _ in range(_TRIES):
            if self._now() - self._seen_at > healing.SOURCE_SECONDS:
                return self._as_it_is(there)
            made, healed = await self._mend(there)
            pushed = await self.store.push_all({self._ref: (there.commit, made.commit)})
            if pushed.how is Push.DONE:
                self._tell_of(healed)
                return made
            tip = (await self.store.tips([self._ref])).get(self._ref)
            if tip == there.commit:
                await anyio.sleep(_TRY_AGAIN_SECONDS)
                continue
            there = await self._load(await self.store.fetch(self._ref, FETCHED)) if tip else Files()
            if tip and not await self._has_lost(there):
                return there
        if pushed.how is Push.REJECTED and tip == there.commit:
            raise _refused(self.store, pushed, ())
        raise NotHealedError(
            f"the state branch {self._ref} was set back, and couldn't be mended yet",
            hint="try again",
        )

    def _as_it_is(self, there: Files) -> Files:
        if there.commit is None:
            raise _forgotten(self._ref)
        return there

    async def _mend(self, there: Files) -> tuple[Files, int]:
        """A commit on `there` with what it has lost, and how many records that were."""
        context, view = self.context, View(there)
        who = Claimant(handle=context.handle, instance=context.instance, worker="-")
        ts, nonce = context.clock.wall(), secrets.token_hex(8)
        healed = healing.heal(view, self._files, who, ts=ts, nonce=nonce)
        return await self._write(there, view.writes, "heal the branch"), len(healed)

    def _tell_of(self, healed: int) -> None:
        self.notices.append(f"the state branch was set back by somebody; healed {healed} records")

    async def _writers(self, tip: str, until: str | None) -> tuple[list[str], bool]:
        """Who wrote the commits from `until` to `tip`, oldest first; at most the recent ones.

        The second value says whether `until` was reached.
        """
        found: list[str] = []
        oid: str | None = tip
        while oid and oid != until and len(found) < pacing.RECENT_COMMITS:
            try:
                head = await self.store.head(oid)
            except CorruptError:
                break
            found.append(head.message.rpartition(_WRITER)[2].partition("\n")[0])
            oid = head.parents[0] if head.parents else None
        return found[::-1], oid == until

    def _show(self, files: Files) -> None:
        self._files = files
        self._silence.see(files, self._now())
        self._became_active()
        self._announce()

    # Changes

    async def _commit(self, change: Change[T]) -> T:
        self._became_active()
        pending = Pending(change, self._now())
        self._queue.add(pending)
        try:
            await pending.done.wait()
        finally:
            self._queue.forget(pending)
        if pending.error is not None:
            raise pending.error
        answer: T = pending.answer
        return answer

    async def _pump(self) -> None:
        while True:
            chosen = await self._queue.next(self._now())
            if chosen is None:
                continue
            async with self._turn:
                try:
                    await self._attempt(chosen)
                    await self._tidy()
                except UnavailableError as error:
                    self._give_up_late_ones(error)
                except ForgeError as error:
                    self._fail(chosen, error)
            if any(not p.done.is_set() and (p.sent or p.refusals or self._trouble) for p in chosen):
                await anyio.sleep(_TRY_AGAIN_SECONDS * (0.75 + self._chance() / 2))

    async def _tidy(self) -> None:
        """Now and then: shorten a long history, and pack what has gathered here."""
        if self._untidy >= compaction.LOOK_EVERY:
            self._untidy = 0
            await self._compact()
            await self.store.tidy()

    async def _compact(self) -> None:
        """Put a commit without parents in the place of a long history; others' pushes come first.

        Not while it isn't known what became of a push of ours: it is looked for in that history.
        """
        base = self._files
        assert base.commit is not None
        is_unsettled = any(pending.sent for pending in self._queue.waiting)
        if is_unsettled or self.store.refused_within(compaction.REFUSED_SECONDS):
            return
        most = int(self._commits_at_most)
        history = await self.store.history(base.commit, most=most)
        if len(history) < most:
            return
        started = self._now()
        drops = self._silence.to_drop(base, started)
        swallowed = compaction.trailers(history[: compaction.REMEMBERED])
        made = await self._write(base, drops, "compact", is_root=True, trailers=swallowed)
        assert made.commit is not None
        pushed = await self.store.push_all({self._ref: (base.commit, made.commit)})
        if pushed.how is Push.DONE:
            self._advance(made, started)
            self.store.record(FETCHED, made.commit)
            return
        await self._sync()
        if pushed.how is Push.REJECTED and self._files.commit == base.commit:
            self.store.note_refusal(pushed.words)

    def _give_up_late_ones(self, error: UnavailableError) -> None:
        """Tell everybody once we are offline; before that, who has waited till the deadline."""
        now = self._now()
        has_lasted = now - self._trouble_since >= pacing.OFFLINE_SECONDS
        is_offline = self._trouble is not None and has_lasted
        for pending in list(self._queue.waiting):
            if is_offline or now - pending.since >= pacing.DEADLINE_SECONDS:
                self._queue.fail(pending, error.again())

    def _fail(self, these: Iterable[Pending], error: ForgeError) -> None:
        for pending in these:
            if not pending.done.is_set():
                self._queue.fail(pending, error.again())

    async def _attempt(self, chosen: list[Pending]) -> None:
        """Judge on the tip; what says yes is committed and pushed together."""
        if self._should_look_first(chosen):
            await self._sync()
        batch, undecided = self._judge(chosen)
        if undecided:
            await self._sync()
            batch, _ = self._judge(chosen)
        if batch.answers:
            await self._send(batch, await self._write(self._files, batch.writes, batch.what))

    def _judge(self, chosen: Iterable[Pending]) -> tuple[_Batch, list[Pending]]:
        """Run every rule on the snapshot.

        What says no or writes nothing is answered, except on a snapshot older than the question
        (then it is among the second value). Such an answer never rests on what an earlier one is
        yet to write: it is asked of the snapshot alone, and waits where that says yes.
        """
        batch, undecided = _Batch(), []
        # A look at the branch may have found that some have landed already.
        for pending in [pending for pending in chosen if not pending.done.is_set()]:
            verdict = _ask(pending, overlay(self._files, batch.writes))
            if verdict.writes:
                batch.writes.update(verdict.writes)
                batch.answers[pending] = verdict.answer
            elif not self._is_fresh_for(pending):
                undecided.append(pending)
            else:
                alone = _ask(pending, self._files) if batch.writes else verdict
                if not alone.writes:
                    self._decide(pending, alone)
        return batch, undecided

    def _is_fresh_for(self, pending: Pending) -> bool:
        return self._last_sync is not None and self._last_sync >= pending.since

    def _decide(self, pending: Pending, verdict: _Verdict) -> None:
        if verdict.no is None:
            self._queue.answer(pending, verdict.answer)
        else:
            self._queue.fail(pending, verdict.no)

    async def _write(
        self,
        base: Files,
        writes: Mapping[str, bytes | Absent],
        what: str,
        *,
        is_root: bool = False,
        trailers: str = "",
    ) -> Files:
        """The writes on `base` as a commit in the private repository; a root has no parent."""
        faults.at("push.before_objects")
        objects, files = build(base, writes)
        made = commit(
            files.folders[""].oid,
            None if is_root else base.commit,
            author=self._author,
            seconds=int(time.time()),
            message=self._message(what) + trailers,
        )
        await anyio.to_thread.run_sync(self.store.write, [*objects, made])
        faults.at("push.after_objects")
        return Files(made.id.decode(), files.folders, files.records)

    def _message(self, what: str) -> str:
        """The subject, and trailers that make every commit unlike every other."""
        subject = self.context.commit_subject.replace("{what}", what)
        number = secrets.token_hex(8)
        return f"{subject}\n\nForge-Push: {number}\n{_WRITER}{self.context.instance}\n"

    async def _send(self, batch: _Batch, made: Files) -> None:
        assert made.commit is not None
        base, started, was_behind = self._files.commit, self._now(), self._is_behind()
        pushed = await self.store.push_all({self._ref: (base, made.commit), **batch.refs})
        if pushed.how is Push.DONE:
            self._advance(made, started)
            self._landed(batch)
            return
        if pushed.how is not Push.REJECTED:
            for pending, answer in batch.answers.items():
                pending.sent[made.commit] = answer
        if pushed.how is Push.UNANSWERED:
            self._give_up_late_ones(_unanswered(self.store))
            if all(pending.done.is_set() for pending in batch.answers):
                return
        await self._sync(has_moved=pushed.how is Push.REJECTED)
        await self._find_moved_refs(batch)
        if self._files.commit == base:
            self._stayed(batch, pushed)
        else:
            self._lost(batch, 0.0 if was_behind else self._fairness.after_loss(self._chance()))

    async def _find_moved_refs(self, batch: _Batch) -> None:
        """Tell the asker of a change whose code refs aren't where it expects them any more."""
        tips = await self.store.tips(list(batch.refs)) if batch.refs else {}
        for ref, (old, new) in batch.refs.items():
            if (current := tips.get(ref)) not in (old, new):
                for pending in batch.open():
                    self._queue.fail(pending, ConflictError(ref, current))

    def _should_look_first(self, chosen: list[Pending]) -> bool:
        """Whether to read the tip before a push that might be refused by what is there already.

        So a claim of what was taken before says `held`, and `lost_race` means a race. What a
        holder does goes without: it is judged by its fence, which rarely changes.
        """
        if any(pending.lost for pending in chosen):
            return self._is_behind()
        is_new = any(pending.change.urgency is Urgency.NOW for pending in chosen)
        return is_new and self._age() > _SIMULTANEOUS_SECONDS

    def _is_behind(self) -> bool:
        """Whether the snapshot is so old that another push may well have landed since."""
        return self._age() > self._fairness.push_seconds

    def _age(self) -> float:
        return self._now() - (self._last_sync or 0.0)

    def _advance(self, made: Files, started: float) -> None:
        """The remote's tip is our commit: known without asking."""
        assert made.commit is not None
        self.store.record(STATE, made.commit)
        faults.at("push.after_record")
        self._fairness.saw_commits([self.context.instance])
        self._fairness.took(self._now() - started)
        self._untidy += 1
        self._trouble, self._last_sync, self._seen_at = None, started, started
        self._show(made)

    def _landed(self, batch: _Batch) -> None:
        self._queue.yield_until = self._now() + self._fairness.after_success(self._chance())
        for pending, answer in batch.answers.items():
            self._queue.answer(pending, answer)

    def _lost(self, batch: _Batch, pause: float) -> None:
        """Another came first: ask the rules again at once, push again after `pause` seconds."""
        now = self._now()
        losers = batch.open()
        for pending in losers:
            pending.lost += 1
            pending.refusals = 0
            pending.not_before = now + pause
        self._judge(losers)
        for pending in losers:
            if not pending.done.is_set() and now - pending.since >= pacing.CONTENDED_SECONDS:
                self._queue.fail(pending, _too_busy(pending))

    def _stayed(self, batch: _Batch, pushed: Pushed) -> None:
        """The tip is where it was: a lock, a refusal, or a push that may still arrive."""
        pendings = batch.open()
        if pushed.how in (Push.REJECTED, Push.FAILED):
            for pending in pendings:
                pending.refusals += 1
        refused = [pending for pending in pendings if pending.refusals >= _TRIES]
        if len(pendings) > 1 and refused:
            for pending in pendings:
                pending.is_alone, pending.refusals = True, _TRIES - 1
        else:
            self._fail(refused, _refused(self.store, pushed, batch.refs))


def _ask(pending: Pending, snapshot: Snapshot) -> _Verdict:
    """Run the rule. Whatever it raises, be it a bug of its own, is its asker's alone."""
    view = View(snapshot, lost=pending.lost)
    try:
        answer = pending.change.rule(view)
    except Exception as error:
        return _Verdict(no=error)
    return _Verdict(answer, writes=view.writes)


def _unanswered(store: Store) -> UnavailableError:
    return UnavailableError(
        f"the remote '{store.remote.name}' didn't answer a push in time, so nobody knows whether "
        "it took effect",
        hint="try again; a claim that nobody waits for is given back should it still land",
    )


def _too_busy(pending: Pending) -> UnavailableError:
    return UnavailableError(
        f"others' changes came first {pending.lost} times in a row; nothing was changed",
        hint="try again",
    )


def _refused(store: Store, pushed: Pushed, refs: Iterable[str]) -> RefusedError:
    lines = [line.removeprefix("remote:").strip() for line in pushed.words.splitlines()]
    words = " ".join(line for line in lines if line and not line.startswith(("To ", "error:")))
    what = " and ".join([*refs, "the state branch"])
    return RefusedError(
        f"the remote '{store.remote.name}' refused the push to {what}: {words}",
        hint="the server's rules have to let you push forge/**; ask whoever runs it",
        data={"status": "refused", "server": words, "waits_for": []},
    )


def _forgotten(ref: str) -> CorruptError:
    return CorruptError(
        f"the state branch {ref} was deleted on the remote, and this clone's memory of it is "
        "more than seven days old, so nothing is made from it",
        hint="push it back from a clone that has it; or forge collaborate start --fresh",
        data={"path": ref, "line": None},
    )
