"""The lease rule: who may work on a key, written once, over a view of the records.

What it promises: a fence names one claimant for ever, rises with every new claimant and never
falls; whoever acts under a fence that isn't the current one is told so and changes nothing.

What it trusts: only that this machine's own clock runs evenly, also in sleep. No clock of
another machine is compared with it. A lease is expired when *this* observer has seen the same
version of it for the whole duration written in it. A version is (fence, nonce, the holder's
renewal counter), so a renewal is a new version and a take-over prepared on an older one fails.

What it does not promise: that a holder past its own deadline has stopped. That is why every
write of a holder is judged by the fence in the same change that carries it, and why a late
renewal is harmless: it too takes effect only while nobody has taken the lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from forge_collab.core import audit, keys
from forge_collab.core.change import View
from forge_collab.core.errors import (
    BlockedError,
    CorruptError,
    HeldError,
    LeaseLostError,
    UsageError,
)
from forge_collab.core.records import Claimant, Lease, Participant, shown_lease

MIN_TTL_SECONDS = 1.0
MAX_TTL_SECONDS = 3600.0
UNKNOWN_COUNTER = -1


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations of a lease, in seconds: `beat` is how often its holder renews it.

    :raises UsageError: when three beats don't fit into the duration, or it is over an hour.
    """

    ttl: float = 120.0
    beat: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.beat * 3 <= self.ttl <= MAX_TTL_SECONDS:
            raise UsageError(
                f"a lease of {self.ttl:g} s with a beat of {self.beat:g} s: three beats must fit, "
                f"and {MAX_TTL_SECONDS:g} s is the most",
                hint="git config forge.claim-ttl-seconds, git config forge.heartbeat-seconds",
            )

    def deadline(self, sent_at: float) -> float:
        """Until when a holder whose push began at `sent_at` may start new work."""
        return sent_at + self.ttl - self.beat


def clamped(ttl_seconds: float) -> float:
    """A duration that somebody else wrote, within what is sane: 1 s to 1 h."""
    return max(MIN_TTL_SECONDS, min(MAX_TTL_SECONDS, ttl_seconds))


class Version(NamedTuple):
    """What changes whenever a lease changes hands or is renewed."""

    fence: int
    nonce: str
    counter: int


def version_in(view: View, key: str, lease: Lease) -> Version:
    """The version of `lease` in `view`: reads the holder's participant record too."""
    counter = 0
    if lease.claimant is not None:
        try:
            holder = view.document(Participant, keys.PARTICIPANTS + lease.claimant.instance)
        except CorruptError:
            return Version(lease.fence, lease.nonce, UNKNOWN_COUNTER)
        counter = holder.renewals.get(key, 0) if holder else 0
    return Version(lease.fence, lease.nonce, counter)


class Watch:
    """Since when this observer has seen each lease unchanged, on its own clock.

    Never stored: a newcomer, and a daemon that starts again, watches a whole duration.
    """

    def __init__(self) -> None:
        self._since: dict[str, tuple[Version, float]] = {}

    def see(self, key: str, version: Version, now: float) -> None:
        """Note that `key` had `version` at `now`."""
        known = self._since.get(key)
        if known is None or known[0] != version:
            self._since[key] = (version, now)

    def forget_all_but(self, present: Iterable[str]) -> None:
        """Drop what is known of keys that are no longer held."""
        keep = set(present)
        self._since = {key: seen for key, seen in self._since.items() if key in keep}

    def silent_seconds(self, key: str, version: Version, now: float) -> float:
        """How long `version` has been seen unchanged; 0 when it is new to this observer."""
        known = self._since.get(key)
        return max(0.0, now - known[1]) if known and known[0] == version else 0.0

    def is_expired(self, key: str, version: Version, ttl_seconds: float, now: float) -> bool:
        """Whether `version` was silent for the whole duration written in the lease."""
        return self.silent_seconds(key, version, now) >= clamped(ttl_seconds)


