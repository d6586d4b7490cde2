"""What a state branch lost when somebody set it back: `rev` only rises, leases and tasks stay."""

from __future__ import annotations

from forge_collab.core import keys
from forge_collab.core.change import ABSENT, Snapshot, readable
from forge_collab.core.errors import CorruptError
from forge_collab.core.records import Meta, Record, decode

NEVER_DROPPED = (keys.LEASES, keys.TASKS)


def lost(before: Snapshot, after: Snapshot) -> list[str]:
    """The keys that are gone in `after`, or not what came of them in `before`; sorted.

    Nothing, where `after` is another session's: that is a mismatch, not a loss.
    """
    if _session(before) != _session(after):
        return []
    seen = (key for prefix in NEVER_DROPPED for key in before.keys(prefix))
    return sorted(key for key in seen if _is_lost(key, before, after))


def _session(snapshot: Snapshot) -> str | None:
    meta, _ = readable(Meta, snapshot, keys.META)
    return meta[keys.META].repo if keys.META in meta else None


def _is_lost(key: str, before: Snapshot, after: Snapshot) -> bool:
    old, new = before.get(key), after.get(key)
    if old is ABSENT or new is ABSENT:
        return new is ABSENT
    try:
        was, now = decode(Record, old.value, key).rev, decode(Record, new.value, key).rev
    except CorruptError:
        return False
    return now < was or (now == was and new.value != old.value)
