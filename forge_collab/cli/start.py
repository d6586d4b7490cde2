"""``forge collaborate start`` and ``join``: bring this clone into the session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from forge_collab import faults
from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here
from forge_collab.cli.task import checkout_names
from forge_collab.core.errors import BlockedError, ForgeError, UsageError
from forge_collab.core.lifecycle import EXPLANATION, Class
from forge_collab.files.markers import ALONE, Identity

_handle = click.option("--handle", metavar="NAME", help="Your name in the session.")
_polling = click.option(
    "--polling", is_flag=True, help="Poll the remote, even where Ably is set up."
)


@click.command()
@_polling
@_handle
@options.as_json
@click.pass_context
def start(context: click.Context, polling: bool, handle: str | None, as_json: bool) -> None:
    """Begin the session, or continue it, on this machine.

    Example: forge collaborate start
    """
    _enter(context, "start", polling, handle, as_json)


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


def _enter(
    context: click.Context, name: str, polling: bool, handle: str | None, as_json: bool
) -> None:
    clone = here(options.folder(context))
    data = enter(clone, create=name == "start", polling=polling, handle=handle)
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
    clone: Here, *, create: bool, polling: bool = False, handle: str | None = None
) -> dict[str, Any]:
    """Bring `clone` into its session and start its daemon; what the commands print.

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
    name = known.handle if known and handle is None else clone.handle(config.handle)
    identity = _identity(clone, known, name, config.session or remote.derived_id, polling)
    faults.at("start.before_participant")
    clone.markers.write(identity)
    faults.at("start.after_participant")
    ignore.add_excludes(clone.repository.excludes())
    try:
        with client.start(clone) as daemon:
            answer: dict[str, Any] = daemon.call("start", {"create": create})
    except ForgeError as error:
        is_half_done = error.data.pop("half_done", isinstance(error, client.NoAnswerError))
        if before is Class.INACTIVE and not is_half_done and not clone.markers.is_enabled():
            clone.markers.forget(identity)
        raise
    return answer


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
