"""One snapshot of a session as commands show it: who is here, who holds what, what is open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from forge_collab.core import keys, landing, lease
from forge_collab.core.board import Board
from forge_collab.core.change import Snapshot, View, readable
from forge_collab.core.records import Lease, Participant, TaskRecord, shown_lease
from forge_collab.core.tasks import TaskStatus


class Sightings:
    """Since when this observer has seen each lease and each participant unchanged."""

    def __init__(self) -> None:
        self.leases = lease.Watch()
        self._participants: dict[str, tuple[str, float]] = {}

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Note everything in `snapshot`, seen at `now`."""
        view = View(snapshot)
        held, _ = readable(Lease, snapshot, keys.LEASES)
        for key, record in held.items():
            self.leases.see(key, lease.version_in(view, key, record), now)
        self.leases.forget_all_but(held)
        known = self._participants
        self._participants = {}
        for key in snapshot.keys(keys.PARTICIPANTS):
            version = view.version(key)
            before = known.get(key)
            if isinstance(version, str):
                same = before is not None and before[0] == version
                self._participants[key] = before if before and same else (version, now)

    def participant_seconds(self, key: str, now: float) -> float | None:
        """How long ago this participant last changed its record, as seen from here."""
        known = self._participants.get(key)
        return None if known is None else now - known[1]


def progress(board: Board, snapshot: Snapshot) -> dict[str, TaskRecord]:
    """How far every task is that has a record, or that the target branch shows."""
    records, _ = readable(TaskRecord, snapshot, keys.TASKS)
    found: dict[str, TaskRecord] = {}
    for task_id, task in board.tasks.items():
        record, seen = records.get(keys.TASKS + task_id), board.evidence(task)
        if record is not None or seen is not None:
            found[task_id] = landing.progress(record, task, seen)
    return found


def apply_records(board: Board, snapshot: Snapshot) -> None:
    """Give every task of the board the status its record, or the target branch, says."""
    records = progress(board, snapshot)
    for task_id in board.tasks:
        record = records.get(task_id)
        board.set_status(task_id, record.status if record else TaskStatus.PENDING)


def claims(
    snapshot: Snapshot, sightings: Sightings | None, now: float
) -> tuple[dict[str, Lease], list[dict[str, Any]]]:
    """Every lease that somebody has, by key, and the same as commands show them.

    Without `sightings` (no daemon has watched) the ages aren't known.
    """
    view = View(snapshot)
    records, _ = readable(Lease, snapshot, keys.LEASES)
    held = {key: record for key, record in records.items() if record.claimant is not None}
    shown = []
    for key, record in held.items():
        silent = None
        if sightings is not None:
            version = lease.version_in(view, key, record)
            silent = sightings.leases.silent_seconds(key, version, now)
        left = None if silent is None else lease.clamped(record.ttl_seconds) - silent
        if left is not None:
            left = max(0.1, left) if left > 0 else 0.0  # Only a lapsed one is shown as 0.
        shown.append(
            shown_lease(
                keys.lease_name(key), record, last_seen_seconds=silent, takeover_in_seconds=left
            )
        )
    return held, shown


def is_lapsed(shown: Mapping[str, Any]) -> bool:
    """Whether a lease, as `claims` shows it, can be taken: nobody renewed it in time."""
    return bool(shown["takeover_in_seconds"] == 0)


def overview(
    snapshot: Snapshot, board: Board, sightings: Sightings | None, now: float
) -> dict[str, Any]:
    """Participants, claims, claimable and blocked tasks, and what can't be read."""
    held, shown = claims(snapshot, sightings, now)
    present, bad_participants = readable(Participant, snapshot, keys.PARTICIPANTS)
    live = {keys.claimed_task("leases/" + c["key"]) for c in shown if not is_lapsed(c)}
    broken = _unreadable(snapshot)
    return {
        "participants": [
            {
                "handle": record.handle,
                "instance": key.removeprefix(keys.PARTICIPANTS),
                "last_seen_seconds": _last_seen(key, shown, sightings, now),
                "working_on": _working_on(held, key.removeprefix(keys.PARTICIPANTS)),
            }
            for key, record in sorted(present.items(), key=lambda item: (item[1].handle, item[0]))
        ],
        "claims": shown,
        "claimable": [t for t in board.ready() if t not in live and t not in broken],
        "blocked": [
            {"task": task, "waits_for": list(waits)} for task, waits in board.blocked().items()
        ],
        "stopped": _stopped(board, snapshot),
        "flags_open": 0,
        "warnings": [
            *_two_people(present.values()),
            *(problem.message for problem in board.problems),
            *(error.message for error in bad_participants),
            *(why for whys in broken.values() for why in whys),
        ],
    }


def _stopped(board: Board, snapshot: Snapshot) -> list[dict[str, Any]]:
    """The tasks that wait for a person, with why and the branch their work is on."""
    ended = (TaskStatus.PENDING, TaskStatus.DONE, TaskStatus.CANCELLED)
    return [
        {
            "task": task_id,
            "status": record.status.value,
            "reason": record.reason,
            "branch": record.branch,
        }
        for task_id, record in progress(board, snapshot).items()
        if record.status not in ended
    ]


def _last_seen(
    key: str,
    shown: Iterable[Mapping[str, Any]],
    sightings: Sightings | None,
    now: float,
) -> float | None:
    """The last sign of life of a participant: its presence, or a lease of its."""
    instance = key.removeprefix(keys.PARTICIPANTS)
    ages = [
        claim["last_seen_seconds"]
        for claim in shown
        if claim["claimant"]["instance"] == instance and claim["last_seen_seconds"] is not None
    ]
    own = sightings.participant_seconds(key, now) if sightings else None
    return _rounded(min([*ages, own], default=None) if own is not None else None)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _working_on(held: Mapping[str, Lease], instance: str) -> list[str]:
    return [
        keys.claimed_task(key) or keys.lease_name(key)
        for key, record in held.items()
        if record.claimant and record.claimant.instance == instance
    ]


def _two_people(present: Iterable[Participant]) -> list[str]:
    mails: dict[str, set[str]] = {}
    for record in present:
        if record.email_hash:
            mails.setdefault(record.handle, set()).add(record.email_hash)
    return [
        f"two people use the handle '{handle}'; one should: git config forge.handle NAME"
        for handle, hashes in mails.items()
        if len(hashes) > 1
    ]


def _unreadable(snapshot: Snapshot) -> dict[str, list[str]]:
    """Tasks whose lease or status can't be read, each with why."""
    found: dict[str, list[str]] = {}
    for kind, prefix, strip in (
        (Lease, keys.LEASES, f"{keys.LEASES}claim:"),
        (TaskRecord, keys.TASKS, keys.TASKS),
    ):
        _, bad = readable(kind, snapshot, prefix)
        for error in bad:
            key = keys.key_of(str(error.data["path"])) or ""
            found.setdefault(key.removeprefix(strip), []).append(error.message)
    return found
