"""Landing: a task's work on the target branch, exactly once; the rules and the commit's words.

The target branch is the witness. The commit that lands a task says so in trailers (which task,
which uid, which round), so whatever memory is lost, a search of the target's history tells what
has landed. `progress` is where the record and that evidence meet: everything that asks how far a
task is goes through it, so a task that has landed can't be open, whatever its record says.

Code and record move in one push where the server can do that; the rule that goes with it
(`land`) is judged by the fence at the tip, like every write of a holder. Where it can't, the
record first names the commit that is about to be pushed (`announce`), then the commit is pushed,
then the record is closed: at most once, since each push names the target it builds on and each
landing searches that target first; and detectable, though not fenced.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from forge_collab.core import audit, keys, lease, names
from forge_collab.core.change import View
from forge_collab.core.errors import BlockedError, CorruptError, UsageError
from forge_collab.core.records import Lease, TaskRecord
from forge_collab.core.tasks import Task, TaskStatus, check_transition

DEADLINE_SECONDS = 60.0
"""How long a landing tries again while others land first."""
LINE_LENGTH: Final = 200
TASK_TRAILER: Final = "Forge-Task"
OWN_PATHS: Final = (
    ".forge/collab",
    ".forge/runs",
    ".forge/worktrees",
    ".forge/state.md",
    ".forge/loop.lock",
)
"""Paths that are forge's: a landing takes them from the target, never from the branch."""
CLAIMABLE: Final = frozenset(
    {
        TaskStatus.PENDING,
        TaskStatus.MERGE_BLOCKED,
        TaskStatus.BLOCKED,
        TaskStatus.PAUSED,
        TaskStatus.FAILED,
    }
)
"""What somebody may take on; all but the first only when asked for by name."""

