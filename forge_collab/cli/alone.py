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
from forge_collab.files.tasks import Plan, dump_task, read_checkout, read_plan

FOLDER = Path(".forge/tasks")


def _board(clone: Here) -> tuple[Plan, Board, dict[str, dict[str, Any]]]:
    """The checkout's plan, its board, and the claims on it by task."""
    own, plan = own_records(clone), read_plan(read_checkout(clone.root))
    board = Board(plan.tasks, plan.broken)
    apply_records(board, own)
    _, claims = overview.claims(own, None, 0.0)
    return plan, board, {claim["key"].removeprefix("claim:"): claim for claim in claims}


def listed(clone: Here) -> dict[str, Any]:
    """The tasks, problems and warnings of the checkout's plan."""
    plan, board, held = _board(clone)
    return {
        "tasks": [shown_task(board, t, held.get(t)) for t in listed_ids(board)],
        "problems": [problem.to_json() for problem in board.problems],
        "warnings": list(plan.warnings),
    }


def shown(clone: Here, task_id: str) -> dict[str, Any]:
    """One task of the checkout's plan.

    :raises UsageError: when it has none of that id, or its file is bad.
    """
    _, board, held = _board(clone)
    if task_id not in board.tasks:
        problem = board.problem_of(task_id)
        why = problem.message if problem else f"the plan has no task '{task_id}'"
        raise UsageError(why, hint="forge task list")
    return {"tasks": [shown_task(board, task_id, held.get(task_id), whole=True)]}


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
