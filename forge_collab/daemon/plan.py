"""Which tasks exist: in a session the target branch's fetched tip and what was added on the state
branch; alone the checkout's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from forge_collab.core import keys
from forge_collab.core.board import Board
from forge_collab.core.change import ABSENT, Snapshot, View
from forge_collab.core.overview import apply_records
from forge_collab.core.records import Meta
from forge_collab.daemon.target import Target
from forge_collab.files.tasks import Plan, read_checkout, read_plan
from forge_collab.transport import Transport

FOLDER = ".forge/tasks"
asked_from: ContextVar[Path | None] = ContextVar("asked_from", default=None)
"""The work tree that the request being answered was made in."""


class TaskPlan(Protocol):
    """The tasks there are, and the board of them; `target` is the branch they land on."""

    target: Target

    @property
    def plan(self) -> Plan:
        """The tasks as last read, with what was wrong with their files."""
        ...

    @property
    def board(self) -> Board:
        """The tasks as last read, with the statuses of the newest snapshot."""
        ...

    async def refresh(self, *, older_than: float = 0.0) -> None:
        """Read the tasks again if the last look was more than so many seconds ago."""
        ...


class CheckoutPlan:
    """The plan of a clone alone: the files in the checkout that a request was made in, as they are
    now; every work tree has its own."""

    def __init__(self, target: Target, transport: Transport) -> None:
        self.target = target
        self._transport = transport
        self._read: dict[Path, tuple[Mapping[str, bytes], Plan, Board]] = {}

    @property
    def plan(self) -> Plan:
        """The tasks in the checkout.

        :raises EnvironmentError_: when they can't be read.
        """
        return self._now()[0]

    @property
    def board(self) -> Board:
        """The tasks in the checkout, with the statuses of the newest snapshot.

        :raises EnvironmentError_: when they can't be read.
        """
        board = self._now()[1]
        apply_records(board, self._transport.snapshot)
        return board

    def _now(self) -> tuple[Plan, Board]:
        root = asked_from.get()
        if root is None:
            return Plan((), {}, ()), Board(())
        files, known = read_checkout(root), self._read.get(root)
        if known is None or known[0] != files:
            plan = read_plan(files)
            known = self._read[root] = (files, plan, self._board(plan))
        return known[1], known[2]

    def _board(self, plan: Plan) -> Board:
        return Board(plan.tasks, plan.broken, self.target.seen)

    async def refresh(self, *, older_than: float = 0.0) -> None:
        """Look at the target branch; the files are read whenever they are asked for."""
        await self.target.look(older_than=older_than)


class SessionPlan:
    """The plan of a session, read again when the target branch or the added tasks have moved."""

    def __init__(self, target: Target, transport: Transport) -> None:
        self.target = target
        self._transport = transport
        self._tip: str | None = None
        self._files: Mapping[str, bytes] = {}
        self._shared: Mapping[str, bytes] = {}
        self._known: tuple[Snapshot | None, int] = (None, 0)
        self._plan = Plan((), {}, ())
        self._board = Board(())

    @property
    def plan(self) -> Plan:
        """The tasks as last read, with what was wrong with their files."""
        self._catch_up()
        return self._plan

    @property
    def board(self) -> Board:
        """The tasks as last read, with how far they are by records and target branch."""
        self._catch_up()
        return self._board

    def _catch_up(self) -> None:
        snapshot, seen = self._transport.snapshot, self.target.seen
        if snapshot is self._known[0] and len(seen) == self._known[1]:
            return
        shared = added_tasks(snapshot)
        if shared != self._shared:
            self._shared = shared
            self._read()
        apply_records(self._board, snapshot)
        self._known = (snapshot, len(seen))

    def _read(self) -> None:
        self._plan = read_plan(self._files, self._shared)
        self._board = Board(self._plan.tasks, self._plan.broken, self.target.seen)
        self._known = (None, 0)

    async def refresh(self, *, older_than: float = 0.0) -> None:
        """Look at the target branch again if the last look was more than so many seconds ago.

        :raises UnavailableError: when the remote can't be reached.
        """
        tip = await self.target.look(older_than=older_than)
        if tip == self._tip:
            return
        files = {} if tip is None else await self.target.store.files(tip, FOLDER)
        self._tip, self._files = tip, files
        self._shared = added_tasks(self._transport.snapshot)
        self._read()


def added_tasks(snapshot: Snapshot) -> dict[str, bytes]:
    """The task files on the state branch, by name."""
    found = {key: snapshot.get(key) for key in snapshot.keys(keys.SHARED_TASKS)}
    return {
        key.removeprefix(keys.SHARED_TASKS): record.value
        for key, record in found.items()
        if record is not ABSENT
    }


def target_of(transport: Transport, otherwise: str | None = None) -> str:
    """The branch that work lands on: what the session says, else what it is about to say."""
    meta = View(transport.snapshot).document(Meta, keys.META)
    return meta.target if meta is not None else otherwise or "main"
