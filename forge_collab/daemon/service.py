"""What the local socket offers, method by method; each answers with what commands print."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio

from forge_collab.clock import Clock
from forge_collab.core import audit, keys, names, overview
from forge_collab.core.board import Board, natural_key
from forge_collab.core.change import Snapshot
from forge_collab.core.errors import ForgeError, UsageError
from forge_collab.core.records import TaskRecord
from forge_collab.core.tasks import Task
from forge_collab.daemon.landing import Landing
from forge_collab.daemon.membership import Membership
from forge_collab.daemon.participant import SessionParticipant
from forge_collab.daemon.plan import TaskPlan, asked_from
from forge_collab.files.tasks import dump_task, make_task, parse_task

_STATUS_SECONDS = 1.0
_WAIT_SECONDS = 30.0
_MARGIN_SECONDS = 0.05


class Host(Protocol):
    """The daemon as its service sees it."""

    clock: Clock

    @property
    def membership(self) -> Membership:
        """This clone in its session, or alone."""
        ...

    def about(self) -> dict[str, Any]:
        """Version, pid, uptime, transport and the like."""
        ...

    def stop(self) -> dict[str, Any]:
        """End; what is held stays held until it lapses or a daemon carries on."""
        ...


class Service:
    """Dispatches requests to the participant."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._under_way = 0
        self._asked_at = host.clock.now()
        self._methods: dict[str, Callable[[Mapping[str, Any]], Awaitable[Any]]] = {
            "start": self._start,
            "leave": self._leave,
            "end": self._end,
            "stop": self._stop,
            "about": self._about,
            "status": self._status,
            "claim": self._claim,
            "takeover": self._takeover,
            "renew": self._renew,
            "note": self._note,
            "release": self._release,
            "landing": self._landing,
            "done": self._done,
            "reopen": self._reopen,
            "cancel": self._cancel,
            "log": self._log,
            "tasks": self._tasks,
            "task": self._task,
            "task_add": self._task_add,
        }

    async def handle(self, method: str, params: Mapping[str, Any]) -> Any:
        """The answer to a request.

        :raises ForgeError: what the user is to be told instead.
        """
        if method not in self._methods:
            raise UsageError(
                f"this daemon knows no '{method}'", hint="forge daemon stop; then try again"
            )
        if root := params.get("root"):
            asked_from.set(Path(str(root)))
        self._under_way += 1
        try:
            return await self._methods[method](params)
        except ForgeError as error:
            error.data.pop("unsettled", None)  # Between transport and participant alone.
            raise
        finally:
            self._under_way -= 1
            if method != "about":
                self._asked_at = self._host.clock.now()

    def unused_seconds(self) -> float:
        """How long ago the last request was answered; 0 while one is under way."""
        return 0.0 if self._under_way else self._host.clock.now() - self._asked_at

    # The session

    async def _start(self, params: Mapping[str, Any]) -> Any:
        told = await self._host.membership.start(
            create=bool(params.get("create", True)),
            fresh=bool(params.get("fresh")),
            is_forced=bool(params.get("yes")),
        )
        participant, _ = await self._host.membership.joined()
        return {**told, "lands_whole": await participant.transport.moves_refs()}

    async def _leave(self, params: Mapping[str, Any]) -> Any:
        return await self._host.membership.leave()

    async def _end(self, params: Mapping[str, Any]) -> Any:
        return await self._host.membership.end(is_forced=bool(params.get("forced")))

    async def _stop(self, params: Mapping[str, Any]) -> Any:
        return self._host.stop()

    async def _about(self, params: Mapping[str, Any]) -> Any:
        return self._host.about()

    async def _status(self, params: Mapping[str, Any]) -> Any:
        about = self._host.about()
        try:
            with anyio.fail_after(_STATUS_SECONDS):
                participant, plan = await self._host.membership.joined()
                await self._sync(participant, plan)
        except (TimeoutError, ForgeError):
            pass  # The daemon's own warnings say why.
        about = self._host.about()
        data = {key: about[key] for key in ("session", "class", "transport", "online", "me")}
        return {**data, **self._seen(), "daemon": about}

    def _seen(self) -> dict[str, Any]:
        """What the newest snapshot says, as far as there is one."""
        known = self._host.membership.current
        if known is None:
            return {
                "participants": [],
                "claims": [],
                "claimable": [],
                "blocked": [],
                "stopped": [],
                "flags_open": 0,
                "warnings": list(self._host.about()["warnings"]),
            }
        participant, plan = known
        seen: dict[str, Any] = participant.overview()
        notices, participant.transport.notices = participant.transport.notices, []
        seen["warnings"] = [
            *notices,
            *self._host.about()["warnings"],
            *map(_paused, participant.held.paused()),
            *participant.lost.values(),
            *plan.plan.warnings,
            *seen["warnings"],
        ]
        return seen

    async def _sync(self, participant: SessionParticipant, plan: TaskPlan) -> None:
        """Look at the remote first, when the last look is older than a poll."""
        transport, now = participant.transport, participant.clock.now()
        old = self._host.membership.poll_seconds
        if transport.last_sync is None or now - transport.last_sync > old:
            await transport.refresh()
            participant.look()
        await plan.refresh(older_than=old)

    # Claims

    async def _claim(self, params: Mapping[str, Any]) -> Any:
        participant, _ = await self._host.membership.joined()
        if params.get("alone"):
            self._host.membership.is_agreed = True
        task = params.get("task")
        task_id = None if task is None else names.task_id(str(task))
        worker = names.worker(_wanted(params, "worker"))
        while True:
            try:
                return await participant.claim(worker, task_id)
            except ForgeError as error:
                if not params.get("wait") or not _may_pass(error):
                    raise
                patience = _patience(error)
            with anyio.move_on_after(patience):
                await participant.transport.wait_moved(participant.transport.snapshot)

    async def _takeover(self, params: Mapping[str, Any]) -> Any:
        participant, _ = await self._host.membership.joined()
        reason = _wanted(params, "reason")
        return await participant.take_over(_worker(params), _task_of(params), _line(reason))

    async def _renew(self, params: Mapping[str, Any]) -> Any:
        participant, _ = await self._host.membership.joined()
        return await participant.renew(_worker(params), _task_of(params), _fence(params))

    async def _note(self, params: Mapping[str, Any]) -> Any:
        participant, _ = await self._host.membership.joined()
        text = _wanted(params, "text")
        if len(text.encode()) > 64 * 1024:
            raise UsageError("a note has at most 64 KiB")
        return await participant.note(_worker(params), _task_of(params), text, _fence(params))

    async def _release(self, params: Mapping[str, Any]) -> Any:
        participant, _ = await self._host.membership.joined()
        return await participant.release(_worker(params), _task_of(params), _fence(params))

    # Landing

    async def _lander(self) -> Landing:
        await self._host.membership.joined()
        found = self._host.membership.landing
        assert found is not None, "whoever is in a session, be it alone, can land"
        return found

    async def _landing(self, params: Mapping[str, Any]) -> Any:
        lander = await self._lander()
        return await lander.begin(_worker(params), _task_of(params), _fence(params))

    async def _done(self, params: Mapping[str, Any]) -> Any:
        lander = await self._lander()
        worker, task_id, fence = _worker(params), _task_of(params), _fence(params)
        if params.get("landed"):
            commit = _wanted(params, "landed")
            return await lander.confirm(worker, task_id, fence=fence, commit=commit)
        branch = names.branch(_wanted(params, "branch"))
        tip = None if params.get("tip") is None else names.oid(_wanted(params, "tip"))
        do = lander.preview if params.get("dry_run") else lander.land
        return await do(worker, task_id, fence=fence, branch=branch, tip=tip)

    async def _reopen(self, params: Mapping[str, Any]) -> Any:
        lander, reason = await self._lander(), _line(str(params.get("reason") or ""))
        return await lander.reopen(_worker(params), _task_of(params), reason)

    async def _cancel(self, params: Mapping[str, Any]) -> Any:
        lander, reason = await self._lander(), _line(str(params.get("reason") or ""))
        return await lander.cancel(_worker(params), _task_of(params), reason)

    # The log

    async def _log(self, params: Mapping[str, Any]) -> Any:
        participant, plan = await self._host.membership.joined()
        await self._sync(participant, plan)
        after = int(params.get("after") or 0)
        return {"entries": shown_entries(participant.transport.snapshot, after=after)}

    # Tasks

    async def _tasks(self, params: Mapping[str, Any]) -> Any:
        participant, plan = await self._host.membership.joined()
        await self._sync(participant, plan)
        board, held = plan.board, _held(participant)
        records = overview.progress(board, participant.transport.snapshot)
        return {
            "tasks": [shown_task(board, t, held.get(t), records.get(t)) for t in listed_ids(board)],
            "problems": [problem.to_json() for problem in board.problems],
            "warnings": list(plan.plan.warnings),
        }

    async def _task(self, params: Mapping[str, Any]) -> Any:
        participant, plan = await self._host.membership.joined()
        await self._sync(participant, plan)
        task_id = _task_of(params)
        if task_id not in plan.board.tasks:
            await participant.transport.refresh()
            await plan.refresh()
        if task_id not in plan.board.tasks:
            problem = plan.board.problem_of(task_id)
            why = problem.message if problem else f"the plan has no task '{task_id}'"
            raise UsageError(why, hint="forge task list")
        held = _held(participant).get(task_id)
        record = overview.progress(plan.board, participant.transport.snapshot).get(task_id)
        return {"tasks": [shown_task(plan.board, task_id, held, record, whole=True)]}

    async def _task_add(self, params: Mapping[str, Any]) -> Any:
        participant, plan = await self._host.membership.joined()
        await plan.refresh()
        fields = dict(params.get("task") or {})
        asked = fields.get("id")

        own = {str(name) for name in params.get("taken") or ()}

        def make(taken: set[str]) -> Task:
            return new_task(fields, plan.board, taken | own, is_free_choice=asked is None)

        worker = _worker(params)
        task = await participant.add_task(worker, make)
        return {"tasks": [shown_task(plan.board, task.id, None, whole=True)]}


