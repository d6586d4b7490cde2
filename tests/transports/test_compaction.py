"""A long history gives way to one commit, and nobody notices: not the records, nor a late push."""

from __future__ import annotations

import anyio
import pytest
from gitworld import STATE_REF, World
from pollworld import COUNT, HOOK_ONCE, LANDS_LATER, clients_of, until, write

from forge_collab.core import audit
from forge_collab.core.change import ABSENT, Change, Urgency, View
from forge_collab.core.records import Claimant, Lease, Participant, encode
from forge_collab.testing.clocks import ManualClock
from forge_collab.testing.contract import COUNTER, value
from forge_transport_polling import PollingTransport, compaction

pytestmark = pytest.mark.anyio
PRESENCE = encode(Participant(handle="x", run="r"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "COMMITS", 8)
    monkeypatch.setattr(compaction, "LOOK_EVERY", 4)


async def busy(client: PollingTransport, pushes: int = 24) -> None:
    for _ in range(pushes):
        await client.commit(COUNT)


def note(number: int) -> Change[None]:
    who = Claimant(handle="a", instance="a" * 16, worker="w")

    def rule(view: View) -> None:
        audit.append(view, who, "note", ts="", nonce=f"n{number}", text=str(number))

    return Change(rule, "note", Urgency.AHEAD)


async def test_a_long_history_is_cut_and_all_records_stay(world: World) -> None:
    world.put({b"README.md": b"no record"})
    async with clients_of(world, 2) as [client, other]:
        for number in range(30):
            await client.commit(note(number))
        assert world.commits() <= 2 * 8 + 4
        await other.refresh()
        told = [entry.text for entry in audit.history(other.snapshot)]
        assert told == [str(number) for number in range(30)]
        assert world.show("README.md") == "no record"
        assert await other.commit(COUNT) == 1
        await client.refresh()
        assert client.notices == other.notices == []
    world.git("fsck", "--strict", cwd=world.origin)


async def test_who_slept_through_a_compaction_follows_and_heals_nothing(world: World) -> None:
    async with clients_of(world, 2) as [client, sleeper]:
        await busy(client, 2)
        await sleeper.refresh()
        await busy(client, 60)
        tip = world.tip()
        await sleeper.refresh()
        assert world.tip() == tip
        assert sleeper.notices == []
        assert await sleeper.commit(COUNT) == 63


async def test_all_who_compact_at_once_leave_one_history(world: World) -> None:
    async with clients_of(world, 3, poll_seconds=0.2, idle_poll_seconds=0.2) as clients:
        async with anyio.create_task_group() as tasks:
            for client in clients:
                tasks.start_soon(busy, client)
        assert world.show(COUNTER) == str(3 * 24)
        assert world.commits() <= 2 * 8 + 4 * 3
        assert [client.notices for client in clients] == [[], [], []]


async def test_a_push_that_landed_before_a_compaction_is_recognised_behind_it(
    world: World,
) -> None:
    """Killed at its limit, landed, and swallowed: the count is told once and done once."""
    async with clients_of(world, 2, network_seconds=0.8) as [client, other]:
        await busy(client, 2)
        await other.refresh()
        world.hook("pre-receive", HOOK_ONCE % LANDS_LATER.replace("DELAY", "0.1"))
        answers: list[int] = []

        async def count() -> None:
            answers.append(await client.commit(COUNT))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            await until(lambda: (world.origin / "landed").exists())
            root = world.git(
                *("commit-tree", "-m", f"compact\n\n{compaction.trailers([world.tip() or ''])}"),
                f"{STATE_REF}^{{tree}}",
                cwd=world.origin,
            )
            world.git("update-ref", STATE_REF, root, cwd=world.origin)
        assert answers == [3]
        assert world.show(COUNTER) == "3"


async def test_a_push_on_its_way_while_another_compacts_is_run_again(world: World) -> None:
    async with clients_of(world, 2) as [client, behind]:
        await busy(client, 2)
        await behind.refresh()
        await busy(client, 40)
        assert await behind.commit(COUNT) == 43


def holding(key: str, instance: str) -> Change[None]:
    claimant = Claimant(handle="x", instance=instance, worker="w")
    lease = Lease(fence=1, nonce=key, claimant=claimant)
    return Change(lambda view: view.save(key, lease), "claim")


async def test_what_was_silent_for_a_week_and_holds_nothing_is_dropped(world: World) -> None:
    clock = ManualClock()
    async with clients_of(world, 1, clock=clock) as [client]:
        for name in ("gone", "holder", "alive"):
            await client.commit(
                write(f"participants/{name}", encode(Participant(handle="x", run="r")))
            )
            await client.commit(write(f"messages/{name}", b""))
        await client.commit(holding("leases/claim:T1", "holder"))
        clock.seconds += compaction.SILENT_SECONDS + 1
        await client.commit(write("messages/alive", b"\n"))
        await busy(client, 24)
        assert await client.list("participants/") == ["participants/alive", "participants/holder"]
        assert await client.list("messages/") == ["messages/alive", "messages/holder"]


async def test_a_daemon_that_has_not_watched_for_a_week_drops_nothing(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(write("participants/gone", PRESENCE))
        await busy(client, 24)
        assert world.commits() < 24
        assert await client.read("participants/gone") is not ABSENT


async def test_a_server_that_refuses_to_be_compacted_is_asked_once_a_day(world: World) -> None:
    world.git("config", "receive.denyNonFastForwards", "true", cwd=world.origin)
    world.hook("post-receive", "echo push >> pushes")
    async with clients_of(world, 2) as [client, other]:
        await busy(client, 40)
        assert world.commits() == 40
        words = client.store.refused_within(compaction.REFUSED_SECONDS)
        assert words is not None
        assert "non-fast-forward" in words
        await other.refresh()
        assert value(other.snapshot, COUNTER) == b"40"
        world.git("config", "receive.denyNonFastForwards", "false", cwd=world.origin)
        await busy(client, 8)
        assert world.commits() == 48, "it isn't asked again today"


async def test_a_private_repository_forgets_what_was_compacted(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        client.store.keep_unreached = "now"
        await busy(client, 60)
        await client.store.tidy()
        counted = world.git("--git-dir", str(client.store.path), "count-objects", "-v")
        sizes = dict(line.split(": ") for line in counted.splitlines())
        assert int(sizes["count"]) + int(sizes["in-pack"]) <= 4 * (2 * 8 + 4) + 10
        assert await client.commit(COUNT) == 61
