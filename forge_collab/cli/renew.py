"""``forge collaborate renew``: say that the work goes on."""

from __future__ import annotations

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import here
from forge_collab.core import names


@click.command()
@click.argument("task")
@options.acting
@click.pass_context
def renew(
    context: click.Context, task: str, worker: str | None, fence: int | None, as_json: bool
) -> None:
    """Renew the lease of a task you hold.

    Example: forge collaborate renew T001 --fence 3
    """
    clone = here(options.folder(context))
    with client.session(clone) as daemon:
        data = daemon.call(
            "renew",
            {
                "task": names.task_id(task),
                "worker": clone.worker(worker),
                "fence": clone.fence(fence),
            },
        )
    lease = data["lease"]
    text = [
        f"{task} is renewed under fence {lease['fence']} for {output.seconds(lease['ttl_seconds'])}"
    ]
    output.done("collaborate renew", data, text, as_json=as_json)
