"""The plan of a session over real git: read from the target branch, again when anything moved."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from gitworld import World

from forge_collab.core import keys
from forge_collab.core.change import ABSENT
from forge_collab.core.errors import UnavailableError
from forge_collab.core.records import Meta, TaskRecord, encode
from forge_collab.core.tasks import TaskStatus, default_uid
from forge_collab.daemon.plan import SessionPlan, target_of
from forge_collab.daemon.target import Target
from forge_collab.git.repository import discover
from forge_collab.git.store import Store
from forge_collab.testing.clocks import ManualClock
from forge_collab.testing.memory import MemoryStore, MemoryTransport
from forge_collab.transport import Context

pytestmark = pytest.mark.anyio
MAIN = "refs/heads/main"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def text(task: str, title: str = "Do it") -> bytes:
    return f"id: {task}\ntitle: {title}\n".encode()


def put(world: World, task: str, data: bytes | None = None, *, ref: str = MAIN) -> None:
    """A task on a branch of origin's."""
    world.put({f".forge/tasks/{task}.yaml".encode(): data or text(task)}, ref=ref)


def added(task: str, data: bytes | None = None) -> dict[str, bytes]:
    """The record of a task that was added on the state branch."""
    return {f"{keys.SHARED_TASKS}{task}.yaml": data or text(task)}


@dataclass
class Session:
    """A plan, the clock it looks at, and the records of the session."""

    plan: SessionPlan
    clock: ManualClock
    records: MemoryStore

    @property
    def tasks(self) -> list[str]:
        return sorted(self.plan.board.tasks)


@asynccontextmanager
async def session(world: World, target: str | None = None) -> AsyncIterator[Session]:
    repository = discover(world.clone(), world.environ)
    store = Store(repository, repository.remote("origin"), network_seconds=10)
    await store.ensure()
    clock, records = ManualClock(), MemoryStore()
    try:
        async with MemoryTransport(Context(instance="a" * 16, clock=clock), records) as transport:
            where = Target(store, lambda: target_of(transport, target), clock=clock)
            yield Session(SessionPlan(where, transport), clock, records)
    finally:
        store.close()


async def test_a_target_without_a_folder_of_tasks_is_an_empty_board(world: World) -> None:
    async with session(world) as here:
        await here.plan.refresh()
        assert here.tasks == []
        assert (here.plan.plan.broken, here.plan.plan.warnings) == ({}, ())


async def test_a_target_branch_that_is_not_there_is_an_empty_board(world: World) -> None:
    async with session(world, target="nowhere") as here:
        await here.plan.refresh()
        assert here.tasks == []


async def test_the_tasks_of_the_target_branch_are_on_the_board(world: World) -> None:
    put(world, "T001")
    put(world, "T002")
    async with session(world) as here:
        assert here.tasks == []
        await here.plan.refresh()
        assert here.tasks == ["T001", "T002"]
        assert here.plan.board.ready() == ("T001", "T002")


async def test_a_target_that_moved_is_read_again(world: World) -> None:
    put(world, "T001")
    async with session(world) as here:
        await here.plan.refresh()
        put(world, "T002")
        put(world, "T001", text("T001", "Do it better"))
        here.clock.seconds += 1
        await here.plan.refresh()
        assert here.tasks == ["T001", "T002"]
        assert here.plan.board.tasks["T001"].title == "Do it better"


async def test_a_target_that_was_removed_leaves_an_empty_board(world: World) -> None:
    put(world, "T001", ref="refs/heads/trunk")
    async with session(world, target="trunk") as here:
        await here.plan.refresh()
        assert here.tasks == ["T001"]
        world.git("update-ref", "-d", "refs/heads/trunk", cwd=world.origin)
        here.clock.seconds += 1
        await here.plan.refresh()
        assert here.tasks == []


async def test_a_target_that_was_rewritten_is_read_again(world: World) -> None:
    first = world.tip(MAIN)
    assert first is not None
    put(world, "T001")
    async with session(world) as here:
        await here.plan.refresh()
        world.git("update-ref", MAIN, first, cwd=world.origin)
        put(world, "T002")
        here.clock.seconds += 1
        await here.plan.refresh()
        assert here.tasks == ["T002"]


async def test_the_target_is_what_the_session_says_and_before_that_what_it_is_about_to_say(
    world: World,
) -> None:
    put(world, "T001", ref="refs/heads/trunk")
    put(world, "T002", ref="refs/heads/release")
    async with session(world, target="trunk") as here:
        await here.plan.refresh()
        assert here.tasks == ["T001"]
        meta = Meta(session="s", repo="r", target="release")
        here.records.apply({keys.META: encode(meta)})
        here.clock.seconds += 1
        await here.plan.refresh()
        assert here.tasks == ["T002"]