def shown_entries(snapshot: Snapshot, *, after: int = 0) -> list[dict[str, Any]]:
    """What happened after the entry `after`, as commands show it."""
    return [
        {**entry.model_dump(mode="json", exclude={"v"}), "who": entry.who.model_dump()}
        for entry in audit.history(snapshot)
        if entry.seq > after
    ]


def _held(participant: SessionParticipant) -> dict[str, dict[str, Any]]:
    """Every claim as commands show it, by task."""
    _, claims = overview.claims(
        participant.transport.snapshot, participant.sightings, participant.clock.now()
    )
    return {claim["key"].removeprefix("claim:"): claim for claim in claims}


def shown_task(
    board: Board,
    task_id: str,
    lease: Mapping[str, Any] | None = None,
    record: TaskRecord | None = None,
    *,
    whole: bool = False,
) -> dict[str, Any]:
    """A task as commands show it; `claimed` is shown for a pending one with a live lease."""
    task, status = board.tasks[task_id], board.status(task_id).value
    live = lease is not None and not overview.is_lapsed(lease)
    problem = board.problem_of(task_id)
    shown: dict[str, Any] = {
        "id": task.id,
        "uid": task.uid,
        "title": task.title,
        "status": "claimed" if live and status == "pending" else status,
        "round": record.round if record else 1,
        "landed": (record.landed or {}).get("commit") if record else None,
        "branch": record.branch if record else None,
        "reason": record.reason if record else None,
        "priority": task.priority,
        "depends_on": list(board.dependencies(task_id)),
        "waits_for": list(board.waits_for(task_id)),
        "problem": problem.message if problem else None,
        "lease": lease if live else None,
    }
    return {**task.model_dump(mode="json"), **shown} if whole else shown


