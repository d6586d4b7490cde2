"""Into a session and home again: fences only rise, and what somebody holds stays theirs."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from forge_collab.core import carry, keys, lease
from forge_collab.core.board import Board
from forge_collab.core.carry import Alone
from forge_collab.core.change import ABSENT, Versioned, View
from forge_collab.core.records import Claimant, Lease, Record, TaskRecord, encode
from forge_collab.core.tasks import Task, TaskStatus
from forge_collab.testing.memory import MemorySnapshot

KEYS = [keys.claim(f"T{n}") for n in range(4)]
BOARD = Board([Task(id=f"T{n}", title="Do", uid=f"u{n}") for n in range(3)])
"""T3 isn't in the session's plan."""
OTHERS = [Claimant(handle="ben", instance="b" * 16, worker="main")]


def claimant(worker: str) -> Claimant:
    return Claimant(handle="ada", instance="a" * 16, worker=worker)


def me(worker: str) -> lease.Me:
    return lease.Me(claimant(worker), lease.Watch(), 0.0, "now")


fences = st.integers(1, 6)
workers = st.sampled_from(["main", "other"])
alone = st.dictionaries(
    st.sampled_from(KEYS),
    st.builds(Alone, fence=fences, nonce=st.just("mine"), worker=st.none() | workers),
)
leases = st.builds(
    Lease,
    fence=fences,
    floor=st.integers(0, 8),
    nonce=st.just("theirs"),
    claimant=st.none() | st.sampled_from(OTHERS) | st.builds(claimant, workers),
)
there = st.dictionaries(st.sampled_from(KEYS), leases)
tasks = st.dictionaries(
    st.sampled_from([f"{keys.TASKS}T{n}" for n in range(3)]),
    st.builds(
        TaskRecord,
        uid=st.sampled_from(["u0", "u1", "u2"]),
        round=st.integers(1, 3),
        status=st.sampled_from([TaskStatus.PENDING, TaskStatus.DONE, TaskStatus.PAUSED]),
    ),
)


def snapshot(records: Mapping[str, Record]) -> MemorySnapshot:
    return MemorySnapshot(
        {key: Versioned(encode(record), f"v{n}") for n, (key, record) in enumerate(records.items())}
    )


def after(before: MemorySnapshot, view: View) -> MemorySnapshot:
    records = {k: f for k in before.keys("") if (f := before.get(k)) is not ABSENT}
    written = {k: Versioned(v, f"w{k}") for k, v in view.writes.items() if v is not ABSENT}
    return MemorySnapshot(records | written)


def highest(record: Lease | None) -> int:
    return max(record.fence, record.floor) if record else 0


def joined(
    own: Mapping[str, Alone], records: Mapping[str, Record]
) -> tuple[carry.Joined, MemorySnapshot]:
    before = snapshot(records)
    view = View(before)
    return carry.join(view, own, BOARD, me, ttl=60.0), after(before, view)


@given(alone, there, tasks)
def test_no_fence_falls_and_the_next_one_is_above_both(
    own: dict[str, Alone], leases_there: dict[str, Lease], tasks_there: dict[str, TaskRecord]
) -> None:
    _, found = joined(own, {**leases_there, **tasks_there})
    view = View(found)
    for key in {*own, *leases_there}:
        now, was = view.document(Lease, key), leases_there.get(key)
        assert now is not None
        least = max(highest(was), own[key].fence if key in own else 0)
        assert now.fence >= (was.fence if was else 0)
        assert highest(now) >= least
        view.save(key, now.but(claimant=None))
        grant = lease.acquire(view, key, me("next"), nonce="next", ttl=60.0)
        assert grant.lease.fence > least


@given(alone, there, tasks)
def test_whoever_holds_a_lease_in_the_session_keeps_it_under_their_fence(
    own: dict[str, Alone], leases_there: dict[str, Lease], tasks_there: dict[str, TaskRecord]
) -> None:
    _, found = joined(own, {**leases_there, **tasks_there})
    for key, was in leases_there.items():
        now = View(found).document(Lease, key)
        if was.claimant is not None:
            assert now is not None
            assert (now.claimant, now.fence, now.nonce) == (was.claimant, was.fence, was.nonce)


@given(alone, there, tasks)
def test_what_is_held_goes_on_or_is_lost_with_a_reason(
    own: dict[str, Alone], leases_there: dict[str, Lease], tasks_there: dict[str, TaskRecord]
) -> None:
    told, found = joined(own, {**leases_there, **tasks_there})
    held = {key: mine for key, mine in own.items() if mine.worker is not None}
    assert told.granted.keys() | told.lost.keys() == held.keys()
    assert not told.granted.keys() & told.lost.keys()
    for key, grant in told.granted.items():
        was, mine = leases_there.get(key), held[key]
        assert View(found).document(Lease, key) in (grant.lease, grant.lease.but(rev=1))
        assert grant.lease.claimant == claimant(mine.worker or "")
        if not grant.already:
            assert grant.lease.fence == max(mine.fence, highest(was) + 1 if was else 0)
    for key, error in told.lost.items():
        was = leases_there.get(key)
        is_taken = was is not None and was.claimant is not None
        is_known = key != KEYS[3] and (f"{keys.TASKS}{key[-2:]}") not in tasks_there
        assert error.message
        assert is_taken or not is_known


@given(alone, there, tasks)
def test_joining_again_after_a_crash_changes_nothing(
    own: dict[str, Alone], leases_there: dict[str, Lease], tasks_there: dict[str, TaskRecord]
) -> None:
    first, found = joined(own, {**leases_there, **tasks_there})
    view = View(found)
    second = carry.join(view, own, BOARD, me, ttl=60.0)
    assert view.writes == {}
    assert second.lost.keys() == first.lost.keys()
    for key, grant in first.granted.items():
        assert second.granted[key].lease.fence == grant.lease.fence


@given(there, there, tasks, tasks)
def test_at_home_nobody_holds_anything_and_no_fence_has_fallen(
    own: dict[str, Lease],
    leases_there: dict[str, Lease],
    own_tasks: dict[str, TaskRecord],
    tasks_there: dict[str, TaskRecord],
) -> None:
    home, away = snapshot({**own, **own_tasks}), snapshot({**leases_there, **tasks_there})
    view = View(home)
    carry.take_home(view, away)
    found = View(after(home, view))
    for key in {*own, *leases_there}:
        now = found.document(Lease, key)
        assert now is not None
        assert now.claimant is None
        assert now.fence >= max(highest(own.get(key)), highest(leases_there.get(key)))
    again = View(after(home, view))
    carry.take_home(again, away)
    assert again.writes == {}


@given(tasks, tasks)
def test_at_home_a_closed_task_stays_closed_in_its_round(
    own: dict[str, TaskRecord], tasks_there: dict[str, TaskRecord]
) -> None:
    home = snapshot(own)
    view = View(home)
    carry.take_home(view, snapshot(tasks_there))
    found = View(after(home, view))
    for key in {*own, *tasks_there}:
        now = found.document(TaskRecord, key)
        assert now is not None
        for before in (own.get(key), tasks_there.get(key)):
            if before is not None and before.uid == now.uid:
                was_closed = before.status is TaskStatus.DONE
                assert (now.round, now.status is TaskStatus.DONE) >= (before.round, was_closed)


def test_a_record_that_cant_be_read_is_left_as_it_is_here_and_there() -> None:
    broken = MemorySnapshot({KEYS[0]: Versioned(b"<<<<<<<\n", "x")})
    view = View(broken)
    told = carry.join(view, {KEYS[0]: Alone(3, "mine", "main")}, BOARD, me, ttl=60.0)
    assert (view.writes, list(told.lost)) == ({}, [KEYS[0]])
    view = View(broken)
    carry.take_home(view, snapshot({KEYS[0]: Lease(fence=4, nonce="theirs")}))
    assert view.writes == {}


def test_only_what_was_granted_and_still_stands_is_held_alone() -> None:
    record = Lease(fence=2, nonce="n", claimant=claimant("main"))
    own = snapshot({KEYS[0]: record, KEYS[1]: record, KEYS[2]: record.but(claimant=None)})
    granted = {
        KEYS[0]: lease.Held(2, "n"),
        KEYS[1]: lease.Held(1, "n"),
        KEYS[2]: lease.Held(2, "n"),
    }
    found = carry.had_alone(own, granted)
    assert {key: mine.worker for key, mine in found.items()} == {
        KEYS[0]: "main",
        KEYS[1]: None,
        KEYS[2]: None,
    }
