"""``forge collaborate end``: end the session for everybody."""

from __future__ import annotations

import sys

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import here
from forge_collab.core.errors import BlockedError, UnavailableError


@click.command()
@click.option("--yes", is_flag=True, help="Though others may be at work; nothing is asked.")
@options.as_json
@click.pass_context
def end(context: click.Context, yes: bool, as_json: bool) -> None:
    """End the session for everybody: its branch, and task branches that landed, are removed.

    Example: forge collaborate end
    """
    clone = here(options.folder(context))
    clone.check_healthy()
    if not yes and sys.stdin.isatty() and not as_json:
        click.confirm("End this session for everybody?", abort=True, err=True)
    client.session(clone).close()
    found = client.running(clone)
    if found is None:
        raise UnavailableError("the daemon ended meanwhile", hint="forge collaborate end")
    try:
        data = client.last_call("end", *found, {"forced": yes})
    except BlockedError as error:
        raise _explained(error) from None
    text = [f"removed {name}" for name in data["removed"]]
    output.done("collaborate end", data, [*text, "the session has ended"], as_json=as_json)


def _explained(error: BlockedError) -> BlockedError:
    if error.data.get("status") != "live":
        return error
    hint = "let them leave; or forge collaborate end --yes ends it all the same"
    return BlockedError(error.message, hint=hint, data=error.data)