@dataclass(frozen=True, slots=True)
class Me:
    """The acting worker at one moment: who, what it may compare, what it knows.

    `own_deadline` is the deadline of the lease it already has, or None where it has none.
    """

    claimant: Claimant
    watch: Watch
    now: float
    ts: str
    own_deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a claim that was granted."""

    key: str
    lease: Lease
    already: bool = False
    took_over: Claimant | None = None


def acquire(
    view: View, key: str, me: Me, *, nonce: str, ttl: float, definition: str | None = None
) -> Grant:
    """Take a free or expired lease, or find that it is mine already.

    :raises HeldError: when somebody else, or another worker of this clone, holds it.
    """
    lease = view.document(Lease, key)
    if lease is not None and lease.claimant is not None:
        if lease.nonce == nonce:
            return Grant(key, lease)
        if lease.claimant == me.claimant:
            if _is_within_deadline(me):
                return Grant(key, lease, already=True)
        elif not _is_expired(view, key, lease, me):
            raise held(view, key, lease, me)
    return _grant(view, key, lease, me, "claimed", nonce=nonce, ttl=ttl, definition=definition)


def take_over(
    view: View,
    key: str,
    me: Me,
    *,
    nonce: str,
    ttl: float,
    reason: str,
    definition: str | None = None,
) -> Grant:
    """Take a lease from a live holder; audited with the reason."""
    lease = view.document(Lease, key)
    if lease is not None and lease.claimant is not None:
        if lease.nonce == nonce:
            return Grant(key, lease, took_over=lease.last)
        if lease.claimant == me.claimant and _is_within_deadline(me):
            return Grant(key, lease, already=True)
    return _grant(
        view,
        key,
        lease,
        me,
        "taken_over",
        nonce=nonce,
        ttl=ttl,
        definition=definition,
        text=reason,
    )


def _grant(
    view: View,
    key: str,
    before: Lease | None,
    me: Me,
    event: str,
    *,
    nonce: str,
    ttl: float,
    definition: str | None,
    text: str | None = None,
) -> Grant:
    holder = before.claimant if before else None
    fence = _next_fence(before)
    fields = {
        "fence": fence,
        "nonce": nonce,
        "claimant": me.claimant,
        "last": holder or (before.last if before else None),
        "ttl_seconds": ttl,
        "definition": definition,
    }
    lease = before.but(**fields) if before else Lease.model_validate(fields)
    view.save(key, lease)
    audit.append(view, me.claimant, event, ts=me.ts, key=key, fence=fence, nonce=nonce, text=text)
    return Grant(key, lease, took_over=holder)


def _next_fence(before: Lease | None) -> int:
    return max(before.fence, before.floor) + 1 if before else 1


def _is_within_deadline(me: Me) -> bool:
    return me.own_deadline is not None and me.now < me.own_deadline


def _is_expired(view: View, key: str, lease: Lease, me: Me) -> bool:
    version = version_in(view, key, lease)
    return me.watch.is_expired(key, version, lease.ttl_seconds, me.now)


def described(view: View, key: str, lease: Lease, me: Me) -> dict[str, Any]:
    """A lease in JSON with its last sign of life and the earliest take-over, in seconds."""
    silent = me.watch.silent_seconds(key, version_in(view, key, lease), me.now)
    left = max(0.0, clamped(lease.ttl_seconds) - silent)
    return shown_lease(
        keys.lease_name(key), lease, last_seen_seconds=silent, takeover_in_seconds=left
    )


def held(view: View, key: str, lease: Lease, me: Me) -> HeldError:
    """Why `key` can't be had now: by whom, fence, last sign of life, earliest take-over."""
    assert lease.claimant is not None
    holder = described(view, key, lease, me)
    task = keys.claimed_task(key) or keys.lease_name(key)
    who, hint = _named(lease.claimant, me, task)
    reason = "lost_race" if view.lost else "held"
    return HeldError(
        f"{task} is held by {who} under fence {lease.fence}; last sign of life "
        f"{holder['last_seen_seconds']:g} s ago, claimable in {holder['takeover_in_seconds']:g} s "
        "unless it is renewed",
        hint=hint,
        data={"task": task, "acquired": False, "reason": reason, "holder": holder},
    )


