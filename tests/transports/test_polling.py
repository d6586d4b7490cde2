"""The polling transport with real git: pushes that are lost, killed, refused, late, doubled."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from gitworld import STATE_REF, World, listing
from pollworld import (
    COUNT,
    HOOK_ONCE,
    LANDS_LATER,
    NEVER,
    REFUSES_SECRETS,
    client_of,
    clients_of,
    until,
    write,
)

from forge_collab.core import pacing
from forge_collab.core.change import ABSENT, Change, Urgency, View
from forge_collab.core.errors import (
    BlockedError,
    ConflictError,
    CorruptError,
    EnvironmentError_,
    ForgeError,
    HeldError,
    RefusedError,
    UnavailableError,
)
from forge_collab.core.records import Participant, TaskRecord, encode
from forge_collab.core.tasks import TaskStatus
from forge_collab.git.store import Moves, Push, Pushed
from forge_collab.testing.contract import COUNTER, outcomes, value, version
from forge_transport_polling import PollingTransport

pytestmark = pytest.mark.anyio


# What a push is built on


async def test_a_rewritten_branch_is_followed(world: World) -> None:
    async with clients_of(world, 2) as [first, second]:
        await first.commit(COUNT)
        await first.cas("tasks/T1", ABSENT, b"one")
        await second.refresh()
        tree = world.git("rev-parse", f"{STATE_REF}^{{tree}}", cwd=world.origin)
        alone = world.git("commit-tree", "-m", "compacted", tree, cwd=world.origin)
        world.git("update-ref", STATE_REF, alone, cwd=world.origin)
        assert await first.commit(COUNT) == 2
        assert await second.commit(COUNT) == 3
        assert world.commits() == 3


async def test_a_file_without_a_rev_is_followed_where_a_branch_was_set_back(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        tip = world.tip()
        assert tip
        await client.commit(COUNT)
        world.git("update-ref", STATE_REF, tip, cwd=world.origin)
        assert await client.commit(COUNT) == 2


async def test_two_who_make_the_branch_at_once_end_up_on_one(world: World) -> None:
    async with clients_of(world, 2) as clients:
        calls = [partial(c.cas, f"tasks/T{n}", ABSENT, b"x") for n, c in enumerate(clients)]
        assert await outcomes(calls) == [None, None]
        await clients[0].refresh()
        assert await clients[0].list("") == ["tasks/T0", "tasks/T1"]
        assert world.commits() == 2


async def test_after_a_lost_push_the_rule_is_run_again(world: World) -> None:
    """A reopens T1 while B's claim of T2, which waits for T1, is on its way."""

    def record(status: TaskStatus) -> TaskRecord:
        return TaskRecord(uid="u1", status=status)

    def claim(view: View) -> None:
        task = view.document(TaskRecord, "tasks/T1")
        assert task is not None
        seen.append((task.status, view.lost))
        if task.status is not TaskStatus.DONE:
            raise BlockedError("T2 waits for T1")
        view.put("leases/claim:T2", b"mine")

    seen: list[tuple[TaskStatus, int]] = []
    async with clients_of(world, 2) as [a, b]:
        await a.cas("tasks/T1", ABSENT, encode(record(TaskStatus.DONE)))
        await b.refresh()
        reopened = Change(lambda view: view.save("tasks/T1", record(TaskStatus.PENDING)), "reopen")
        await a.commit(reopened)
        with pytest.raises(BlockedError, match="T2 waits"):
            await b.commit(Change(claim, "claim T2", Urgency.AHEAD))
        assert seen == [(TaskStatus.DONE, 0), (TaskStatus.PENDING, 1)]
        await a.refresh()
        assert await a.list("leases/") == []


async def test_a_lost_push_is_no_lost_claim(world: World) -> None:
    async with clients_of(world, 2) as [ahead, behind]:
        await ahead.commit(COUNT)
        await behind.cas("tasks/T1", ABSENT, b"still yes")
        assert value(behind.snapshot, COUNTER) == b"1"
        assert world.commits() == 2


