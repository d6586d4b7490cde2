"""Code refs and records in one push: all of it or nothing, whoever comes between."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from gitworld import World
from pollworld import COUNT, HOOK_ONCE, LANDS_LATER, clients_of, until, write

from forge_collab.core.change import ABSENT, Absent, Change, View
from forge_collab.core.errors import BlockedError, ConflictError, RefusedError
from forge_collab.testing.contract import COUNTER, count_up, outcomes
from forge_transport_polling import PollingTransport

pytestmark = pytest.mark.anyio
MAIN = "refs/heads/main"
OLD = "refs/heads/forge/task/T1@1"
REFUSES_MAIN = r"""
echo push >> pushes
while read old new ref; do
  if [ "$ref" = refs/heads/main ]; then echo 'main is protected' >&2; exit 1; fi
done
"""


async def work_in(client: PollingTransport, world: World, text: bytes = b"work") -> str:
    """A commit on main's tip that only the client's private repository has."""
    return (await works_in(client, world, [text]))[0]


async def works_in(client: PollingTransport, world: World, texts: list[bytes]) -> list[str]:
    """Commits like that, all on the same tip."""
    tip = world.tip(MAIN)
    assert tip
    made = []
    for text in texts:
        oid = world.put({b"work": text}, ref=MAIN)
        await client.store.fetch(MAIN, "refs/forge/target", whole=True)
        world.git("update-ref", MAIN, tip, cwd=world.origin)
        made.append(oid)
    return made


def landing(old: str | Absent, new: str | Absent, ref: str = MAIN) -> Change[int]:
    return Change(count_up, "land", refs={ref: (old, new)})


async def test_a_record_and_a_code_ref_move_together(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        assert await client.moves_refs()
        assert await client.commit(landing(old, new)) == 2
        assert (world.tip(MAIN), world.show(COUNTER)) == (new, "2")


async def test_several_code_refs_are_made_moved_and_removed_at_once(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        world.git("update-ref", OLD, old, cwd=world.origin)
        refs = {MAIN: (old, new), OLD: (old, ABSENT), "refs/heads/made": (ABSENT, new)}
        assert await client.commit(Change(count_up, "land", refs=refs)) == 2
        assert [world.tip(ref) for ref in refs] == [new, None, new]


async def test_a_code_ref_that_moved_is_told_to_its_asker_alone(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        theirs = world.put({b"theirs": b"x"}, ref=MAIN)
        calls = [
            partial(client.commit, landing(old, new)),
            partial(client.commit, write("tasks/T1")),
            partial(client.commit, write("tasks/T2")),
        ]
        conflict, *others = await outcomes(calls)
        assert isinstance(conflict, ConflictError)
        assert (conflict.key, conflict.current) == (MAIN, theirs)
        assert others == [None, None]
        assert (world.tip(MAIN), world.show(COUNTER)) == (theirs, "1")


async def test_a_code_ref_that_is_gone_or_there_already_is_a_conflict(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        with pytest.raises(ConflictError) as caught:
            await client.commit(landing(old, new, ref=OLD))
        assert caught.value.current is None
        with pytest.raises(ConflictError) as caught:
            await client.commit(landing(ABSENT, new))
        assert caught.value.current == old
        assert world.show(COUNTER) == "1"


async def test_where_only_the_records_moved_the_rule_is_run_again_and_both_land(
    world: World,
) -> None:
    async with clients_of(world, 2) as [client, other]:
        await client.commit(COUNT)
        await other.refresh()
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        await other.commit(COUNT)
        assert await client.commit(landing(old, new)) == 3
        assert (world.tip(MAIN), world.show(COUNTER)) == (new, "3")


async def test_a_rule_that_says_no_on_the_newer_state_moves_no_code(world: World) -> None:
    def only_if_free(view: View) -> None:
        if view.keys("tasks/"):
            raise BlockedError("taken")
        view.put("tasks/mine", b"x")

    async with clients_of(world, 2) as [client, other]:
        await client.commit(COUNT)
        await other.refresh()
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        await other.commit(write("tasks/theirs"))
        with pytest.raises(BlockedError, match="taken"):
            await client.commit(Change(only_if_free, "land", refs={MAIN: (old, new)}))
        assert world.tip(MAIN) == old


async def test_a_refused_code_ref_has_the_servers_words_and_nothing_moved(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        world.hook("pre-receive", REFUSES_MAIN)
        calls = [
            partial(client.commit, landing(old, new)),
            partial(client.commit, write("tasks/T1")),
        ]
        refused, other = await outcomes(calls)
        assert isinstance(refused, RefusedError)
        assert "main is protected" in refused.data["server"]
        assert MAIN in refused.message
        assert other is None
        assert (world.tip(MAIN), world.show(COUNTER)) == (old, "1")
        assert world.show("tasks/T1.json") == "x"
        assert (world.origin / "pushes").read_text().count("push") == 3 + 1


LANDS_LATER_WHOLE = LANDS_LATER.replace(
    "read old new ref", "read old new ref\nread old2 new2 ref2\n"
).replace(
    "git --git-dir=. update-ref $ref $new $old",
    "git --git-dir=. update-ref $ref $new $old; git --git-dir=. update-ref $ref2 $new2 $old2",
)


async def test_a_killed_landing_that_lands_later_is_done_once(world: World) -> None:
    async with clients_of(world, 1, network_seconds=0.6) as [client]:
        await client.commit(COUNT)
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        world.hook("pre-receive", HOOK_ONCE % LANDS_LATER_WHOLE.replace("DELAY", "0.9"))
        assert await client.commit(landing(old, new)) == 2
        await until(lambda: (world.origin / "landed").exists())
        await client.refresh()
        assert (world.tip(MAIN), world.show(COUNTER), world.commits()) == (new, "2", 2)


async def test_two_landings_at_once_leave_one_conflict_and_no_half(world: World) -> None:
    async with clients_of(world, 2) as [first, second]:
        await first.commit(COUNT)
        await second.refresh()
        old = world.tip(MAIN)
        assert old
        [one] = await works_in(first, world, [b"one"])
        [two] = await works_in(second, world, [b"two"])
        results = await outcomes(
            [partial(first.commit, landing(old, one)), partial(second.commit, landing(old, two))]
        )
        won = [n for n, result in enumerate(results) if result == 2]
        assert len(won) == 1
        conflict = results[1 - won[0]]
        assert isinstance(conflict, ConflictError)
        assert conflict.current == (one, two)[won[0]] == world.tip(MAIN)
        assert world.show(COUNTER) == "2"


async def test_a_lock_on_a_code_ref_is_waited_for(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        old, new = world.tip(MAIN), await work_in(client, world)
        assert old
        lock = world.origin / f"{MAIN}.lock"
        lock.touch()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.commit, landing(old, new))
            await anyio.sleep(0.6)
            assert (world.tip(MAIN), world.show(COUNTER)) == (old, "1")
            lock.unlink()
        assert (world.tip(MAIN), world.show(COUNTER)) == (new, "2")


async def test_a_server_without_atomic_pushes_is_asked_once_and_moves_no_refs(
    world: World,
) -> None:
    world.git("config", "receive.advertiseAtomic", "false", cwd=world.origin)
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        assert not await client.moves_refs()
        world.git("config", "receive.advertiseAtomic", "true", cwd=world.origin)
        assert not await client.moves_refs()
