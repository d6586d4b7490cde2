"""``forge collaborate release``: give a task back."""

from __future__ import annotations

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here
from forge_collab.core import names


@click.command()
@click.argument("task")
@options.acting
@click.pass_context
def release(
    context: click.Context, task: str, worker: str | None, fence: int | None, as_json: bool
) -> None:
    """Give a task back; its branch and files stay as they are.

    Example: forge collaborate release T001
    """
    clone = here(options.folder(context))
    with client.session(clone) as daemon:
        data = daemon.call(
            "release",
            {
                "task": names.task_id(task),
                "worker": clone.worker(worker),
                "fence": clone.fence(fence),
            },
        )
        remote = daemon.call("about")["remote"]
    number = data["lease"]["fence"]
    if remote is not None:
        _warn_of_unpushed(clone, f"forge/task/{task}@{number}", remote)
    text = [f"{task} is free again; its fence stays {number}"]
    output.done("collaborate release", data, text, as_json=as_json)


def _warn_of_unpushed(clone: Here, branch: str, remote: str) -> None:
    """Say so when the task's branch has commits that no remote has."""
    told = clone.repository.git("rev-list", "--count", f"refs/heads/{branch}", "--not", "--remotes")
    count = told.out.decode().strip()
    if told.is_ok and count not in ("", "0"):
        output.notice(f"not pushed yet: {count} of {branch}; git push -u {remote} {branch}")
