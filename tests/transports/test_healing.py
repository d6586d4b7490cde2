"""A state branch that somebody deletes, sets back, rewrites or replaces by an old copy."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial

import pytest
from gitworld import STATE_REF, World
from pollworld import COUNT, HOOK_ONCE, clients_of, write

from forge_collab.core import audit
from forge_collab.core.change import ABSENT, Change, View
from forge_collab.core.errors import CorruptError, RefusedError
from forge_collab.core.records import Claimant, Lease, Meta, TaskRecord, decode
from forge_collab.core.tasks import TaskStatus
from forge_collab.git.store import STATE
from forge_collab.testing.contract import outcomes, value
from forge_transport_polling import PollingTransport

pytestmark = pytest.mark.anyio
KEY = "leases/claim:T1"
META = Meta(session="s", repo="r", target="main")


def grant(fence: int, nonce: str | None = None, who: str = "a") -> Change[None]:
    """The lease of T1 to somebody, under this fence, with a line of the audit."""
    claimant = Claimant(handle=who, instance=who * 16, worker="w")

    def rule(view: View) -> None:
        lease = Lease(fence=fence, nonce=nonce or f"n{fence}", claimant=claimant)
        view.save(KEY, lease)
        audit.append(view, claimant, "claimed", ts="", nonce=lease.nonce, key=KEY, fence=fence)

    return Change(rule, f"grant {fence}")


MAKE = Change(lambda view: view.save("meta", META), "make the session")


def lease_on(world: World) -> Lease:
    return decode(Lease, world.show("leases/claim%3AT1.json").encode(), KEY)


def move_state(world: World, tip: str | None) -> None:
    if tip is None:
        world.git("update-ref", "-d", STATE_REF, cwd=world.origin)
    else:
        world.git("update-ref", STATE_REF, tip, cwd=world.origin)


def tip_of(world: World) -> str:
    tip = world.tip()
    assert tip
    return tip


def events(client: PollingTransport) -> list[str]:
    return [entry.event for entry in audit.history(client.snapshot)]


async def test_a_deleted_branch_comes_back_from_what_a_daemon_holds(world: World) -> None:
    async with clients_of(world, 2) as [first, second]:
        await first.commit(MAKE)
        await first.commit(grant(3))
        await second.refresh()
        move_state(world, None)
        await second.refresh()
        assert lease_on(world).fence == 3
        assert decode(Meta, world.show("meta.json").encode(), "").repo == "r"
        assert second.notices == ["the state branch was set back by somebody; healed 3 records"]
        assert events(second) == ["claimed", "healed"]
        await first.refresh()
        assert first.notices == []
        assert (first.trouble, second.trouble) == (None, None)


async def test_a_stale_copy_heals_what_it_has_and_the_newer_one_the_rest(world: World) -> None:
    async with clients_of(world, 2) as [newer, stale]:
        await newer.commit(grant(1))
        await stale.refresh()
        await newer.commit(grant(2))
        move_state(world, None)
        await stale.refresh()
        assert lease_on(world).fence == 1
        await newer.refresh()
        assert lease_on(world).fence == 2
        await stale.refresh()
        assert value(stale.snapshot, KEY) == value(newer.snapshot, KEY)
        assert events(stale) == events(newer)
        assert events(newer).count("claimed") == 2


async def test_a_branch_set_back_is_healed_before_anything_is_decided(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(grant(1))
        tip = tip_of(world)
        await client.commit(grant(2))
        move_state(world, tip)
        seen: list[int] = []

        def looking(view: View) -> None:
            lease = view.document(Lease, KEY)
            assert lease is not None
            seen.append(lease.fence)
            view.put("tasks/T1", b"x")

        await client.commit(Change(looking, "look"))
        assert set(seen) == {2}
        assert lease_on(world).fence == 2


async def test_a_branch_set_back_and_grown_past_its_old_tip_is_healed(world: World) -> None:
    async with clients_of(world, 2) as [client, other]:
        await client.commit(MAKE)
        await other.refresh()
        tip = tip_of(world)
        await client.commit(grant(1))
        move_state(world, tip)
        for number in range(4):
            await other.commit(write(f"of/n{number}"))
        await client.refresh()
        assert lease_on(world).fence == 1
        assert await client.list("of/") == [f"of/n{number}" for number in range(4)]


async def test_lines_of_the_audit_alone_are_brought_back_too(world: World) -> None:
    async with clients_of(world, 2) as [client, other]:
        await client.commit(grant(1))
        await other.refresh()
        tip = tip_of(world)
        who = Claimant(handle="a", instance="a" * 16, worker="w")

        def note(view: View) -> None:
            audit.append(view, who, "note", ts="", nonce="a note", text="found it")

        await client.commit(Change(note, "note"))
        move_state(world, tip)
        await other.commit(write("of/n"))
        await client.refresh()
        assert events(client) == ["claimed", "note", "healed"]


async def test_one_fence_granted_twice_names_nobody(world: World) -> None:
    """Set back before the claim, granted again to another: both have lost it, and find out."""
    async with clients_of(world, 2) as [client, other]:
        await client.commit(MAKE)
        await other.refresh()
        tip = tip_of(world)
        await client.commit(grant(1, "ours"))
        move_state(world, tip)
        await other.commit(grant(1, "theirs", who="b"))
        await client.refresh()
        await other.refresh()
        for found in (lease_on(world), decode(Lease, value(other.snapshot, KEY) or b"", KEY)):
            assert (found.fence, found.claimant) == (2, None)
        await other.commit(grant(3, who="b"))
        assert lease_on(world).fence == 3


async def test_a_closed_task_does_not_come_back_open(world: World) -> None:
    def status(status: TaskStatus) -> Change[None]:
        return Change(lambda view: view.save("tasks/T1", TaskRecord(uid="u", status=status)), "s")

    async with clients_of(world, 2) as [client, other]:
        await client.commit(status(TaskStatus.PENDING))
        await other.refresh()
        tip = tip_of(world)
        await client.commit(status(TaskStatus.DONE))
        move_state(world, tip)
        for _ in range(3):
            await other.commit(status(TaskStatus.BLOCKED))
        await client.refresh()
        await other.refresh()
        for one in (client, other):
            record = decode(TaskRecord, value(one.snapshot, "tasks/T1") or b"", "")
            assert record.status is TaskStatus.DONE


async def test_a_rewritten_branch_that_lost_nothing_is_followed(world: World) -> None:
    async with clients_of(world, 2) as [first, second]:
        await first.commit(grant(1))
        await second.refresh()
        tree = world.git("rev-parse", f"{STATE_REF}^{{tree}}", cwd=world.origin)
        alone = world.git("commit-tree", "-m", "rewritten", tree, cwd=world.origin)
        move_state(world, alone)
        await first.refresh()
        await second.commit(write("of/n"))
        assert world.commits() == 2
        assert first.notices == second.notices == []


async def test_a_branch_of_other_history_is_joined(world: World) -> None:
    """Force-pushed from a copy that shares no commit with it."""
    async with clients_of(world, 1) as [client]:
        await client.commit(MAKE)
        await client.commit(grant(2))
        move_state(world, None)
        world.put({b"of/theirs.json": b"{}"})
        await client.refresh()
        assert lease_on(world).fence == 2
        assert world.show("of/theirs.json") == "{}"


async def test_all_who_heal_at_once_end_up_with_the_same(world: World) -> None:
    async with clients_of(world, 4) as clients:
        for number, client in enumerate(clients):
            await client.refresh()
            await client.commit(grant(number + 1))
        move_state(world, None)
        assert await outcomes([client.refresh for client in clients]) == [None] * 4
        for client in clients:
            await client.refresh()
        assert {value(client.snapshot, KEY) for client in clients} == {
            world.show("leases/claim%3AT1.json").encode() + b"\n"
        }
        assert lease_on(world).fence == 4
        assert [events(client).count("claimed") for client in clients] == [4] * 4


async def test_a_daemon_that_was_not_running_heals_what_it_finds_at_its_start(
    world: World,
) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(MAKE)
        tip = tip_of(world)
        await client.commit(grant(1))
    move_state(world, tip)
    async with clients_of(world, 1) as [client]:
        assert lease_on(world).fence == 1
        assert client.notices
    move_state(world, None)
    async with clients_of(world, 1):
        assert lease_on(world).fence == 1


async def test_a_memory_that_was_deleted_follows_the_branch_as_it_is(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(MAKE)
        tip = tip_of(world)
        await client.commit(grant(1))
    move_state(world, tip)
    shutil.rmtree(client.store.path)
    async with clients_of(world, 1) as [client]:
        assert await client.read(KEY) is ABSENT
        assert world.tip() == tip


def age(client: PollingTransport, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(client.store.path / STATE, (then, then))


async def test_a_clone_that_looked_a_week_ago_is_no_source(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(MAKE)
        tip = tip_of(world)
        await client.commit(grant(1))
    age(client, 7.1)
    move_state(world, tip)
    async with clients_of(world, 1) as [client]:
        assert await client.read(KEY) is ABSENT
    age(client, 7.1)
    move_state(world, None)
    again = PollingTransport(client.context)
    with pytest.raises(CorruptError, match="seven days") as caught:
        await again.connect()
    assert "--fresh" in (caught.value.hint or "")
    assert world.tip() is None


async def test_a_clone_that_looked_yesterday_is_one_however_quiet_the_branch_was(
    world: World,
) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(grant(1))
        age(client, 30)
        await client.refresh()
    move_state(world, None)
    async with clients_of(world, 1):
        assert lease_on(world).fence == 1


async def test_a_server_that_refuses_to_be_healed_is_told_and_nothing_is_decided(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(grant(1))
        move_state(world, None)
        world.hook("pre-receive", "echo 'not today' >&2\nexit 1")
        with pytest.raises(RefusedError, match="not today"):
            await client.commit(write("of/n"))
        assert client.trouble is not None
        assert decode(Lease, value(client.snapshot, KEY) or b"", KEY).fence == 1
    world.hook("pre-receive", "")
    async with clients_of(world, 1) as [client]:
        assert lease_on(world).fence == 1
        assert client.trouble is None


async def test_a_healing_push_that_is_not_answered_is_made_good(world: World) -> None:
    async with clients_of(world, 1, network_seconds=0.7) as [client]:
        await client.commit(grant(1))
        move_state(world, None)
        world.hook("pre-receive", HOOK_ONCE % "sleep 30")
        await client.refresh()
        assert lease_on(world).fence == 1


async def test_a_lock_held_while_it_heals_is_waited_for(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(MAKE)
        tip = tip_of(world)
        await client.commit(grant(1))
        move_state(world, tip)
        world.hook("update", HOOK_ONCE % "exit 1")
        await client.refresh()
        assert lease_on(world).fence == 1


async def test_damage_is_neither_healed_nor_spread(world: World) -> None:
    async with clients_of(world, 2) as [client, other]:
        await client.commit(grant(1))
        await other.refresh()
        world.put({b"leases/claim%3AT1.json": b"<<<<<<<\n"})
        await client.refresh()
        await other.refresh()
        assert world.show("leases/claim%3AT1.json") == "<<<<<<<"
        mended = value(client.snapshot, KEY)
        assert mended == b"<<<<<<<\n"
        move_state(world, None)
        await client.refresh()
        assert world.show("leases/claim%3AT1.json") == "<<<<<<<"


async def test_a_push_that_is_on_its_way_while_the_branch_is_set_back_counts_once(
    world: World,
) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(MAKE)
        tip = tip_of(world)
        await client.commit(grant(1))
        calls: list[Callable[[], object]] = [partial(client.commit, COUNT)] * 3
        move_state(world, tip)
        assert sorted(await outcomes(calls)) == [1, 2, 3]  # type: ignore[arg-type, type-var]
        assert lease_on(world).fence == 1
