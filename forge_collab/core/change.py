"""A change: a rule over a view of the records, run again after every conflict.

A rule reads, writes and answers through a `View`; what it read and wrote is the change proper,
all or nothing. It is a plain function of the view and of what it was made with, so a transport
may run it any number of times, on ever newer snapshots. It says no by raising. After an answer
that got lost it may even be run on a snapshot in which it has already taken effect; rules that
matter recognise themselves there by their nonce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from forge_collab.core import keys as names
from forge_collab.core.errors import CorruptError
from forge_collab.core.records import D, Record, check_writable, decode, encode

T = TypeVar("T")
R = TypeVar("R", bound=Record)


class Absent(Enum):
    """The one value for "no record"; as an expectation: must not exist."""

    ABSENT = "absent"

    def __bool__(self) -> Literal[False]:
        return False


ABSENT: Final = Absent.ABSENT


@dataclass(frozen=True, slots=True)
class Versioned:
    """A record's bytes and their opaque version: equal versions mean equal bytes."""

    value: bytes
    version: str


Found: TypeAlias = Versioned | Absent


class Snapshot(Protocol):
    """All records as they were at one moment; never changes."""

    def get(self, key: str) -> Found:
        """The record under `key`, or ABSENT."""
        ...

    def keys(self, prefix: str) -> Iterable[str]:
        """The keys that start with `prefix`, in any order."""
        ...


class Urgency(IntEnum):
    """When a change goes out: ahead of others, at once, or with the next push."""

    AHEAD = 0
    NOW = 1
    RIDE = 2


class View:
    """A snapshot with what a rule wrote laid over it; remembers what the rule read.

    `lost` is how often this rule said yes and another change came first.
    """

    def __init__(self, snapshot: Snapshot, *, lost: int = 0) -> None:
        self._snapshot = snapshot
        self.lost = lost
        self.reads: dict[str, str | Absent] = {}
        self.writes: dict[str, bytes | Absent] = {}

    def get(self, key: str) -> bytes | Absent:
        """The bytes under `key` as this change would leave them, or ABSENT."""
        if key in self.writes:
            return self.writes[key]
        found = self._snapshot.get(key)
        self.reads[key] = ABSENT if found is ABSENT else found.version
        return ABSENT if found is ABSENT else found.value

    def version(self, key: str) -> str | Absent:
        """The version of `key` in the snapshot."""
        self.get(key)
        return self.reads.get(key, ABSENT)

    def keys(self, prefix: str) -> list[str]:
        """The keys that start with `prefix`, as this change would leave them, sorted."""
        below = {key for key in self._snapshot.keys(prefix) if self.writes.get(key) is not ABSENT}
        own = (k for k, v in self.writes.items() if k.startswith(prefix) and v is not ABSENT)
        return sorted(below.union(own))

    def put(self, key: str, value: bytes) -> None:
        """Write `value` under `key`."""
        self.writes[key] = value

    def drop(self, key: str) -> None:
        """Leave nothing under `key`."""
        self.writes[key] = ABSENT

    def document(self, kind: type[D], key: str) -> D | None:
        """The document under `key`, or None where there is none.

        :raises CorruptError: when it can't be read.
        """
        value = self.get(key)
        return None if value is ABSENT else decode(kind, value, names.path_of(key))

    def save(self, key: str, record: Record) -> None:
        """Write `record` under `key` with the next `rev`.

        :raises CorruptError: when what stands there can't be read, so can't be judged.
        :raises BlockedError: when a newer forge wrote what stands there.
        """
        before = self.document(type(record), key)
        if before is not None:
            check_writable(before, names.path_of(key))
        rev = 1 if before is None else before.rev + 1
        self.put(key, encode(record.but(rev=rev)))


Rule: TypeAlias = Callable[[View], T]


@dataclass(frozen=True)
class Change(Generic[T]):
    """A rule to be carried out: all of what it writes, or nothing.

    `what` says it in a few words for the commit's subject; `refs` are code refs with the objects
    expected before and wanted after, for transports that can move them in the same step.
    """

    rule: Rule[T]
    what: str
    urgency: Urgency = Urgency.NOW
    refs: Mapping[str, tuple[str | Absent, str | Absent]] = field(default_factory=dict)


def overlay(snapshot: Snapshot, writes: Mapping[str, bytes | Absent]) -> Snapshot:
    """`snapshot` with `writes` laid over it, under versions that no transport gives."""
    return _Overlay(snapshot, dict(writes))


class _Overlay:
    def __init__(self, below: Snapshot, writes: dict[str, bytes | Absent]) -> None:
        self._below = below
        self._writes = writes

    def get(self, key: str) -> Found:
        if key not in self._writes:
            return self._below.get(key)
        value = self._writes[key]
        return ABSENT if value is ABSENT else Versioned(value, f"pending:{hash(value)}")

    def keys(self, prefix: str) -> Iterable[str]:
        below = (key for key in self._below.keys(prefix) if key not in self._writes)
        own = (k for k, v in self._writes.items() if k.startswith(prefix) and v is not ABSENT)
        return {*below, *own}


def readable(
    kind: type[D], snapshot: Snapshot, prefix: str
) -> tuple[dict[str, D], list[CorruptError]]:
    """Every document under `prefix` that can be read, by key, and why the others can't."""
    good: dict[str, D] = {}
    bad: list[CorruptError] = []
    for key in sorted(snapshot.keys(prefix)):
        found = snapshot.get(key)
        try:
            if found is not ABSENT:
                good[key] = decode(kind, found.value, names.path_of(key))
        except CorruptError as error:
            bad.append(error)
    return good, bad
