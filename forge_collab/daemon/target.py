"""The branch that work lands on: its tip as last fetched, and what it shows as landed."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from forge_collab.clock import Clock
from forge_collab.core.landing import Evidence, newest
from forge_collab.git.squash import evidence
from forge_collab.git.store import TARGET, Store


class Target:
    """The target branch on the remote that `store` talks to; `name` is asked for at each look."""

    def __init__(self, store: Store, name: Callable[[], str], *, clock: Clock) -> None:
        self.store = store
        self.tip: str | None = None
        self.seen: dict[tuple[str, str], Evidence] = {}
        self._name = name
        self._clock = clock
        self._looked_at: float | None = None
        self._looked_at_ref: str | None = None
        self._turn = anyio.Lock()

    @property
    def name(self) -> str:
        """The branch's name."""
        return self._name()

    @property
    def ref(self) -> str:
        """The branch's whole name."""
        return f"refs/heads/{self.name}"

    async def look(self, *, older_than: float = -1.0) -> str | None:
        """The tip at a moment after the call, or None where there is no branch; the tip last seen
        where that is no more than so many seconds ago.

        :raises UnavailableError: when the remote can't be reached.
        """
        async with self._turn:
            asked_at = self._clock.now()
            if self._looked_at is None or asked_at - self._looked_at > older_than:
                self._begin_anew_if_renamed()
                tip = (await self.store.tips([self.ref])).get(self.ref)
                if tip != self.tip:
                    await self._follow(tip)
                self._looked_at = asked_at
        return self.tip

    def _begin_anew_if_renamed(self) -> None:
        """What one branch shows says nothing about another."""
        if self.ref != self._looked_at_ref:
            self.tip, self._looked_at_ref = None, self.ref
            self.seen.clear()

    async def _follow(self, tip: str | None) -> None:
        """What was shown once counts, even where the branch was rewritten since."""
        if tip is not None:
            tip = await self.store.fetch(self.ref, TARGET, whole=True)
            new = await evidence(self.store, self.tip, tip)
            self.seen.update(newest([*self.seen.values(), *new]))
        self.tip = tip

    def saw(self, shown: Evidence) -> None:
        """Take note of what the branch shows beyond its trailers."""
        self.seen[shown.task_id, shown.uid] = shown
