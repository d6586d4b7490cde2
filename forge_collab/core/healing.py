"""What a state branch lost when somebody set it back or deleted it, and how it comes back.

Every daemon holds the records as it last saw them. `join` makes one record of two; it is
commutative, associative and idempotent, so whoever heals, in whatever order and however often,
the branch ends up with the same records. It takes one of the two as it is:

- a lease by (fence, rev); the fence never falls. Two *claims* under one fence can only come from
  a branch that was set back and granted the fence again. Whichever were kept, the other one's
  work would be under a number that names somebody else. So neither is: the lease is free, at the
  next fence, with the rev 0 that no rule writes. Both find that they have lost it, by the fence
  and by the nonce, and the number that named two names nobody. A claim that somebody was in fact
  granted under that next fence comes before this.
- a task by its round; within a round done before cancelled before open, then (fence, rev). The
  record of another task that had the same id is judged like any other.
- the audit by line: it keeps every line of both.
- messages by the sender's last number; `meta` with the mark that the session has ended before
  one without; everything else by `rev`. What has no order at all goes by its bytes: arbitrary,
  and the same everywhere.

What is missing on one side is taken from the other: a participant that has left may come back as
a record, until compaction takes it. What can't be read comes before all that can: nobody knows
what it said, so it goes on blocking its own key until a person mends it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from forge_collab.core import audit, keys
from forge_collab.core.change import ABSENT, Found, Snapshot, View
from forge_collab.core.errors import CorruptError
from forge_collab.core.records import (
    LARGEST,
    AuditEntry,
    Claimant,
    Lease,
    Message,
    Meta,
    Record,
    TaskRecord,
    decode,
    decode_lines,
    encode,
)
from forge_collab.core.tasks import TaskStatus

SOURCE_SECONDS = 7 * 86400.0
"""A clone that hasn't seen the branch for so long doesn't heal it."""

_WRITTEN_BY_RULES = (keys.META, keys.LEASES, keys.TASKS)
_OF_OTHERS = (keys.PARTICIPANTS, keys.MESSAGES)
_CLOSED = {TaskStatus.DONE: 2, TaskStatus.CANCELLED: 1}
_Rank: TypeAlias = tuple[Any, ...]


def lost(before: Snapshot, after: Snapshot, instance: str, *, is_descendant: bool) -> list[str]:
    """The keys that are gone in `after`, or older there than `instance` saw them; sorted.

    Where `after` descends from `before`, all that happened between is accounted for, and only
    what no rule does is a loss: a lower `rev`, or the end of a record that is never dropped.
    Of what others say of themselves nothing is: a participant that compaction has dropped begins
    again with a low `rev`. Nothing is lost where `after` is another session's: a mismatch.
    """
    if _is_other_session(before, after):
        return []
    ours = {keys.PARTICIPANTS + instance, keys.MESSAGES + instance}
    judged = (key for key in before.keys("") if key in ours or not key.startswith(_OF_OTHERS))
    return sorted(key for key in judged if _is_lost(key, before, after, is_descendant))


def heal(view: View, held: Snapshot, who: Claimant, *, ts: str, nonce: str) -> tuple[str, ...]:
    """Bring back what `held` has and the branch lost; the keys that were written."""
    healed = []
    for key in sorted(held.keys("")):
        mine, there = held.get(key), view.get(key)
        if mine is ABSENT:
            continue
        joined = mine.value if there is ABSENT else join(key, mine.value, there)
        if joined != there:
            view.put(key, joined)
            healed.append(key)
    if healed:
        text = f"the branch had been set back; {len(healed)} records were brought back"
        audit.append(view, who, "healed", ts=ts, nonce=nonce, text=text)
    return tuple(healed)


def join(key: str, one: bytes, other: bytes) -> bytes:
    """The one record to keep of two that stood under `key` in different histories."""
    if one == other:
        return one
    if key.startswith(keys.AUDIT):
        return _joined_lines(one, other)
    if key.startswith(keys.LEASES):
        return _joined_leases(key, one, other)
    return max(one, other, key=lambda value: _rank(key, value))


def _joined_leases(key: str, one: bytes, other: bytes) -> bytes:
    """The one to keep, with the higher `floor` of both: no fence is granted twice."""
    kept = _conflict(one, other) or max(one, other, key=lambda value: _rank(key, value))
    try:
        floor = max(decode(Lease, value, "").floor for value in (one, other))
        lease = decode(Lease, kept, "")
    except CorruptError:
        return kept
    return kept if lease.floor >= floor else encode(lease.but(floor=floor))


def _conflict(one: bytes, other: bytes) -> bytes | None:
    """The free lease at the next fence, where one fence was granted to two claims."""
    try:
        a, b = decode(Lease, one, ""), decode(Lease, other, "")
    except CorruptError:
        return None
    is_one_claim = a.fence != b.fence or a.nonce == b.nonce or not (a.nonce and b.nonce)
    if is_one_claim or a.fence >= LARGEST:
        return None
    return encode(Lease(fence=a.fence + 1, nonce=""))


def _rank(key: str, value: bytes) -> _Rank:
    """What decides between two records under one key; a total order."""
    try:
        return (0, *_order(key, value), _without_floor(key, value))
    except CorruptError:
        return (0, -1, value) if key.startswith(keys.SHARED) else (1, value)


def _without_floor(key: str, value: bytes) -> bytes:
    """What tells two leases apart; the floor is joined by itself."""
    return encode(decode(Lease, value, "").but(floor=0)) if key.startswith(keys.LEASES) else value


def _order(key: str, value: bytes) -> _Rank:
    if key.startswith(keys.LEASES):
        lease = decode(Lease, value, key)
        return lease.fence, bool(lease.nonce), lease.rev
    if key.startswith(keys.TASKS):
        task = decode(TaskRecord, value, key)
        return task.round, _CLOSED.get(task.status, 0), task.fence, task.rev
    if key.startswith(keys.MESSAGES):
        ring = decode_lines(Message, value, key)
        return (ring[-1].seq if ring else 0,)
    if key == keys.META:
        meta = decode(Meta, value, key)
        return meta.ended is not None, meta.rev
    return (decode(Record, value, key).rev,)


def _joined_lines(one: bytes, other: bytes) -> bytes:
    lines = {line for line in (*one.split(b"\n"), *other.split(b"\n")) if line}
    return b"".join(line + b"\n" for line in sorted(lines, key=lambda line: (_seq(line), line)))


def _seq(line: bytes) -> int:
    try:
        return decode(AuditEntry, line, "").seq
    except CorruptError:
        return 0


def _is_other_session(before: Snapshot, after: Snapshot) -> bool:
    old, new = _repo(before), _repo(after)
    return old is not None and new is not None and old != new


def _repo(snapshot: Snapshot) -> str | None:
    found = snapshot.get(keys.META)
    try:
        return None if found is ABSENT else decode(Meta, found.value, keys.META).repo
    except CorruptError:
        return None


def _is_lost(key: str, before: Snapshot, after: Snapshot, is_descendant: bool) -> bool:
    old, new = before.get(key), after.get(key)
    if old is ABSENT or (new is not ABSENT and new.value == old.value):
        return False
    if is_descendant:
        return key.startswith(_WRITTEN_BY_RULES) and _has_fallen(key, old.value, new)
    if new is ABSENT:
        return keys.is_kept(key)
    return _says_its_age(key, old.value, new.value) and join(key, old.value, new.value) != new.value


def _has_fallen(key: str, old: bytes, new: Found) -> bool:
    """Whether a record that only rules write is younger than it was, or gone."""
    try:
        was = _age(key, old)
        return new is ABSENT or _age(key, new.value) < was
    except CorruptError:
        return False


def _age(key: str, value: bytes) -> _Rank:
    """What only rises, also where a task of another uid takes over the record."""
    if key.startswith(keys.TASKS):
        return (decode(TaskRecord, value, key).rev,)
    return _order(key, value)


def _says_its_age(key: str, *values: bytes) -> bool:
    if key.startswith(keys.AUDIT):
        return True
    try:
        return all(_order(key, value) for value in values)
    except CorruptError:
        return False
