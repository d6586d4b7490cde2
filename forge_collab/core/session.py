"""Rules over a session's other records: its identity, presence, messages, and task claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forge_collab.core import audit, keys, landing, lease
from forge_collab.core.board import Board
from forge_collab.core.change import ABSENT, View
from forge_collab.core.errors import (
    BlockedError,
    CorruptError,
    EnvironmentError_,
    ForgeError,
    HeldError,
    UsageError,
)
from forge_collab.core.lifecycle import EXPLANATION, Class
from forge_collab.core.records import (
    MESSAGES_BYTES,
    MESSAGES_KEPT,
    Lease,
    Message,
    Meta,
    Participant,
    decode_lines,
    encode,
)
from forge_collab.core.tasks import Task, TaskStatus

ENDED = "ended"


class DuplicateIdentityError(ForgeError):
    """Another run writes under this instance: this clone was copied with its identity."""

    code = "duplicate_identity"


def found(view: View, *, session: str, repo: str, target: str | None) -> Meta:
    """The session's meta record; made where there is none yet.

    :raises BlockedError: when it has to be made and the target branch isn't known.
    :raises EnvironmentError_: when this clone is configured for another target branch.
    """
    meta = view.document(Meta, keys.META)
    if meta is not None:
        if target is not None and target != meta.target:
            raise EnvironmentError_(
                f"this clone lands on '{target}', the session on '{meta.target}'",
                hint=f"git config forge.target {meta.target}",
                data={"target": meta.target},
            )
        return meta
    if target is None:
        raise BlockedError("the session has no target branch", hint="git config forge.target NAME")
    meta = Meta(session=session, repo=repo, target=target)
    view.save(keys.META, meta)
    return meta


def check_session(view: View, repo: str | None) -> None:
    """Nothing, when the records are of the session with the id `repo` (None: of any, or none).

    :raises CorruptError: when they are of none.
    :raises BlockedError: when they are of another, or the session has ended.
    """
    meta = view.document(Meta, keys.META)
    check_not_ended(meta)
    if repo is None or (meta is not None and meta.repo == repo):
        return
    if meta is None:
        raise CorruptError(
            "the state branch has lost the session this clone is in",
            hint="push it back from a clone that has it; or forge collaborate start --fresh",
            data={"path": keys.path_of(keys.META), "line": None},
        )
    found = Class.SESSION_MISMATCH
    raise BlockedError(
        EXPLANATION[found],
        hint="forge collaborate recover",
        data={
            "class": found.value,
            "status": found.value,
            "repo": meta.repo,
            "waits_for": [],
        },
    )


def check_not_ended(meta: Meta | None) -> None:
    """Nothing, while the session goes on.

    :raises BlockedError: when somebody has ended it for everybody; data's `status` is ``ended``.
    """
    if meta is not None and meta.ended is not None:
        raise BlockedError(
            f"this session has ended ({meta.ended})",
            hint="forge collaborate start --fresh begins another",
            data={"status": ENDED, "repo": meta.repo, "waits_for": []},
        )


def check_run(view: View, instance: str, mine: Participant) -> Participant | None:
    """This instance's presence, as the run that wrote `mine` last wrote it, or is writing it.

    :raises DuplicateIdentityError: when somebody else has written it since: another run, or a
        copy of this very process.
    """
    presence = view.document(Participant, keys.PARTICIPANTS + instance)
    if presence is None or _is_mine(presence, mine):
        return presence
    raise DuplicateIdentityError(
        f"another forge daemon writes as instance {instance}: this clone was copied "
        "together with its identity",
        hint="forge collaborate status",
        data={"instance": instance},
    )


def _is_mine(presence: Participant, mine: Participant) -> bool:
    if presence.run != mine.run or presence.beat > mine.beat:
        return False
    return presence.beat < mine.beat or presence.nonce == mine.nonce


def arrive(view: View, instance: str, presence: Participant) -> Participant:
    """Write the presence of a run that begins, keeping the counters its predecessor left."""
    key = keys.PARTICIPANTS + instance
    before = view.document(Participant, key)
    if before is not None and before.run == presence.run:
        return before
    here = presence.but(renewals=before.renewals if before else {})
    view.save(key, here)
    return here


@dataclass(frozen=True, slots=True)
class Beat:
    """What a beat found: the leases that aren't ours any more, each with what is there now."""

    presence: Participant
    lost: Mapping[str, Lease | None]


def beat(view: View, instance: str, presence: Participant, held: Mapping[str, lease.Held]) -> Beat:
    """Renew every lease in `held` and this instance's presence: one file for all of them.

    :raises DuplicateIdentityError: when another run has written the presence since.
    """
    before = check_run(view, instance, presence)
    counters, lost = lease.renewals(view, instance, held, before.renewals if before else {})
    if before is not None and before.beat == presence.beat:
        return Beat(before, lost)
    here = presence.but(renewals=counters)
    view.save(keys.PARTICIPANTS + instance, here)
    return Beat(here, lost)


def depart(view: View, instance: str, me: lease.Me, *, nonce: str) -> tuple[str, ...]:
    """Leave the session: every lease of `instance` given back, its presence gone."""
    freed = lease.release_all(view, instance, me, nonce=nonce)
    key = keys.PARTICIPANTS + instance
    if view.get(key) is not ABSENT:
        view.drop(key)
        audit.append(view, me.claimant, "left", ts=me.ts, nonce=nonce)
    return freed


