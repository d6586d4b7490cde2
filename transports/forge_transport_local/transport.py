"""LocalTransport: one change at a time, behind a lock on disk that every process of a clone takes.

A change takes the lock, reads the file if another process has replaced it, runs the rule, and
writes the file whole. So a rule always judges the newest records, never twice, and a file that
can't be read ends the change before anything is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar, TypeVar

import anyio
import anyio.to_thread
from filelock import FileLock, Timeout

from forge_collab.core.change import Change, Snapshot, View
from forge_collab.core.errors import EnvironmentError_, ForgeError, UnavailableError
from forge_collab.transport import Context, Transport
from forge_transport_local.file import RecordFile, explained

T = TypeVar("T")
_TRY_AGAIN_SECONDS = 0.01


class LocalTransport(Transport):
    """Records in ``<common dir>/forge/local/records.json``; see the module for how they change."""

    name: ClassVar[str] = "local"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        if context.common_dir is None:
            raise EnvironmentError_("the local transport needs a git repository")
        self._folder = context.common_dir / "forge" / "local"
        self._file = RecordFile(self._folder / "records.json")
        # Taken and given back in turn by tasks, whatever threads they run in.
        self._lock = FileLock(
            str(self._folder / "lock"), timeout=0, is_singleton=False, thread_local=False
        )
        self._turn = anyio.Lock()
        self._last_sync: float | None = None
        self._trouble: str | None = None

    async def _open(self) -> None:
        if not self.context.is_look:
            with explained("make", self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
        await self.refresh()

    async def _work(self) -> None:
        """Notice what other processes write."""
        while True:
            await anyio.sleep(self.context.poll_seconds)
            try:
                await self.refresh()
            except ForgeError as error:
                self._trouble = error.message

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            async with self._turn:  # A change under way is whole before the file is closed.
                self._file.close()

    @property
    def snapshot(self) -> Snapshot:
        """The records as last read or written here."""
        return self._file.records

    @property
    def last_sync(self) -> float | None:
        """When the file was last looked at."""
        return self._last_sync

    @property
    def trouble(self) -> str | None:
        """Why the file couldn't be read the last time, or None."""
        return self._trouble

    async def refresh(self) -> None:
        """Read the file if another process has replaced it.

        :raises CorruptError: when it can't be read as records.
        :raises EnvironmentError_: when it can't be read at all.
        """
        async with self._turn:
            with anyio.CancelScope(shield=True):
                await self._read()

    async def _read(self) -> None:
        asked_at, before = self.context.clock.now(), self._file.records
        after = await anyio.to_thread.run_sync(self._file.read)
        self._trouble, self._last_sync = None, asked_at
        if after is not before:
            self._announce()

    async def _commit(self, change: Change[T]) -> T:
        async with self._turn, self._locked():
            with anyio.CancelScope(shield=True):  # Half a change would leave the lock taken.
                await self._read()
                view = View(self.snapshot)
                answer = change.rule(view)
                if view.writes:
                    await self._write(view)
        return answer

    async def _write(self, view: View) -> None:
        records = self._file.records.after(view.writes)
        try:
            await anyio.to_thread.run_sync(self._file.write, records)
        finally:
            if self._file.records is records:
                self._announce()

    @asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        """Has the lock that keeps other processes out.

        :raises UnavailableError: when somebody else has it for too long.
        """
        until = anyio.current_time() + self.context.network_seconds
        while not self._is_taken():
            if anyio.current_time() >= until:
                raise UnavailableError(
                    f"another process has {self._lock.lock_file} locked for "
                    f"{self.context.network_seconds:g} s",
                    hint=f"see who: fuser {self._lock.lock_file}; then try again",
                    data={"unsettled": False, "path": self._lock.lock_file},
                )
            await anyio.sleep(_TRY_AGAIN_SECONDS * (0.5 + self.context.random.random()))
        try:
            yield
        finally:
            self._lock.release()

    def _is_taken(self) -> bool:
        with explained("lock", self._folder):
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                return False
        return True