# Same commits, killed pushes, late ones


async def test_clients_alike_in_all_never_make_the_same_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied clones: one instance, one second, one state of chance. One of them wins."""
    monkeypatch.setattr("forge_transport_polling.transport.time.time", lambda: 1_700_000_000)
    async with clients_of(world, 3, instance="copied") as clients:
        await clients[0].commit(COUNT)
        for client in clients:
            client.context.random.seed(1)
            await client.refresh()
        results = await outcomes([partial(c.cas, "tasks/T1", ABSENT, b"same") for c in clients])
        assert results.count(None) == 1
        assert sum(isinstance(result, ConflictError) for result in results) == 2
        assert world.commits() == 2


async def test_the_same_object_again_decides_nothing(world: World) -> None:
    """`=` for a commit that isn't on the branch: neither success nor refusal, it is tried again."""
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        push, told = client.store.push_all, []

        async def claims_same(moves: Moves) -> Pushed:
            told.append(moves[STATE_REF][1])
            return Pushed(Push.SAME) if len(told) == 1 else await push(moves)

        client.store.push_all = claims_same  # type: ignore[method-assign]
        assert await client.commit(COUNT) == 2
        assert len(set(told)) == 2
        assert world.show(COUNTER) == "2"


async def test_the_same_object_again_may_be_ours(world: World) -> None:
    """`=` for a commit that landed by an earlier push of it: told once, done once."""
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        push = client.store.push_all

        async def twice(moves: Moves) -> Pushed:
            assert (await push(moves)).how is Push.DONE
            again = await push(moves)
            assert again.how is Push.SAME
            return again

        client.store.push_all = twice  # type: ignore[method-assign]
        assert await client.commit(COUNT) == 2
        assert world.show(COUNTER) == "2"
        assert world.commits() == 2


async def test_a_killed_push_that_lands_later_is_told_once_and_done_once(world: World) -> None:
    async with clients_of(world, 1, network_seconds=0.6) as [client]:
        await client.commit(COUNT)
        world.hook("pre-receive", HOOK_ONCE % LANDS_LATER.replace("DELAY", "0.9"))
        assert await client.commit(COUNT) == 2
        await until(lambda: (world.origin / "landed").exists())
        assert world.show(COUNTER) == "2"
        assert world.commits() == 2
        assert await client.commit(COUNT) == 3


async def test_a_killed_push_that_lands_after_a_later_one_is_void(world: World) -> None:
    async with clients_of(world, 1, network_seconds=0.6) as [client]:
        await client.commit(COUNT)
        world.hook("pre-receive", HOOK_ONCE % LANDS_LATER.replace("DELAY", "2.5"))
        assert await client.commit(COUNT) == 2
        await until(lambda: (world.origin / "landed").exists())
        await client.refresh()
        assert world.show(COUNTER) == "2"
        assert world.commits() == 2


async def test_a_push_never_answered_is_unsettled_at_the_deadline(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "DEADLINE_SECONDS", 1.5)
    async with clients_of(world, 1, network_seconds=0.4) as [client]:
        await client.commit(COUNT)
        world.hook("pre-receive", "sleep 30")
        with pytest.raises(UnavailableError) as caught:
            await client.commit(COUNT)
        assert caught.value.data["unsettled"] is True
        assert world.show(COUNTER) == "1"
        world.hook("pre-receive", "")
        assert await client.commit(COUNT) == 2


async def test_a_slow_push_of_one_change_is_no_news_for_another(world: World) -> None:
    """What gathers while a push isn't answered isn't told that the remote is out of reach."""
    async with clients_of(world, 1, network_seconds=0.5) as [client]:
        await client.commit(COUNT)
        world.hook("pre-receive", HOOK_ONCE % "sleep 30")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.commit, write("tasks/T1"))
            await anyio.sleep(0.2)
            tasks.start_soon(client.commit, write("tasks/T2"))
        assert await client.list("tasks/") == ["tasks/T1", "tasks/T2"]


