"""``forge collaborate recover``: what a crash left here, and its remedy."""

from __future__ import annotations

import secrets
from dataclasses import replace

import click

from forge_collab import faults
from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here
from forge_collab.clock import SystemClock
from forge_collab.core import keys, lease, session
from forge_collab.core.change import Change, Urgency, View, readable
from forge_collab.core.errors import BlockedError, ForgeError
from forge_collab.core.lifecycle import EXPLANATION, Class
from forge_collab.core.records import Claimant, Lease, Meta
from forge_collab.daemon.alone import OwnRecords
from forge_collab.files.markers import Identity
from forge_collab.transport import Transport

_SECONDS = 30.0
_LOOK_SECONDS = 5.0


@click.command()
@click.option("--apply", "is_applied", is_flag=True, help="Do it; without, only say it.")
@options.as_json
@click.pass_context
def recover(context: click.Context, is_applied: bool, as_json: bool) -> None:
    """Say which class a crash left this clone in and what would heal it; --apply heals it.

    Example: forge collaborate recover --apply
    """
    clone = here(options.folder(context))
    found = clone.clone_class(_remote_repo(clone))
    actions = _actions(clone, found)
    if is_applied:
        _apply(clone, found)
    data = {"class": found.value, "actions": actions, "applied": is_applied and bool(actions)}
    text = [f"class {found.value}: {EXPLANATION[found]}"]
    text += [f"  {'did' if is_applied else 'would do'}: {_sentence(a)}" for a in actions]
    if actions and not is_applied:
        text.append("forge collaborate recover --apply does it")
    output.done("collaborate recover", data, text, as_json=as_json)


def _remote_repo(clone: Here) -> str | None:
    """The session's id on the remote, or None where it can't be read now."""
    from forge_collab.cli import look

    async def read(transport: Transport) -> str | None:
        meta = View(transport.snapshot).document(Meta, keys.META)
        return meta.repo if meta else None

    if clone.clone_class() is not Class.HEALTHY:
        return None
    try:
        return look.connected(clone, read, seconds=_LOOK_SECONDS)
    except ForgeError:
        return None


def _actions(clone: Here, found: Class) -> list[dict[str, str]]:
    """What heals the class: each what, and the path or key it concerns."""
    participant, enabled = str(clone.markers.participant), clone.markers.enabled
    if found is Class.STALE_PARTICIPANT:
        identity = clone.identity()
        releases = _held_by(clone, identity) if identity else []
        return [
            *({"what": "release", "key": key} for key in releases),
            {"what": "remove", "path": participant},
            *([{"what": "remove", "path": str(enabled)}] if enabled.exists() else []),
        ]
    if found is Class.STALE_ENABLED:
        return [{"what": "rebuild", "path": participant}]
    if found is Class.SESSION_MISMATCH:
        return [{"what": "move over", "path": participant}]
    return []


def _sentence(action: dict[str, str]) -> str:
    return f"{action['what']} {action.get('path') or action.get('key')}"


def _held_by(clone: Here, identity: Identity) -> list[str]:
    """The leases of this clone's instance on the branch; empty where it can't be read now."""
    from forge_collab.cli import look

    async def read(transport: Transport) -> list[str]:
        records, _ = readable(Lease, transport.snapshot, keys.LEASES)
        return [
            keys.lease_name(key)
            for key, record in records.items()
            if record.claimant and record.claimant.instance == identity.instance
        ]

    try:
        return look.connected(clone, read, seconds=_LOOK_SECONDS)
    except ForgeError as error:
        output.notice(f"{error.message}; leases of this clone lapse by themselves")
        return []


def _apply(clone: Here, found: Class) -> None:
    if found is Class.STALE_PARTICIPANT:
        _reset(clone)
    elif found is Class.STALE_ENABLED:
        _rebuild(clone)
    elif found is Class.SESSION_MISMATCH:
        _move_over(clone)


def _move_over(clone: Here) -> None:
    """Leave the session that is gone and join the one that is there, as a new instance."""
    from forge_collab.cli.start import enter, leave_behind

    known = clone.identity()
    assert known is not None, "else it would be another class"
    leave_behind(clone, known)
    enter(clone, create=False, handle=known.handle, migrated_from=known.repo)


def _reset(clone: Here) -> None:
    """Give back what a half-done start or leave still holds, then forget it."""
    _end_daemon(clone)
    identity = clone.identity()
    faults.at("recover.before")
    if identity is not None:
        _depart(clone, identity)
    faults.at("recover.after_depart")
    clone.markers.disable(identity)
    clone.markers.forget(identity, keep_bak=True)


def _end_daemon(clone: Here) -> None:
    """A live daemon is asked first: it may be in the middle of a start or a leave."""
    running = client.running(clone)
    if running is None:
        return
    with running[0] as daemon:
        if daemon.call("about")["class"] == Class.HEALTHY.value:
            raise BlockedError(
                "this clone's daemon says that all is well", hint="forge collaborate status"
            )
    client.stop(clone)


def _depart(clone: Here, identity: Identity) -> None:
    """Say on the branch that this instance is gone; out of reach, its leases lapse alone."""
    from forge_collab.cli import look

    clock, nonce = SystemClock(), secrets.token_hex(8)
    claimant = Claimant(handle=identity.handle, instance=identity.instance, worker="recover")

    async def give_back(transport: Transport) -> None:
        await OwnRecords(clone.repository.common_dir).take_home(transport.snapshot)
        me = lease.Me(claimant, lease.Watch(), clock.now(), clock.wall())

        def rule(view: View) -> tuple[str, ...]:
            return session.depart(view, identity.instance, me, nonce=nonce)

        await transport.commit(Change(rule, f"recover {identity.handle}", Urgency.AHEAD))

    try:
        look.connected(clone, give_back, seconds=_SECONDS, instance=identity.instance)
    except ForgeError as error:
        output.notice(f"{error.message}; leases of this clone lapse by themselves")


def _rebuild(clone: Here) -> None:
    """Write participant.json anew; refused without a remote to derive the session from.

    :raises EnvironmentError_: when there is no remote.
    """
    config, _ = clone.config()
    remote = clone.repository.remote(config.remote)
    session_id = config.session or remote.derived_id
    identity = clone.new_identity(clone.handle(config.handle), session_id)
    clone.markers.write(replace(identity, extra={"recovered": True}))
