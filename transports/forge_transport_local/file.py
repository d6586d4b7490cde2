"""The one file of a clone's own records: read as a snapshot, written so that it is always whole.

JSON: under ``records`` each key with its version and its text, in which a byte that isn't UTF-8
is a lone surrogate, so that any bytes come back as they were. The version is random, made anew
at each write of the record: equal versions are one and the same write.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from forge_collab import faults
from forge_collab.core.change import ABSENT, Absent, Found, Versioned
from forge_collab.core.errors import BlockedError, CorruptError, EnvironmentError_

SCHEMA = 1


class Records:
    """The records as they were at one moment; never changes."""

    def __init__(self, records: Mapping[str, Versioned]) -> None:
        self._records = records

    def get(self, key: str) -> Found:
        """The record under `key`, or ABSENT."""
        return self._records.get(key, ABSENT)

    def keys(self, prefix: str) -> Iterable[str]:
        """The keys that start with `prefix`."""
        return [key for key in self._records if key.startswith(prefix)]

    def after(self, writes: Mapping[str, bytes | Absent]) -> Records:
        """These with `writes` laid over them, under new versions."""
        records = dict(self._records)
        for key, value in writes.items():
            if value is ABSENT:
                records.pop(key, None)
            else:
                records[key] = Versioned(value, secrets.token_hex(8))
        return Records(records)

    def encode(self) -> bytes:
        """What the file holds for them."""
        records = {
            key: [found.version, found.value.decode("utf-8", "surrogateescape")]
            for key, found in sorted(self._records.items())
        }
        return json.dumps({"v": SCHEMA, "records": records}, indent=0).encode("ascii") + b"\n"


NOTHING = Records({})


class RecordFile:
    """The file at `path` as this process last saw it.

    The file is only ever replaced, never changed in place, and the one that was read stays open:
    its inode can't come again, so what has another inode is another file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = NOTHING
        self._descriptor: int | None = None
        self._seen: tuple[int, ...] | None = None

    def has_moved(self) -> bool:
        """Whether the file isn't the one that was last read or written here.

        :raises EnvironmentError_: when nobody can tell.
        """
        with explained("read", self.path):
            return self._look() != self._seen

    def read(self) -> Records:
        """The records in the file; none where there never was one.

        :raises CorruptError: when it can't be read as such, or was there before and is gone.
        :raises BlockedError: when a newer forge wrote it.
        :raises EnvironmentError_: when it can't be opened or read.
        """
        if not self.has_moved():
            return self.records
        with explained("read", self.path):
            descriptor = self._open()
            if descriptor is None:
                return self._absent()
            try:
                data = _whole(descriptor)
                records = decode(data, self.path)
            except BaseException:
                os.close(descriptor)
                raise
            self._keep(descriptor, records)
        return records

    def write(self, records: Records) -> None:
        """Make `records` what the file holds; its caller has the lock and has read before.

        :raises EnvironmentError_: when it can't be written; data has ``unsettled`` where it was
            and may not outlive a power cut.
        """
        fresh = self.path.with_name(f"{self.path.name}.new")
        with explained("write", self.path):
            descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                _fill(descriptor, records.encode())
                faults.at("local.before_rename")
                os.replace(fresh, self.path)
            except BaseException:
                os.close(descriptor)
                with contextlib.suppress(OSError):
                    fresh.unlink(missing_ok=True)
                raise
        self._keep(descriptor, records)
        with explained("write", self.path, unsettled=True):
            faults.at("local.after_rename")
            _sync_folder(self.path.parent)

    def close(self) -> None:
        """Forget the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _open(self) -> int | None:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None

    def _absent(self) -> Records:
        if self._seen is not None:
            raise CorruptError(
                f"{self.path} is gone: somebody removed this clone's own records",
                hint="put it back; or forge daemon stop, to begin without what was in it",
                data={"path": str(self.path), "line": None},
            )
        return self.records

    def _keep(self, descriptor: int, records: Records) -> None:
        self.close()
        self._descriptor, self.records = descriptor, records
        self._seen = _identity(os.fstat(descriptor))

    def _look(self) -> tuple[int, ...] | None:
        try:
            return _identity(os.stat(self.path))
        except FileNotFoundError:
            return None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """What tells one file from another, and from itself after a person has edited it."""
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def decode(data: bytes, path: Path) -> Records:
    """The records in `data`, what the file at `path` holds.

    :raises CorruptError: when it can't be read as such.
    :raises BlockedError: when a newer forge wrote it.
    """
    try:
        raw: dict[str, Any] = json.loads(data)
        version, entries = raw["v"], raw["records"]
        if version == SCHEMA:
            return Records({str(key): _record(*entry) for key, entry in entries.items()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(
            f"{path} can't be read: {error}",
            hint="mend it or put a copy back; it isn't written over",
            data={"path": str(path), "line": getattr(error, "lineno", 1)},
        ) from error
    raise BlockedError(
        f"{path} was written by another forge (schema {version}, this one knows {SCHEMA})",
        hint="upgrade forge on this machine",
        data={"path": str(path)},
    )


def _record(version: str, text: str) -> Versioned:
    if not isinstance(version, str):
        raise TypeError("a version is a string")
    return Versioned(text.encode("utf-8", "surrogateescape"), version)


def _whole(descriptor: int) -> bytes:
    with os.fdopen(os.dup(descriptor), "rb") as file:
        return file.read()


def _fill(descriptor: int, data: bytes) -> None:
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems know no fsync of a folder; the rename stands anyway.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(verb: str, path: Path, *, unsettled: bool = False) -> Iterator[None]:
    """Turns an operating system's error inside the block into a sentence about `path`.

    :raises EnvironmentError_: when the block raised an `OSError`; data says whether what was to
        be done may have been done.
    """
    extra = {"unsettled": True} if unsettled else {}
    try:
        yield
    except OSError as error:
        raise EnvironmentError_(
            f"can't {verb} {path}: {error.strerror or error}",
            hint=f"ls -ld {path.parent}; df {path.parent}",
            data={"path": str(path), "errno": error.errno, **extra},
        ) from error
