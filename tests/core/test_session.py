from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest

from forge_collab.core import audit, keys, lease, session
from forge_collab.core.board import Board
from forge_collab.core.change import ABSENT, View
from forge_collab.core.errors import (
    BlockedError,
    CorruptError,
    EnvironmentError_,
    HeldError,
    UsageError,
)
from forge_collab.core.lease import Held, Me, Watch
from forge_collab.core.records import (
    MESSAGES_BYTES,
    MESSAGES_KEPT,
    Claimant,
    Lease,
    Message,
    Meta,
    Participant,
    TaskRecord,
    decode_lines,
    encode,
)
from forge_collab.core.session import DuplicateIdentityError
from forge_collab.core.tasks import Task, TaskStatus
from forge_collab.testing.memory import MemoryStore

T = TypeVar("T")
ADA, BOB = "a" * 16, "b" * 16
TTL = 120.0
K1, K2 = keys.claim("T1"), keys.claim("T2")
BROKEN = b"<<<<<<< HEAD\n"


def task(task_id: str, *depends_on: str, **fields: Any) -> Task:
    raw = {"id": task_id, "title": task_id, "depends_on": depends_on, "uid": f"u-{task_id}"}
    return Task.model_validate(raw | fields)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def board() -> Board:
    return Board([task("T1"), task("T2"), task("T3", "T1", "T2")])


def run(store: MemoryStore, rule: Callable[[View], T]) -> T:
    view = View(store.snapshot)
    answer = rule(view)
    store.apply(view.writes)
    return answer


def me(instance: str = ADA, worker: str = "w1", deadline: float | None = None) -> Me:
    who = Claimant(handle=instance[0], instance=instance, worker=worker)
    return Me(who, Watch(), 1000.0, "wall", deadline)


def presence(beat: int = 0, run_id: str = "run 1", nonce: str = "", **fields: Any) -> Participant:
    raw = {"handle": "a", "run": run_id, "beat": beat, "nonce": nonce}
    return Participant.model_validate(raw | fields)


def done(store: MemoryStore, *task_ids: str, status: TaskStatus = TaskStatus.DONE) -> None:
    for task_id in task_ids:
        record = TaskRecord(uid=f"u-{task_id}", status=status)
        store.apply({keys.TASKS + task_id: encode(record)})


def claim(store: MemoryStore, board: Board, task_id: str, who: Me, nonce: str) -> lease.Grant:
    return run(store, lambda v: session.claim(v, task_id, board, who, nonce=nonce, ttl=TTL))


def claim_next(
    store: MemoryStore, board: Board, who: Me, nonce: str, *, ttl: float = TTL
) -> lease.Grant | None:
    return run(store, lambda v: session.claim_next(v, board, who, nonce=nonce, ttl=ttl))


def held(*grants: lease.Grant) -> Mapping[str, Held]:
    return {grant.key: Held(grant.lease.fence, grant.lease.nonce) for grant in grants}


def read(store: MemoryStore, key: str) -> bytes:
    found = store.snapshot.get(key)
    assert found is not ABSENT
    return found.value


# The identity of the session


def test_the_first_to_come_makes_the_session(store: MemoryStore) -> None:
    meta = run(store, lambda v: session.found(v, session="s", repo="r", target="main"))
    assert (meta.session, meta.repo, meta.target) == ("s", "r", "main")
    assert View(store.snapshot).document(Meta, keys.META) == meta.but(rev=1)


@pytest.mark.parametrize("target", ["main", None])
def test_whoever_comes_later_finds_the_session_and_writes_nothing(
    store: MemoryStore, target: str | None
) -> None:
    run(store, lambda v: session.found(v, session="s", repo="r", target="main"))
    view = View(store.snapshot)
    meta = session.found(view, session="other", repo="another", target=target)
    assert (meta.session, meta.repo, meta.target, view.writes) == ("s", "r", "main", {})


def test_a_clone_with_another_target_branch_is_told_what_to_type(store: MemoryStore) -> None:
    run(store, lambda v: session.found(v, session="s", repo="r", target="main"))
    with pytest.raises(EnvironmentError_, match="lands on 'dev', the session on 'main'") as caught:
        run(store, lambda v: session.found(v, session="s", repo="r", target="dev"))
    assert caught.value.hint == "git config forge.target main"
    assert caught.value.data == {"target": "main"}


def test_a_session_is_not_made_without_a_target_branch(store: MemoryStore) -> None:
    with pytest.raises(BlockedError, match="no target branch"):
        run(store, lambda v: session.found(v, session="s", repo="r", target=None))


