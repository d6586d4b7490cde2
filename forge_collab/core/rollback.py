"""What a state branch lost when somebody set it back: `rev` only rises, leases and tasks stay."""

from __future__ import annotations

from forge_collab.core import keys
from forge_collab.core.change import ABSENT, Snapshot
from forge_collab.core.errors import CorruptError
from forge_collab.core.records import Record, decode

NEVER_DROPPED = (keys.LEASES, keys.TASKS)


def lost(before: Snapshot, after: Snapshot) -> list[str]:
    """The keys that are gone in `after`, or older there than in `before`; sorted."""
    seen = (key for prefix in NEVER_DROPPED for key in before.keys(prefix))
    return sorted(key for key in seen if _is_lost(key, before, after))


def _is_lost(key: str, before: Snapshot, after: Snapshot) -> bool:
    old, new = before.get(key), after.get(key)
    if old is ABSENT or new is ABSENT:
        return new is ABSENT
    try:
        return decode(Record, new.value, key).rev < decode(Record, old.value, key).rev
    except CorruptError:
        return False
