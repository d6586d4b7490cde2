"""The class a clone is in, decided by its two markers, and the remedy for each class.

Start writes ``participant.json`` first and ``enabled`` last; leave removes ``enabled`` first and
``participant.json`` last. So whatever a crash left is one of five classes. An origin that can't
be reached turns nothing into something else.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Class(StrEnum):
    """What a clone is to a session."""

    INACTIVE = "inactive"
    HEALTHY = "healthy"
    STALE_PARTICIPANT = "stale_participant"
    STALE_ENABLED = "stale_enabled"
    SESSION_MISMATCH = "session_mismatch"


EXPLANATION: Final = MappingProxyType(
    {
        Class.INACTIVE: "this clone is in no session",
        Class.HEALTHY: "this clone is in the session",
        Class.STALE_PARTICIPANT: "a start or a leave was cut short: participant.json without "
        "enabled, or one that can't be read",
        Class.STALE_ENABLED: "participant.json is gone, enabled is not: somebody removed it",
        Class.SESSION_MISMATCH: "this clone joined another session than the remote has now",
    }
)


def classify(
    *,
    has_participant: bool,
    is_readable: bool,
    is_enabled: bool,
    own_repo: str | None,
    remote_repo: str | None,
) -> Class:
    """The class of a clone with these markers.

    `own_repo` and `remote_repo` are the session's id as recorded here and on the remote, None
    where not known; only two known, different ids are a mismatch.
    """
    if has_participant and (not is_readable or not is_enabled):
        return Class.STALE_PARTICIPANT
    if is_enabled and not has_participant:
        return Class.STALE_ENABLED
    if not has_participant:
        return Class.INACTIVE
    if own_repo and remote_repo and own_repo != remote_repo:
        return Class.SESSION_MISMATCH
    return Class.HEALTHY
