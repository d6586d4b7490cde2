"""The daemon as a process: one per clone, found by its socket, proved by its lock."""

from __future__ import annotations

import hashlib
import json
import logging
import logging.handlers
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from forge_collab.core.errors import EnvironmentError_
from forge_collab.files.atomic import explained, read_or_none, remove, write_atomic

LOG_BYTES = 1024 * 1024
LOGS_KEPT = 3


def runtime_dir(environ: Mapping[str, str]) -> Path:
    """The folder for sockets: ``$XDG_RUNTIME_DIR/forge``, else ``/tmp/forge-<uid>``; ours alone.

    :raises EnvironmentError_: when it belongs to somebody else or can't be made.
    """
    base = environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "forge" if base and Path(base).is_dir() else None
    folder = folder or Path(f"/tmp/forge-{os.getuid()}")
    with explained("make", folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise EnvironmentError_(
            f"{folder} belongs to somebody else", hint="set XDG_RUNTIME_DIR to a folder of yours"
        )
    if status.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


class Place:
    """Where one clone's daemon keeps its lock, pid, socket and log."""

    def __init__(self, common_dir: Path) -> None:
        self.common_dir = common_dir
        self.folder = common_dir / "forge"
        self.lock_path = self.folder / "lock"
        self.pid_path = self.folder / "pid"
        self.pointer = self.folder / "socket"
        self.log_path = self.folder / "daemon.log"
        self.crash_path = self.folder / "crash.txt"
        self.journal_path = self.folder / "journal"
        self.alone_journal_path = self.folder / "local" / "journal"

    def new_socket(self, environ: Mapping[str, str]) -> Path:
        """The path for this clone's socket; the same one for the same clone."""
        status = os.stat(self.common_dir)
        text = f"{self.common_dir}\0{status.st_dev}\0{status.st_ino}"
        name = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return runtime_dir(environ) / f"{name}.sock"

    def point_to(self, socket: Path) -> None:
        """Let clients find `socket`."""
        write_atomic(self.pointer, f"{socket}\n".encode("utf-8", "surrogateescape"))

    def identity(self) -> list[int]:
        """What tells this clone from a copy of it: the device and inode of its common dir."""
        status = os.stat(self.common_dir)
        return [status.st_dev, status.st_ino]

    def note_pid(self) -> None:
        """Leave this process's id for people; nothing decides by it."""
        write_atomic(self.pid_path, f"{os.getpid()}\n".encode())

    def pid(self) -> int | None:
        """The process id that was left, or None; nothing decides by it."""
        data = read_or_none(self.pid_path) or b""
        return int(data) if data.strip().isdigit() else None

    def is_locked_by(self, pid: int) -> bool:
        """Whether a process has this clone's lock file open, so is its daemon.

        False where the system doesn't tell (it takes Linux's /proc).
        """
        try:
            opened = list(Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            return False
        return any(_is_same_file(path, self.lock_path) for path in opened)

    def tidy(self, socket: Path) -> None:
        """Remove what only a running daemon has."""
        for path in (self.pid_path, self.pointer, socket):
            remove(path)


def _is_same_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # Closed since it was listed, or there is none.
        return False


class Lock:
    """The operating system's lock that proves the one daemon of a clone; never broken by age."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(str(path), timeout=0, is_singleton=False)
        self._inode: int | None = None

    def take(self) -> bool:
        """Take the lock; False when another process has it."""
        with explained("lock", self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                return False
            self._inode = self._path.stat().st_ino
        return True

    def is_mine(self) -> bool:
        """Whether the file that is locked is still the one that others would lock."""
        try:
            return self._lock.is_locked and self._path.stat().st_ino == self._inode
        except OSError:
            return False

    def drop(self) -> None:
        """Give the lock back."""
        self._lock.release()


def log_to(path: Path, *, also_stderr: bool) -> None:
    """Send forge's log to a file that is rotated at 1 MiB, three old ones kept."""
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers: list[logging.Handler] = [
            logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOGS_KEPT)
        ]
    if also_stderr:
        handlers.append(logging.StreamHandler())
    logger = logging.getLogger("forge")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    for handler in handlers:
        handler.setFormatter(formatter)
        logger.addHandler(handler)


def spawn(common_dir: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the daemon of a clone in the background.

    It keeps none of our descriptors and outlives the terminal. What it says before its log is
    open goes to ``<common dir>/forge/daemon.err``.
    """
    errors = common_dir / "forge" / "daemon.err"
    with explained("write", errors):
        errors.parent.mkdir(parents=True, exist_ok=True)
        with errors.open("wb") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "forge_collab.daemon", str(common_dir)],
                cwd="/",
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )


def failure(common_dir: Path) -> dict[str, object] | None:
    """The error that a daemon which ended at once left on its last line, or None."""
    data = read_or_none(common_dir / "forge" / "daemon.err") or b""
    lines = data.decode("utf-8", "replace").strip().splitlines()
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return found if isinstance(found, dict) else None