def post(
    view: View, instance: str, event: str, data: Mapping[str, Any], *, to: str | None, ts: str
) -> Message:
    """Add a message to this instance's ring: the last 200, at most 256 KiB."""
    key = keys.MESSAGES + instance
    value = view.get(key)
    ring = () if value is ABSENT else decode_lines(Message, value, keys.path_of(key))
    seq = ring[-1].seq + 1 if ring else 1
    message = Message(seq=seq, event=event, to=to, data=dict(data), ts=ts)
    lines = [encode(m) for m in (*ring[-MESSAGES_KEPT + 1 :], message)]
    while len(lines) > 1 and sum(map(len, lines)) > MESSAGES_BYTES:
        lines.pop(0)
    view.put(key, b"".join(lines))
    return message


def status_of(view: View, task: Task, board: Board) -> TaskStatus:
    """How far a task is, by its record and by what the target branch shows."""
    return landing.record_of(view, task, board.evidence(task)).status


def _is_over(view: View, task: Task, board: Board) -> bool:
    try:
        return status_of(view, task, board) in (TaskStatus.DONE, TaskStatus.CANCELLED)
    except CorruptError:
        return False


def known(board: Board, task_id: str) -> Task:
    """The task as the plan defines it.

    :raises UsageError: when the plan has no such task.
    :raises BlockedError: when a person has to mend the plan first.
    """
    try:
        problem = board.problem_of(task_id)
    except UsageError as error:
        data = {"task": task_id, "acquired": False}
        raise UsageError(error.message, hint=error.hint, data=data) from None
    if problem is not None:
        raise _blocked(task_id, problem.message, "forge task list", status="broken")
    return board.tasks[task_id]


def check_open(view: View, task_id: str, board: Board) -> Task:
    """The task, when it may be worked on: it hasn't ended, and all it depends on is done.

    :raises UsageError: when the plan has no such task.
    :raises BlockedError: when it isn't open; data has `status` and `waits_for`.
    """
    task = known(board, task_id)
    status = status_of(view, task, board)
    if status not in landing.CLAIMABLE:
        is_over = status in (TaskStatus.DONE, TaskStatus.CANCELLED)
        why = f"{task_id} is {status.value}"
        hint = f"forge task {'reopen' if is_over else 'show'} {task_id}"
        raise _blocked(task_id, why, hint, status=status.value)
    waits = tuple(
        other
        for other in board.dependencies(task_id)
        if status_of(view, board.tasks[other], board) is not TaskStatus.DONE
    )
    if waits:
        why = f"{task_id} waits for {', '.join(waits)}"
        hint = "forge collaborate claim --next takes a task that waits for nothing"
        raise _blocked(task_id, why, hint, status="pending", waits_for=waits)
    return task


def _blocked(
    task_id: str, why: str, hint: str, *, status: str, waits_for: tuple[str, ...] = ()
) -> BlockedError:
    data = {"task": task_id, "acquired": False, "status": status, "waits_for": list(waits_for)}
    return BlockedError(why, hint=hint, data=data)


def claim(
    view: View, task_id: str, board: Board, me: lease.Me, *, nonce: str, ttl: float
) -> lease.Grant:
    """Take an open task; a stopped one goes on by that.

    :raises UsageError, BlockedError: when it isn't open; see `check_open`.
    :raises HeldError: when somebody else, or another worker of this clone, holds it.
    """
    task = check_open(view, task_id, board)
    grant = lease.acquire(
        view, keys.claim(task_id), me, nonce=nonce, ttl=ttl, definition=task.definition_hash
    )
    if not grant.already:
        landing.take_on(view, task, board.evidence(task))
    return grant


def claim_next(
    view: View, board: Board, me: lease.Me, *, nonce: str, ttl: float
) -> lease.Grant | None:
    """Take the most urgent open, free task that `me` doesn't hold; None when all is done.

    A task whose records can't be read is passed over.

    :raises BlockedError: when there is nothing to claim now.
    """
    mine = _granted_to(view, board, nonce)
    if mine is not None:
        return mine
    for task_id in board.order():
        try:
            held = view.document(Lease, keys.claim(task_id))
            if held is not None and held.claimant == me.claimant:
                continue
            if status_of(view, known(board, task_id), board) is not TaskStatus.PENDING:
                continue
            return claim(view, task_id, board, me, nonce=nonce, ttl=ttl)
        except (BlockedError, HeldError, CorruptError):
            continue
    if not board.tasks:
        raise _blocked(
            "next",
            "the plan has no tasks yet",
            'forge task add "TITLE", or push the target branch with its .forge/tasks/',
            status="empty",
        )
    if all(_is_over(view, task, board) for task in board.tasks.values()):
        return None
    raise BlockedError(
        "nothing can be claimed now: every open task is held or waits for another",
        hint="forge collaborate status shows who holds what; claim --next --wait waits",
        data={"task": None, "acquired": False, "status": None, "waits_for": []},
    )


def _granted_to(view: View, board: Board, nonce: str) -> lease.Grant | None:
    """What this very claim was granted, where it has taken effect already."""
    for task_id in board.order():
        key = keys.claim(task_id)
        try:
            held = view.document(Lease, key)
        except CorruptError:
            continue
        if held is not None and held.claimant is not None and held.nonce == nonce:
            return lease.Grant(key, held)
    return None