def test_an_unreadable_identity_is_not_a_missing_one(store: MemoryStore) -> None:
    store.apply({keys.META: BROKEN})
    with pytest.raises(CorruptError):
        run(store, lambda v: session.found(v, session="s", repo="r", target="main"))


# Presence


def test_a_run_that_arrives_keeps_the_counters_of_the_one_before(store: MemoryStore) -> None:
    before = presence(7, "run 1", renewals={K1: 5})
    store.apply({keys.PARTICIPANTS + ADA: encode(before)})
    here = run(store, lambda v: session.arrive(v, ADA, presence(0, "run 2")))
    assert (here.run, here.beat, here.renewals) == ("run 2", 0, {K1: 5})
    assert View(store.snapshot).document(Participant, keys.PARTICIPANTS + ADA) == here.but(rev=1)


def test_arriving_twice_is_nothing(store: MemoryStore) -> None:
    run(store, lambda v: session.arrive(v, ADA, presence()))
    view = View(store.snapshot)
    session.arrive(view, ADA, presence())
    assert view.writes == {}


def test_a_presence_that_can_not_be_read_is_not_written_over(store: MemoryStore) -> None:
    store.apply({keys.PARTICIPANTS + ADA: BROKEN})
    for rule in (session.arrive, lambda v, i, p: session.beat(v, i, p, {})):
        view = View(store.snapshot)
        with pytest.raises(CorruptError):
            rule(view, ADA, presence(1))
        assert view.writes == {}


def test_a_beat_renews_every_lease_in_one_record(store: MemoryStore, board: Board) -> None:
    grants = [claim(store, board, "T1", me(), "n1"), claim(store, board, "T2", me(), "n2")]
    view = View(store.snapshot)
    beat = session.beat(view, ADA, presence(1), held(*grants))
    assert list(view.writes) == [keys.PARTICIPANTS + ADA]
    assert (beat.presence.renewals, beat.lost) == ({K1: 1, K2: 1}, {})


def test_a_beat_raises_each_counter_by_one(store: MemoryStore, board: Board) -> None:
    grant = claim(store, board, "T1", me(), "n1")
    for number in (1, 2, 3):
        now = presence(number, nonce=f"b{number}")
        run(store, lambda v, now=now: session.beat(v, ADA, now, held(grant)))
    record = View(store.snapshot).document(Participant, keys.PARTICIPANTS + ADA)
    assert record is not None
    assert (record.beat, record.rev, record.renewals) == (3, 3, {K1: 3})


def test_a_beat_that_took_effect_already_counts_nothing_more(
    store: MemoryStore, board: Board
) -> None:
    grant = claim(store, board, "T1", me(), "n1")
    now = presence(1, nonce="b1")
    first = run(store, lambda v: session.beat(v, ADA, now, held(grant)))
    view = View(store.snapshot)
    again = session.beat(view, ADA, now, held(grant))
    assert view.writes == {}
    assert again.presence.renewals == first.presence.renewals == {K1: 1}
    assert again.lost == {}


def test_a_beat_says_what_was_lost_with_what_is_there_now(store: MemoryStore, board: Board) -> None:
    grants = [claim(store, board, "T1", me(), "n1"), claim(store, board, "T2", me(), "n2")]
    rule = lease.take_over
    taken = run(store, lambda v: rule(v, K1, me(BOB), nonce="n3", ttl=TTL, reason="why"))
    beat = run(store, lambda v: session.beat(v, ADA, presence(1), held(*grants)))
    assert beat.lost == {K1: taken.lease.but(rev=2)}
    assert beat.presence.renewals == {K2: 1}


def test_a_beat_of_another_run_is_a_duplicate(store: MemoryStore, board: Board) -> None:
    grant = claim(store, board, "T1", me(), "n1")
    run(store, lambda v: session.arrive(v, ADA, presence(0, "run 1")))
    run(store, lambda v: session.arrive(v, ADA, presence(0, "run 2")))
    view = View(store.snapshot)
    with pytest.raises(DuplicateIdentityError) as caught:
        session.beat(view, ADA, presence(5, "run 1"), held(grant))
    assert view.writes == {}
    assert caught.value.data == {"instance": ADA}
    assert caught.value.code == "duplicate_identity"
    run(store, lambda v: session.beat(v, ADA, presence(1, "run 2"), held(grant)))


