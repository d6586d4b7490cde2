"""``forge collaborate start`` and ``join``: bring this clone into the session."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from forge_collab import faults
from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here
from forge_collab.cli.task import checkout_names
from forge_collab.core import turnover
from forge_collab.core.change import View
from forge_collab.core.errors import BlockedError, ForgeError, UsageError
from forge_collab.core.lifecycle import EXPLANATION, Class
from forge_collab.files.markers import ALONE, Identity

if TYPE_CHECKING:
    from forge_collab.transport import Transport

_LOOK_SECONDS = 15.0
_handle = click.option("--handle", metavar="NAME", help="Your name in the session.")
_polling = click.option(
    "--polling", is_flag=True, help="Poll the remote, even where Ably is set up."
)


@click.command()
@_polling
@_handle
@click.option("--fresh", is_flag=True, help="Begin anew where the old session is lost or broken.")
@click.option("--yes", is_flag=True, help="With --fresh: also where others may be at work.")
@options.as_json
@click.pass_context
def start(
    context: click.Context,
    polling: bool,
    handle: str | None,
    fresh: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Begin the session, or continue it, on this machine.

    Example: forge collaborate start
    """
    _enter(context, "start", polling, handle, as_json, anew=Anew(is_forced=yes) if fresh else None)


@click.command()
@_polling
@_handle
@options.as_json
@click.pass_context
def join(context: click.Context, polling: bool, handle: str | None, as_json: bool) -> None:
    """Continue a session that exists; says so when there is none.

    Example: forge collaborate join
    """
    _enter(context, "join", polling, handle, as_json)


@dataclass(frozen=True)
class Anew:
    """That the session is to begin anew; `is_forced` where others may be at work, too."""

    is_forced: bool = False


def _enter(
    context: click.Context,
    name: str,
    polling: bool,
    handle: str | None,
    as_json: bool,
    *,
    anew: Anew | None = None,
) -> None:
    clone = here(options.folder(context))
    data = enter(clone, create=name == "start", polling=polling, handle=handle, anew=anew)
    _warn_of_unpushed(clone, data["target"])
    if not data["lands_whole"]:
        output.notice(
            "code and record can't move in one push here: a landing happens at most once and can "
            "be found, but a holder that lost its task isn't stopped from landing it"
        )
    text = [
        f"in session {data['session']} as {data['me']['handle']} "
        f"(instance {data['me']['instance']}), over {data['transport']}, "
        f"landing on {data['target']}",
        f"here: {', '.join(sorted({p['handle'] for p in data['participants']}))}",
        f"claimable: {', '.join(data['claimable']) or 'nothing now'}",
        "next: forge collaborate claim --next",
    ]
    output.done(f"collaborate {name}", data, text, as_json=as_json)


def _warn_of_unpushed(clone: Here, target: str) -> None:
    """The plan is what is on the target branch: say which task files aren't there yet."""
    with client.session(clone) as daemon:
        known = {task["id"] for task in daemon.call("tasks")["tasks"]}
    own = {name.rpartition(".")[0] for name in checkout_names(clone)} - known
    if own:
        names = ", ".join(sorted(own)[:5]) + (" …" if len(own) > 5 else "")
        output.notice(f"{names}: in this checkout, not on {target} yet; commit and push")


def enter(
    clone: Here,
    *,
    create: bool,
    polling: bool = False,
    handle: str | None = None,
    anew: Anew | None = None,
    migrated_from: str | None = None,
) -> dict[str, Any]:
    """Bring `clone` into its session and start its daemon; what the commands print.

    With `anew` the session itself begins again, and this clone in it as a new instance.

    :raises ForgeError: why it can't be; a clone that was in no session still isn't then, unless
        nobody knows whether what it held alone is in the session by now.
    """
    from forge_collab.files import ignore
    from forge_collab.git.repository import check_version

    check_version(clone.repository.common_dir, clone.repository.environ)
    config, warnings = clone.config(handle=handle)
    if config.transport == ALONE:
        raise UsageError(
            f"a session can't use the transport '{ALONE}': it is for working alone",
            hint="git config --unset forge.transport",
        )
    for warning in warnings:
        output.notice(warning)
    remote = clone.repository.remote(config.remote)
    before = _class_to_start_from(clone)
    known = clone.identity()
    if anew is not None and known is not None:
        handle = handle or known.handle
        leave_behind(clone, known, anew)
        migrated_from = known.repo
        known = None
    name = known.handle if known and handle is None else clone.handle(config.handle)
    identity = _identity(clone, known, name, config.session or remote.derived_id, polling)
    if migrated_from is not None:
        identity = replace(identity, migrated_from=migrated_from)
    faults.at("start.before_participant")
    clone.markers.write(identity)
    faults.at("start.after_participant")
    ignore.add_excludes(clone.repository.excludes())
    try:
        with client.start(clone) as daemon:
            wanted = {"create": create, "fresh": anew is not None}
            wanted["yes"] = anew is not None and anew.is_forced
            answer: dict[str, Any] = daemon.call("start", wanted)
    except ForgeError as error:
        is_half_done = error.data.pop("half_done", isinstance(error, client.NoAnswerError))
        if before is Class.INACTIVE and not is_half_done and not clone.markers.is_enabled():
            clone.markers.forget(identity)
        raise
    return answer


def leave_behind(clone: Here, known: Identity, anew: Anew | None = None) -> None:
    """Leave the session that `known` is in, whatever it has become; ``participant.json.bak`` stays.

    :raises BlockedError: when it is to begin anew, and others may be at work in it.
    """
    from forge_collab.cli import look
    from forge_collab.files.atomic import read_or_none, write_atomic

    async def check(transport: Transport) -> None:
        view = View(transport.snapshot)
        turnover.check_alone(view, known.instance, is_forced=anew is None or anew.is_forced)

    look.connected(clone, check, seconds=_LOOK_SECONDS)
    kept = clone.markers.participant
    write_atomic(kept.with_name(f"{kept.name}.bak"), read_or_none(kept) or b"", mode=0o600)
    if clone.markers.is_enabled():
        client.session(clone).close()
    running = client.running(clone)
    if running is not None:
        client.last_call("leave", *running)
    clone.markers.disable(known)
    clone.markers.forget(known)


def _class_to_start_from(clone: Here) -> Class:
    """The class before the start; a half-done start may be done again, others need `recover`."""
    found = clone.clone_class()
    unreadable = found is Class.STALE_PARTICIPANT and clone.identity() is None
    if found is Class.STALE_ENABLED or unreadable:
        raise BlockedError(
            f"{EXPLANATION[found]} (class {found.value})",
            hint="forge collaborate recover --apply",
            data={"class": found.value, "status": found.value, "waits_for": []},
        )
    return found


def _identity(
    clone: Here, known: Identity | None, handle: str, session: str, polling: bool
) -> Identity:
    root = () if clone.repository.root is None else (str(clone.repository.root),)
    if known is not None and handle != known.handle:
        raise UsageError(
            f"this clone is in the session as '{known.handle}', not '{handle}'",
            hint="forge collaborate leave, then start again",
        )
    if known is not None and clone.markers.is_here(known):
        roots = tuple(dict.fromkeys([*known.roots, *root]))
        transport = "polling" if polling else known.transport
        return replace(known, roots=roots, transport=transport)
    return clone.new_identity(handle, session, transport="polling" if polling else "auto")
