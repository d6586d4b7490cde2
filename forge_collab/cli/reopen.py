"""``forge task reopen`` and ``forge task cancel``: a task is wanted again, or not any more."""

from __future__ import annotations

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import here
from forge_collab.core import names

_reason = click.option("--reason", default="", help="Why; the log keeps it.")


@click.command()
@click.argument("task")
@_reason
@options.worker
@click.pass_context
def reopen(
    context: click.Context, task: str, reason: str, worker: str | None, as_json: bool
) -> None:
    """Open an ended or stopped task again; an ended one begins its next round.

    Example: forge task reopen T001 --reason "it broke the build"
    """
    _ask(context, "reopen", task, reason, worker, as_json)


@click.command()
@click.argument("task")
@_reason
@options.worker
@click.pass_context
def cancel(
    context: click.Context, task: str, reason: str, worker: str | None, as_json: bool
) -> None:
    """End a task that isn't wanted any more; what was done on its branch is kept.

    Example: forge task cancel T001 --reason "the feature is dropped"
    """
    _ask(context, "cancel", task, reason, worker, as_json)


def _ask(
    context: click.Context, what: str, task: str, reason: str, worker: str | None, as_json: bool
) -> None:
    clone = here(options.folder(context))
    asked = {"task": names.task_id(task), "reason": reason, "worker": clone.worker(worker)}
    with client.session(clone) as daemon:
        data = daemon.call(what, asked)
    text = [f"{data['task']} is {data['status']} (round {data['round']}, fence {data['fence']})"]
    output.done(f"task {what}", data, text, as_json=as_json)