def test_a_run_is_checked_against_its_own_last_write(store: MemoryStore) -> None:
    assert session.check_run(View(store.snapshot), ADA, presence(1)) is None
    mine = presence(2, nonce="b2")
    store.apply({keys.PARTICIPANTS + ADA: encode(mine)})
    view = View(store.snapshot)
    assert session.check_run(view, ADA, mine) == mine
    assert session.check_run(view, ADA, presence(3, nonce="b3")) == mine
    for other in (presence(2, "run 2", "b2"), presence(2, nonce="x"), presence(1, nonce="b1")):
        with pytest.raises(DuplicateIdentityError):
            session.check_run(view, ADA, other)


def test_leaving_gives_back_the_leases_and_removes_the_presence(
    store: MemoryStore, board: Board
) -> None:
    run(store, lambda v: session.arrive(v, ADA, presence()))
    claim(store, board, "T1", me(ADA, "w1"), "n1")
    claim(store, board, "T2", me(BOB), "n2")
    freed = run(store, lambda v: session.depart(v, ADA, me(), nonce="n3"))
    assert freed == (K1,)
    assert store.snapshot.get(keys.PARTICIPANTS + ADA) is ABSENT
    events = [entry.event for entry in audit.history(store.snapshot)]
    assert events == ["claimed", "claimed", "released", "left"]
    record = View(store.snapshot).document(Lease, K2)
    assert record is not None
    assert record.claimant == me(BOB).claimant


def test_leaving_twice_is_nothing(store: MemoryStore) -> None:
    run(store, lambda v: session.arrive(v, ADA, presence()))
    run(store, lambda v: session.depart(v, ADA, me(), nonce="n"))
    view = View(store.snapshot)
    assert session.depart(view, ADA, me(), nonce="n") == ()
    assert view.writes == {}


def test_leaving_works_with_a_presence_that_can_not_be_read(store: MemoryStore) -> None:
    store.apply({keys.PARTICIPANTS + ADA: BROKEN})
    run(store, lambda v: session.depart(v, ADA, me(), nonce="n"))
    assert store.snapshot.get(keys.PARTICIPANTS + ADA) is ABSENT


# Messages


def post(store: MemoryStore, data: dict[str, Any], to: str | None = None) -> Message:
    return run(store, lambda v: session.post(v, ADA, "said", data, to=to, ts="wall"))


def ring(store: MemoryStore) -> tuple[Message, ...]:
    return decode_lines(Message, read(store, keys.MESSAGES + ADA), "")


def test_messages_are_numbered_and_keep_their_envelope(store: MemoryStore) -> None:
    assert post(store, {"a": 1}).seq == 1
    assert post(store, {"b": [None]}, to="bob").seq == 2
    said = [(m.seq, m.event, m.to, m.data, m.ts) for m in ring(store)]
    assert said == [(1, "said", None, {"a": 1}, "wall"), (2, "said", "bob", {"b": [None]}, "wall")]


def test_a_ring_keeps_the_last_two_hundred_messages_and_their_numbers(store: MemoryStore) -> None:
    assert MESSAGES_KEPT == 200
    for number in range(MESSAGES_KEPT + 5):
        post(store, {"n": number})
    assert [m.seq for m in ring(store)] == list(range(6, 206))


def test_a_ring_has_256_kib_at_most(store: MemoryStore) -> None:
    assert MESSAGES_BYTES == 256 * 1024
    for _ in range(10):
        post(store, {"text": "x" * 60_000})
    assert len(read(store, keys.MESSAGES + ADA)) <= MESSAGES_BYTES
    assert [m.seq for m in ring(store)] == [7, 8, 9, 10]


def test_a_message_larger_than_a_ring_is_refused_or_alone_in_it(store: MemoryStore) -> None:
    post(store, {"n": 1})
    try:
        post(store, {"text": "x" * (MESSAGES_BYTES + 1)})
    except UsageError:
        assert [m.seq for m in ring(store)] == [1]
    else:
        assert [m.seq for m in ring(store)] == [2]
    assert post(store, {"n": 3}).seq > 1


def test_a_ring_that_can_not_be_read_is_not_written_over(store: MemoryStore) -> None:
    store.apply({keys.MESSAGES + ADA: BROKEN})
    with pytest.raises(CorruptError):
        post(store, {})
    assert read(store, keys.MESSAGES + ADA) == BROKEN


# Which tasks are open


def test_a_task_without_a_record_is_open(store: MemoryStore, board: Board) -> None:
    assert session.check_open(View(store.snapshot), "T1", board).id == "T1"


