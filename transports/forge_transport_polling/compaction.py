"""Compaction: the records in a commit without parents, and what it says of those before it.

Any daemon may do it, by an ordinary compare-and-swap, once the branch has many commits: its
limit is that number and a chance of its own more, so that they don't all try at once. Nothing
has to be agreed. Records are as they were, and the new commit names the newest of those whose
place it takes: a push that wasn't answered, and had landed before, is found among them. One that
isn't there, while the commit it was built on is, has not landed and never will.

Left out are presence and messages of instances that hold nothing and that *this* daemon itself
has watched unchanged for seven days, on its own clock. A wrong guess costs nobody anything: who
is still there writes its presence again with its next beat, and nothing is judged by it but the
leases it holds. The audit stays as it is, line by line and file by file.
"""

from __future__ import annotations

from collections.abc import Iterable

from forge_collab.core import keys
from forge_collab.core.change import ABSENT, Absent, Snapshot, View
from forge_collab.core.errors import CorruptError
from forge_collab.core.records import Lease

COMMITS = 1000
"""How many commits a branch has at least before somebody compacts it; at most twice as many."""
LOOK_EVERY = 200
"""After how many commits a daemon looks whether that is so, and packs its own repository."""
REMEMBERED = 256
"""How many commits a compaction names; far more than come while a push is under way."""
SILENT_SECONDS = 7 * 86400.0
REFUSED_SECONDS = 86400.0
"""How long a server's refusal of a push that isn't a fast-forward is remembered."""

_DROPPED = (keys.PARTICIPANTS, keys.MESSAGES)
_SWALLOWED = "Forge-Compacts: "


def trailers(commits: Iterable[str]) -> str:
    """The lines that name the commits whose place a compaction takes, newest first."""
    return "".join(f"{_SWALLOWED}{oid}\n" for oid in commits)


def compacted(message: str) -> set[str]:
    """The commits that a compaction's message names."""
    lines = message.splitlines()
    return {line.removeprefix(_SWALLOWED) for line in lines if line.startswith(_SWALLOWED)}


class Silence:
    """Since when this daemon has seen each instance's presence and messages unchanged."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[dict[str, str], float]] = {}

    def see(self, snapshot: Snapshot, now: float) -> None:
        """Note how `snapshot` was at `now`."""
        before, self._since = self._since, {}
        for instance, versions in _written(snapshot).items():
            known = before.get(instance)
            is_same = known is not None and known[0] == versions
            self._since[instance] = known if known and is_same else (versions, now)

    def to_drop(self, snapshot: Snapshot, now: float) -> dict[str, bytes | Absent]:
        """The writes that take away what was silent for long and holds nothing."""
        holders = _holders(View(snapshot))
        silent = [
            versions
            for instance, (versions, since) in self._since.items()
            if now - since >= SILENT_SECONDS and instance not in holders
        ]
        return {key: ABSENT for versions in silent for key in versions}


def _written(snapshot: Snapshot) -> dict[str, dict[str, str]]:
    """The versions of what each instance wrote, by key."""
    found: dict[str, dict[str, str]] = {}
    for prefix in _DROPPED:
        for key in snapshot.keys(prefix):
            if (record := snapshot.get(key)) is not ABSENT:
                found.setdefault(key.removeprefix(prefix), {})[key] = record.version
    return found


def _holders(view: View) -> set[str]:
    found = set()
    for key in view.keys(keys.LEASES):
        try:
            lease = view.document(Lease, key)
        except CorruptError:
            continue
        if lease is not None and lease.claimant is not None:
            found.add(lease.claimant.instance)
    return found
