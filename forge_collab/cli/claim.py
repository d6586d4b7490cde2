"""``forge collaborate claim``: take a task, and say under which fence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here
from forge_collab.core import names
from forge_collab.core.errors import UsageError


@click.command()
@click.argument("task", required=False)
@click.option("--next", "is_next", is_flag=True, help="Take the most urgent task that is free.")
@click.option("--wait", is_flag=True, help="Wait until it can be had.")
@click.option("--solo", is_flag=True, help="Work alone, whoever is in the remote's session.")
@options.worker
@click.pass_context
def claim(
    context: click.Context,
    task: str | None,
    is_next: bool,
    wait: bool,
    solo: bool,
    worker: str | None,
    as_json: bool,
) -> None:
    """Take a task: exactly one claimant gets it, all others are told who.

    Example: forge collaborate claim T001
    """
    if (task is None) != is_next:
        raise UsageError(
            "name a task, or say --next", hint="forge collaborate claim T001, or claim --next"
        )
    clone = here(options.folder(context))
    asked = {
        "task": None if task is None else names.task_id(task),
        "worker": clone.worker(worker),
        "wait": wait,
        "alone": clone.is_alone(),
    }
    is_news = clone.is_alone() and _agree_to_be_alone(clone, solo)
    with client.session(clone) as daemon:
        if wait:
            output.notice(f"waiting until {task or 'a task'} can be had; Ctrl-C ends that")
        data = daemon.call("claim", asked, seconds=None if wait else client.CALL_SECONDS)
        about = daemon.call("about")
    if is_news:
        _tell_of_being_alone(clone)
    if data.get("already"):
        output.notice(f"{data['task']} is yours already, since {data['since']}")
    text = () if as_json else _text(clone, data, about["remote"], about["target"])
    output.done("collaborate claim", data, text, as_json=as_json)


def _agree_to_be_alone(clone: Here, solo: bool) -> bool:
    """Ask once in a daemon's life whether somebody is there to work with; say whether this is
    that once.

    :raises BlockedError: when there is, and nobody said ``--solo``.
    """
    running = client.running(clone)
    if running is not None:
        with running[0] as daemon:
            if daemon.call("about").get("agreed"):
                return False
    if not solo and clone.root:
        from forge_collab.cli import look

        look.check_nobody_is_there(clone)
    return True


def _tell_of_being_alone(clone: Here) -> None:
    output.notice("working alone: nobody else sees this; forge collaborate start shares it")
    if not clone.repository.git("rev-parse", "--verify", "--quiet", "HEAD").is_ok:
        output.notice("there are no commits here yet: a branch needs a first one")


def _text(clone: Here, data: Mapping[str, Any], remote: str | None, target: str) -> list[str]:
    if data["task"] is None:
        return ["every task of the plan is done"]
    return [acquired(data), *branch(clone, data, remote, target)]


def acquired(data: Mapping[str, Any]) -> str:
    """A sentence about a grant."""
    lease = data["lease"]
    before = data.get("took_over")
    taken = f", taken over from {output.who(before)}" if before else ""
    return (
        f"{data['task']} is yours under fence {lease['fence']}{taken}; "
        f"{output.seconds(lease['ttl_seconds'])}, renewed by the daemon"
    )


def branch(clone: Here, data: Mapping[str, Any], remote: str | None, target: str) -> list[str]:
    """The commands that make the branch for a grant; without a remote, alone."""
    name = f"forge/task/{data['task']}@{data['lease']['fence']}"
    if remote is None:
        return [f"  git switch -c {name} {target}"]
    fetch, start = clone.repository.to_read(remote, target)
    return [f"  {fetch}", f"  git switch -c {name} {start}"]
