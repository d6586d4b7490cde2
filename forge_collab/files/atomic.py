"""Files that are there whole or not at all; what is in them is the caller's matter."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from forge_collab import faults
from forge_collab.core.errors import EnvironmentError_

TEMPORARY_GLOB = ".forge-*.tmp"
"""The names that a write uses before its rename; a killed process can leave one behind."""

_FULL = "free some space, then run the command again"
_RIGHTS = "look at who owns it and its folder: ls -ld"
_HINTS = {
    errno.EROFS: "the file system is mounted read-only: remount it, or work in another clone",
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "the file would pass the size limit of this process: see ulimit -f",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOENT: "the folder it belongs in is missing: forge init",
    errno.ENOTDIR: "a file stands where a folder is needed: move it away",
    errno.EEXIST: "something else has that name: move it away",
    errno.EISDIR: "a folder has that name: move it away",
    errno.EIO: "the disk reports errors: see dmesg, and save a copy of the clone",
}


@contextlib.contextmanager
def explained(verb: str, path: Path) -> Iterator[None]:
    """Turns an operating system's error inside the block into a sentence about `path`.

    :raises EnvironmentError_: when the block raised an `OSError`; data has `path` and `errno`.
    """
    try:
        yield
    except OSError as error:
        raise EnvironmentError_(
            f"can't {verb} {path}: {error.strerror or error}",
            hint=_HINTS.get(error.errno or 0),
            data={"path": str(path), "errno": error.errno},
        ) from error


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """After it returns, `path` holds `data` even if the power fails; before that, what it held.

    `mode` is narrowed by the umask. A symbolic link is replaced, not followed.

    :raises EnvironmentError_: when the file can't be written or made to last; what stands there
        is whole, and the old content unless only the last sync of the folder failed.
    """
    temporary = path.with_name(f".forge-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    with explained("write", path):
        try:
            _write_new(temporary, data, mode)
            faults.at("write.before_rename")
            os.replace(temporary, path)
            faults.at("write.after_rename")
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def read_or_none(path: Path) -> bytes | None:
    """The whole content, or None when no such file exists.

    :raises EnvironmentError_: when it exists, or may exist, and can't be read.
    """
    with explained("read", path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def remove(path: Path, keep_bak: bool = False) -> None:
    """Makes `path` absent, as it may be already; `keep_bak` keeps the content as `<name>.bak`.

    :raises EnvironmentError_: when it is there and can't be removed.
    """
    with explained("remove", path):
        try:
            if keep_bak:
                os.replace(path, path.with_name(path.name + ".bak"))
            else:
                path.unlink()
        except FileNotFoundError:
            return
        _sync_folder(path.parent)


def append_line(path: Path, data: bytes, *, sync: bool) -> None:
    """Adds `data` as one line, whole or not at all; with `sync` it also survives a power cut.

    A last line without an end, which a killed writer left, is ended first, so that it spoils
    nothing but itself. One writer per file at a time.

    :raises ValueError: when `data` is more than one line.
    :raises EnvironmentError_: when it can't be written; the file is as it was, unless only the
        last sync of the folder failed.
    """
    line = data.removesuffix(b"\n")
    if b"\n" in line:
        raise ValueError("append_line takes one line")
    with explained("write", path):
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _append(descriptor, line + b"\n", sync=sync)
        finally:
            os.close(descriptor)
        if sync and is_new:
            _sync_folder(path.parent)


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _append(descriptor: int, line: bytes, *, sync: bool) -> None:
    size = os.fstat(descriptor).st_size
    is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    rest = b"\n" + line if is_torn else line
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if sync:
            os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, size)
        raise


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