def test_an_unknown_task_is_a_usage_error_that_says_which(store: MemoryStore, board: Board) -> None:
    with pytest.raises(UsageError) as caught:
        session.check_open(View(store.snapshot), "T9", board)
    assert "T9" in caught.value.message
    assert caught.value.hint == "forge task list"
    assert caught.value.data == {"task": "T9", "acquired": False}


def test_a_task_waits_for_what_it_depends_on(store: MemoryStore, board: Board) -> None:
    done(store, "T2")
    with pytest.raises(BlockedError, match="T3 waits for T1") as caught:
        session.check_open(View(store.snapshot), "T3", board)
    data = {"task": "T3", "acquired": False, "status": "pending", "waits_for": ["T1"]}
    assert caught.value.data == data
    done(store, "T1")
    assert session.check_open(View(store.snapshot), "T3", board).id == "T3"


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (TaskStatus.DONE, "forge task reopen T1"),
        (TaskStatus.CANCELLED, "forge task reopen T1"),
        (TaskStatus.AWAITING_MERGE, "forge task show T1"),
    ],
)
def test_a_task_that_has_ended_or_awaits_its_merge_is_not_open(
    store: MemoryStore, board: Board, status: TaskStatus, hint: str
) -> None:
    done(store, "T1", status=status)
    with pytest.raises(BlockedError) as caught:
        session.check_open(View(store.snapshot), "T1", board)
    assert (caught.value.data["status"], caught.value.data["waits_for"]) == (status.value, [])
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "status",
    [TaskStatus.MERGE_BLOCKED, TaskStatus.BLOCKED, TaskStatus.PAUSED, TaskStatus.FAILED],
)
def test_a_claim_of_a_stopped_task_makes_it_pending_and_next_passes_it_over(
    store: MemoryStore, board: Board, status: TaskStatus
) -> None:
    done(store, "T1", status=status)
    view = View(store.snapshot)
    grant = session.claim_next(view, board, me(), nonce="n1", ttl=10)
    assert grant is not None
    assert grant.key == keys.claim("T2")
    session.claim(view, "T1", board, me(), nonce="n2", ttl=10)
    assert session.status_of(view, board.tasks["T1"], board) is TaskStatus.PENDING


@pytest.mark.parametrize("status", [s for s in TaskStatus if s is not TaskStatus.DONE])
def test_only_done_is_done_for_whoever_depends_on_it(
    store: MemoryStore, board: Board, status: TaskStatus
) -> None:
    done(store, "T1")
    done(store, "T2", status=status)
    with pytest.raises(BlockedError) as caught:
        session.check_open(View(store.snapshot), "T3", board)
    assert caught.value.data["waits_for"] == ["T2"]


def test_a_record_of_another_task_that_had_the_id_does_not_count(
    store: MemoryStore, board: Board
) -> None:
    store.apply({keys.TASKS + "T1": encode(TaskRecord(uid="last month's", status="done"))})
    view = View(store.snapshot)
    assert session.status_of(view, board.tasks["T1"], board) is TaskStatus.PENDING
    assert session.check_open(view, "T1", board).id == "T1"


def test_a_broken_file_blocks_its_task_and_what_depends_on_it(store: MemoryStore) -> None:
    board = Board([task("T2", "T1"), task("T3")], {"T1": "T1.yaml:3: no"})
    for task_id in ("T1", "T2"):
        with pytest.raises(BlockedError, match=r"T1\.yaml:3") as caught:
            session.check_open(View(store.snapshot), task_id, board)
        assert caught.value.data["status"] == "broken"
    assert session.check_open(View(store.snapshot), "T3", board).id == "T3"


def test_a_claim_reads_all_that_it_depends_on(store: MemoryStore, board: Board) -> None:
    done(store, "T1", "T2")
    view = View(store.snapshot)
    session.claim(view, "T3", board, me(), nonce="n", ttl=TTL)
    assert {keys.TASKS + t for t in ("T1", "T2", "T3")} | {keys.claim("T3")} <= view.reads.keys()


# Claims


def test_a_claim_takes_an_open_task_and_records_its_definition(
    store: MemoryStore, board: Board
) -> None:
    grant = claim(store, board, "T1", me(), "n1")
    assert (grant.key, grant.lease.fence) == (K1, 1)
    assert grant.lease.definition == board.tasks["T1"].definition_hash
    with pytest.raises(HeldError):
        claim(store, board, "T1", me(BOB), "n2")


