"""The contract of a transport, the one public plug-in point, and how one is found by name.

A transport keeps records under keys, changes several of them all or nothing, and passes
messages on. It knows nothing of leases, tasks or flags: a rule is handed to it as a function
(`forge_collab.core.change.Change`) that it runs again after every conflict.

A subclass provides `_open`, `_work`, `_close`, `refresh` and `_commit`; everything else is
written here once. `forge_collab.testing.contract` is the suite every transport has to pass.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from forge_collab.clock import Clock, SystemClock
from forge_collab.core import keys, session
from forge_collab.core.change import ABSENT, Absent, Change, Found, Snapshot, Urgency, View
from forge_collab.core.errors import (
    ConflictError,
    CorruptError,
    EnvironmentError_,
    UnavailableError,
)
from forge_collab.core.records import Message, decode_lines

T = TypeVar("T")
GROUP = "forge.transports"
_OWN_PACKAGE = "forge-collab"
_INBOX_SIZE = 1000


class Capability(StrEnum):
    """What a transport can do beyond the contract."""

    REFS = "refs"
    """Moves code refs in the same step as records; `Transport.moves_refs` asks where it may."""


@dataclass(frozen=True)
class Context:
    """What a transport is made with: whose it is, where, and what time and chance are.

    With `is_look` it is for one short use beside the clone's daemon, and remembers nothing.

    `instance` is this participant's id; `handle` the person's name, by which a message can be
    addressed too; `common_dir` the clone's git common directory, where it has one.
    """

    instance: str
    handle: str = ""
    common_dir: Path | None = None
    remote: str = "origin"
    state_ref: str = "refs/heads/forge/collab-state"
    commit_subject: str = "forge: {what} [skip ci]"
    poll_seconds: float = 2.5
    idle_poll_seconds: float = 15.0
    network_seconds: float = 15.0
    is_look: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    clock: Clock = field(default_factory=SystemClock)
    random: random.Random = field(default_factory=random.Random)


@dataclass(frozen=True)
class Received:
    """A message with its sender: the owner of the ring it came in, never what it says."""

    sender: str
    message: Message


class Transport(ABC):
    """Records under keys, changed all or nothing, and messages between participants."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[Capability]] = frozenset()

    def __init__(self, context: Context) -> None:
        self.context = context
        self.notices: list[str] = []
        """What happened that people should hear of once; whoever tells them empties it."""
        self._is_open = False
        self._stack = AsyncExitStack()
        self._moved = anyio.Event()
        self._inboxes: list[tuple[MemoryObjectSendStream[Received], dict[str, int]]] = []

    # Life

    async def connect(self) -> None:
        """Be ready for all operations, with a snapshot as new as the call.

        :raises UnavailableError: when the other side can't be reached.
        :raises EnvironmentError_: when it can't serve as a session's judge.
        """
        await self._open()
        self._is_open = True
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(self._work)

    async def aclose(self) -> None:
        """End; what was not answered by now won't be. Closing twice is nothing."""
        self._is_open = False
        await self._stack.aclose()
        for send, _ in self._inboxes:
            send.close()
        self._inboxes.clear()
        await self._close()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @abstractmethod
    async def _open(self) -> None:
        """Connect; what was taken must have been given back when this raises."""

    async def _work(self) -> None:  # noqa: B027 - to do nothing by oneself is fine
        """What goes on by itself from `connect` to `aclose`, which cancels it."""

    async def _close(self) -> None:  # noqa: B027 - nothing to give back is the usual case
        """Give back what `_open` took, after `_work` has ended."""

    # Records

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """All records as last seen: at least as new as this client's own last change."""

    @property
    @abstractmethod
    def last_sync(self) -> float | None:
        """When, on the context's clock, `snapshot` was last known to be the newest."""

    @property
    def trouble(self) -> str | None:
        """Why the other side can't be reached at present, or None when it can."""
        return None

    @abstractmethod
    async def refresh(self) -> None:
        """Bring `snapshot` up to what the other side has at a moment after the call.

        :raises UnavailableError: when the other side can't be reached.
        """

    async def commit(self, change: Change[T]) -> T:
        """Carry out `change`, all or nothing, and give its rule's answer once it has taken effect.

        The rule's answer counts only on a snapshot that was read after the call, so what it
        raises is a decision, not a guess. After `UnavailableError` the change may still take
        effect, but no longer once a later change of this client has.

        `change.refs` is for a transport that moves refs; a ref that isn't at the object expected
        is a conflict that no rule can mend, so its asker is told.

        :raises UnavailableError: when nobody knows yet whether it took effect.
        :raises RefusedError: when the other side decided against writing it.
        :raises ConflictError: when a ref of the change is elsewhere; `current` is where.
        :raises ForgeError, ConflictError: whatever the rule raised.
        """
        if not self._is_open:
            raise UnavailableError("this transport isn't connected", data={"unsettled": False})
        return await self._commit(change)

    @abstractmethod
    async def _commit(self, change: Change[T]) -> T:
        """As `commit`."""

    async def moves_refs(self) -> bool:
        """Whether `commit` can move code refs in the same step as records.

        :raises UnavailableError: when the other side has to be asked, and can't be reached.
        """
        return Capability.REFS in self.capabilities

    async def read(self, key: str) -> Found:
        """The record under `key` with its version, or ABSENT, from `snapshot`."""
        return self.snapshot.get(key)

    async def list(self, prefix: str) -> list[str]:
        """The keys that start with `prefix`, sorted, from `snapshot`."""
        return sorted(self.snapshot.keys(prefix))

    async def cas(self, key: str, expected: str | Absent, value: bytes) -> None:
        """Write `value` under `key` if its version is still `expected` (ABSENT: must not exist).

        :raises ConflictError: when it isn't; `current` is what is there.
        """
        await self._commit_one(key, expected, value)

    async def delete(self, key: str, expected: str | Absent) -> None:
        """Leave nothing under `key` if its version is still `expected`.

        :raises ConflictError: when it isn't; `current` is what is there.
        """
        await self._commit_one(key, expected, ABSENT)

    async def _commit_one(self, key: str, expected: str | Absent, value: bytes | Absent) -> None:
        def rule(view: View) -> None:
            current = view.get(key)
            if view.version(key) != expected:
                raise ConflictError(key, current)
            if value is ABSENT:
                view.drop(key)
            else:
                view.put(key, value)

        await self.commit(Change(rule, f"write {key}"))

    # Changes as they come

    async def wait_moved(self, seen: Snapshot) -> Snapshot:
        """The first snapshot that isn't `seen`."""
        while self.snapshot is seen:
            await self._moved.wait()
        return self.snapshot

    def _announce(self) -> None:
        """Wake whoever waits for a new snapshot, and pass on the messages in it."""
        self._moved.set()
        self._moved = anyio.Event()
        self._pass_on()

    # Messages: hints; late, doubled, missing is allowed

    async def publish(self, event: str, data: Mapping[str, Any], *, soon: bool = False) -> None:
        """Tell all participants; with `soon`, ahead of whatever else would be pushed anyway."""
        await self._post(event, data, None, soon)

    async def send_targeted(
        self, to: str, event: str, data: Mapping[str, Any], *, soon: bool = False
    ) -> None:
        """Tell one participant, by instance or handle; the addressee is in the envelope."""
        await self._post(event, data, to, soon)

    async def _post(self, event: str, data: Mapping[str, Any], to: str | None, soon: bool) -> None:
        instance, ts = self.context.instance, self.context.clock.wall()

        def rule(view: View) -> None:
            session.post(view, instance, event, data, to=to, ts=ts)

        urgency = Urgency.NOW if soon else Urgency.RIDE
        await self.commit(Change(rule, f"message {event}", urgency))

    def subscribe(
        self, after: Mapping[str, int] | None = None
    ) -> MemoryObjectReceiveStream[Received]:
        """Others' messages to all or to me, from now on; `after` maps a sender to the last
        `seq` already seen, and what is kept beyond that comes first."""
        cursors = self._ends() if after is None else dict(after)
        send, receive = anyio.create_memory_object_stream[Received](_INBOX_SIZE)
        self._inboxes.append((send, cursors))
        self._pass_on()
        return receive

    def _ends(self) -> dict[str, int]:
        rings = {sender: self._ring(sender) for sender in self._senders()}
        return {sender: ring[-1].seq for sender, ring in rings.items() if ring}

    def _senders(self) -> Iterable[str]:
        return [key.removeprefix(keys.MESSAGES) for key in self.snapshot.keys(keys.MESSAGES)]

    def _ring(self, sender: str) -> tuple[Message, ...]:
        found = self.snapshot.get(keys.MESSAGES + sender)
        try:
            return () if found is ABSENT else decode_lines(Message, found.value, sender)
        except CorruptError:
            return ()

    def _pass_on(self) -> None:
        me = {None, self.context.instance, self.context.handle or None}
        for sender in self._senders() if self._inboxes else ():
            if sender == self.context.instance:
                continue
            ring = self._ring(sender)
            for send, cursors in self._inboxes:
                if ring and ring[-1].seq < cursors.get(sender, 0):
                    cursors[sender] = 0  # It was dropped, and its sender has begun again.
                for message in ring:
                    if message.seq > cursors.get(sender, 0):
                        cursors[sender] = message.seq
                        if message.to in me:
                            _offer(send, Received(sender, message))


