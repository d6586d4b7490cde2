"""``forge task``: list, show and add the tasks of the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.client import Client
from forge_collab.cli.here import Here, here
from forge_collab.core import names
from forge_collab.core.errors import UsageError


@click.command(name="list")
@options.as_json
@click.pass_context
def list_(context: click.Context, as_json: bool) -> None:
    """The tasks in the order in which they can be done; a bad file is an error that says where.

    Example: forge task list
    """
    clone = here(options.folder(context))
    data = _listed(clone)
    for warning in data["warnings"]:
        output.notice(warning)
    if data["problems"]:
        if not as_json:
            output.done("task list", data, _table(data["tasks"]), as_json=False)
            for problem in data["problems"][1:]:
                output.notice(problem["message"])
        first = data["problems"][0]
        where = "" if first["kind"] == "broken" else f" (.forge/tasks/{first['task']}.yaml)"
        raise UsageError(
            first["message"] + where,
            hint="mend the file; the other tasks can be claimed meanwhile",
            data={**first, "problems": data["problems"], "tasks": data["tasks"]},
        )
    output.done("task list", {"tasks": data["tasks"]}, _table(data["tasks"]), as_json=as_json)


def _listed(clone: Here) -> Any:
    """From the session where this clone is in one, from its checkout where it works alone."""
    found = _daemon(clone)
    if found is not None:
        with found as daemon:
            return daemon.call("tasks")
    from forge_collab.cli import alone

    return alone.listed(clone)


def _daemon(clone: Here) -> Client | None:
    """The clone's daemon; alone, only where it runs."""
    if not clone.is_alone():
        return client.session(clone)
    running = client.running(clone)
    return None if running is None else running[0]


def checkout_names(clone: Here) -> list[str]:
    """The task files of this checkout, pushed or not."""
    root = clone.repository.root
    folder = None if root is None else root / ".forge" / "tasks"
    found = folder.iterdir() if folder is not None and folder.is_dir() else ()
    return sorted(path.name for path in found if path.suffix in (".yaml", ".yml"))


def _table(tasks: list[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            task["id"],
            task["status"],
            str(task["priority"]),
            ", ".join(task["waits_for"]) or "-",
            task["title"],
        ]
        for task in tasks
    ]
    return output.table(["task", "status", "priority", "waits for", "title"], rows)


@click.command()
@click.argument("task")
@options.as_json
@click.pass_context
def show(context: click.Context, task: str, as_json: bool) -> None:
    """One task, with who holds it and what it waits for.

    Example: forge task show T001
    """
    clone = here(options.folder(context))
    task_id = names.task_id(task)
    found = _daemon(clone)
    if found is not None:
        with found as daemon:
            data = daemon.call("task", {"task": task_id})
    else:
        from forge_collab.cli import alone

        data = alone.shown(clone, task_id)
    output.done("task show", data, _fields(data["tasks"][0]), as_json=as_json)


def _fields(task: Mapping[str, Any]) -> list[str]:
    lines = [f"{task['id']}: {task['title']}"]
    for key in ("status", "round", "type", "priority", "complexity", "uid"):
        lines.append(f"  {key}: {task[key]}")
    for key in ("reason", "landed", "branch"):
        lines += [f"  {key}: {task[key]}"] if task[key] else []
    for key in ("depends_on", "waits_for", "goals"):
        if task[key]:
            lines.append(f"  {key}: {', '.join(task[key])}")
    if task["lease"]:
        lease = task["lease"]
        lines.append(f"  held by {output.who(lease['claimant'])} under fence {lease['fence']}")
    if task["problem"]:
        lines.append(f"  problem: {task['problem']}")
    return [*lines, *(f"  {line}" for line in task["description"].splitlines())]


@click.command()
@click.argument("title")
@click.option("--id", "task_id", metavar="ID", help="Its id; else the next free one.")
@click.option("--description", default="", help="What is to be done.")
@click.option("--depends-on", multiple=True, metavar="ID", help="What has to be done before.")
@click.option(
    "--priority", type=click.IntRange(min=1), default=3, show_default=True, help="1 first."
)
@click.option(
    "--type",
    "kind",
    type=click.Choice(["feature", "bugfix", "refactor", "test", "docs", "chore"]),
    default="feature",
    show_default=True,
    help="What kind of work it is.",
)
@options.as_json
@click.pass_context
def add(
    context: click.Context,
    title: str,
    task_id: str | None,
    description: str,
    depends_on: tuple[str, ...],
    priority: int,
    kind: str,
    as_json: bool,
) -> None:
    """Add a task: to the session's plan at once, or alone to the checkout.

    Example: forge task add "Parse the header" --depends-on T001
    """
    clone = here(options.folder(context))
    fields: dict[str, Any] = {
        "title": title,
        "description": description,
        "depends_on": [names.task_id(other) for other in depends_on],
        "priority": priority,
        "type": kind,
    }
    if task_id is not None:
        fields["id"] = names.task_id(task_id)
    if not clone.is_alone():
        with client.session(clone) as daemon:
            asked = {
                "task": fields,
                "worker": clone.worker(None),
                "taken": checkout_names(clone),
            }
            data = daemon.call("task_add", asked)
        where = "the session's plan"
    else:
        from forge_collab.cli import alone

        data, where = alone.added(clone.root, fields)
    made = data["tasks"][0]
    text = [f"{made['id']} is in {where}: {made['title']}"]
    output.done("task add", data, text, as_json=as_json)
