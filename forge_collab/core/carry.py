"""What goes over when a clone that worked alone joins a session, and what it takes home from one.

Fences only rise, here and there. What somebody holds in the session stays theirs, under the
fence they know; a fence that this clone gave alone and that is higher is kept beside theirs, for
whoever comes next. Both rules may be run again after a crash: they find their own work done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from forge_collab.core import audit, keys, landing, lease, session
from forge_collab.core.board import Board
from forge_collab.core.change import Snapshot, View, readable
from forge_collab.core.errors import BlockedError, CorruptError, ForgeError, HeldError, UsageError
from forge_collab.core.records import Lease, TaskRecord
from forge_collab.core.tasks import TaskStatus

_CLOSED = frozenset({TaskStatus.DONE, TaskStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Alone:
    """A lease as this clone has it alone; `worker` holds it now, where one does."""

    fence: int
    nonce: str
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """What became of the leases that workers of this clone held alone, by key."""

    granted: Mapping[str, lease.Grant] = field(default_factory=dict)
    lost: Mapping[str, ForgeError] = field(default_factory=dict)


def had_alone(own: Snapshot, granted: Mapping[str, lease.Held]) -> dict[str, Alone]:
    """Every readable lease among a clone's own records; held where `granted` says so and it still
    is."""
    found, _ = readable(Lease, own, keys.LEASES)
    return {key: _alone(record, granted.get(key)) for key, record in found.items()}


def _alone(record: Lease, granted: lease.Held | None) -> Alone:
    is_held = record.claimant is not None and granted == lease.Held(record.fence, record.nonce)
    worker = record.claimant.worker if record.claimant and is_held else None
    return Alone(_highest(record), record.nonce, worker)


def join(
    view: View,
    alone: Mapping[str, Alone],
    board: Board,
    me: Callable[[str], lease.Me],
    *,
    ttl: float,
) -> Joined:
    """Write into the session, for every lease in `alone`, the higher of both fences.

    What a worker holds goes on under this clone's session instance (`me` gives it by worker)
    where the lease is free there and the task is open; else it is lost, and `lost` says why.
    """
    granted: dict[str, lease.Grant] = {}
    lost: dict[str, ForgeError] = {}
    for key, mine in sorted(alone.items()):
        try:
            if mine.worker is not None:
                granted[key] = _go_on(view, key, mine, board, me(mine.worker), ttl)
                continue
        except (HeldError, BlockedError, UsageError, CorruptError) as error:
            lost[key] = error
        _keep_fence(view, key, mine)
    return Joined(granted, lost)


def _go_on(
    view: View, key: str, mine: Alone, board: Board, me: lease.Me, ttl: float
) -> lease.Grant:
    there = view.document(Lease, key)
    if there is not None and there.claimant == me.claimant:
        return lease.Grant(key, there, already=True)
    if there is not None and there.claimant is not None:
        raise lease.held(view, key, there, me)
    definition = None
    if (task_id := keys.claimed_task(key)) is not None:
        task = session.check_open(view, task_id, board)
        definition = task.definition_hash
        landing.take_on(view, task, board.evidence(task))
    fields = {
        "fence": mine.fence if there is None else max(mine.fence, _highest(there) + 1),
        "nonce": mine.nonce,
        "claimant": me.claimant,
        "ttl_seconds": ttl,
        "definition": definition,
    }
    record = Lease.model_validate(fields) if there is None else there.but(**fields)
    view.save(key, record)
    audit.append(
        view, me.claimant, "carried", ts=me.ts, key=key, fence=record.fence, nonce=mine.nonce
    )
    return lease.Grant(key, record)


def _keep_fence(view: View, key: str, mine: Alone) -> None:
    """Nobody gets a fence that this clone gave alone; a record that can't be written is left."""
    try:
        there = view.document(Lease, key)
        if there is None:
            view.save(key, Lease(fence=mine.fence, nonce=mine.nonce))
        elif _highest(there) < mine.fence:
            name = "fence" if there.claimant is None else "floor"
            view.save(key, there.but(**{name: mine.fence}))
    except (CorruptError, BlockedError):
        return


def _highest(record: Lease) -> int:
    return max(record.fence, record.floor)


def take_home(view: View, there: Snapshot) -> None:
    """Write into a clone's own records, where nobody holds anything then, what the session's say:
    fences at least as high as there, and what became of its tasks."""
    leases, _ = readable(Lease, there, keys.LEASES)
    tasks, _ = readable(TaskRecord, there, keys.TASKS)
    for key in {*leases, *view.keys(keys.LEASES)}:
        with suppress(CorruptError):  # One that can't be read blocks its own key alone.
            _take_fence(view, key, leases.get(key))
    for key, record in tasks.items():
        with suppress(CorruptError):
            _take_status(view, key, record)


def _take_status(view: View, key: str, theirs: TaskRecord) -> None:
    own = view.document(TaskRecord, key)
    if own is None or (own.but(rev=theirs.rev) != theirs and not _is_ahead(own, theirs)):
        view.save(key, theirs)


def _take_fence(view: View, key: str, theirs: Lease | None) -> None:
    own = view.document(Lease, key)
    if own is None:
        if theirs is not None:
            last = theirs.claimant or theirs.last
            fresh = theirs.but(fence=_highest(theirs), claimant=None, last=last)
            view.save(key, fresh)
        return
    fence = max(_highest(own), _highest(theirs) if theirs else 0)
    if own.claimant is not None or own.fence < fence:
        view.save(key, own.but(fence=fence, claimant=None, last=own.claimant or own.last))


def _is_ahead(own: TaskRecord, theirs: TaskRecord) -> bool:
    """Whether a clone's own record of a task is of a later round, or closed in the same one."""
    if own.uid != theirs.uid:
        return False
    ranks = [(record.round, record.status in _CLOSED) for record in (own, theirs)]
    return ranks[0] > ranks[1]
