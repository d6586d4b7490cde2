"""``forge collaborate log``: who did what, in the order in which it took effect."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on printing what happens.")
@options.as_json
@click.pass_context
def log(context: click.Context, follow: bool, as_json: bool) -> None:
    """Who did what: claims, take-overs, notes, releases, each with its fence.

    Example: forge collaborate log -f
    """
    clone = here(options.folder(context))
    if not follow:
        entries = _entries(clone)
        text = [_line(entry) for entry in entries]
        output.done("collaborate log", {"entries": entries}, text, as_json=as_json)
        return
    with client.session(clone) as daemon:
        entries = daemon.call("log")["entries"]
        while True:
            for entry in entries:
                output.done(
                    "collaborate log", {"entries": [entry]}, [_line(entry)], as_json=as_json
                )
            after = entries[-1]["seq"] if entries else 0
            entries = []
            while not entries:
                time.sleep(0.5)
                entries = daemon.call("log", {"after": after})["entries"]


def _entries(clone: Here) -> list[dict[str, Any]]:
    """From the daemon; alone, where none runs, from the clone's own records."""
    running = client.running(clone) if clone.is_alone() else (client.session(clone), {})
    if running is None:
        from forge_collab.cli import alone

        return alone.logged(clone)
    with running[0] as daemon:
        entries: list[dict[str, Any]] = daemon.call("log")["entries"]
    return entries


def _line(entry: Mapping[str, Any]) -> str:
    key = (entry["key"] or "-").removeprefix("claim:")
    fence = f" fence {entry['fence']}" if entry["fence"] is not None else ""
    said = f": {' '.join(entry['text'].split())}" if entry["text"] else ""
    who = output.who(entry["who"])
    return f"{entry['seq']:>5} {entry['ts']} {who} {entry['event']} {key}{fence}{said}"
