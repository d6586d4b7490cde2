"""What this clone's workers hold, as its daemon knows it: granted, renewed, idle, ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from forge_collab.clock import Clock
from forge_collab.core import lease
from forge_collab.core.errors import EnvironmentError_
from forge_collab.core.records import Lease
from forge_collab.files.journal import Granted, Journal

log = logging.getLogger("forge")


@contextmanager
def _remembered() -> Iterator[None]:
    """A journal that can't be written costs what a crash would lose, not the leases at hand."""
    try:
        yield
    except EnvironmentError_ as error:
        log.error("%s; a crash now would lose what is held", error.message)


@dataclass
class _Life:
    """When a worker last called for a lease, and where its branch was; not worth the journal."""

    last_call: float
    branch_tip: str | None = None


class Holdings:
    """The leases that were granted here; the journal remembers them over a crash.

    `changed` is called whenever one is added.
    """

    def __init__(
        self, journal: Journal, timing: lease.Timing, clock: Clock, *, changed: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._timing = timing
        self._clock = clock
        self._changed = changed
        self._lives: dict[str, _Life] = {}

    @property
    def all(self) -> Mapping[str, Granted]:
        """Every lease that is held, by key."""
        return self._journal.granted

    def to_renew(self) -> dict[str, lease.Held]:
        """What a renewal has to find of each."""
        return {key: lease.Held(g.fence, g.nonce) for key, g in self.all.items()}

    def own_deadline(self, key: str | None, worker: str) -> float | None:
        """Until when `worker` may start new work on `key`; None where it doesn't hold it."""
        granted = self.all.get(key) if key else None
        return self._deadline(granted) if granted and granted.worker == worker else None

    def _deadline(self, granted: Granted) -> float | None:
        """A deadline counts on the clock of its own boot only."""
        return granted.deadline if granted.boot == self._clock.boot() else None

    def is_paused(self, granted: Granted) -> bool:
        """Whether a holder is past its own deadline, so that no new work may begin."""
        deadline = self._deadline(granted)
        return deadline is None or self._clock.now() >= deadline

    def paused(self) -> list[str]:
        """The keys whose holder is past its own deadline."""
        return [key for key, granted in self.all.items() if self.is_paused(granted)]

    def add(self, worker: str, grant: lease.Grant, judged_at: float) -> Granted:
        """Remember a grant that was judged at `judged_at`, right before its push."""
        record, known = grant.lease, self.all.get(grant.key)
        granted = known if grant.already and known is not None else None
        if granted is None:
            timing = replace(self._timing, ttl=record.ttl_seconds)
            granted = Granted(
                key=grant.key,
                fence=record.fence,
                nonce=record.nonce,
                worker=worker,
                ttl_seconds=record.ttl_seconds,
                deadline=timing.deadline(judged_at),
                boot=self._clock.boot(),
                since=self._clock.wall(),
            )
        with _remembered():
            self._journal.settled(record.nonce, granted)
        self.called(grant.key)
        self._changed()
        return granted

    def called(self, key: str) -> None:
        """The worker that holds `key` gave a sign of life."""
        self._lives[key] = _Life(self._clock.now())

    def is_known(self, key: str, worker: str, fence: int) -> bool:
        """Whether `worker` was granted `key` under `fence` here."""
        known = self.all.get(key)
        return known is not None and (known.fence, known.worker) == (fence, worker)

    def renewed(self, keys: Iterable[str], judged_at: float) -> None:
        """These were renewed by a change that was judged at `judged_at`."""
        granted = dict(self.all)
        for key in [key for key in keys if key in granted]:
            timing = replace(self._timing, ttl=granted[key].ttl_seconds)
            deadline = timing.deadline(judged_at)
            granted[key] = replace(granted[key], deadline=deadline, boot=self._clock.boot())
        with _remembered():
            self._journal.renewed(granted)

    def end(self, key: str) -> None:
        """A lease isn't held here any more."""
        with _remembered():
            self._journal.ended(key)
        self._lives.pop(key, None)

    def settled(self, nonce: str) -> None:
        """It is known what became of a claim: nothing, or what was held already."""
        with _remembered():
            self._journal.settled(nonce)

    def end_all(self) -> None:
        """None is."""
        for key in list(self.all):
            self.end(key)

    def idle_seconds(self, key: str, branch_tip: str | None) -> float:
        """How long since the worker of `key` last called or its branch last moved."""
        now = self._clock.now()
        life = self._lives.setdefault(key, _Life(now, branch_tip))
        if branch_tip != life.branch_tip:
            life.branch_tip, life.last_call = branch_tip, now
        return now - life.last_call


def is_there(found: Lease | None, granted: Granted) -> bool:
    """Whether the record still says what was granted."""
    return (
        found is not None
        and found.claimant is not None
        and (found.fence, found.nonce) == (granted.fence, granted.nonce)
    )


def was_given_back(found: Lease | None, granted: Granted, instance: str) -> bool:
    """Whether this clone itself has ended the lease, so that nothing was lost."""
    return (
        found is not None
        and found.claimant is None
        and found.fence == granted.fence
        and found.last is not None
        and found.last.instance == instance
    )
