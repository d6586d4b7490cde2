"""``forge daemon``: the background process of this clone."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import click

from forge_collab import __version__
from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here
from forge_collab.core.errors import BlockedError, UnavailableError

_CONNECT_SECONDS = 5.0


@click.command()
@click.pass_context
def run(context: click.Context) -> None:
    """Be this clone's daemon in the foreground, until Ctrl-C.

    Example: forge daemon run
    """
    from forge_collab.daemon.main import run as run_daemon

    clone = here(options.folder(context))
    clone.check_healthy()
    run_daemon(clone.repository.common_dir, dict(os.environ), is_foreground=True)


@click.command()
@options.as_json
@click.pass_context
def start(context: click.Context, as_json: bool) -> None:
    """Start this clone's daemon in the background; one that runs already is left alone.

    Example: forge daemon start
    """
    clone = here(options.folder(context))
    clone.check_healthy()
    with client.start(clone) as daemon:
        about = daemon.call("about")
        until = time.monotonic() + _CONNECT_SECONDS
        while not about["online"] and not about["warnings"] and time.monotonic() < until:
            time.sleep(0.05)
            about = daemon.call("about")
    output.done("daemon start", about, [_sentence(about)], as_json=as_json)


@click.command()
@click.option("--all", "is_all", is_flag=True, help="Every daemon of this machine's user.")
@options.as_json
@click.pass_context
def status(context: click.Context, is_all: bool, as_json: bool) -> None:
    """Whether this clone's daemon runs, since when, and whether it reaches the remote.

    Example: forge daemon status
    """
    if is_all:
        from forge_collab.cli.daemons import everywhere

        found = everywhere(dict(os.environ))
        text = [f"{d['clone']}: {_sentence(d)}" for d in found] or ["no daemon runs"]
        output.done("daemon status", {"daemons": found}, text, as_json=as_json)
        return
    about = _about(here(options.folder(context)))
    output.done("daemon status", about, [_sentence(about)], as_json=as_json)


def _about(clone: Here) -> dict[str, Any]:
    found = client.running(clone)
    if found is not None:
        with found[0] as daemon:
            about: dict[str, Any] = daemon.call("about")
        return about
    return {
        "running": False,
        "pid": None,
        "version": __version__,
        "uptime_seconds": None,
        "transport": None,
        "online": False,
        "last_sync_seconds": None,
        "queued": 0,
    }


def _sentence(about: dict[str, Any]) -> str:
    if not about["running"]:
        return "no daemon runs for this clone"
    how = "online" if about["online"] else "OFFLINE"
    return (
        f"forge {about['version']} runs as process {about['pid']} for "
        f"{output.seconds(about['uptime_seconds'])}, {how} over {about['transport']}, last look "
        f"at the remote {output.ago(about['last_sync_seconds'])}"
    )


@click.command()
@options.as_json
@click.pass_context
def stop(context: click.Context, as_json: bool) -> None:
    """End this clone's daemon; what it holds stays held until it lapses or one starts again.

    Example: forge daemon stop
    """
    clone = here(options.folder(context))
    try:
        data = client.stop(clone) or {"stopped": False, "held": []}
    except UnavailableError:
        data = _end_by_signal(clone)
    text = ["no daemon ran"] if not data["stopped"] else ["the daemon has ended"]
    text += [f"still held until it lapses: {key}" for key in data["held"]]
    output.done("daemon stop", data, text, as_json=as_json)


def _end_by_signal(clone: Here) -> dict[str, Any]:
    """End a daemon that has the lock and answers nobody, if the process on record has it."""
    from forge_collab.daemon.process import Lock, Place

    place = Place(clone.repository.common_dir)
    lock = Lock(place.lock_path)
    pid = place.pid()
    if pid is None or not place.is_locked_by(pid):
        raise BlockedError(
            "this clone's daemon doesn't answer, and its process isn't known",
            hint="end it by hand, then forge daemon start",
        )
    os.kill(pid, signal.SIGKILL)
    for _ in range(200):
        if lock.take():
            lock.drop()
            return {"stopped": True, "held": []}
        time.sleep(0.05)
    raise BlockedError("the daemon's lock is still taken", hint="forge daemon status")


@click.command()
@click.option("-n", "lines", default=50, show_default=True, help="How many lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on printing.")
@click.pass_context
def logs(context: click.Context, lines: int, follow: bool) -> None:
    """The last lines of this clone's daemon log.

    Example: forge daemon logs -f
    """
    path = here(options.folder(context)).markers.folder / "daemon.log"
    if not path.exists():
        output.notice(f"there is no log yet: {path}")
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file.readlines()[-lines:]:
            click.echo(output.clean(line.rstrip("\n")))
        while follow:
            line = file.readline()
            if line:
                click.echo(output.clean(line.rstrip("\n")))
            else:
                time.sleep(0.3)
