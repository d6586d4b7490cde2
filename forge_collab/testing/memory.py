"""MemoryTransport: a store in this process, shared by all clients that were given it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import anyio.lowlevel

from forge_collab.core.change import ABSENT, Absent, Change, Found, Snapshot, Versioned, View
from forge_collab.transport import Context, Transport

T = TypeVar("T")


class MemorySnapshot:
    """The records of a `MemoryStore` at one moment."""

    def __init__(self, records: Mapping[str, Versioned]) -> None:
        self._records = records

    def get(self, key: str) -> Found:
        """The record under `key`, or ABSENT."""
        return self._records.get(key, ABSENT)

    def keys(self, prefix: str) -> Iterable[str]:
        """The keys that start with `prefix`."""
        return [key for key in self._records if key.startswith(prefix)]


class MemoryStore:
    """The other side of memory transports: the newest snapshot and who wants to know of it."""

    def __init__(self) -> None:
        self.snapshot = MemorySnapshot({})
        self.clients: set[MemoryTransport] = set()
        self._count = 0

    def apply(self, writes: Mapping[str, bytes | Absent]) -> None:
        """Make `writes` the newest state and tell every client."""
        records = {k: f for k in self.snapshot.keys("") if (f := self.snapshot.get(k))}
        for key, value in writes.items():
            self._count += 1
            if value is ABSENT:
                records.pop(key, None)
            else:
                records[key] = Versioned(value, f"v{self._count}")
        self.snapshot = MemorySnapshot(records)
        for client in tuple(self.clients):
            client.follow()


class MemoryTransport(Transport):
    """Changes take effect one after another at once; everybody sees them at once."""

    name = "memory"

    def __init__(self, context: Context, store: MemoryStore) -> None:
        super().__init__(context)
        self.store = store
        self._seen: MemorySnapshot = store.snapshot
        self._last_sync: float | None = None

    async def _open(self) -> None:
        self.store.clients.add(self)
        self.follow()

    async def _close(self) -> None:
        self.store.clients.discard(self)

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self._seen

    @property
    def last_sync(self) -> float | None:
        """The moment of the last look."""
        return self._last_sync

    async def refresh(self) -> None:
        """Look again."""
        await anyio.lowlevel.checkpoint()
        self.follow()

    def follow(self) -> None:
        """Take over the store's newest snapshot."""
        self._last_sync = self.context.clock.now()
        if self._seen is not self.store.snapshot:
            self._seen = self.store.snapshot
            self._announce()

    async def _commit(self, change: Change[T]) -> T:
        await anyio.lowlevel.checkpoint()
        view = View(self.store.snapshot)
        answer = change.rule(view)
        if view.writes:
            self.store.apply(view.writes)
        return answer
