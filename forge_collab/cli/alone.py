"""A clone that is in no session, while its daemon doesn't run: the task files of its checkout,
and its own records of who has what and what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_collab.cli.here import Here
from forge_collab.cli.look import own_records
from forge_collab.core import overview
from forge_collab.core.board import Board
from forge_collab.core.errors import UsageError
from forge_collab.core.overview import apply_records
from forge_collab.daemon.service import listed_ids, new_task, shown_entries, shown_task
from forge_collab.files.atomic import explained, write_atomic
from forge_collab.files.tasks import dump_task, read_checkout, read_plan

FOLDER = Path(".forge/tasks")


class _Seen:
    """The checkout's plan with the clone's own records laid over it."""

    def __init__(self, clone: Here) -> None:
        own, self.plan = own_records(clone), read_plan(read_checkout(clone.root))
        self.board = Board(self.plan.tasks, self.plan.broken)
        apply_records(self.board, own)
        self._records = overview.progress(self.board, own)
        _, claims = overview.claims(own, None, 0.0)
        self._held = {claim["key"].removeprefix("claim:"): claim for claim in claims}

    def shown(self, task_id: str, *, whole: bool = False) -> dict[str, Any]:
        """A task as commands show it."""
        held, record = self._held.get(task_id), self._records.get(task_id)
        return shown_task(self.board, task_id, held, record, whole=whole)


def listed(clone: Here) -> dict[str, Any]:
    """The tasks, problems and warnings of the checkout's plan."""
    seen = _Seen(clone)
    return {
        "tasks": [seen.shown(task_id) for task_id in listed_ids(seen.board)],
        "problems": [problem.to_json() for problem in seen.board.problems],
        "warnings": list(seen.plan.warnings),
    }


def shown(clone: Here, task_id: str) -> dict[str, Any]:
    """One task of the checkout's plan.

    :raises UsageError: when it has none of that id, or its file is bad.
    """
    seen = _Seen(clone)
    if task_id not in seen.board.tasks:
        problem = seen.board.problem_of(task_id)
        why = problem.message if problem else f"the plan has no task '{task_id}'"
        raise UsageError(why, hint="forge task list")
    return {"tasks": [seen.shown(task_id, whole=True)]}


def logged(clone: Here) -> list[dict[str, Any]]:
    """What was done alone here, in order."""
    return shown_entries(own_records(clone))


def added(root: Path, fields: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Write a task file into the checkout; the task, and where it is.

    :raises UsageError: when its id is taken, or the plan with it has a new problem.
    """
    files = read_checkout(root)
    plan = read_plan(files)
    board = Board(plan.tasks, plan.broken)
    task = new_task(fields, board, set(files), is_free_choice="id" not in fields)
    path = root / FOLDER / f"{task.id}.yaml"
    with explained("make", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dump_task(task))
    whole = Board([*plan.tasks, task], plan.broken)
    return {"tasks": [shown_task(whole, task.id, None, whole=True)]}, str(FOLDER / path.name)
