"""Carries a task's work to the target branch, and closes what has landed there by other ways."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import anyio

from forge_collab import faults
from forge_collab.core import keys, landing, session
from forge_collab.core.change import Urgency, View, readable
from forge_collab.core.errors import (
    BlockedError,
    ConflictError,
    CorruptError,
    ForgeError,
    HeldError,
    LeaseLostError,
    RefusedError,
    UnavailableError,
    UsageError,
    expected,
)
from forge_collab.core.identity import reduce_url
from forge_collab.core.landing import Author, Evidence, Landed, Work
from forge_collab.core.records import Lease, TaskRecord
from forge_collab.core.tasks import Task
from forge_collab.daemon.participant import SessionParticipant
from forge_collab.daemon.plan import TaskPlan
from forge_collab.git import squash
from forge_collab.git.squash import Committer
from forge_collab.git.store import Push

log = logging.getLogger("forge")
_TRIES = 3
_TRY_AGAIN_SECONDS = 0.7
_WORK = "refs/forge/work"
_AWAITING = "refs/forge/awaiting"


@dataclass(frozen=True)
class _By:
    """Who lands, under which fence, and the nonce that tells this landing from others."""

    worker: str
    fence: int | None
    nonce: str


@dataclass(frozen=True)
class _Draft:
    """The commit that would land a task, before it is made."""

    tree: str
    message: str
    by: Author | None
    date: str | None


@dataclass(frozen=True)
class _Squash:
    """The commit that is to land a task, and the target's tip it was made for."""

    commit: str
    target: str