def new_task(
    fields: Mapping[str, Any], board: Board, taken: set[str], *, is_free_choice: bool
) -> Task:
    """A task to be added to the plan, under the next free id where none is asked for.

    :raises UsageError: when its id is taken, or the plan with it has a new problem.
    """
    used = {task_id.lower() for task_id in {*board.tasks, *board.order()}}
    used |= {problem.task_id.lower() for problem in board.problems}
    used |= {name.rsplit(".", 1)[0].lower() for name in taken}
    task_id = _next_id(used) if is_free_choice else names.task_id(str(fields["id"]))
    if task_id.lower() in used:
        raise UsageError(f"the plan has a task '{task_id}' already", hint="forge task list")
    data = {**fields, "id": task_id, "uid": secrets.token_hex(8)}
    task = parse_task(dump_task(make_task(data)), f".forge/tasks/{task_id}.yaml")
    whole = Board([*board.tasks.values(), task])
    problem = whole.problem_of(task_id)
    if problem is not None:
        raise UsageError(problem.message, hint="forge task list", data={"path": list(problem.path)})
    return task


def _next_id(used: set[str]) -> str:
    number = 1
    while f"t{number:03}" in used:
        number += 1
    return f"T{number:03}"


def listed_ids(board: Board) -> list[str]:
    """Every readable task: in the order of the plan, those that can't be ordered last."""
    order = [task_id for task_id in board.order() if task_id in board.tasks]
    rest = sorted(set(board.tasks) - set(order), key=natural_key)
    return order + rest


def _paused(key: str) -> str:
    return f"{keys.lease_name(key)} couldn't be renewed: its work pauses"


def _may_pass(error: ForgeError) -> bool:
    """Whether waiting can help: somebody holds it, or it waits for others."""
    if error.code == "held":
        return True
    is_pending = error.data.get("status") in (None, "pending")
    return error.code == "blocked" and is_pending


def _patience(error: ForgeError) -> float:
    """How long to wait at most before asking again: until the lease may have expired."""
    holder = error.data.get("holder") or {}
    left = holder.get("takeover_in_seconds")
    return _WAIT_SECONDS if left is None else min(_WAIT_SECONDS, float(left) + _MARGIN_SECONDS)


def _wanted(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"the {name} is empty", hint="forge collaborate --help")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the {name} isn't UTF-8", hint="set a UTF-8 locale") from error
    return value


def _line(text: str) -> str:
    return " ".join(text.split())[:500]


def _worker(params: Mapping[str, Any]) -> str:
    return names.worker(_wanted(params, "worker"))


def _task_of(params: Mapping[str, Any]) -> str:
    return names.task_id(_wanted(params, "task"))


def _fence(params: Mapping[str, Any]) -> int | None:
    fence = params.get("fence")
    return None if fence is None else int(fence)