def _named(holder: Claimant, me: Me, task: str) -> tuple[str, str]:
    """The holder as `me` knows it, and what `me` may type next."""
    if holder.instance == me.claimant.instance:
        worker = holder.worker
        return f"your other worker '{worker}'", f"--as {worker} acts as that worker"
    wait = f"forge collaborate claim {task} --wait, or claim --next for another task"
    if holder.handle == me.claimant.handle:
        return f"your other clone ({holder.instance})", f'{wait}; or takeover {task} --reason "…"'
    return holder.handle, wait


def check_holder(view: View, key: str, me: Me, *, fence: int | None = None) -> Lease:
    """The lease under `key`, when `me` holds it, under `fence` where one is given.

    :raises LeaseLostError: when `me` held it and lost it, or `fence` isn't the current number.
    :raises HeldError: when somebody else holds it and `me` never did.
    :raises BlockedError: when nobody holds it.
    """
    lease = view.document(Lease, key)
    task = keys.claimed_task(key) or keys.lease_name(key)
    if lease is None:
        raise BlockedError(
            f"nobody holds {task}",
            hint=f"forge collaborate claim {task}",
            data={"task": task, "holder": None, "status": "free", "waits_for": []},
        )
    if lease.claimant == me.claimant and fence in (None, lease.fence):
        return lease
    mine = fence if fence is not None else audit.last_fence(view, me.claimant, key)
    if mine is not None and mine != lease.fence:
        raise _lost(view, key, lease, me, mine)
    if lease.claimant is None:
        raise BlockedError(
            f"nobody holds {task} (its last fence is {lease.fence})",
            hint=f"forge collaborate claim {task}",
            data={"task": task, "holder": None, "status": "free", "waits_for": []},
        )
    raise held(view, key, lease, me)


def _lost(view: View, key: str, lease: Lease, me: Me, mine: int) -> LeaseLostError:
    task = keys.claimed_task(key) or keys.lease_name(key)
    if lease.claimant is None:
        now = f"it is free now, its fence is {lease.fence}"
    elif lease.claimant == me.claimant:
        now = f"you hold it under fence {lease.fence} now"
    else:
        now = f"{_named(lease.claimant, me, task)[0]} holds it under fence {lease.fence}"
    return LeaseLostError(
        f"the lease of {task} under fence {mine} is lost: {now}; your branch and files are kept",
        hint="forge collaborate status shows who holds what",
        data={"task": task, "fence": mine, "holder": described(view, key, lease, me)},
    )


def release(
    view: View, key: str, me: Me, *, nonce: str, fence: int | None = None, event: str = "released"
) -> Lease:
    """Give the lease back, keeping its fence; giving it back twice is nothing.

    :raises LeaseLostError, HeldError, BlockedError: as `check_holder` does.
    """
    before = view.document(Lease, key)
    is_mine_no_more = before and before.claimant is None and before.last == me.claimant
    if before and is_mine_no_more and fence in (None, before.fence):
        return before
    if before and audit.has(view, me.claimant, nonce):
        return before
    lease = check_holder(view, key, me, fence=fence)
    return end(view, key, lease, me, event=event, nonce=nonce)


def end(
    view: View, key: str, lease: Lease, me: Me, *, event: str, nonce: str, text: str | None = None
) -> Lease:
    """Empty a lease, whoever has it; its fence stays."""
    freed = lease.but(claimant=None, last=lease.claimant)
    view.save(key, freed)
    audit.append(
        view, me.claimant, event, ts=me.ts, key=key, fence=lease.fence, nonce=nonce, text=text
    )
    return freed


