"""A bare origin with a plan, clones of it and their daemons, in a folder of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from forge_collab.cli.client import Client, running
from forge_collab.cli.here import Here
from forge_collab.core import keys
from forge_collab.core.change import Change, View
from forge_collab.core.records import Claimant, Lease, encode
from forge_collab.files.markers import Markers
from forge_collab.git.repository import discover
from forge_collab.transport import Context, load

FORGE = Path(sys.executable).with_name("forge")
_END_SECONDS = 10.0


@dataclass(frozen=True)
class Clone:
    """A clone whose daemon runs."""

    path: Path
    environ: Mapping[str, str]
    here: Here
    pid: int

    def connect(self) -> Client:
        """A connection to the daemon, greeted."""
        found = running(self.here)
        if found is None:
            raise RuntimeError(f"the daemon of {self.path} ended")
        return found[0]

    def forge(self, *args: str) -> dict[str, Any]:
        """The ``data`` that the command prints."""
        return forge(self.path, self.environ, *args)


class World:
    """Where one group of rows is measured."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.origin = root / "origin.git"
        self.environ = _environ(root)
        self._pusher = root / "pusher"
        self._commits = 0

    def git(self, *args: str, cwd: Path | None = None) -> None:
        """Run git; it has to succeed."""
        run(["git", *args], cwd=cwd or self.root, environ=self.environ)

    def make_origin(self, task_ids: Sequence[str]) -> None:
        """The bare repository with a plan, and the clone that ``git push`` is measured from."""
        self.git("init", "--quiet", "--bare", "--initial-branch=main", str(self.origin))
        self.git("init", "--quiet", "--initial-branch=main", str(self._pusher))
        tasks = self._pusher / ".forge" / "tasks"
        tasks.mkdir(parents=True)
        for task_id in task_ids:
            (tasks / f"{task_id}.yaml").write_text(f"id: {task_id}\ntitle: Task {task_id}\n")
        self.git("add", "--all", cwd=self._pusher)
        self.git("commit", "--quiet", "--message=a plan", cwd=self._pusher)
        self.git("remote", "add", "origin", str(self.origin), cwd=self._pusher)
        self.git("push", "--quiet", "origin", "main", cwd=self._pusher)
        self.git("switch", "--quiet", "--create", "yardstick", cwd=self._pusher)
        self.push()

    def push(self) -> float:
        """How long ``git push`` of one small commit takes, in ms."""
        self._commits += 1
        (self._pusher / "file").write_text(f"{self._commits}\n")
        self.git("add", "file", cwd=self._pusher)
        self.git("commit", "--quiet", "--message=one line", cwd=self._pusher)
        started = time.perf_counter()
        self.git("push", "--quiet", "origin", "yardstick", cwd=self._pusher)
        return (time.perf_counter() - started) * 1000

    def land_by_hand(self) -> float:
        """How long ``git merge --squash``, commit and push of one small branch take, in ms."""
        self._commits += 1
        work, place = f"work-{self._commits}", self._pusher
        self.git("switch", "--quiet", "--create", work, cwd=place)
        (place / work).write_text("work\n")
        self.git("add", work, cwd=place)
        self.git("commit", "--quiet", "--message=work", cwd=place)
        self.git("switch", "--quiet", "yardstick", cwd=place)
        started = time.perf_counter()
        self.git("merge", "--quiet", "--squash", work, cwd=place)
        self.git("commit", "--quiet", "--message=landed", cwd=place)
        self.git("push", "--quiet", "origin", "yardstick", cwd=place)
        return (time.perf_counter() - started) * 1000

    def pushes(self, count: int = 10) -> list[float]:
        """So many pushes in a row, in ms."""
        return [self.push() for _ in range(count)]

    def clones(self, count: int, **settings: str) -> list[Clone]:
        """So many clones, started; `settings` are git config keys below ``forge.``, `_` for -."""
        first = [self._clone("p0", settings)]  # makes the session
        with ThreadPoolExecutor(2) as pool:
            rest = pool.map(lambda n: self._clone(f"p{n}", settings), range(1, count))
            return first + list(rest)

    def _clone(self, name: str, settings: Mapping[str, str]) -> Clone:
        path = self.root / name
        self.git("clone", "--quiet", str(self.origin), str(path))
        for key, value in settings.items():
            self.git("config", f"forge.{key.replace('_', '-')}", value, cwd=path)
        forge(path, self.environ, "collaborate", "start", "--handle", name)
        repository = discover(path, self.environ)
        here = Here(repository, Markers(repository.common_dir))
        found = running(here)
        if found is None:
            raise RuntimeError(f"no daemon came up in {path}")
        found[0].close()
        return Clone(path, self.environ, here, int(found[1]["pid"]))

    def add_leases(self, clone: Clone, task_ids: Sequence[str]) -> None:
        """Let somebody who isn't here hold these tasks: one change, through the transport."""
        holder = Claimant(handle="elsewhere", instance="e" * 16, worker="main")

        def rule(view: View) -> None:
            for task_id in task_ids:
                lease = Lease(fence=1, nonce=task_id, claimant=holder, ttl_seconds=3600)
                view.put(keys.claim(task_id), encode(lease))

        async def write() -> None:
            common = clone.here.repository.common_dir
            context = Context("bench", common_dir=common, environ=self.environ)
            async with load("polling")(context) as transport:
                await transport.commit(Change(rule, "leases"))

        anyio.run(write)

    def end(self) -> None:
        """End every daemon, gently first; then remove everything."""
        pids = self._daemons()
        for pid in pids:
            _signal(pid, signal.SIGTERM)
        until = time.monotonic() + _END_SECONDS
        while any(_is_daemon(pid) for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        shutil.rmtree(self.root, ignore_errors=True)

    def _daemons(self) -> list[int]:
        left = self.root.glob("*/.git/forge/pid")
        return [int(text) for path in left if (text := path.read_text().strip()).isdigit()]


@contextmanager
def world(task_ids: Sequence[str]) -> Iterator[World]:
    """A world with these tasks; nothing of it is left afterwards."""
    made = World(Path(tempfile.mkdtemp(prefix="forge-bench-")))
    try:
        made.make_origin(task_ids)
        yield made
    finally:
        made.end()


def ids(count: int) -> list[str]:
    """So many task ids."""
    return [f"T{number:04}" for number in range(1, count + 1)]


def run(command: Sequence[str], *, cwd: Path, environ: Mapping[str, str]) -> bytes:
    """What a command prints; it has to succeed."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        words = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise RuntimeError(f"{' '.join(command)}: {words}")
    return done.stdout


def forge(path: Path, environ: Mapping[str, str], *args: str) -> dict[str, Any]:
    """The ``data`` that the command prints in `path`."""
    out = run([str(FORGE), *args, "--json"], cwd=path, environ=environ)
    data: dict[str, Any] = json.loads(out)["data"]
    return data


def _environ(root: Path) -> dict[str, str]:
    """None of this machine's settings; a short runtime directory, for the sockets."""
    for name in ("home", "run"):
        (root / name).mkdir(mode=0o700)
    config = root / "home" / ".gitconfig"
    config.write_text("[user]\n\tname = Bench\n\temail = bench@example.org\n")
    dropped = ("GIT_", "FORGE_", "XDG_", "ABLY_", "SSH_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    return kept | {
        "HOME": str(root / "home"),
        "XDG_RUNTIME_DIR": str(root / "run"),
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def _is_daemon(pid: int) -> bool:
    try:
        return b"forge_collab.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _signal(pid: int, number: int) -> None:
    if _is_daemon(pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
