"""``forge collaborate leave``: give everything back and go."""

from __future__ import annotations

from typing import Any

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import here
from forge_collab.core.errors import UnavailableError
from forge_collab.core.lifecycle import Class


@click.command()
@options.as_json
@click.pass_context
def leave(context: click.Context, as_json: bool) -> None:
    """Leave the session: every lease of this clone is given back, its daemon ends.

    Example: forge collaborate leave
    """
    clone = here(options.folder(context))
    if clone.clone_class() is Class.INACTIVE:
        data: dict[str, Any] = {"left": True, "released": [], "lapsing": []}
        output.done("collaborate leave", data, ["this clone is in no session"], as_json=as_json)
        return
    clone.check_healthy()
    client.start(clone).close()
    found = client.running(clone)
    if found is None:
        raise UnavailableError("the daemon ended meanwhile", hint="forge collaborate leave")
    data = client.last_call("leave", *found)
    text = [f"gave back {key}" for key in data["released"]]
    text += [
        f"couldn't be given back: {lapse['key']} (fence {lapse['fence']}), lapses within "
        f"{output.seconds(lapse['in_seconds'])}"
        for lapse in data["lapsing"]
    ]
    output.done("collaborate leave", data, [*text, "left the session"], as_json=as_json)
