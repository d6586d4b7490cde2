"""The changes on their way: which of them may go now, together or alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import anyio

from forge_collab.core import pacing
from forge_collab.core.change import Change, Urgency
from forge_collab.core.errors import ForgeError, UnavailableError


@dataclass(eq=False)
class Pending:
    """A change on its way.

    `since` is when it was asked for; `lost` how often another came first; `refusals` how often
    the remote's tip stayed where it was; `sent` the commits of which nobody knows whether they
    will still land, each with the answer it would give.
    """

    change: Change[Any]
    since: float
    lost: int = 0
    refusals: int = 0
    is_alone: bool = False
    not_before: float = 0.0
    sent: dict[str, Any] = field(default_factory=dict)
    done: anyio.Event = field(default_factory=anyio.Event)
    answer: Any = None
    error: BaseException | None = None

    def due(self, yield_until: float) -> float:
        """When this change may go by itself."""
        if self.change.urgency is Urgency.AHEAD:
            return self.not_before
        if self.change.urgency is Urgency.RIDE:
            return max(self.since + pacing.RIDE_SECONDS, yield_until, self.not_before)
        return max(yield_until, self.not_before)


class Queue:
    """What waits to be pushed; `work` is set whenever that changes."""

    def __init__(self) -> None:
        self.waiting: list[Pending] = []
        self.yield_until = 0.0
        self._work = anyio.Event()

    def add(self, pending: Pending) -> None:
        """Let `pending` wait."""
        self.waiting.append(pending)
        self._work.set()

    def answer(self, pending: Pending, answer: Any) -> None:
        """It took effect, or there was nothing to write."""
        pending.answer = answer
        self._end(pending)

    def fail(self, pending: Pending, error: BaseException) -> None:
        """It was decided against, or nobody knows: then the error's data says `unsettled`."""
        if isinstance(error, ForgeError) and (pending.sent or isinstance(error, UnavailableError)):
            error.data["unsettled"] = bool(pending.sent)
        pending.error = error
        self._end(pending)

    def forget(self, pending: Pending) -> None:
        """Nobody waits for it any more."""
        if pending in self.waiting:
            self.waiting.remove(pending)

    def _end(self, pending: Pending) -> None:
        self.forget(pending)
        pending.done.set()

    async def next(self, now: float) -> list[Pending] | None:
        """Those to try together at `now`; None after a wait, when it is time to ask again."""
        self._work = anyio.Event()
        chosen = self._choose(now)
        if chosen:
            return chosen
        moments = [pending.due(self.yield_until) for pending in self.waiting]
        with anyio.move_on_after(max(0.0, min(moments) - now) if moments else None):
            await self._work.wait()
        return None

    def _choose(self, now: float) -> list[Pending]:
        """What is ahead of the rest goes by itself; else all that may go, if one of them must."""
        ready = [pending for pending in self.waiting if pending.not_before <= now]
        ahead = [p for p in ready if p.change.urgency is Urgency.AHEAD]
        if ahead:
            return _together(ahead)
        return _together(ready) if any(p.due(self.yield_until) <= now for p in ready) else []


def _together(these: list[Pending]) -> list[Pending]:
    """After a refusal each goes alone, so that one can't take the others with it.

    So does a change that moves code refs: it fails with them.
    """
    alone = [pending for pending in these if pending.is_alone or pending.change.refs]
    return alone[:1] or these