def test_a_claim_on_its_way_fails_when_what_it_depends_on_is_reopened(
    store: MemoryStore, board: Board
) -> None:
    """B's own record doesn't change; only running the rule again finds it."""
    done(store, "T1", "T2")
    session.claim(View(store.snapshot), "T3", board, me(BOB), nonce="n", ttl=TTL)
    done(store, "T1", status=TaskStatus.PENDING)
    with pytest.raises(BlockedError):
        claim(store, board, "T3", me(BOB), "n")


def test_a_damaged_record_blocks_its_own_key_alone(store: MemoryStore, board: Board) -> None:
    store.apply({K1: BROKEN, keys.TASKS + "T9": BROKEN})
    with pytest.raises(CorruptError):
        claim(store, board, "T1", me(), "n1")
    assert claim(store, board, "T2", me(), "n2").lease.fence == 1
    assert read(store, K1) == BROKEN


def test_the_next_task_is_the_most_urgent_open_one(store: MemoryStore) -> None:
    board = Board([task("T1"), task("T2", priority=1), task("T3", "T2", priority=1), task("T10")])
    got = [claim_next(store, board, me(w), f"n{w}") for w in (ADA, BOB, "c" * 16)]
    assert [grant.key for grant in got if grant] == [keys.claim(t) for t in ("T2", "T1", "T10")]
    with pytest.raises(BlockedError, match="nothing can be claimed now") as caught:
        claim_next(store, board, me("d" * 16), "n4")
    data = {"task": None, "acquired": False, "status": None, "waits_for": []}
    assert caught.value.data == data


def test_the_next_task_is_none_that_i_hold_already(store: MemoryStore, board: Board) -> None:
    first = claim_next(store, board, me(deadline=9e9), "n1")
    second = claim_next(store, board, me(deadline=9e9), "n2")
    assert first is not None
    assert second is not None
    assert (first.key, second.key) == (K1, K2)
    with pytest.raises(BlockedError):
        claim_next(store, board, me(deadline=9e9), "n3")


def test_the_next_task_passes_over_what_can_not_be_read(store: MemoryStore, board: Board) -> None:
    store.apply({K1: BROKEN})
    grant = claim_next(store, board, me(), "n1")
    assert grant is not None
    assert grant.key == K2
    store.apply({K1: b'{"v": 2, "fence": 1, "nonce": "n"}'})
    with pytest.raises(BlockedError):
        claim_next(store, board, me(BOB), "n2")


def test_there_is_nothing_to_claim_when_all_that_is_left_can_not_be_read(
    store: MemoryStore, board: Board
) -> None:
    done(store, "T2")
    store.apply({keys.TASKS + "T1": BROKEN})
    with pytest.raises(BlockedError, match="nothing can be claimed now"):
        claim_next(store, board, me(), "n1")


def test_there_is_no_next_task_when_all_are_done(store: MemoryStore, board: Board) -> None:
    done(store, "T1", "T2", "T3")
    assert claim_next(store, board, me(), "n1") is None


def test_a_plan_without_tasks_is_not_called_done(store: MemoryStore) -> None:
    with pytest.raises(BlockedError, match="no tasks"):
        claim_next(store, Board([]), me(), "n1")


def test_an_open_task_that_waits_for_a_failed_one_is_not_the_end(
    store: MemoryStore, board: Board
) -> None:
    done(store, "T1")
    done(store, "T2", status=TaskStatus.FAILED)
    with pytest.raises(BlockedError):
        claim_next(store, board, me(), "n1")


def test_a_claim_of_whatever_is_next_finds_itself_by_its_nonce(
    store: MemoryStore, board: Board
) -> None:
    claim_next(store, board, me(), "n1")
    view = View(store.snapshot)
    grant = session.claim_next(view, board, me(), nonce="n1", ttl=TTL)
    assert grant is not None
    assert (grant.key, view.writes) == (K1, {})


def test_a_claim_of_whatever_is_next_finds_itself_behind_a_task_that_became_free(
    store: MemoryStore, board: Board
) -> None:
    """After a lost answer: one claim must not end up with two leases, one of them nobody's."""
    claim(store, board, "T1", me(BOB), "n0")
    claim_next(store, board, me(), "n1")
    run(store, lambda v: lease.release(v, K1, me(BOB), nonce="r"))
    view = View(store.snapshot)
    grant = session.claim_next(view, board, me(), nonce="n1", ttl=TTL)
    assert grant is not None
    assert (grant.key, view.writes) == (K2, {})
