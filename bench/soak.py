"""``python -m bench.soak [--renewals N]``: what so many renewals leave on disk, and in the audit.

Two participants take turns through the real transport, once with a server that allows the branch
to be compacted, once with one that refuses. Sizes are those of files, without what a file system
rounds up to; both repositories are packed first, as their owners do now and then. The private
one keeps what nothing needs for an hour, so that nobody loses what is being fetched; this run is
shorter than that, so it is told to keep nothing.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from forge_collab.core import audit, keys, lease, session
from forge_collab.core.change import Change, Urgency, View
from forge_collab.core.records import Claimant, Participant
from forge_collab.transport import Context, Transport, load

_MIB = 1024 * 1024
_NOTE_EVERY = 20
_QUIET = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
_AUTHOR = ("-c", "user.name=Soak", "-c", "user.email=soak@example.org")


@dataclass(frozen=True)
class Soaked:
    """What one run left."""

    what: str
    seconds: float
    commits: int
    private: int
    private_most: float
    origin: int
    origin_most: int
    is_audit_complete: bool

    @property
    def is_met(self) -> bool:
        """Whether all is as small and as complete as it has to be."""
        is_small = self.private < self.private_most and self.origin < self.origin_most
        return is_small and self.is_audit_complete

    def line(self) -> str:
        """The run as a line of the table."""
        figures = f"{self.private / _MIB:>8.2f}  {self.origin / _MIB:>8.2f}"
        told = "complete" if self.is_audit_complete else "INCOMPLETE"
        verdict = "met" if self.is_met else "MISSED"
        limit = f"< {self.private_most / _MIB:g}, < {self.origin_most // _MIB}"
        return (
            f"{self.what:<20}  {self.seconds:>6.0f}  {self.commits:>7}  {figures}  "
            f"{limit:<10}  {told:<10}  {verdict}"
        )


HEAD = (
    f"{'server':<20}  {'s':>6}  {'commits':>7}  {'private':>8}  {'origin':>8}  "
    f"{'MiB':<10}  {'audit':<10}"
)


def git(*args: str, cwd: Path) -> str:
    """What a git command prints."""
    done = subprocess.run(
        ["git", *_AUTHOR, *args],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "HOME": str(cwd), **_QUIET},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def size(folder: Path) -> int:
    """The bytes of all files below `folder`."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Worker:
    """One participant: renews what it holds, and says something now and then."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.transport = transport
        self.claimant = Claimant(handle=name, instance=name * 16, worker="main")
        self.presence = Participant(handle=name, run=name)
        self.key = keys.claim(f"T00{name}")
        self.held: dict[str, lease.Held] = {}
        self.said = 0

    def _me(self) -> lease.Me:
        clock = self.transport.context.clock
        return lease.Me(self.claimant, lease.Watch(), clock.now(), clock.wall())

    async def claim(self) -> None:
        """Take a lease of its own."""

        def rule(view: View) -> lease.Grant:
            nonce = f"claim-{self.claimant.handle}"
            return lease.acquire(view, self.key, self._me(), nonce=nonce, ttl=120)

        grant = await self.transport.commit(Change(rule, "claim"))
        self.held[self.key] = lease.Held(grant.lease.fence, grant.lease.nonce)

    async def renew(self) -> None:
        """One beat: a push of its own."""
        beat = self.presence.beat + 1
        self.presence = self.presence.but(beat=beat, nonce=f"{beat:016x}")
        presence, instance = self.presence, self.claimant.instance

        def rule(view: View) -> session.Beat:
            return session.beat(view, instance, presence, self.held)

        found = await self.transport.commit(Change(rule, "beat", Urgency.AHEAD))
        assert not found.lost

    async def note(self) -> None:
        """A line in the audit."""
        self.said += 1
        nonce, text = f"note-{self.claimant.handle}-{self.said}", f"step {self.said}"

        def rule(view: View) -> None:
            lease.note(view, self.key, self._me(), nonce=nonce, text=text)

        await self.transport.commit(Change(rule, "note"))


async def soak(root: Path, renewals: int, *, is_compacted: bool) -> Soaked:
    """So many renewals on a new origin, and what is left of them."""
    origin = root / "origin.git"
    git("init", "-q", "--bare", "-b", "main", str(origin), cwd=root)
    git("config", "receive.denyNonFastForwards", str(not is_compacted).lower(), cwd=origin)
    git("config", "receive.autogc", "true", cwd=origin)
    first = git("commit-tree", "-m", "first", git("write-tree", cwd=origin), cwd=origin)
    git("update-ref", "refs/heads/main", first, cwd=origin)
    workers, began = [], time.monotonic()
    for name in "ab":
        clone = root / name
        git("clone", "-q", str(origin), str(clone), cwd=root)
        context = Context(
            instance=name * 16,
            handle=name,
            common_dir=clone / ".git",
            poll_seconds=3600,
            idle_poll_seconds=3600,
            environ={"PATH": "/usr/bin:/bin:/usr/local/bin", **_QUIET},
        )
        workers.append(Worker(load("polling")(context), name))
    async with workers[0].transport, workers[1].transport:
        for worker in workers:
            await worker.claim()
        for number in range(renewals):
            worker = workers[number // 50 % 2]
            await worker.renew()
            if number % _NOTE_EVERY == 0:
                await worker.note()
            if number % 1000 == 999:
                told = f"{number + 1} of {renewals}, {time.monotonic() - began:.0f} s"
                print(told, file=sys.stderr)
        await workers[0].transport.refresh()
        notes = [
            entry.nonce
            for entry in audit.history(workers[0].transport.snapshot)
            if entry.event == "note"
        ]
        store: Any = workers[0].transport
        store.store.keep_unreached = "now"
        await store.store.tidy()
        private = size(store.store.path)
    wanted = {f"note-{w.claimant.handle}-{n}" for w in workers for n in range(1, w.said + 1)}
    git("gc", "-q", "--prune=now", cwd=origin)
    return Soaked(
        what="allows compaction" if is_compacted else "refuses it",
        seconds=time.monotonic() - began,
        commits=int(git("rev-list", "--count", "forge/collab-state", cwd=origin)),
        private=private,
        private_most=2 * _MIB if is_compacted else math.inf,
        origin=size(origin) - size(origin / "hooks"),
        origin_most=(2 if is_compacted else 8) * _MIB,
        is_audit_complete=len(notes) == len(wanted) and set(notes) == wanted,
    )


def main() -> int:
    """Print the table; 1 when something is larger than it may be, or a line is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--renewals", type=int, default=10_000)
    parser.add_argument("--server", choices=("allows", "refuses"), help="one of the two runs only")
    asked = parser.parse_args()
    runs = []
    for is_compacted in {"allows": [True], "refuses": [False]}.get(asked.server, [True, False]):
        with tempfile.TemporaryDirectory(prefix="soak") as folder:
            runs.append(anyio.run(_soak, Path(folder), asked.renewals, is_compacted))
    print(f"{asked.renewals} renewals by two participants, sizes in MiB")
    print("\n".join([HEAD, *(run.line() for run in runs)]))
    return 0 if all(run.is_met for run in runs) else 1


async def _soak(root: Path, renewals: int, is_compacted: bool) -> Soaked:
    return await soak(root, renewals, is_compacted=is_compacted)


if __name__ == "__main__":
    sys.exit(main())