def _offer(send: MemoryObjectSendStream[Received], received: Received) -> None:
    try:
        send.send_nowait(received)
    except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


def installed() -> set[str]:
    """The names of the transports that are installed."""
    return {point.name for point in entry_points(group=GROUP)}


def load(name: str) -> Callable[[Context], Transport]:
    """The transport registered under `name` in the entry-point group ``forge.transports``.

    :raises EnvironmentError_: when there is none, or it can't be imported; says what to install.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise EnvironmentError_(
            f"no transport is called '{name}'; installed: {known}",
            hint=f"pip install the package that has the '{GROUP}' entry point '{name}'; "
            "or git config --unset forge.transport",
        )
    try:
        loaded: Callable[[Context], Transport] = found[name].load()
    except Exception as error:
        raise _cant_load(found[name], error) from error
    return loaded


def _cant_load(point: EntryPoint, error: Exception) -> EnvironmentError_:
    """The error for a transport whose module can't be imported, whatever that raised."""
    package = point.dist.name if point.dist else None
    if package is None or package == _OWN_PACKAGE:
        hint = f"pip install '{_OWN_PACKAGE}[{point.name}]'"
    else:
        hint = f"pip install --upgrade {package}; or git config --unset forge.transport"
    if isinstance(error, ImportError) and error.name:
        why = f"needs a library that isn't installed: {error.name}"
    else:
        why = f"can't be loaded: {type(error).__name__}: {error}"
    origin = f" of {package}" if package else ""
    return EnvironmentError_(
        f"the transport '{point.name}'{origin} {why}",
        hint=hint,
        data={"transport": point.name, "package": package},
    )
