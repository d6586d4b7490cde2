"""``forge demo``: two clones race, die, sleep, conflict and land, and all of it is checked."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from forge_collab.cli import options, output
from forge_collab.cli.demo import verdict
from forge_collab.cli.demo.play import Play
from forge_collab.cli.demo.stage import PEOPLE, TASKS, Stage
from forge_collab.core.errors import EnvironmentError_, UsageError


@click.command()
@click.option("--repo", metavar="PATH", help="A repository to copy the origin from.")
@click.option("--keep", metavar="DIR", help="Work in DIR and leave everything there.")
@options.as_json
@click.pass_context
def demo(context: click.Context, repo: str | None, keep: str | None, as_json: bool) -> None:
    """Show it: two clones race for eight tasks, are killed, sleep, conflict, and land them all.

    Example: forge demo
    """
    say = output.notice if as_json else click.echo
    with _folder(keep) as folder:
        stage = Stage(folder, say)
        try:
            data = _run(stage, _source(repo, options.folder(context)))
        finally:
            stage.end()
    text = [*_table(data["tasks"]), "", f"checked on the bare repository: {data['checked']}"]
    text += [f"left in {keep}"] if keep else []
    output.done("demo", data, text, as_json=as_json)


def _run(stage: Stage, source: Path | None) -> dict[str, Any]:
    """Everything, from the copy to the check.

    :raises FailedError: when what the origin says isn't what the commands said.
    """
    stage.make_origin(source)
    for name in PEOPLE:
        stage.make_clone(name)
    play = Play(stage)
    for task_id in TASKS:
        play.race(task_id)
    play.kill_and_take_over()
    play.share_out()
    play.land_side_by_side()
    play.wake_a_zombie()
    return verdict.check(stage, play.held, play.landed)


def _table(tasks: list[Mapping[str, Any]]) -> list[str]:
    holders = [[f"{h['handle']} (fence {h['fence']})" for h in task["holders"]] for task in tasks]
    width = max(map(len, holders))
    rows = [
        [task["id"], *held, *[""] * (width - len(held)), task["commit"][:12]]
        for task, held in zip(tasks, holders, strict=True)
    ]
    head = ["task", "held first by", *["then by"] * (width - 1), "landed as"]
    return ["", *output.table(head, rows)]


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="forge-demo-") as name:
            yield Path(name)
        return
    folder = Path(keep).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and isn't empty", hint="name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _source(named: str | None, folder: str | None) -> Path | None:
    """The repository to copy: the one named, else the checkout we are in, else None."""
    place = Path(named or folder or os.getcwd())
    told = subprocess.run(
        ["git", "-C", str(place), "rev-parse", "--verify", "--quiet", "HEAD"],
        capture_output=True,
        check=False,
    )
    if told.returncode == 0:
        return place.absolute()
    if named is not None:
        raise EnvironmentError_(
            f"{named} is no git repository with a commit", hint="forge demo --repo PATH"
        )
    return None