_PREFIX: Final = MappingProxyType({"feature": "feat", "bugfix": "fix"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True, slots=True)
class Evidence:
    """That a task has landed, as the target branch says: in which round, by which commit."""

    task_id: str
    uid: str
    round: int
    commit: str


@dataclass(frozen=True, slots=True)
class Author:
    """A person as git knows them."""

    name: str
    email: str

    def __str__(self) -> str:
        name, email = (re.sub(r"[<>]", "", one_line(part)) for part in (self.name, self.email))
        return f"{name} <{email}>"


# Words


def branch_of(task_id: str, fence: int) -> str:
    """The branch that work under this fence belongs on."""
    return f"forge/task/{task_id}@{fence}"


def task_of(branch: str) -> tuple[str, int] | None:
    """The task and fence whose branch this is, or None for a branch of another kind."""
    task_id, at, fence = branch.removeprefix("forge/task/").rpartition("@")
    is_one = branch.startswith("forge/task/") and at and fence.isascii() and fence.isdigit()
    return (task_id, int(fence)) if is_one else None


def check_branch(task_id: str, branch: str, target: str) -> None:
    """Nothing, when work on `branch` may be landed as this task's.

    :raises UsageError: when it is the target itself, or the branch of another task.
    """
    belongs_to = task_of(branch)
    if branch == target or (belongs_to is not None and belongs_to[0] != task_id):
        whose = "the target itself" if belongs_to is None else f"the branch of {belongs_to[0]}"
        raise UsageError(
            f"{branch} is {whose}, so it can't be landed as {task_id}",
            hint=f"forge collaborate done {task_id} --branch B",
        )


def one_line(text: str) -> str:
    """`text` in one line of at most 200 characters, control characters as spaces."""
    return _CONTROL.sub(" ", text).strip()[:LINE_LENGTH]


def message(
    task: Task,
    *,
    round: int,
    fence: int,
    subjects: Iterable[str] = (),
    others: Iterable[Author] = (),
) -> str:
    """What the squash commit says; its last line is the one that names the task."""
    subject = f"{_PREFIX.get(task.type, task.type)}: {one_line(task.title)} [{task.id}]"
    body = [f"- {one_line(line)}" for line in subjects if line.strip()]
    trailers = [
        *(f"Co-authored-by: {author}" for author in others),
        f"Forge-Uid: {task.uid}",
        f"Forge-Round: {round}",
        f"Forge-Fence: {fence}",
        f"{TASK_TRAILER}: {task.id}",
    ]
    return "\n\n".join(filter(None, [subject, "\n".join(body), "\n".join(trailers)])) + "\n"


def evidence_in(commit: str, trailers: str) -> Evidence | None:
    """What the trailers of a commit say has landed by it; None where they don't, or not clearly.

    `trailers` has one ``Key: value`` in each line.
    """
    found: dict[str, list[str]] = {}
    for line in trailers.split("\n"):
        key, _, value = line.partition(":")
        found.setdefault(key.strip().lower(), []).append(value.strip())
    tasks, uids, rounds = (
        found.get(name, []) for name in (TASK_TRAILER.lower(), "forge-uid", "forge-round")
    )
    if not len(tasks) == len(uids) == len(rounds) == 1:
        return None
    if not (rounds[0].isascii() and rounds[0].isdigit() and len(rounds[0]) < 9):
        return None
    try:
        return Evidence(names.task_id(tasks[0]), uids[0], int(rounds[0]), commit)
    except UsageError:
        return None


def newest(evidence: Iterable[Evidence]) -> dict[tuple[str, str], Evidence]:
    """The evidence of the highest round by task id and uid; of one round the first commit."""
    found: dict[tuple[str, str], Evidence] = {}
    for one in evidence:
        known = found.get((one.task_id, one.uid))
        if known is None or one.round > known.round:
            found[one.task_id, one.uid] = one
    return found


# How far a task is


def progress(record: TaskRecord | None, task: Task, seen: Evidence | None) -> TaskRecord:
    """How far `task` is, by its record and by what the target branch shows.

    A record of another task that had the same id doesn't count, nor does evidence of a round
    that is over.
    """
    if record is None or record.uid != task.uid:
        fresh = TaskRecord(uid=task.uid)
        record = fresh if record is None else record.but(**fresh.model_dump(exclude={"rev", "v"}))
    if seen is None or seen.uid != task.uid or seen.round < record.round:
        return record
    if seen.round == record.round and record.status is TaskStatus.DONE:
        return record
    tip = (record.landed or {}).get("tip") if seen.round == record.round else None
    landed = {"commit": seen.commit} | ({"tip": tip} if tip else {})
    return record.but(
        round=seen.round, status=TaskStatus.DONE, landed=landed, landing=None, reason=None
    )


def record_of(view: View, task: Task, seen: Evidence | None) -> TaskRecord:
    """How far `task` is in `view`; see `progress`.

    :raises CorruptError: when its record can't be read.
    """
    return progress(view.document(TaskRecord, keys.TASKS + task.id), task, seen)


# Rules


@dataclass(frozen=True, slots=True)
class Work:
    """What a landing is of: the task, what the target shows of it, where its work is."""

    task: Task
    branch: str | None
    tip: str | None
    seen: Evidence | None = None

    @property
    def key(self) -> str:
        """The key of the task's lease."""
        return keys.claim(self.task.id)


@dataclass(frozen=True, slots=True)
class Landed:
    """How far a task is after a rule: its record, and the fence it is under."""

    record: TaskRecord
    fence: int
    already: bool = False


def check(view: View, work: Work, me: lease.Me, *, fence: int | None) -> Landed:
    """Whether `me` may land the task now; done by `me` already is an answer too.

    :raises LeaseLostError, HeldError, BlockedError: as `lease.check_holder` does.
    :raises BlockedError: when its status doesn't allow it.
    """
    record, held = record_of(view, work.task, work.seen), view.document(Lease, work.key)
    mine = held is not None and me.claimant in (held.claimant, held.last)
    if record.status is TaskStatus.DONE and held and mine and fence in (None, held.fence):
        return Landed(record, held.fence, already=True)
    if record.status is TaskStatus.AWAITING_MERGE and mine and held and held.claimant is None:
        raise BlockedError(
            f"{work.task.id} awaits that {record.branch or 'its branch'} is merged",
            hint=f"merge it; or forge collaborate done {work.task.id} --landed COMMIT",
            data={"task": work.task.id, "status": record.status.value, "waits_for": []},
        )
    holding = lease.check_holder(view, work.key, me, fence=fence)
    if record.status is not TaskStatus.DONE:
        check_transition(work.task.id, record.status, TaskStatus.DONE)
    return Landed(record, holding.fence, already=record.status is TaskStatus.DONE)


def land(
    view: View, work: Work, me: lease.Me, *, nonce: str, fence: int | None, commit: str
) -> Landed:
    """The task is done by `commit`, and its lease is given back; goes with the target's move.

    :raises LeaseLostError, HeldError, BlockedError: as `check` does.
    """
    found = check(view, work, me, fence=fence)
    if found.already:
        return found
    landed = {"commit": commit} | ({"tip": work.tip} if work.tip else {})
    record = found.record.but(
        status=TaskStatus.DONE,
        fence=found.fence,
        landed=landed,
        landing=None,
        reason=None,
        branch=work.branch,
    )
    view.save(keys.TASKS + work.task.id, record)
    _give_back(view, work, me, nonce=nonce, event="landed", text=commit)
    return Landed(record, found.fence)


def announce(
    view: View, work: Work, me: lease.Me, *, nonce: str, fence: int | None, commit: str
) -> Landed:
    """`commit` is about to be pushed to the target, by itself: whoever takes over looks for it.

    :raises LeaseLostError, HeldError, BlockedError: as `check` does.
    """
    found = check(view, work, me, fence=fence)
    if found.already:
        return found
    landing = {"commit": commit} | ({"tip": work.tip} if work.tip else {})
    record = found.record.but(fence=found.fence, landing=landing, branch=work.branch)
    _write(view, work, me, record, found.fence, "landing", nonce, commit)
    return Landed(record, found.fence)


def block(
    view: View,
    work: Work,
    me: lease.Me,
    *,
    nonce: str,
    fence: int | None,
    conflicts: tuple[str, ...],
) -> Landed:
    """The work can't be merged: the task waits for its holder, who keeps it.

    :raises LeaseLostError, HeldError, BlockedError: as `check` does.
    """
    found = check(view, work, me, fence=fence)
    if found.already:
        return found
    reason = f"conflicts in {', '.join(conflicts)}"
    record = found.record.but(
        status=TaskStatus.MERGE_BLOCKED,
        fence=found.fence,
        landing=None,
        branch=work.branch,
        reason=reason,
    )
    _write(view, work, me, record, found.fence, "merge_blocked", nonce, reason)
    return Landed(record, found.fence)


def await_merge(
    view: View, work: Work, me: lease.Me, *, nonce: str, fence: int | None, reason: str
) -> Landed:
    """The target takes no push of ours: the task waits for a request to be merged.

    :raises LeaseLostError, HeldError, BlockedError: as `check` does.
    """
    found = check(view, work, me, fence=fence)
    if found.already:
        return found
    record = found.record.but(
        status=TaskStatus.AWAITING_MERGE,
        fence=found.fence,
        landed={"tip": work.tip} if work.tip else None,
        landing=None,
        branch=work.branch,
        reason=one_line(reason),
    )
    view.save(keys.TASKS + work.task.id, record)
    _give_back(view, work, me, nonce=nonce, event="awaiting_merge", text=work.branch)
    return Landed(record, found.fence)


def close(view: View, work: Work, me: lease.Me, *, nonce: str) -> Landed:
    """Write down what the target shows: the task is done, so nobody holds it any more.

    No fence is asked for: that it has landed is a fact.
    """
    stored = view.document(TaskRecord, keys.TASKS + work.task.id)
    record, held = progress(stored, work.task, work.seen), view.document(Lease, work.key)
    fence = held.fence if held else 0
    if stored is not None and stored == record:
        return Landed(record, fence, already=True)
    view.save(keys.TASKS + work.task.id, record)
    if held is not None and held.claimant is not None and record.status is TaskStatus.DONE:
        _give_back(view, work, me, nonce=nonce, event="closed")
    else:
        _say(view, work, me, fence, "closed", nonce)
    return Landed(record, fence)


def confirm(
    view: View, work: Work, me: lease.Me, *, nonce: str, fence: int | None, commit: str
) -> Landed:
    """A person says that `commit`, which is on the target, is this task's work.

    A task that awaits its merge is nobody's, so anyone may say so; any other one its holder.

    :raises LeaseLostError, HeldError, BlockedError: as `check` does.
    """
    record = record_of(view, work.task, work.seen)
    if record.status is not TaskStatus.AWAITING_MERGE:
        return land(view, work, me, nonce=nonce, fence=fence, commit=commit)
    done = record.but(
        status=TaskStatus.DONE, landed={**(record.landed or {}), "commit": commit}, reason=None
    )
    _write(view, work, me, done, done.fence, "landed", nonce, commit)
    return Landed(done, done.fence)


def reopen(view: View, work: Work, me: lease.Me, *, nonce: str, reason: str = "") -> Landed:
    """An ended task is open again, in its next round; a stopped one in the same.

    Whoever held it is fenced out: the fence rises and the lease is empty.

    :raises HeldError: when it is stopped and somebody else works on it.
    :raises BlockedError: when it is open already.
    """
    record = record_of(view, work.task, work.seen)
    if audit.has(view, me.claimant, nonce):
        return Landed(record, _fence(view, work), already=True)
    if record.status is TaskStatus.PENDING:
        raise BlockedError(
            f"{work.task.id} is open already",
            hint=f"forge collaborate claim {work.task.id}",
            data={"task": work.task.id, "status": "pending", "waits_for": []},
        )
    is_over = record.status in (TaskStatus.DONE, TaskStatus.CANCELLED)
    if not is_over:
        _check_not_anothers(view, work, me)
    tip = (record.landed or {}).get("tip") if is_over else None
    opened = record.but(
        status=TaskStatus.PENDING,
        round=record.round + is_over,
        landing=None,
        old_tips=(*record.old_tips, tip) if tip else record.old_tips,
        reason=None,
    )
    view.save(keys.TASKS + work.task.id, opened)
    fence = lease.fence_out(view, work.key, me, nonce=nonce, event="reopened", text=reason or None)
    return Landed(opened, fence)


def cancel(view: View, work: Work, me: lease.Me, *, nonce: str, reason: str = "") -> Landed:
    """The task isn't wanted any more.

    :raises HeldError: when somebody else works on it.
    :raises BlockedError: when it has ended already.
    """
    record = record_of(view, work.task, work.seen)
    if audit.has(view, me.claimant, nonce):
        return Landed(record, _fence(view, work), already=True)
    check_transition(work.task.id, record.status, TaskStatus.CANCELLED)
    _check_not_anothers(view, work, me)
    over = record.but(status=TaskStatus.CANCELLED, landing=None, reason=one_line(reason) or None)
    view.save(keys.TASKS + work.task.id, over)
    fence = lease.fence_out(view, work.key, me, nonce=nonce, event="cancelled", text=reason or None)
    return Landed(over, fence)


def take_on(view: View, task: Task, seen: Evidence | None) -> None:
    """A claim of a stopped task makes it pending again."""
    record = record_of(view, task, seen)
    if record.status is not TaskStatus.PENDING:
        check_transition(task.id, record.status, TaskStatus.PENDING)
        view.save(keys.TASKS + task.id, record.but(status=TaskStatus.PENDING, reason=None))


def _fence(view: View, work: Work) -> int:
    held = view.document(Lease, work.key)
    return held.fence if held else 0


def _give_back(
    view: View, work: Work, me: lease.Me, *, nonce: str, event: str, text: str | None = None
) -> None:
    held = view.document(Lease, work.key)
    assert held is not None, "it was just found to be held"
    lease.end(view, work.key, held, me, event=event, nonce=nonce, text=text)


def _check_not_anothers(view: View, work: Work, me: lease.Me) -> None:
    held = view.document(Lease, work.key)
    if held is not None and lease.is_anothers(view, work.key, held, me):
        raise lease.held(view, work.key, held, me)


def _write(
    view: View,
    work: Work,
    me: lease.Me,
    record: TaskRecord,
    fence: int,
    event: str,
    nonce: str,
    text: str,
) -> None:
    if not audit.has(view, me.claimant, nonce):
        view.save(keys.TASKS + work.task.id, record)
        _say(view, work, me, fence, event, nonce, text)


def _say(
    view: View,
    work: Work,
    me: lease.Me,
    fence: int,
    event: str,
    nonce: str,
    text: str | None = None,
) -> None:
    audit.append(
        view,
        me.claimant,
        event,
        ts=me.ts,
        key=work.key,
        fence=fence or None,
        nonce=nonce,
        text=text,
    )


def unclosed(
    tasks: Iterable[Task], view: View, seen: Mapping[tuple[str, str], Evidence]
) -> list[Work]:
    """The tasks that the target shows as landed and whose records don't say so yet."""
    found = []
    for task in tasks:
        evidence = seen.get((task.id, task.uid))
        if evidence is None:
            continue
        try:
            stored = view.document(TaskRecord, keys.TASKS + task.id)
        except CorruptError:
            continue
        if progress(stored, task, evidence) != stored:
            found.append(Work(task, None, None, evidence))
    return found


def awaited(
    tasks: Iterable[Task],
    records: Mapping[str, TaskRecord],
    seen: Mapping[tuple[str, str], Evidence],
) -> list[tuple[Task, TaskRecord]]:
    """The tasks that await their merge as far as is known; `records` is by key.

    What the target shows of an earlier round says nothing about this one.
    """
    found = []
    for task in tasks:
        record = records.get(keys.TASKS + task.id)
        if record is None:
            continue
        now = progress(record, task, seen.get((task.id, task.uid)))
        if now.status is TaskStatus.AWAITING_MERGE:
            found.append((task, now))
    return found


def request_command(host: str, *, branch: str, target: str, title: str) -> str | None:
    """The command that opens a request to merge `branch`, where the host has one."""
    words = {
        "github.com": ["gh", "pr", "create", "--fill", "--base", target, "--head", branch],
        "gitlab.com": [
            *("glab", "mr", "create", "--fill", "--target-branch", target),
            *("--source-branch", branch),
        ],
    }.get(host)
    return shlex.join([*words, "--title", one_line(title)]) if words else None
