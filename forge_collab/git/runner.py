"""One git process: a cleaned environment, a time limit, a process group that dies as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

from forge_collab.core.errors import EnvironmentError_
from forge_collab.core.identity import redact

_DROPPED = {
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_QUARANTINE_PATH",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
    "GIT_REPLACE_REF_BASE",
}
HANDED_OVER = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "GIT_ASKPASS", "SSH_ASKPASS", "PATH", "DISPLAY")
"""What a command's terminal can authenticate with, and hands to the daemon."""
PLAIN_PUSH = (
    *("-c", "push.followTags=false", "-c", "push.recurseSubmodules=no"),
    *("-c", "push.gpgSign=false", "-c", "color.ui=false"),
)
"""What a push of forge's needs, whatever the user's settings say: these refs and no more."""
_GRACE_SECONDS = 1.0
MIN_VERSION = (2, 38)


@dataclass(frozen=True, slots=True)
class Result:
    """How a git process ended: its exit code, or `timed_out` when it was killed at its limit."""

    code: int
    out: bytes
    err: str
    timed_out: bool = False

    @property
    def is_ok(self) -> bool:
        """Whether git reported success."""
        return self.code == 0 and not self.timed_out


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for git: where it is told by arguments, nothing asks, messages in English."""
    kept = {key: value for key, value in environ.items() if key not in _DROPPED}
    kept.update(GIT_TERMINAL_PROMPT="0", GIT_OPTIONAL_LOCKS="0", LC_ALL="C")
    return kept


def no_git() -> EnvironmentError_:
    """The error for a machine without git."""
    return EnvironmentError_("git was not found on this machine", hint="install git 2.38 or newer")


def _not_started(cwd: Path, error: FileNotFoundError) -> EnvironmentError_:
    if cwd.is_dir():
        return no_git()
    return EnvironmentError_(f"no such folder any more: {cwd}", data={"path": str(error.filename)})


def run_sync(
    args: Sequence[str], *, cwd: Path, environ: Mapping[str, str], timeout: float = 10.0
) -> Result:
    """Run a git command that asks no network; for commands that answer at once.

    :raises EnvironmentError_: when there is no git.
    """
    try:
        done = subprocess.run(
            ["git", *args],
            cwd=cwd,
            env=clean_environ(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise _not_started(cwd, error) from error
    except subprocess.TimeoutExpired:
        return Result(-1, b"", f"git {args[0]} took longer than {timeout:g} s", timed_out=True)
    return Result(done.returncode, done.stdout, _words(done.stderr))


async def run(
    args: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    timeout: float,
    stdin: bytes | None = None,
) -> Result:
    """Run a git command; at its limit, or when cancelled, its whole process group is killed.

    :raises EnvironmentError_: when there is no git.
    """
    try:
        process = await anyio.open_process(
            ["git", *args],
            cwd=cwd,
            env=clean_environ(environ),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise _not_started(cwd, error) from error
    out, err = bytearray(), bytearray()
    try:
        with anyio.move_on_after(timeout) as limit:
            await _talk(process, stdin, out, err)
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    code = -1 if process.returncode is None else process.returncode
    return Result(code, bytes(out), _words(bytes(err)), timed_out=limit.cancelled_caught)


async def _talk(process: Process, stdin: bytes | None, out: bytearray, err: bytearray) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_drain, process.stdout, out)
        tasks.start_soon(_drain, process.stderr, err)
        if process.stdin is not None and stdin is not None:
            with suppress(anyio.BrokenResourceError):
                await process.stdin.send(stdin)
            await process.stdin.aclose()
        await process.wait()
        # Something git left behind (a shared ssh connection) may keep a pipe open.
        tasks.cancel_scope.deadline = anyio.current_time() + _GRACE_SECONDS


async def _drain(stream: ByteReceiveStream | None, into: bytearray) -> None:
    if stream is not None:
        async for chunk in stream:
            into.extend(chunk)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    await process.aclose()


def one_line(words: str) -> str:
    """What git and the server said, in one line; the server's own words alone where it had some."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    said = [line.removeprefix("remote:").strip() for line in lines if line.startswith("remote:")]
    return " ".join(filter(None, said or lines))


def _words(err: bytes) -> str:
    return redact(err.decode("utf-8", "replace")).strip()