def fence_out(
    view: View, key: str, me: Me, *, event: str, nonce: str, text: str | None = None
) -> int:
    """Empty a lease and raise its fence, so that whoever had it has lost it; the new fence."""
    before = view.document(Lease, key)
    fence = _next_fence(before)
    holder = before.claimant if before else None
    fields = {"fence": fence, "nonce": nonce, "claimant": None}
    if before is None:
        view.save(key, Lease.model_validate(fields))
    else:
        view.save(key, before.but(**fields, last=holder or before.last))
    audit.append(view, me.claimant, event, ts=me.ts, key=key, fence=fence, nonce=nonce, text=text)
    return fence


def is_anothers(view: View, key: str, lease: Lease, me: Me) -> bool:
    """Whether somebody else has it, and may still be at work."""
    is_mine = lease.claimant in (None, me.claimant)
    return not is_mine and not _is_expired(view, key, lease, me)


def note(view: View, key: str, me: Me, *, nonce: str, text: str, fence: int | None = None) -> Lease:
    """Say something about held work; it goes into the audit.

    :raises LeaseLostError, HeldError, BlockedError: as `check_holder` does.
    """
    lease = check_holder(view, key, me, fence=fence)
    if audit.has(view, me.claimant, nonce):
        return lease
    audit.append(
        view,
        me.claimant,
        "note",
        ts=me.ts,
        key=key,
        fence=lease.fence,
        nonce=nonce,
        text=text,
    )
    return lease


def release_all(view: View, instance: str, me: Me, *, nonce: str) -> tuple[str, ...]:
    """Give back every lease of `instance`; a record that can't be read is left alone."""
    freed = []
    for key in view.keys(keys.LEASES):
        try:
            lease = view.document(Lease, key)
        except CorruptError:
            continue
        if lease and lease.claimant and lease.claimant.instance == instance:
            end(view, key, lease, me, event="released", nonce=nonce)
            freed.append(key)
    return tuple(freed)


def settle(view: View, key: str | None, me: Me, *, nonce: str) -> bool:
    """Undo a claim whose asker was told that nobody knows; say whether it had taken effect.

    `key` is None where the claim was of whatever was next. It always writes. So once it has
    taken effect, a push of that claim that is still on its way expects a tip that has passed,
    and can't land any more.
    """
    for candidate in view.keys(keys.LEASES) if key is None else [key]:
        try:
            lease = view.document(Lease, candidate)
        except CorruptError:
            continue
        if lease is not None and lease.claimant is not None and lease.nonce == nonce:
            end(view, candidate, lease, me, event="settled", nonce=nonce)
            return True
    audit.append(view, me.claimant, "settled", ts=me.ts, key=key, nonce=nonce)
    return False


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that a daemon knows it granted: what its renewal must still find."""

    fence: int
    nonce: str


def renewals(
    view: View, instance: str, held_leases: Mapping[str, Held], before: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, Lease | None]]:
    """The counters `before` with that of every lease still held raised by one.

    A counter never falls while `instance` is a lease's claimant, or an observer that looked
    before and after would miss a renewal. The second value names the leases that aren't ours
    any more, each with what is there now; one that can't be read is left as it is.
    """
    lost: dict[str, Lease | None] = {}
    counters: dict[str, int] = {}
    for key in {*before, *held_leases}:
        count, mine = before.get(key, 0), held_leases.get(key)
        try:
            lease = view.document(Lease, key)
        except CorruptError:
            counters[key] = count
            continue
        is_ours = lease and lease.claimant and lease.claimant.instance == instance
        if lease and is_ours and mine and (lease.fence, lease.nonce) == (mine.fence, mine.nonce):
            counters[key] = count + 1
        else:
            counters |= {key: count} if is_ours and key in before else {}
            lost |= {key: lease} if mine else {}
    return counters, lost