class Landing:
    """One session's way to its target branch."""

    def __init__(self, participant: SessionParticipant, plan: TaskPlan) -> None:
        self.participant = participant
        self.plan = plan
        self.store = plan.target.store
        self._closed: tuple[object, ...] = ()
        self._looked_for: dict[str, tuple[str, str]] = {}
        self._closing = anyio.Lock()

    @property
    def target(self) -> str:
        """The target branch."""
        return self.plan.target.name

    @property
    def _ref(self) -> str:
        return self.plan.target.ref

    # Asked by a worker

    async def begin(self, worker: str, task_id: str, fence: int | None) -> dict[str, Any]:
        """What a landing of the task would be of, when `worker` may land it.

        :raises LeaseLostError, HeldError, BlockedError, UsageError: when it may not.
        """
        task = await self._task(task_id)
        work, by = self._work(task), self._by(worker, fence)
        found = await self._ask(work, by)
        if found.already:  # What the target shows may not be written down yet.
            return self._done(work, await self._close(work, by.nonce)) | {"already": True}
        return {
            **_answer(task, found),
            "branch": landing.branch_of(task_id, found.fence),
            "target": self.target,
            "remote": None if self.store.remote.is_own else self.store.remote.name,
        }

    async def land(
        self, worker: str, task_id: str, *, fence: int | None, branch: str, tip: str | None
    ) -> dict[str, Any]:
        """Put the work of `branch`, whose tip is `tip`, on the target: exactly once.

        :raises LeaseLostError, HeldError: when `worker` doesn't hold the task any more.
        :raises BlockedError: on a conflict, or where the target takes no push of ours.
        :raises UnavailableError: when nobody knows yet; asking again is safe.
        """
        task = await self._task(task_id)
        landing.check_branch(task_id, branch, self.target)
        tip = await self._tip(branch, tip)
        by, clock = self._by(worker, fence), self.participant.clock
        until = clock.now() + landing.DEADLINE_SECONDS
        while True:
            target, committer = await self._begin_try()
            work = self._work(task, branch, tip)
            try:
                return await self._land_on(target, work, by, committer=committer)
            except ConflictError as error:
                if clock.now() >= until:
                    raise _too_busy(task_id, self.target) from error

    async def preview(
        self, worker: str, task_id: str, *, fence: int | None, branch: str, tip: str | None
    ) -> dict[str, Any]:
        """What `land` would do now, with the files it would change; changes nothing.

        :raises ForgeError: why it couldn't be landed, as `land` does.
        """
        task = await self._task(task_id)
        landing.check_branch(task_id, branch, self.target)
        tip = await self._tip(branch, tip)
        target = await self._target_tip()
        work = self._work(task, branch, tip)
        found = await self._ask(work, self._by(worker, fence))
        try:
            draft = await self._draft(target, work, found)
        except _Conflicts as error:
            raise await self._conflict(work, found, error.paths) from None
        before = (await self.store.head(target)).tree
        return {
            **_answer(task, found),
            "branch": branch,
            "target": self.target,
            "message": draft.message,
            "changes": await squash.changed(self.store, before, draft.tree),
            "warnings": self._warnings(work),
        }

    async def confirm(
        self, worker: str, task_id: str, *, fence: int | None, commit: str
    ) -> dict[str, Any]:
        """Take a person's word that `commit`, which has to be on the target, is the task's work.

        :raises BlockedError: when it isn't on the target.
        :raises LeaseLostError, HeldError: when somebody else holds the task.
        """
        task = await self._task(task_id)
        target = await self._target_tip()
        args = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        oid = (await self.store.git(*args)).out.decode().strip()
        if not oid or not await self.store.contains(target, oid):
            raise BlockedError(
                f"{commit} isn't on {self.target}",
                hint=f"git log {self.target} shows what is; push it first",
                data={"task": task_id, "status": "not_landed", "waits_for": []},
            )
        work = self._work(task)
        rule = self._rule(landing.confirm, work, self._by(worker, fence), commit=oid)
        found = await self.participant.commit(rule, f"{task_id} landed", Urgency.AHEAD)
        return self._done(work, found)

    async def reopen(self, worker: str, task_id: str, reason: str) -> dict[str, Any]:
        """Open an ended task again, in its next round.

        :raises BlockedError, HeldError: when it can't be.
        """
        return await self._change(landing.reopen, worker, task_id, reason, "reopen")

    async def cancel(self, worker: str, task_id: str, reason: str) -> dict[str, Any]:
        """End a task that isn't wanted any more.

        :raises BlockedError, HeldError: when it can't be.
        """
        return await self._change(landing.cancel, worker, task_id, reason, "cancel")

    async def _change(
        self, rule_of: Callable[..., Landed], worker: str, task_id: str, reason: str, what: str
    ) -> dict[str, Any]:
        task = await self._task(task_id)
        work, nonce = self._work(task), self.participant.new_nonce()

        def rule(view: View) -> Landed:
            me = self.participant.me(worker, work.key)
            return rule_of(view, work, me, nonce=nonce, reason=reason)

        found = await self.participant.commit(rule, f"{what} {task_id}")
        self.participant.look()
        return _answer(task, found)

    # What it takes

    async def _task(self, task_id: str) -> Task:
        await self.participant.know(task_id)
        return session.known(self.plan.board, task_id)

    def _work(self, task: Task, branch: str | None = None, tip: str | None = None) -> Work:
        return Work(task, branch, tip, self.plan.board.evidence(task))

    def _by(self, worker: str, fence: int | None) -> _By:
        return _By(worker, fence, self.participant.new_nonce())

    def _rule(
        self, of: Callable[..., Landed], work: Work, by: _By, **more: Any
    ) -> Callable[[View], Landed]:
        """A rule of the core, as `by` asks for it at the moment it is run."""

        def rule(view: View) -> Landed:
            me = self.participant.me(by.worker, work.key)
            return of(view, work, me, nonce=by.nonce, fence=by.fence, **more)

        return rule

    async def _ask(self, work: Work, by: _By) -> Landed:
        def rule(view: View) -> Landed:
            me = self.participant.me(by.worker, work.key)
            return landing.check(view, work, me, fence=by.fence)

        return await self.participant.commit(rule, f"look at {work.task.id}")

    async def _tip(self, branch: str, tip: str | None) -> str:
        """The branch's tip with everything behind it in the private repository."""
        if tip is not None and await self._is_here(tip):
            return tip
        ref = f"refs/heads/{branch}"
        if (await self.store.tips([ref])).get(ref) is None:
            raise UsageError(
                f"there is no branch '{branch}', here or on the remote",
                hint="git push it, or name another with --branch",
            )
        return await self.store.fetch(ref, _WORK, whole=True)

    async def _is_here(self, commit: str) -> bool:
        try:
            await self.store.head(commit)
        except CorruptError:
            return False
        return True

    async def _target_tip(self) -> str:
        tip = await self.plan.target.look()
        if tip is None:
            raise BlockedError(
                f"the target branch '{self.target}' isn't on the remote",
                hint=f"git push {self.store.remote.name} {self.target}",
                data={"status": "no_target", "waits_for": []},
            )
        return tip

    # Landing

    async def _begin_try(self) -> tuple[str, Committer]:
        """The target's tip, and who commits; asked side by side."""
        committers: list[Committer] = []

        async def ask() -> None:
            committers.append(await squash.committer(self.store))

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                target = await self._target_tip()
        except BaseExceptionGroup as group:
            raise expected(group) or group from None
        return target, committers[0]

    async def _standing(self, work: Work, by: _By) -> Landed:
        """As `_ask`, from what is known, which a push is yet to prove; a no is asked for anew."""
        try:
            view = View(self.participant.transport.snapshot)
            me = self.participant.me(by.worker, work.key)
            return landing.check(view, work, me, fence=by.fence)
        except ForgeError:
            return await self._ask(work, by)

    async def _land_on(
        self, target: str, work: Work, by: _By, *, committer: Committer
    ) -> dict[str, Any]:
        """One try, on one tip of the target.

        :raises ConflictError: when the target has moved meanwhile.
        """
        found = await self._standing(work, by)
        if found.already:
            return self._done(work, await self._close(work, by.nonce))
        by = replace(by, fence=found.fence)
        try:
            draft = await self._draft(target, work, found)
        except _Conflicts as error:
            raise await self._blocked(work, by, error.paths) from None
        made = await self._squash(draft, target, committer)
        faults.at("land.before")
        try:
            if await self.participant.transport.moves_refs():
                done = await self._push_whole(made, work, by)
            else:
                done = await self._push_apart(made, work, by)
        except RefusedError as error:
            raise await self._awaiting(work, by, error) from error
        faults.at("land.after")
        return self._done(work, done)

    async def _draft(self, target: str, work: Work, found: Landed) -> _Draft:
        """What the commit would be; nothing is committed, or signed, for a look at it."""
        assert work.tip is not None
        await self._check_is_new(work, found.record, target)
        merged = await squash.merge(self.store, self._ref, target, work.tip)
        if merged.conflicts:
            raise _Conflicts(merged.conflicts)
        commits = await squash.work(self.store, target, work.tip)
        by = commits.by()
        subjects = commits.subjects if commits.subjects != (work.task.title,) else ()
        words = landing.message(
            work.task,
            round=found.record.round,
            fence=found.fence,
            subjects=subjects,
            others=by[1:],
        )
        return _Draft(merged.tree, words, by[0] if by else None, commits.date)

    async def _squash(self, draft: _Draft, target: str, committer: Committer) -> _Squash:
        commit = await squash.squash(
            self.store,
            draft.tree,
            target,
            by=draft.by,
            date=draft.date,
            message=draft.message,
            committer=committer,
        )
        return _Squash(commit, target)

    async def _check_is_new(self, work: Work, record: TaskRecord, target: str) -> None:
        """A branch of a round that is over would bring back what was reverted since."""
        has, tip = self.store.contains, work.tip or ""
        for old in record.old_tips:
            if await has(tip, old) and not await has(target, old):
                raise BlockedError(
                    f"{work.branch} has commits that landed in an earlier round of {work.task.id}",
                    hint=f"begin a branch from {self.target} and put the new work on it",
                    data={"task": work.task.id, "status": "old_branch", "waits_for": []},
                )

    async def _push_whole(self, made: _Squash, work: Work, by: _By) -> Landed:
        """Code and record in one push."""
        rule = self._rule(landing.land, work, by, commit=made.commit)
        refs = {self._ref: (made.target, made.commit)}
        return await self.participant.commit(rule, f"land {work.task.id}", Urgency.AHEAD, refs)

    async def _push_apart(self, made: _Squash, work: Work, by: _By) -> Landed:
        """Say which commit is coming, push it, say that it has come."""
        first = replace(by, nonce=self.participant.new_nonce())
        announce = self._rule(landing.announce, work, first, commit=made.commit)
        await self.participant.commit(announce, f"about to land {work.task.id}", Urgency.AHEAD)
        faults.at("land.after_announce")
        await self._push_target(made)
        faults.at("land.after_target")
        rule = self._rule(landing.land, work, by, commit=made.commit)
        try:
            return await self.participant.commit(rule, f"land {work.task.id}", Urgency.AHEAD)
        except (LeaseLostError, HeldError, BlockedError):
            seen = Evidence(work.task.id, work.task.uid, self._round(work), made.commit)
            return await self._close(Work(work.task, work.branch, work.tip, seen), by.nonce)

    def _round(self, work: Work) -> int:
        view = View(self.participant.transport.snapshot)
        return landing.record_of(view, work.task, work.seen).round

    async def _push_target(self, made: _Squash) -> None:
        """Move the target by itself.

        :raises ConflictError: when it has moved meanwhile.
        :raises RefusedError: when the server decided against it.
        :raises UnavailableError: when nobody knows.
        """
        for tries_left in reversed(range(_TRIES)):
            pushed = await self.store.push(made.commit, self._ref, made.target)
            if pushed.how is Push.DONE:
                return
            tip = (await self.store.tips([self._ref])).get(self._ref)
            if tip is not None and await self._has(tip, made.commit):
                return
            if tip != made.target:
                raise ConflictError(self._ref, tip)
            if pushed.how is Push.UNANSWERED:
                raise UnavailableError(
                    f"the remote '{self.store.remote.name}' didn't answer the push in time",
                    hint="forge collaborate done again: it looks first whether it has landed",
                )
            if tries_left:
                await anyio.sleep(_TRY_AGAIN_SECONDS)
        raise RefusedError(
            f"the remote '{self.store.remote.name}' refused the push to {self._ref}",
            data={"status": "refused", "server": pushed.words, "waits_for": []},
        )

    async def _has(self, tip: str, commit: str) -> bool:
        if tip == commit:
            return True
        tip = await self.store.fetch(self._ref, _WORK, whole=True)
        return bool(await self.store.contains(tip, commit))

    async def _blocked(self, work: Work, by: _By, conflicts: tuple[str, ...]) -> BlockedError:
        """Write down that the work conflicts; the error that says so."""
        rule = self._rule(landing.block, work, by, conflicts=conflicts)
        found = await self.participant.commit(rule, f"{work.task.id} conflicts")
        return await self._conflict(work, found, conflicts)

    async def _conflict(
        self, work: Work, found: Landed, conflicts: tuple[str, ...]
    ) -> BlockedError:
        merge = await self._merge_command()
        return BlockedError(
            f"{work.task.id} can't be merged into {self.target}: conflicts in "
            f"{', '.join(conflicts)}; nothing was landed, {work.branch} is kept",
            hint=f"{merge} on {work.branch}, then forge collaborate done {work.task.id}",
            data={
                **_answer(work.task, found),
                "branch": work.branch,
                "conflicts": list(conflicts),
                "waits_for": [],
            },
        )

    async def _merge_command(self) -> str:
        """What a person types to have the target on their branch."""
        remote, repository = self.store.remote, self.store.repository
        if remote.is_own:
            return f"git merge {self.target}"
        read = repository.to_read
        fetch, name = await anyio.to_thread.run_sync(read, remote.name, self.target)
        return f"{fetch} && git merge {name}"

    async def _awaiting(self, work: Work, by: _By, refused: RefusedError) -> ForgeError:
        """The target, or the state branch too, is closed to us: find out which and say so."""
        words = str(refused.data.get("server") or refused.message)
        if self.store.remote.is_own:
            return _in_the_way(work, self.target, words)
        rule = self._rule(landing.await_merge, work, by, reason=words)
        what = f"{work.task.id} awaits its merge"
        try:
            found = await self.participant.commit(rule, what, Urgency.AHEAD)
        except RefusedError as error:
            return error
        self.participant.held.end(work.key)
        judge = self.store.remote.push_url
        host = reduce_url(judge).partition("/")[0]
        branch = work.branch or ""
        asks = landing.request_command(
            host, branch=branch, target=self.target, title=f"{work.task.title} [{work.task.id}]"
        )
        return BlockedError(
            f"{self.target} takes no push of ours ({words}): {work.task.id} awaits that {branch} "
            "is merged; its lease has ended",
            hint=asks or f"open a request to merge {branch} into {self.target}",
            data={
                **_answer(work.task, found),
                "branch": branch,
                "request": asks,
                "server": words,
                "waits_for": [],
            },
        )

    def _done(self, work: Work, found: Landed) -> dict[str, Any]:
        """The answer to a landing; the branch goes when there is time."""
        participant = self.participant
        participant.held.end(work.key)
        participant.lost.pop(work.key, None)
        tip = (found.record.landed or {}).get("tip")
        branch = found.record.branch
        is_forges = branch is not None and landing.task_of(branch) is not None
        if branch and tip and is_forges and not self.store.remote.is_own:
            participant.soon(lambda: self._delete(branch, tip))
        return {
            **_answer(work.task, found),
            "branch": branch,
            "target": self.target,
            "warnings": self._warnings(work),
        }

    def _warnings(self, work: Work) -> list[str]:
        view = View(self.participant.transport.snapshot)
        try:
            held = view.document(Lease, work.key)
        except CorruptError:
            return []
        claimed = held.definition if held else None
        if claimed is None or claimed == work.task.definition_hash:
            return []
        return [f"the definition of {work.task.id} has changed since it was claimed"]

    async def _delete(self, branch: str, tip: str) -> None:
        """Take a landed branch off the remote, if it is still where it landed from."""
        try:
            await self.store.push_all({f"refs/heads/{branch}": (tip, None)})
        except ForgeError as error:
            log.warning("%s couldn't be deleted: %s", branch, error.message)

    # What landed by other ways

    async def keep_fresh(self, seconds: float) -> None:
        """Look at the plan and at what has landed every so many seconds, for ever."""
        while True:
            await anyio.sleep(seconds)
            try:
                await self.plan.refresh(older_than=seconds / 2)
                await self.close_landed()
            except ForgeError as error:
                log.warning("the plan couldn't be read: %s", error.message)

    async def close_landed(self) -> None:
        """Write down what the target shows as landed and the records don't say.

        :raises UnavailableError: when the remote can't be reached.
        """
        async with self._closing:
            snapshot = self.participant.transport.snapshot
            looked_at = (snapshot, self.plan.target.tip)
            if looked_at == self._closed:
                return
            await self._look_for_awaited()
            board = self.plan.board
            for work in landing.unclosed(board.tasks.values(), View(snapshot), board.seen):
                await self._close(work, self.participant.new_nonce())
                log.info("%s is done: %s has it", work.task.id, self.target)
            self._closed = looked_at

    async def _close(self, work: Work, nonce: str) -> Landed:
        def rule(view: View) -> Landed:
            return landing.close(view, work, self.participant.me("-"), nonce=nonce)

        return await self.participant.commit(rule, f"{work.task.id} has landed")

    async def _look_for_awaited(self) -> None:
        """Find what awaits its merge on the target: its branch's tip, or an equal patch."""
        board, target = self.plan.board, self.plan.target.tip
        records, _ = readable(TaskRecord, self.participant.transport.snapshot, keys.TASKS)
        for task, record in landing.awaited(board.tasks.values(), records, board.seen):
            if target is not None:
                await self._look_for(task, record, target)

    async def _look_for(self, task: Task, record: TaskRecord, target: str) -> None:
        tip = (record.landed or {}).get("tip")
        if tip is None or self._looked_for.get(task.id) == (tip, target):
            return
        if not await self._bring(task, record.branch, tip):
            return
        self._looked_for[task.id] = (tip, target)
        commit = await squash.merged_as(self.store, tip, target)
        if commit is not None:
            self.plan.target.saw(Evidence(task.id, task.uid, record.round, commit))

    async def _bring(self, task: Task, branch: str | None, tip: str) -> bool:
        """Have the tip in the private repository, and keep it: the branch may go when merged."""
        ref, own = f"refs/heads/{branch}", f"{_AWAITING}/{task.id}"
        if not await self._is_here(tip):
            if (await self.store.tips([ref])).get(ref) is None:
                return False
            await self.store.fetch(ref, own, whole=True)
            return await self._is_here(tip)
        self.store.record(own, tip)
        return True


class _Conflicts(Exception):
    """A merge of ours conflicts."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        super().__init__(paths)
        self.paths = paths


def _answer(task: Task, found: Landed) -> dict[str, Any]:
    """How far a task is, as commands show it."""
    record = found.record
    return {
        "task": task.id,
        "status": record.status.value,
        "commit": (record.landed or {}).get("commit"),
        "fence": found.fence,
        "round": record.round,
        "already": found.already,
    }


def _in_the_way(work: Work, target: str, words: str) -> BlockedError:
    """Alone, the target is a branch of this clone, and git won't write over what isn't saved."""
    return BlockedError(
        f"{target} is checked out here, and what isn't committed there is in the way: {words}",
        hint=f"commit or stash it, then forge collaborate done {work.task.id}",
        data={"task": work.task.id, "status": "uncommitted", "waits_for": []},
    )


def _too_busy(task_id: str, target: str) -> UnavailableError:
    return UnavailableError(
        f"{target} kept moving while {task_id} was being landed; nothing was landed",
        hint=f"forge collaborate done {task_id} again",
    )
