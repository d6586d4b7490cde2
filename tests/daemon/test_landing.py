"""Landing over real git, records in memory: retries end by the clock, requests have commands."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from gitworld import World

from forge_collab.core import keys, landing
from forge_collab.core.change import View
from forge_collab.core.errors import BlockedError, UnavailableError
from forge_collab.core.records import TaskRecord
from forge_collab.core.tasks import TaskStatus
from forge_collab.daemon.landing import Landing
from forge_collab.daemon.participant import SessionParticipant
from forge_collab.daemon.plan import SessionPlan
from forge_collab.daemon.target import Target
from forge_collab.files.journal import load_journal
from forge_collab.git.repository import discover
from forge_collab.git.store import Store
from forge_collab.testing.clocks import ManualClock
from forge_collab.testing.memory import MemoryStore, MemoryTransport
from forge_collab.transport import Context

pytestmark = pytest.mark.anyio
MAIN, WORK = "refs/heads/main", "refs/heads/forge/task/T1@1"
ADA = "a" * 16
RACE = """\
while read old new ref; do
  if [ "$ref" = refs/heads/main ] && [ -s {left} ]; then
    sed -i 1d {left}
    unset GIT_QUARANTINE_PATH
    made=$(git commit-tree -p "$old" -m "somebody was first" "$old^{{tree}}")
    git update-ref refs/heads/main "$made"
  fi
done
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.put({b".forge/tasks/T1.yaml": b"id: T1\ntitle: Do it\n"}, ref=MAIN)
    made.git("branch", WORK.removeprefix("refs/heads/"), "main", cwd=made.origin)
    made.put({b"work.txt": b"work\n"}, ref=WORK)
    return made


class Passing(ManualClock):
    """A clock on which every look costs some seconds."""

    step = 0.0

    def now(self) -> float:
        self.seconds += self.step
        return self.seconds


@dataclass
class Session:
    """A clone that holds T1, and what it may land with."""

    landing: Landing
    clock: Passing
    store: Store
    records: MemoryStore

    async def land(self) -> str:
        branch = WORK.removeprefix("refs/heads/")
        told = await self.landing.land("w", "T1", fence=1, branch=branch, tip=None)
        return str(told["commit"])

    def record(self) -> TaskRecord:
        found = View(self.records.snapshot).document(TaskRecord, keys.TASKS + "T1")
        assert found is not None
        return found


@asynccontextmanager
async def session(world: World) -> AsyncIterator[Session]:
    repository = discover(world.clone(), world.environ)
    store = Store(repository, repository.remote("origin"), network_seconds=10)
    await store.ensure()
    clock, records, nonces = Passing(), MemoryStore(), itertools.count()
    context = Context(instance=ADA, handle="ada", clock=clock)
    try:
        async with MemoryTransport(context, records) as transport:
            target = Target(store, lambda: "main", clock=clock)
            plan = SessionPlan(target, transport)
            participant = SessionParticipant(
                transport,
                load_journal(world.place / "journal", ADA),
                plan,
                clock=clock,
                handle="ada",
                instance=ADA,
                run="run",
                new_nonce=lambda: f"nonce-{next(nonces)}",
            )
            await participant.arrive(session_id="s", repo="r", target="main")
            await plan.refresh()
            await participant.claim("w", "T1")
            yield Session(Landing(participant, plan), clock, store, records)
    finally:
        store.close()


def race(world: World, times: int) -> Path:
    """Let somebody else's push to main come first so many times."""
    left = world.place / "races-left"
    left.write_text("again\n" * times)
    world.hook("pre-receive", RACE.format(left=left))
    return left


async def test_however_often_others_are_first_it_lands_within_its_time(world: World) -> None:
    left = race(world, 8)
    async with session(world) as clone:
        commit = await clone.land()
        assert world.tip(MAIN) == commit
        assert left.read_text() == ""
        assert world.show("work.txt", MAIN) == "work"
        assert (clone.record().status, clone.record().landed) == (
            TaskStatus.DONE,
            {"commit": commit, "tip": world.tip(WORK)},
        )


async def test_when_its_time_is_over_it_says_that_nothing_was_landed(world: World) -> None:
    race(world, 1000)
    async with session(world) as clone:
        clone.clock.step = landing.DEADLINE_SECONDS / 8
        with pytest.raises(UnavailableError, match="nothing was landed") as caught:
            await clone.land()
        assert "done T1 again" in (caught.value.hint or "")
        shown = world.git("log", "--format=%s", "main", cwd=world.origin)
        assert "Do it" not in shown
        assert clone.record().status is TaskStatus.PENDING
        world.hook("pre-receive", "")
        clone.clock.step = 0.0
        assert await clone.land() == world.tip(MAIN)


@pytest.mark.parametrize(
    ("url", "command"),
    [
        ("https://github.com/team/project.git", "gh pr create --fill --base main --head"),
        ("git@gitlab.com:team/project.git", "glab mr create --fill --target-branch main"),
        ("https://example.org/team/project", None),
    ],
)
async def test_a_protected_target_gives_the_command_for_a_request_where_the_host_has_one(
    world: World, url: str, command: str | None
) -> None:
    world.hook("update", 'case "$1" in refs/heads/main) echo by request only; exit 1;; esac')
    async with session(world) as clone:
        clone.store.remote = replace(clone.store.remote, fetch_url=url, push_url=url)
        with pytest.raises(BlockedError, match="by request only") as caught:
            await clone.land()
        asked = caught.value.data["request"]
        assert (asked or "").startswith(command or "")
        assert (asked is None) == (command is None)
        assert "forge/task/T1@1" in (caught.value.hint or "")
        assert clone.record().status is TaskStatus.AWAITING_MERGE
