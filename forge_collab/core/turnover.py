"""How a session ends for everybody, and how another begins in its place."""

from __future__ import annotations

from collections.abc import Mapping

from forge_collab.core import audit, keys, lease
from forge_collab.core.change import View
from forge_collab.core.errors import BlockedError, CorruptError
from forge_collab.core.landing import task_of
from forge_collab.core.records import Lease, Meta, Participant, TaskRecord, encode
from forge_collab.core.tasks import TaskStatus


def begin_anew(view: View, meta: Meta, me: lease.Me, *, nonce: str, is_forced: bool) -> None:
    """Make this a session of the id in `meta`, in which nobody is present and nothing is held.

    Fences, closed tasks and the audit stay as far as they can be read: what was numbered once
    isn't numbered so again. What can't be read goes.

    :raises BlockedError: when others are present, unless `is_forced`.
    """
    if audit.has(view, me.claimant, nonce):
        return
    check_alone(view, me.claimant.instance, is_forced=is_forced)
    for key in (*view.keys(keys.PARTICIPANTS), *view.keys(keys.MESSAGES)):
        view.drop(key)
    for instance in _claimants(view):
        lease.release_all(view, instance, me, nonce=nonce)
    for kind, prefix in ((Lease, keys.LEASES), (TaskRecord, keys.TASKS)):
        for key in view.keys(prefix):
            try:
                view.document(kind, key)
            except CorruptError:
                view.drop(key)
    view.put(keys.META, encode(meta.but(rev=1)))
    audit.append(view, me.claimant, "begun_anew", ts=me.ts, nonce=nonce, text=meta.repo)


def end(view: View, me: lease.Me, *, nonce: str, is_forced: bool) -> Meta:
    """Mark the session as ended, so that every daemon that sees it leaves; nothing is held then.

    The mark comes before the removal of the branch: a daemon that only finds the branch gone
    takes that for an accident, and brings it back.

    :raises BlockedError: when there is no session, or others are present, unless `is_forced`.
    """
    meta = view.document(Meta, keys.META)
    if meta is None:
        raise BlockedError(
            "there is no session on this remote", data={"status": "none", "waits_for": []}
        )
    if meta.ended is not None:
        return meta
    check_alone(view, me.claimant.instance, is_forced=is_forced)
    for instance in _claimants(view):
        lease.release_all(view, instance, me, nonce=nonce)
    ended = meta.but(ended=f"{me.ts} by {me.claimant.handle}")
    view.save(keys.META, ended)
    audit.append(view, me.claimant, "ended", ts=me.ts, nonce=nonce)
    return ended


def landed_branches(view: View, tips: Mapping[str, str]) -> list[str]:
    """Those of forge's task branches, given with their tips, whose very commits have landed."""
    landed = []
    for branch, tip in sorted(tips.items()):
        belongs_to = task_of(branch)
        if belongs_to is None:
            continue
        try:
            record = view.document(TaskRecord, keys.TASKS + belongs_to[0])
        except CorruptError:
            continue
        is_done = record is not None and record.status is TaskStatus.DONE
        if record and is_done and (record.landed or {}).get("tip") == tip:
            landed.append(branch)
    return landed


def _claimants(view: View) -> list[str]:
    found = set()
    for key in view.keys(keys.LEASES):
        try:
            record = view.document(Lease, key)
        except CorruptError:
            continue
        if record is not None and record.claimant is not None:
            found.add(record.claimant.instance)
    return sorted(found)


def check_alone(view: View, instance: str, *, is_forced: bool) -> None:
    """Nothing, when nobody but `instance` is present, or `is_forced`.

    Presence that nobody took back says that somebody may be at work: whether a daemon lives can't
    be known from what is written.

    :raises BlockedError: otherwise, with their handles.
    """
    others = [key for key in view.keys(keys.PARTICIPANTS) if key != keys.PARTICIPANTS + instance]
    names = sorted({_handle(view, key) for key in others})
    if names and not is_forced:
        raise BlockedError(
            f"{', '.join(names)} may still be at work in this session",
            hint="--yes does it all the same",
            data={"status": "live", "participants": names, "waits_for": []},
        )


def _handle(view: View, key: str) -> str:
    try:
        presence = view.document(Participant, key)
    except CorruptError:
        presence = None
    return presence.handle if presence else key.removeprefix(keys.PARTICIPANTS)
