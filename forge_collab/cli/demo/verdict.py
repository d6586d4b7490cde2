"""The demo's check: is what the commands said what the bare repository has?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forge_collab.cli.demo.play import Held
from forge_collab.cli.demo.stage import SETTINGS, Stage
from forge_collab.core.errors import FailedError

_BRANCH = SETTINGS["forge.state-ref"]


def check(stage: Stage, held: Held, landed: Mapping[str, str]) -> dict[str, Any]:
    """What the demo came to, when all of it is on the origin.

    :raises FailedError: when the origin says otherwise.
    """
    grants, commits = _grants(stage), _trailers(stage)
    for task_id, holders in held.items():
        _same(task_id, "its holders", grants.get(task_id), holders)
        _same(task_id, "its commits", commits.get(task_id), [landed.get(task_id)])
        _check_records(stage, task_id, landed[task_id], holders[-1][1])
    return {
        "tasks": [
            {
                "id": task_id,
                "holders": [{"handle": handle, "fence": fence} for handle, fence in holders],
                "commit": landed[task_id],
            }
            for task_id, holders in held.items()
        ],
        "checked": f"{len(held)} tasks, one holder for each fence, each task on {stage.target} "
        "exactly once",
        "origin": str(stage.origin),
    }


def _same(task_id: str, what: str, found: object, said: object) -> None:
    if found != said:
        raise FailedError(f"{task_id}: of {what} the origin has {found}, the commands said {said}")


def _check_records(stage: Stage, task_id: str, commit: str, fence: int) -> None:
    record = json.loads(_state(stage, f"tasks/{task_id}.json"))
    found = (record["status"], record["landed"]["commit"], record["fence"])
    _same(task_id, "its record", found, ("done", commit, fence))
    lease = json.loads(_state(stage, f"leases/claim%3A{task_id}.json"))
    _same(task_id, "its lease", (lease["claimant"], lease["fence"]), (None, fence))


def _trailers(stage: Stage) -> dict[str, list[str]]:
    """The commits that say they are a task, since the plan was made, by task."""
    shown = "--format=%H %(trailers:key=Forge-Task,valueonly,separator=%x20)"
    span = f"{stage.plan}..refs/heads/{stage.target}"
    found: dict[str, list[str]] = {}
    for line in stage.git("log", "--first-parent", shown, span, cwd=stage.origin).splitlines():
        commit, *tasks = line.split()
        for task_id in tasks:
            found.setdefault(task_id, []).append(commit)
    return found


def _grants(stage: Stage) -> dict[str, list[tuple[str, int]]]:
    """Who was granted each task under which fence, from the audit on the origin."""
    found: dict[str, list[tuple[str, int]]] = {}
    names = stage.git("ls-tree", "-r", "--name-only", _BRANCH, "audit/", cwd=stage.origin)
    lines = [line for name in names.splitlines() for line in _state(stage, name).splitlines()]
    for entry in sorted((json.loads(line) for line in lines), key=lambda entry: entry["seq"]):
        if entry["event"] in ("claimed", "taken_over"):
            task_id = entry["key"].removeprefix("claim:")
            found.setdefault(task_id, []).append((entry["who"]["handle"], entry["fence"]))
    return found


def _state(stage: Stage, path: str) -> str:
    return stage.git("show", f"{_BRANCH}:{path}", cwd=stage.origin)
