"""``forge collaborate note``: say something about a task you hold."""

from __future__ import annotations

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import here
from forge_collab.core import names


@click.command()
@click.argument("task")
@click.argument("text", nargs=-1, required=True)
@options.acting
@click.pass_context
def note(
    context: click.Context,
    task: str,
    text: tuple[str, ...],
    worker: str | None,
    fence: int | None,
    as_json: bool,
) -> None:
    """Say something about a task you hold; everybody finds it in the log.

    Example: forge collaborate note T001 "the parser is done, tests next"
    """
    clone = here(options.folder(context))
    with client.session(clone) as daemon:
        data = daemon.call(
            "note",
            {
                "task": names.task_id(task),
                "text": " ".join(text),
                "worker": clone.worker(worker),
                "fence": clone.fence(fence),
            },
        )
    said = [f"noted on {task} under fence {data['lease']['fence']}"]
    output.done("collaborate note", data, said, as_json=as_json)