# Locks and refusals


async def test_a_lock_on_the_ref_is_waited_for_and_no_refusal(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        lock = world.origin / f"{STATE_REF}.lock"
        lock.touch()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.commit, COUNT)
            await anyio.sleep(0.8)
            assert world.show(COUNTER) == "1"
            lock.unlink()
        assert world.show(COUNTER) == "2"


async def test_a_refusal_has_the_servers_words(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        world.hook("pre-receive", "echo 'not on a Friday' >&2\nexit 1")
        with pytest.raises(RefusedError) as caught:
            await client.commit(COUNT)
        assert "not on a Friday" in caught.value.message
        assert "not on a Friday" in caught.value.data["server"]
        assert not caught.value.data.get("unsettled")
        assert world.show(COUNTER) == "1"
        assert client.trouble is None
        world.hook("pre-receive", "")
        assert await client.commit(COUNT) == 2


async def test_one_refused_change_does_not_take_the_others_with_it(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        world.hook("pre-receive", REFUSES_SECRETS)
        texts = [b"a", b"b", b"a SECRET", b"c", b"d"]
        calls = [
            partial(client.commit, write(f"shared/flags/F{n}", text))
            for n, text in enumerate(texts)
        ]
        results = await outcomes(calls)
        assert [result is None for result in results] == [True, True, False, True, True]
        assert isinstance(results[2], RefusedError)
        assert "secret found" in results[2].data["server"]
        await client.refresh()
        assert len(await client.list("shared/flags/")) == 4
        pushes = (world.origin / "pushes").read_text().count("push")
        assert pushes <= 3 + 1 + 1 + 1 + 4


async def test_who_read_an_unlanded_change_is_not_refused_by_it(world: World) -> None:
    """A no, or an answer, that only rests on what is yet to be pushed isn't given."""

    def only_if_no_flags(view: View) -> list[str]:
        if view.keys("shared/flags/"):
            raise HeldError("there is a flag")
        view.put("tasks/T1", b"no flags")
        return []

    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        world.hook("pre-receive", REFUSES_SECRETS)
        flag = write("shared/flags/F1", b"SECRET")
        listing: Change[list[str]] = Change(lambda view: view.keys("shared/"), "look")
        calls: list[Callable[[], Awaitable[Any]]] = [
            partial(client.commit, flag),
            partial(client.commit, Change(only_if_no_flags, "claim")),
            partial(client.commit, listing),
        ]
        refused, claimed, listed = await outcomes(calls)
        assert isinstance(refused, RefusedError)
        assert claimed == []
        assert listed == [COUNTER]


async def test_a_rule_with_a_bug_hurts_its_asker_alone(world: World) -> None:
    def broken(view: View) -> None:
        view.put("tasks/T1", b"half")
        raise KeyError("bug")

    async with clients_of(world, 1) as [client]:
        calls: list[Callable[[], Awaitable[Any]]] = [
            partial(client.commit, Change(broken, "bug")),
            partial(client.commit, COUNT),
        ]
        bug, counted = await outcomes(calls)
        assert isinstance(bug, KeyError)
        assert counted == 1
        assert await client.list("") == [COUNTER]


# Which goes when


async def test_renewals_go_ahead_in_a_commit_of_their_own(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        renewal = write("participants/client-0", b"{}", Urgency.AHEAD)
        await outcomes([partial(client.commit, c) for c in (write("tasks/T1"), renewal)])
        shown = world.git(
            *("log", "--reverse", "--name-only", "--format=%x3a", STATE_REF), cwd=world.origin
        )
        commits = [block.split() for block in shown.split(":") if block.split()]
        assert commits[1:] == [["participants/client-0.json"], ["tasks/T1.json"]]


async def test_what_may_ride_waits_for_the_next_push(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.publish, "hello", {})
            await anyio.sleep(0.5)
            assert world.commits() == 1
            await client.commit(COUNT)
        assert world.commits() == 2
        assert await client.list("messages/") == ["messages/client-0"]


async def test_what_may_ride_goes_alone_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pacing.RIDE_SECONDS == 10
    monkeypatch.setattr(pacing, "RIDE_SECONDS", 0.4)
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        began = anyio.current_time()
        await client.publish("hello", {})
        assert 0.3 < anyio.current_time() - began < 3
        assert world.commits() == 2


async def test_what_waits_goes_out_in_one_commit(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        calls = [partial(client.commit, write(f"tasks/T{n}")) for n in range(50)]
        assert await outcomes(calls) == [None] * 50
        assert world.commits() <= 3


async def test_a_caller_that_goes_away_takes_its_waiting_change_with_it(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        with anyio.move_on_after(0.2):
            await client.publish("never mind", {})
        await client.commit(COUNT)
        assert await client.list("messages/") == []


async def test_many_clients_with_many_keys_all_land(world: World) -> None:
    async with clients_of(world, 8, poll_seconds=1.0, idle_poll_seconds=1.0) as clients:
        wanted = [(n, f"tasks/T{n}-{m}") for n in range(8) for m in range(10)]
        calls = [partial(clients[n].cas, key, ABSENT, key.encode()) for n, key in wanted]
        assert await outcomes(calls) == [None] * 80
        await clients[0].refresh()
        assert await clients[0].list("tasks/") == sorted(key for _, key in wanted)


async def test_whoever_never_gets_through_is_told_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "CONTENDED_SECONDS", 0.5)
    async with clients_of(world, 1, patience=10) as [client]:
        await client.commit(COUNT)
        push = client.store.push_all

        async def beaten(moves: Moves) -> Pushed:
            world.put({b"note.txt": str(moves).encode()})
            return await push(moves)

        client.store.push_all = beaten  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match="in a row"):
            await client.commit(COUNT)
        client.store.push_all = push  # type: ignore[method-assign]
        assert await client.commit(COUNT) == 2


# A remote that isn't as it should be


async def test_a_remote_out_of_reach_is_told_within_seconds(world: World) -> None:
    async with clients_of(world, 1, poll_seconds=0.3) as [client]:
        await client.commit(COUNT)
        world.origin.rename(world.place / "away")
        began = anyio.current_time()
        with pytest.raises(UnavailableError) as caught:
            await client.commit(COUNT)
        assert anyio.current_time() - began < pacing.OFFLINE_SECONDS + 3
        assert "can't be reached" in caught.value.message
        assert client.trouble is not None
        with pytest.raises(UnavailableError):
            await client.refresh()
        (world.place / "away").rename(world.origin)
        assert await client.commit(COUNT) == 2
        assert client.trouble is None


async def test_polling_notices_trouble_and_its_end(world: World) -> None:
    async with clients_of(world, 1, poll_seconds=0.1, patience=10) as [client]:
        world.origin.rename(world.place / "away")
        await until(lambda: client.trouble is not None)
        (world.place / "away").rename(world.origin)
        await until(lambda: client.trouble is None)


async def test_connecting_to_a_remote_out_of_reach_is_unavailable(world: World) -> None:
    client = client_of(world)
    world.origin.rename(world.place / "away")
    with pytest.raises(UnavailableError):
        await client.connect()
    await client.aclose()


async def test_a_remote_without_branches_is_blocked(world: World) -> None:
    client = client_of(world)
    world.git("update-ref", "-d", "refs/heads/main", cwd=world.origin)
    with pytest.raises(BlockedError) as caught:
        await client.connect()
    assert caught.value.data["status"] == "empty_remote"
    await client.aclose()


async def test_a_branch_called_forge_is_in_the_way(world: World) -> None:
    client = client_of(world)
    world.git("branch", "forge", "main", cwd=world.origin)
    with pytest.raises(EnvironmentError_) as caught:
        await client.connect()
    assert caught.value.data["branch"] == "forge"
    await client.aclose()


async def test_another_state_ref_needs_no_room_among_branches(world: World) -> None:
    world.git("branch", "forge", "main", cwd=world.origin)
    async with clients_of(world, 2, state_ref="refs/forge/collab-state") as [first, second]:
        await first.commit(COUNT)
        assert await second.commit(COUNT) == 2
        assert world.tip() is None


async def test_a_change_that_waits_is_told_when_its_client_closes(world: World) -> None:
    errors: list[ForgeError] = []

    async def publish(client: PollingTransport) -> None:
        try:
            await client.publish("hello", {})
        except UnavailableError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks, clients_of(world, 1) as [client]:
        tasks.start_soon(publish, client)
        await anyio.sleep(0.1)
    assert [error.data["unsettled"] for error in errors] == [False]


@pytest.mark.parametrize("setting", ["safe.bareRepository=explicit", "transfer.fsckObjects=true"])
async def test_a_users_strict_settings_are_no_obstacle(world: World, setting: str) -> None:
    clones = [world.clone(f"strict-{n}") for n in range(2)]
    world.config(*setting.split("=", 1))
    first, second = (PollingTransport(world.context(c, n)) for n, c in enumerate(clones))
    async with first, second:
        await first.commit(COUNT)
        assert await second.commit(COUNT) == 2


async def test_a_remote_at_a_relative_path_is_reached(world: World) -> None:
    clone = world.clone()
    world.git("remote", "set-url", "origin", "../origin.git", cwd=clone)
    async with PollingTransport(world.context(clone)) as client:
        assert await client.commit(COUNT) == 1
    assert world.show(COUNTER) == "1"


# What is on the branch and around it


async def test_a_commit_says_who_and_what_and_skips_builds(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
    shown = world.git("log", "-1", "--format=%an <%ae>%n%B", STATE_REF, cwd=world.origin)
    lines = shown.splitlines()
    assert lines[0] == "Test Person <person@example.org>"
    assert lines[1] == "forge: count [skip ci]"
    assert lines[3].startswith("Forge-Push: ")
    assert lines[4] == "Forge-Writer: client-0"


async def test_a_strict_server_takes_the_objects(world: World) -> None:
    world.git("config", "receive.fsckObjects", "true", cwd=world.origin)
    async with clients_of(world, 1) as [client]:
        await client.commit(write("tasks/ä:b c", "ü".encode()))
        await client.commit(Change(lambda view: view.drop("tasks/ä:b c"), "drop"))
    world.git("fsck", "--strict", cwd=world.origin)


async def test_a_renewal_makes_at_most_four_objects_and_none_in_the_clone(world: World) -> None:
    rounds = 40
    async with clients_of(world, 1) as [client]:
        await client.commit(write("tasks/T1"))
        await client.commit(write("participants/other", b"{}"))
        clone = world.place / "clone-0" / ".git"
        before, objects = listing(clone, without=clone / "forge"), world.objects()
        for beat in range(rounds):
            presence = Participant(handle="h", run="r", beat=beat, renewals={"k": beat})
            renewal = write("participants/client-0", encode(presence), Urgency.AHEAD)
            await client.commit(renewal)
        assert world.objects() - objects == 4 * rounds
        assert listing(clone, without=clone / "forge") == before


async def test_files_that_are_no_records_stay_as_they_are(world: World) -> None:
    world.put(
        {
            b"README.md": b"read me",
            b"leases/notes.txt": b"notes",
            b"leases/Not%2FEncoded.json": b"{}",
            b"tools/run.sh": b"#!/bin/sh",
            b"link": b"README.md",
            b"tasks/T0.json": b"zero",
        },
        **{"tools/run.sh": "100755", "link": "120000"},
    )
    before = world.git("ls-tree", "-r", STATE_REF, cwd=world.origin).splitlines()
    async with clients_of(world, 1) as [client]:
        assert "tasks/T0" in await client.list("")
        await client.commit(write("leases/claim:T1"))
        await client.commit(write("tasks/T1"))
        await client.commit(Change(lambda view: view.drop("leases/claim:T1"), "drop"))
    after = world.git("ls-tree", "-r", STATE_REF, cwd=world.origin).splitlines()
    assert set(before) <= set(after)
    assert len(after) == len(before) + 1


async def test_a_file_name_that_is_no_text_stays_and_blocks_nothing(world: World) -> None:
    world.put({b"leases/\xff\xfe.json": b"{}", b"\xe4.txt": b"latin"})
    async with clients_of(world, 1) as [client]:
        await client.commit(write("leases/claim:T1"))
    names = world.git("ls-tree", "-r", "-z", "--name-only", STATE_REF, cwd=world.origin)
    raw = names.encode("utf-8", "surrogateescape").split(b"\0")
    assert {b"leases/\xff\xfe.json", b"\xe4.txt", b"leases/claim%3AT1.json"} <= set(raw)


async def test_a_damaged_record_blocks_its_own_key_alone(world: World) -> None:
    damaged = b'<<<<<<< HEAD\n{"fence": 1}\n'
    world.put({b"tasks/T1.json": damaged, b"tasks/T2.json": encode(TaskRecord(uid="u2"))})
    async with clients_of(world, 1) as [client]:

        def touch(key: str) -> Change[None]:
            return Change(lambda view: view.save(key, TaskRecord(uid="u")), f"save {key}")

        with pytest.raises(CorruptError) as caught:
            await client.commit(touch("tasks/T1"))
        assert caught.value.data["path"] == "tasks/T1.json"
        await client.commit(touch("tasks/T2"))
        await client.commit(touch("tasks/T3"))
        assert value(client.snapshot, "tasks/T1") == damaged
    assert world.show("tasks/T1.json").encode() == damaged.strip()


# The private repository may go at any time


async def test_the_private_repository_may_be_deleted_while_it_is_in_use(world: World) -> None:
    async with clients_of(world, 2) as [client, other]:
        await client.commit(COUNT)
        await client.commit(write("tasks/T1", b"kept"))
        shutil.rmtree(client.store.path)
        await client.refresh()
        await other.refresh()
        assert await other.commit(COUNT) == 2
        assert await client.commit(COUNT) == 3
        assert value(client.snapshot, "tasks/T1") == b"kept"


async def test_a_damaged_private_repository_is_made_again(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        store = client.store.path
    for path in (store / "objects").rglob("*"):
        if path.is_file() and path.parent.name != "info":
            path.chmod(0o644)
            path.write_bytes(b"rubbish")
    again = PollingTransport(world.context(world.place / "clone-0", poll_seconds=NEVER))
    async with again:
        assert await again.commit(COUNT) == 2


async def test_a_killed_helper_process_is_replaced(world: World) -> None:
    async with clients_of(world, 2) as [client, other]:
        await client.commit(COUNT)
        await other.refresh()
        git = other.store._git
        assert git is not None
        assert git.cat_file_all is not None
        git.cat_file_all.proc.kill()
        git.cat_file_all.proc.wait()
        await client.commit(COUNT)
        await other.refresh()
        assert value(other.snapshot, COUNTER) == b"2"


async def test_two_clients_in_one_clone_one_after_the_other(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
    again = PollingTransport(world.context(world.place / "clone-0", poll_seconds=NEVER))
    async with again:
        assert version(again, COUNTER) == version(client, COUNTER)
        assert await again.commit(COUNT) == 2


async def test_what_was_fetched_before_a_fetch_fails_is_still_there(world: World) -> None:
    async with clients_of(world, 1) as [client]:
        await client.commit(COUNT)
        world.origin.rename(world.place / "away")
        with pytest.raises(UnavailableError):
            await client.refresh()
        assert value(client.snapshot, COUNTER) == b"1"
