"""Which tasks exist: in a session the target branch's fetched tip and what was added on the state
branch; alone the checkout's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

import anyio
import anyio.lowlevel

from forge_collab.clock import Clock
from forge_collab.core import keys
from forge_collab.core.board import Board
from forge_collab.core.change import ABSENT, Snapshot, View
from forge_collab.core.landing import Evidence, newest
from forge_collab.core.overview import apply_records
from forge_collab.core.records import Meta
from forge_collab.files.tasks import Plan, read_checkout, read_plan
from forge_collab.git.squash import evidence
from forge_collab.git.store import TARGET, Store
from forge_collab.transport import Transport

FOLDER = ".forge/tasks"
asked_from: ContextVar[Path | None] = ContextVar("asked_from", default=None)
"""The work tree that the request being answered was made in."""


class TaskPlan(Protocol):
    """The tasks there are, and the board of them."""

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

    def __init__(self, transport: Transport) -> None:
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
            known = self._read[root] = (files, plan, Board(plan.tasks, plan.broken))
        return known[1], known[2]

    async def refresh(self, *, older_than: float = 0.0) -> None:
        """Nothing: the files are read whenever they are asked for."""
        await anyio.lowlevel.checkpoint()


class SessionPlan:
    """The plan of a session, read again when the target branch or the added tasks have moved."""

    def __init__(
        self, store: Store, transport: Transport, *, clock: Clock, target: str | None = None
    ) -> None:
        self._store = store
        self._transport = transport
        self._target = target
        self._clock = clock
        self._looked_at: float | None = None
        self.tip: str | None = None
        self._seen: dict[tuple[str, str], Evidence] = {}
        self._files: Mapping[str, bytes] = {}
        self._shared: Mapping[str, bytes] = {}
        self._snapshot: Snapshot | None = None
        self._turn = anyio.Lock()
        self.plan = Plan((), {}, ())
        self._board = Board(())

    @property
    def board(self) -> Board:
        """The tasks as last read, with the statuses of the newest snapshot."""
        snapshot = self._transport.snapshot
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            shared = added_tasks(snapshot)
            if shared != self._shared:
                self._shared = shared
                self._read()
            apply_records(self._board, snapshot)
        return self._board

    def _read(self) -> None:
        self.plan = read_plan(self._files, self._shared)
        self._board = Board(self.plan.tasks, self.plan.broken, self._seen)

    def saw(self, evidence: Evidence) -> None:
        """Take note of what the target branch shows beyond its trailers."""
        self._seen[evidence.task_id, evidence.uid] = evidence
        self._snapshot = None

    async def refresh(self, *, older_than: float = 0.0) -> None:
        """Look at the target branch again if the last look was more than so many seconds ago.

        :raises UnavailableError: when the remote can't be reached.
        """
        async with self._turn:
            asked_at = self._clock.now()
            if self._looked_at is not None and asked_at - self._looked_at <= older_than:
                return
            ref = f"refs/heads/{self.target_branch()}"
            tip = (await self._store.tips([ref])).get(ref)
            if tip != self.tip or self._looked_at is None:
                await self._take(ref, tip)
            self._looked_at = asked_at

    async def look(self) -> str | None:
        """The target branch's tip at a moment after the call, or None where there is no branch.

        :raises UnavailableError: when the remote can't be reached.
        """
        await self.refresh(older_than=-1.0)
        return self.tip

    def target_branch(self) -> str:
        """The branch that work lands on: what the session says, else what it is about to say."""
        meta = View(self._transport.snapshot).document(Meta, keys.META)
        return meta.target if meta is not None else self._target or "main"

    async def _take(self, ref: str, tip: str | None) -> None:
        files: Mapping[str, bytes] = {}
        if tip is not None:
            tip = await self._store.fetch(ref, TARGET, whole=True)
            files = await self._store.files(tip, FOLDER)
            new = await evidence(self._store, self.tip, tip)
            self._seen = newest([*self._seen.values(), *new])
        self.tip, self._files, self._snapshot = tip, files, None
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
