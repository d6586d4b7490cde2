"""``forge collaborate takeover``: take a task from a live holder."""

from __future__ import annotations

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.claim import acquired, branch
from forge_collab.cli.here import here
from forge_collab.core import names


@click.command()
@click.argument("task")
@click.option("--reason", required=True, help="Why; the holder is told, the log keeps it.")
@options.worker
@click.pass_context
def takeover(
    context: click.Context, task: str, reason: str, worker: str | None, as_json: bool
) -> None:
    """Take a task from whoever holds it; what they do under the old fence has no effect.

    Example: forge collaborate takeover T001 --reason "ada is on holiday"
    """
    clone = here(options.folder(context))
    with client.session(clone) as daemon:
        data = daemon.call(
            "takeover",
            {"task": names.task_id(task), "worker": clone.worker(worker), "reason": reason},
        )
        about = daemon.call("about")
    text = [acquired(data), *branch(clone, data, about["remote"], about["target"])]
    output.done("collaborate takeover", data, text, as_json=as_json)
