"""The plan of a clone that is in no session: the task files of its checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_collab.core.board import Board
from forge_collab.core.errors import UsageError
from forge_collab.daemon.service import listed_ids, new_task, shown_task
from forge_collab.files.atomic import explained, write_atomic
from forge_collab.files.tasks import dump_task, read_checkout, read_plan

FOLDER = Path(".forge/tasks")


def listed(root: Path) -> dict[str, Any]:
    """The tasks, problems and warnings of the checkout's plan."""
    plan = read_plan(read_checkout(root))
    board = Board(plan.tasks, plan.broken)
    return {
        "tasks": [shown_task(board, task_id, None) for task_id in listed_ids(board)],
        "problems": [problem.to_json() for problem in board.problems],
        "warnings": list(plan.warnings),
    }


def shown(root: Path, task_id: str) -> dict[str, Any]:
    """One task of the checkout's plan.

    :raises UsageError: when it has none of that id, or its file is bad.
    """
    plan = read_plan(read_checkout(root))
    board = Board(plan.tasks, plan.broken)
    if task_id not in board.tasks:
        problem = board.problem_of(task_id)
        why = problem.message if problem else f"the plan has no task '{task_id}'"
        raise UsageError(why, hint="forge task list")
    return {"tasks": [shown_task(board, task_id, None, whole=True)]}


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
