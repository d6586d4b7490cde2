"""FaultyTransport: any transport, with trouble by script."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import TypeVar, cast

import anyio

from forge_collab.core.change import Change, Rule, Snapshot, View
from forge_collab.core.errors import ConflictError, ForgeError, RefusedError, UnavailableError
from forge_collab.transport import Transport

T = TypeVar("T")


class Fault(Enum):
    """What happens to a commit."""

    NONE = "none"
    LOSE_REQUEST = "the change never arrives"
    LOSE_ANSWER = "the change takes effect, its answer gets lost"
    LATE = "the change takes effect after the caller has given up"
    CONFLICT = "the rule is run once more, as after a conflict"
    REFUSE = "the other side refuses"
    DELAY = "a second passes first"


class FaultyTransport(Transport):
    """Wraps `inner`; each commit takes the next fault of the script, none when it is used up."""

    name = "faulty"

    def __init__(self, inner: Transport, script: Iterable[Fault] = ()) -> None:
        super().__init__(inner.context)
        self.inner = inner
        self.script = deque(script)
        self._late: list[tuple[Change[object], Snapshot]] = []

    async def _open(self) -> None:
        await self.inner.connect()

    async def _close(self) -> None:
        await self.inner.aclose()

    async def _work(self) -> None:
        seen = self.inner.snapshot
        while True:
            seen = await self.inner.wait_moved(seen)
            self._announce()

    @property
    def snapshot(self) -> Snapshot:
        """The inner transport's."""
        return self.inner.snapshot

    @property
    def trouble(self) -> str | None:
        """The inner transport's."""
        return self.inner.trouble

    @property
    def last_sync(self) -> float | None:
        """The inner transport's."""
        return self.inner.last_sync

    async def refresh(self) -> None:
        """The inner transport's."""
        await self.inner.refresh()

    async def land_late(self) -> None:
        """Let every change whose caller has given up take effect now, where nothing came since."""
        late, self._late = self._late, []
        for change, base in late:
            if self.inner.snapshot is base:
                await self.inner.commit(change)

    async def _commit(self, change: Change[T]) -> T:
        fault = self.script.popleft() if self.script else Fault.NONE
        if fault is Fault.LOSE_REQUEST:
            raise UnavailableError("the change never arrived")
        if fault is Fault.REFUSE:
            raise RefusedError("refused by script", data={"server": "no"})
        if fault is Fault.LATE:
            self._late.append((cast("Change[object]", change), self.inner.snapshot))
            raise UnavailableError("no answer in time")
        if fault is Fault.CONFLICT:
            change = replace(change, rule=_after_a_loss(change.rule, self.inner.snapshot))
        if fault is Fault.DELAY:
            await anyio.sleep(1)
        answer = await self.inner.commit(change)
        if fault is Fault.LOSE_ANSWER:
            raise UnavailableError("the answer got lost")
        return answer


def _after_a_loss(rule: Rule[T], seen: Snapshot) -> Rule[T]:
    """`rule`, run for nothing on `seen` first; then it knows that another change came first."""
    with suppress(ForgeError, ConflictError):
        rule(View(seen))

    def again(view: View) -> T:
        view.lost += 1
        return rule(view)

    return again