async def test_a_task_that_is_added_on_the_state_branch_is_there_at_once(world: World) -> None:
    put(world, "T001")
    async with session(world) as here:
        await here.plan.refresh()
        here.records.apply(added("T002"))
        assert here.tasks == ["T001", "T002"]
        here.records.apply(added("T002", text("T002", "Another")))
        assert here.plan.board.tasks["T002"].title == "Another"
        here.records.apply({f"{keys.SHARED_TASKS}T002.yaml": ABSENT})
        assert here.tasks == ["T001"]


async def test_tasks_that_were_added_are_in_the_plan_where_the_target_has_none(
    world: World,
) -> None:
    async with session(world) as here:
        here.records.apply(added("T002"))
        await here.plan.refresh()
        assert [task.id for task in here.plan.plan.tasks] == ["T002"]


async def test_tasks_that_were_added_are_in_the_plan_where_the_target_is_not_there(
    world: World,
) -> None:
    async with session(world, target="nowhere") as here:
        here.records.apply(added("T002"))
        await here.plan.refresh()
        assert [task.id for task in here.plan.plan.tasks] == ["T002"]


async def test_of_a_task_in_both_the_targets_wins_with_a_warning(world: World) -> None:
    put(world, "T001", text("T001", "The target's"))
    async with session(world) as here:
        here.records.apply(added("T001", text("T001", "Added")))
        await here.plan.refresh()
        assert here.plan.board.tasks["T001"].title == "The target's"
        assert len(here.plan.plan.warnings) == 1


async def test_a_status_on_the_state_branch_is_on_the_board_at_once(world: World) -> None:
    put(world, "T001")
    put(world, "T002", b"id: T002\ntitle: Later\ndepends_on: [T001]\n")
    async with session(world) as here:
        await here.plan.refresh()
        assert here.plan.board.ready() == ("T001",)
        done = TaskRecord(uid=default_uid("T001"), status=TaskStatus.DONE)
        here.records.apply({keys.TASKS + "T001": encode(done)})
        assert here.plan.board.ready() == ("T002",)


async def test_statuses_hold_for_a_plan_that_was_read_again(world: World) -> None:
    put(world, "T001")
    async with session(world) as here:
        done = TaskRecord(uid=default_uid("T001"), status=TaskStatus.DONE)
        here.records.apply({keys.TASKS + "T001": encode(done)})
        await here.plan.refresh()
        assert here.plan.board.ready() == ()
        put(world, "T002")
        here.clock.seconds += 1
        await here.plan.refresh()
        assert here.plan.board.ready() == ("T002",)


async def test_a_file_that_can_not_be_read_is_a_problem_and_the_others_are_there(
    world: World,
) -> None:
    put(world, "T001", b"<<<<<<< HEAD\n")
    put(world, "T002")
    async with session(world) as here:
        await here.plan.refresh()
        assert here.plan.board.ready() == ("T002",)
        assert set(here.plan.plan.broken) == {"T001"}


async def test_the_target_is_looked_at_again_only_when_the_last_look_is_older_than_asked(
    world: World,
) -> None:
    put(world, "T001")
    async with session(world) as here:
        await here.plan.refresh(older_than=10.0)
        put(world, "T002")
        here.clock.seconds += 10.0
        await here.plan.refresh(older_than=10.0)
        assert here.tasks == ["T001"]
        here.clock.seconds += 0.1
        await here.plan.refresh(older_than=10.0)
        assert here.tasks == ["T001", "T002"]


async def test_a_look_that_found_nothing_new_counts_as_a_look(world: World) -> None:
    async with session(world) as here:
        await here.plan.refresh()
        here.clock.seconds += 20.0
        await here.plan.refresh(older_than=10.0)
        put(world, "T001")
        here.clock.seconds += 5.0
        await here.plan.refresh(older_than=10.0)
        assert here.tasks == []


async def test_a_remote_out_of_reach_is_told_and_the_board_stays_and_the_look_does_not_count(
    world: World,
) -> None:
    put(world, "T001")
    async with session(world) as here:
        await here.plan.refresh()
        away = world.place / "away.git"
        shutil.move(world.origin, away)
        here.clock.seconds += 20.0
        with pytest.raises(UnavailableError):
            await here.plan.refresh(older_than=10.0)
        assert here.tasks == ["T001"]
        shutil.move(away, world.origin)
        put(world, "T002")
        await here.plan.refresh(older_than=10.0)
        assert here.tasks == ["T001", "T002"]


async def test_many_who_look_at_once_all_have_the_new_plan(world: World) -> None:
    put(world, "T001")
    async with session(world) as here:
        found: list[list[str]] = []

        async def look() -> None:
            await here.plan.refresh()
            found.append(here.tasks)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(look)
        assert found == [["T001"]] * 5
