"""``forge collaborate done``: land a task's work on the target branch, exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here
from forge_collab.core import names
from forge_collab.core.errors import BlockedError, UsageError
from forge_collab.core.landing import check_branch, task_of
from forge_collab.git import branches

_SECONDS = 900.0
_SHOWN = 20


@click.command()
@click.argument("task")
@options.acting
@click.option("--branch", metavar="B", help="The branch that has the work.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Show what would land; change nothing.")
@click.option("--landed", metavar="SHA", help="It has landed already, by this commit.")
@click.pass_context
def done(
    context: click.Context,
    task: str,
    worker: str | None,
    fence: int | None,
    branch: str | None,
    is_dry: bool,
    landed: str | None,
    as_json: bool,
) -> None:
    """Land a task: its work goes to the target branch as one commit, its record with it.

    Example: forge collaborate done T001
    """
    if landed and (branch or is_dry):
        raise UsageError(
            "--landed takes neither --branch nor --dry-run",
            hint=f"forge collaborate done {task} --landed COMMIT",
        )
    clone = here(options.folder(context))
    asked: dict[str, Any] = {
        "task": names.task_id(task),
        "worker": clone.worker(worker),
        "fence": clone.fence(fence),
    }
    with client.session(clone) as daemon:
        if landed:
            data = daemon.call("done", {**asked, "landed": landed}, seconds=_SECONDS)
        else:
            data = _land(clone, daemon, asked, branch, is_dry=is_dry)
    for warning in data.get("warnings", ()):
        output.notice(warning)
    text = _preview(data) if is_dry else _text(data)
    output.done("collaborate done", data, text, as_json=as_json)


def _land(
    clone: Here,
    daemon: client.Client,
    asked: Mapping[str, Any],
    branch: str | None,
    *,
    is_dry: bool,
) -> dict[str, Any]:
    begun: dict[str, Any] = daemon.call("landing", asked)
    if begun["already"]:
        return begun
    chosen = branch or _branch(clone, begun)
    check_branch(begun["task"], names.branch(chosen), begun["target"])
    tip = branches.tip(clone.repository, chosen)
    if tip is not None:
        _check_committed(clone, chosen)
        if begun["remote"] and not is_dry:
            place = branches.work_tree_of(clone.repository, chosen)
            remote = begun["remote"]
            with output.patient(f"pushing {chosen} to {remote}; Ctrl-C ends that"):
                branches.push(clone.repository, place, remote=remote, branch=chosen)
    work = {**asked, "fence": begun["fence"], "branch": chosen, "tip": tip, "dry_run": is_dry}
    landed: dict[str, Any] = daemon.call("done", work, seconds=_SECONDS)
    return landed


def _branch(clone: Here, begun: Mapping[str, Any]) -> str:
    """The branch that the work is on: the fenced one, else the current one.

    :raises UsageError: when neither is there, or the current one is for other work.
    """
    own, task = str(begun["branch"]), begun["task"]
    if branches.tip(clone.repository, own) is not None:
        return own
    current = clone.repository.branch()
    belongs_to = task_of(current or "")
    if current in (None, begun["target"]) or (belongs_to and belongs_to[0] != task):
        on = f"'{current}'" if current else "no branch"
        raise UsageError(
            f"nothing to land for {task}: there is no branch {own}, and you are on {on}",
            hint=f"git switch -c {own}, commit the work there; or name its branch: --branch B",
        )
    return str(current)


def _check_committed(clone: Here, branch: str) -> None:
    """Nothing, when the branch has all of its work tree's changes.

    :raises BlockedError: when some aren't committed.
    """
    if branches.is_being_rebased(clone.repository, branch):
        raise BlockedError(
            f"a rebase of {branch} is under way, so it isn't what it will be",
            hint="git rebase --continue, or --abort; then done again",
            data={"status": "uncommitted", "paths": [], "waits_for": []},
        )
    place = branches.work_tree_of(clone.repository, branch)
    if place is None:
        return
    left = branches.uncommitted(clone.repository, place)
    if left.changed:
        raise BlockedError(
            f"not committed in {place}: {_few(left.changed)}",
            hint=f"git commit them on {branch}, or git stash; then done again",
            data={"status": "uncommitted", "paths": list(left.changed), "waits_for": []},
        )
    if left.untracked:
        output.notice(f"not in any commit, so not landed: {_few(left.untracked)}")


def _few(paths: tuple[str, ...]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(paths[:5]) + more


def _text(data: Mapping[str, Any]) -> list[str]:
    where = f" on {data['target']}" if data.get("target") else ""
    before = " already" if data["already"] else ""
    return [
        f"{data['task']} is {data['status']}{before}: commit {data['commit'][:12]}{where} "
        f"(fence {data['fence']}, round {data['round']})"
    ]


def _preview(data: Mapping[str, Any]) -> list[str]:
    if data["already"]:
        return _text(data)
    changes = data["changes"]
    shown = [f"  {line}" for line in changes[:_SHOWN]]
    more = [f"  … and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else []
    return [
        f"{data['branch']} merges into {data['target']} without a conflict; it would land as",
        "",
        *(f"  {line}".rstrip() for line in data["message"].rstrip().splitlines()),
        "",
        f"files: {len(changes) or 'none'}",
        *shown,
        *more,
    ]
