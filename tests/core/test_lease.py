from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forge_collab.core import keys, lease, session
from forge_collab.core.change import ABSENT, View
from forge_collab.core.errors import (
    BlockedError,
    CorruptError,
    HeldError,
    LeaseLostError,
    UsageError,
)
from forge_collab.core.lease import Grant, Held, Me, Timing, Version, Watch
from forge_collab.core.records import Claimant, Lease, Participant
from forge_collab.testing.memory import MemoryStore

T = TypeVar("T")
KEY = keys.claim("T1")
TTL = 120.0


class Clone:
    """A participant over a shared store, with a clock and a watch of its own."""

    def __init__(self, store: MemoryStore, handle: str, letter: str, now: float) -> None:
        self.store = store
        self.handle = handle
        self.instance = letter * 16
        self.now = now
        self.watch = Watch()
        self.deadlines: dict[str, float] = {}
        self.beats = 0
        self.count = 0

    def nonce(self, given: str | None) -> str:
        self.count += 1
        return given or f"{self.handle}{self.count}"

    def who(self, worker: str = "w1") -> Claimant:
        return Claimant(handle=self.handle, instance=self.instance, worker=worker)

    def me(self, worker: str = "w1") -> Me:
        return Me(self.who(worker), self.watch, self.now, "wall", self.deadlines.get(worker))

    def run(self, rule: Callable[[View], T], *, lost: int = 0) -> T:
        view = View(self.store.snapshot, lost=lost)
        answer = rule(view)
        self.store.apply(view.writes)
        return answer

    def look(self) -> None:
        view = View(self.store.snapshot)
        for key in view.keys(keys.LEASES):
            record = view.document(Lease, key)
            if record is not None and record.claimant is not None:
                self.watch.see(key, lease.version_in(view, key, record), self.now)

    def acquire(self, nonce: str, worker: str = "w1", ttl: float = TTL, lost: int = 0) -> Grant:
        me = self.me(worker)
        grant = self.run(lambda v: lease.acquire(v, KEY, me, nonce=nonce, ttl=ttl), lost=lost)
        self.deadlines[worker] = Timing(ttl, ttl / 4).deadline(self.now)
        return grant

    def take_over(self, nonce: str, worker: str = "w1") -> Grant:
        me = self.me(worker)
        return self.run(lambda v: lease.take_over(v, KEY, me, nonce=nonce, ttl=TTL, reason="why"))

    def release(
        self, worker: str = "w1", fence: int | None = None, nonce: str | None = None
    ) -> Lease:
        me, nonce = self.me(worker), self.nonce(nonce)
        return self.run(lambda v: lease.release(v, KEY, me, nonce=nonce, fence=fence))

    def note(self, worker: str = "w1", fence: int | None = None, nonce: str | None = None) -> Lease:
        me, nonce = self.me(worker), self.nonce(nonce)
        return self.run(lambda v: lease.note(v, KEY, me, nonce=nonce, text="hi", fence=fence))

    def beat(self, *grants: Grant) -> session.Beat:
        self.beats += 1
        presence = Participant(handle=self.handle, run=f"run {self.instance}", beat=self.beats)
        held = {g.key: Held(g.lease.fence, g.lease.nonce) for g in grants}
        return self.run(lambda v: session.beat(v, self.instance, presence, held))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ada(store: MemoryStore) -> Clone:
    return Clone(store, "ada", "a", now=1000.0)


@pytest.fixture
def bob(store: MemoryStore) -> Clone:
    return Clone(store, "bob", "b", now=5_000_000.0)


def there(store: MemoryStore) -> Lease:
    found = View(store.snapshot).document(Lease, KEY)
    assert found is not None
    return found


# Acquire


def test_a_lease_nobody_ever_had_is_granted_under_fence_one(ada: Clone) -> None:
    grant = ada.acquire("n1")
    assert (grant.key, grant.lease.fence, grant.lease.claimant) == (KEY, 1, ada.who())
    assert (grant.already, grant.took_over) == (False, None)
    assert there(ada.store) == grant.lease.but(rev=1)


def test_a_free_lease_is_granted_under_the_next_fence_and_says_who_had_it(
    ada: Clone, bob: Clone
) -> None:
    ada.acquire("n1")
    ada.release()
    grant = bob.acquire("n2")
    assert (grant.lease.fence, grant.lease.last, grant.took_over) == (2, ada.who(), None)


def test_the_same_worker_within_its_deadline_gets_the_same_lease(ada: Clone) -> None:
    first = ada.acquire("n1")
    ada.now += 89.9
    again = ada.acquire("n2")
    assert (again.lease.fence, again.lease.nonce, again.already) == (1, "n1", True)
    assert there(ada.store) == first.lease.but(rev=1)


def test_the_same_worker_past_its_deadline_gets_a_new_fence(ada: Clone) -> None:
    ada.acquire("n1")
    ada.now += 90.0
    again = ada.acquire("n2")
    assert (again.lease.fence, again.lease.nonce, again.already) == (2, "n2", False)


def test_the_same_worker_without_a_deadline_gets_a_new_fence(ada: Clone) -> None:
    ada.acquire("n1")
    ada.deadlines.clear()
    assert ada.acquire("n2").lease.fence == 2


def test_another_worker_of_my_clone_is_told_that_my_other_worker_has_it(ada: Clone) -> None:
    ada.acquire("n1", "w1")
    with pytest.raises(HeldError, match="your other worker 'w1'") as caught:
        ada.acquire("n2", "w2")
    assert caught.value.data["holder"]["claimant"] == ada.who("w1").model_dump()


def test_another_clone_of_the_same_person_is_told_that_the_other_clone_has_it(
    store: MemoryStore, ada: Clone
) -> None:
    ada.acquire("n1")
    with pytest.raises(HeldError, match=f"your other clone \\({ada.instance}\\)"):
        Clone(store, "ada", "c", now=0.0).acquire("n2")


def test_who_is_told_that_it_is_held_learns_by_whom_and_until_when(ada: Clone, bob: Clone) -> None:
    ada.acquire("n1")
    bob.look()
    bob.now += 20.0
    with pytest.raises(HeldError) as caught:
        bob.acquire("n2")
    assert caught.value.exit_code == 3
    assert caught.value.data == {
        "task": "T1",
        "acquired": False,
        "reason": "held",
        "holder": {
            "key": "claim:T1",
            "claimant": ada.who().model_dump(),
            "fence": 1,
            "ttl_seconds": TTL,
            "last_seen_seconds": 20.0,
            "takeover_in_seconds": 100.0,
        },
    }
    assert "T1 is held by ada under fence 1" in caught.value.message


def test_who_said_yes_and_came_second_has_lost_a_race(ada: Clone, bob: Clone) -> None:
    ada.acquire("n1")
    with pytest.raises(HeldError) as caught:
        bob.acquire("n2", lost=1)
    assert caught.value.data["reason"] == "lost_race"


def test_a_claim_finds_itself_by_its_nonce_and_writes_nothing(ada: Clone) -> None:
    ada.acquire("n1")
    view = View(ada.store.snapshot)
    ada.deadlines.clear()
    grant = lease.acquire(view, KEY, ada.me(), nonce="n1", ttl=TTL)
    assert (grant.lease.fence, grant.already, view.writes) == (1, False, {})


def test_a_claim_records_the_hash_of_the_definition(ada: Clone) -> None:
    me = ada.me()
    claim = ada.run(lambda v: lease.acquire(v, KEY, me, nonce="n", ttl=TTL, definition="abc"))
    assert claim.lease.definition == "abc"


def test_a_lease_that_can_not_be_read_is_not_free(ada: Clone) -> None:
    ada.store.apply({KEY: b"<<<<<<< HEAD\n"})
    with pytest.raises(CorruptError):
        ada.acquire("n1")
    with pytest.raises(CorruptError):
        ada.take_over("n1")


def test_a_lease_of_a_newer_forge_is_not_taken(ada: Clone) -> None:
    ada.store.apply({KEY: b'{"v": 2, "fence": 4, "nonce": "n"}'})
    with pytest.raises(BlockedError, match="newer forge"):
        ada.acquire("n1")


def test_a_grant_keeps_what_a_newer_forge_wrote_into_the_record(ada: Clone) -> None:
    ada.store.apply({KEY: b'{"fence": 4, "nonce": "n", "mood": ["calm"]}'})
    ada.acquire("n1")
    found = ada.store.snapshot.get(KEY)
    assert found is not ABSENT
    assert json.loads(found.value)["mood"] == ["calm"]


# Expiry


def test_a_lease_expires_when_one_version_was_silent_for_the_whole_duration(
    ada: Clone, bob: Clone
) -> None:
    ada.acquire("n1")
    bob.look()
    bob.now += TTL - 0.1
    bob.look()
    with pytest.raises(HeldError):
        bob.acquire("n2")
    bob.now += 0.1
    grant = bob.acquire("n2")
    assert (grant.lease.fence, grant.took_over, grant.lease.last) == (2, ada.who(), ada.who())


def test_another_worker_of_my_clone_takes_an_expired_lease_too(ada: Clone) -> None:
    ada.acquire("n1", "w1")
    ada.look()
    ada.now += TTL
    assert ada.acquire("n2", "w2").lease.fence == 2


def test_a_newcomer_watches_a_whole_duration_however_old_the_lease_is(
    ada: Clone, bob: Clone
) -> None:
    ada.acquire("n1")
    bob.now += 100 * TTL
    with pytest.raises(HeldError) as caught:
        bob.acquire("n2")
    assert caught.value.data["holder"]["takeover_in_seconds"] == TTL
    bob.look()
    bob.now += TTL
    assert bob.acquire("n2").lease.fence == 2


def test_who_starts_again_watches_a_whole_duration_again(ada: Clone, bob: Clone) -> None:
    ada.acquire("n1")
    bob.look()
    bob.now += TTL - 1
    bob.watch = Watch()
    bob.look()
    bob.now += TTL - 1
    with pytest.raises(HeldError):
        bob.acquire("n2")


def test_a_renewal_begins_the_duration_anew(ada: Clone, bob: Clone) -> None:
    grant = ada.acquire("n1")
    bob.look()
    for _ in range(5):
        bob.now += TTL - 1
        ada.beat(grant)
        bob.look()
    bob.now += TTL - 1
    with pytest.raises(HeldError):
        bob.acquire("n2")


def test_a_take_over_prepared_on_an_older_version_fails_on_a_renewed_one(
    ada: Clone, bob: Clone
) -> None:
    grant = ada.acquire("n1")
    bob.look()
    bob.now += TTL
    me, stale = bob.me(), View(bob.store.snapshot)
    assert lease.acquire(stale, KEY, me, nonce="n2", ttl=TTL).lease.fence == 2
    ada.beat(grant)
    with pytest.raises(HeldError):
        lease.acquire(View(bob.store.snapshot), KEY, me, nonce="n2", ttl=TTL)


def test_the_version_reads_the_lease_and_the_presence_of_its_holder(ada: Clone) -> None:
    grant = ada.acquire("n1")
    for counter in (1, 2):
        ada.beat(grant)
        view = View(ada.store.snapshot)
        assert lease.version_in(view, KEY, there(ada.store)) == Version(1, "n1", counter)
        assert keys.PARTICIPANTS + ada.instance in view.reads


def test_a_release_and_a_new_claim_by_the_same_worker_is_another_version(
    ada: Clone, bob: Clone
) -> None:
    ada.acquire("n1")
    bob.look()
    bob.now += TTL
    ada.release()
    ada.acquire("n2")
    with pytest.raises(HeldError):
        bob.acquire("n3")


def test_no_clock_of_another_machine_and_no_wall_clock_is_compared(ada: Clone, bob: Clone) -> None:
    ada.acquire("n1")
    for wall in ("1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "garbage"):
        for now in (-1e9, 0.0, 1e9):
            me = Me(bob.who(), Watch(), now, wall)
            with pytest.raises(HeldError):
                lease.acquire(View(bob.store.snapshot), KEY, me, nonce="n2", ttl=TTL)


def test_a_version_never_comes_back_when_the_holder_lets_a_lease_go_unrenewed(
    ada: Clone, bob: Clone
) -> None:
    """Else who looked before and after, but not between, thinks it saw silence."""
    grant = ada.acquire("n1")
    bob.look()
    bob.now += TTL - 2
    ada.beat(grant)
    ada.beat()
    bob.now += 2
    bob.look()
    with pytest.raises(HeldError):
        bob.acquire("n2")


def test_a_presence_that_can_not_be_read_is_another_version_than_one_never_renewed(
    ada: Clone, bob: Clone
) -> None:
    grant = ada.acquire("n1")
    bob.look()
    bob.now += TTL - 1
    ada.beat(grant)
    ada.store.apply({keys.PARTICIPANTS + ada.instance: b"<<<<<<< HEAD\n"})
    bob.now += 1
    bob.look()
    with pytest.raises(HeldError):
        bob.acquire("n2")
    bob.now += TTL
    assert bob.acquire("n2").lease.fence == 2


def test_who_watches_forgets_what_is_no_longer_held() -> None:
    watch, version = Watch(), Version(1, "n", 0)
    watch.see("a", version, 0.0)
    watch.see("b", version, 0.0)
    watch.forget_all_but(["b"])
    assert watch.silent_seconds("a", version, 50.0) == 0.0
    assert watch.silent_seconds("b", version, 50.0) == 50.0


def test_silence_is_never_negative_when_a_rule_is_run_again_after_a_later_look() -> None:
    watch, version = Watch(), Version(1, "n", 0)
    watch.see(KEY, version, 10.0)
    assert watch.silent_seconds(KEY, version, 9.5) == 0.0


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 300)), max_size=30))
def test_silence_is_the_time_since_the_version_was_first_seen(
    looks: list[tuple[int, float]],
) -> None:
    watch, now, since, last = Watch(), 0.0, 0.0, None
    for counter, passed in looks:
        now += passed
        if counter != last:
            since, last = now, counter
        watch.see(KEY, Version(1, "n", counter), now)
        assert watch.silent_seconds(KEY, Version(1, "n", counter), now) == now - since
        assert watch.silent_seconds(KEY, Version(1, "n", 9), now) == 0.0
        assert watch.silent_seconds("other", Version(1, "n", counter), now) == 0.0


# Durations


@pytest.mark.parametrize(("written", "used"), [(0.0, 1.0), (-5.0, 1.0), (30.0, 30.0), (1e9, 3600)])
def test_a_duration_somebody_else_wrote_is_used_within_a_second_and_an_hour(
    ada: Clone, bob: Clone, written: float, used: float
) -> None:
    assert lease.clamped(written) == used
    ada.acquire("n1", ttl=TTL)
    ada.store.apply(
        {KEY: json.dumps(there(ada.store).model_dump() | {"ttl_seconds": written}).encode()}
    )
    bob.look()
    bob.now += used - 0.5
    with pytest.raises(HeldError):
        bob.acquire("n2")
    bob.now += 0.5
    assert bob.acquire("n2").lease.fence == 2


@given(st.floats())
@example(float("nan"))
def test_any_number_is_clamped_to_a_duration(written: float) -> None:
    assert lease.MIN_TTL_SECONDS <= lease.clamped(written) <= lease.MAX_TTL_SECONDS


@pytest.mark.parametrize(("ttl", "beat"), [(120, 30), (30, 10), (3600, 1200), (0.9, 0.3)])
def test_three_beats_fit_into_a_lease(ttl: float, beat: float) -> None:
    assert Timing(ttl, beat).deadline(100.0) == 100.0 + ttl - beat


@pytest.mark.parametrize(("ttl", "beat"), [(120, 40.1), (30, 30), (30, 0), (30, -1), (0, 0)])
def test_a_lease_that_three_beats_do_not_fit_into_is_refused(ttl: float, beat: float) -> None:
    with pytest.raises(UsageError, match="three beats must fit"):
        Timing(ttl, beat)


def test_a_duration_that_others_would_cut_short_is_refused() -> None:
    """Others count an hour at most, so a holder that counts on more works on a lost lease."""
    with pytest.raises(UsageError):
        Timing(ttl=4 * lease.MAX_TTL_SECONDS, beat=1.2 * lease.MAX_TTL_SECONDS)


def test_the_usual_durations_are_two_minutes_and_a_beat_of_thirty_seconds() -> None:
    assert (Timing().ttl, Timing().beat) == (120.0, 30.0)


# Fences


def test_the_fence_rises_with_each_new_claimant_and_with_nothing_else(
    ada: Clone, bob: Clone
) -> None:
    fences = []
    grant = ada.acquire("n1")
    for act in (
        lambda: ada.acquire("n2"),
        lambda: ada.beat(grant),
        ada.note,
        ada.release,
        ada.release,
        lambda: bob.acquire("n3"),
        bob.release,
        lambda: bob.acquire("n4"),
        lambda: ada.take_over("n5"),
    ):
        act()
        fences.append(there(ada.store).fence)
    assert fences == [1, 1, 1, 1, 1, 2, 2, 3, 4]


def test_a_release_keeps_the_fence_and_says_who_had_it(ada: Clone) -> None:
    ada.acquire("n1")
    freed = ada.release()
    assert (freed.fence, freed.claimant, freed.last) == (1, None, ada.who())
    assert there(ada.store).fence == 1


def test_a_release_done_twice_is_nothing(ada: Clone) -> None:
    ada.acquire("n1")
    ada.release()
    before = ada.store.snapshot.get(KEY)
    view = View(ada.store.snapshot)
    lease.release(view, KEY, ada.me(), nonce="r2", fence=1)
    lease.release(view, KEY, ada.me(), nonce="r3")
    assert view.writes == {}
    assert ada.store.snapshot.get(KEY) == before


def test_a_release_done_twice_under_another_fence_is_a_lost_lease(ada: Clone) -> None:
    ada.acquire("n1")
    ada.release()
    with pytest.raises(LeaseLostError):
        ada.release(fence=7)


# Who may write


@pytest.mark.parametrize("what", ["release", "note"])
def test_who_never_held_it_is_told_who_does(ada: Clone, bob: Clone, what: str) -> None:
    ada.acquire("n1")
    with pytest.raises(HeldError, match="held by ada"):
        getattr(bob, what)()
    with pytest.raises(HeldError, match="your other worker"):
        getattr(ada, what)("w2")


@pytest.mark.parametrize("what", ["release", "note"])
def test_who_lost_it_is_told_both_fences(ada: Clone, bob: Clone, what: str) -> None:
    ada.acquire("n1")
    bob.take_over("n2")
    with pytest.raises(LeaseLostError, match="under fence 1 is lost: bob holds it under") as caught:
        getattr(ada, what)()
    assert caught.value.exit_code == 5
    assert caught.value.data["fence"] == 1
    assert caught.value.data["holder"]["fence"] == 2
    assert caught.value.data["holder"]["claimant"] == bob.who().model_dump()
    bob.release()
    with pytest.raises(LeaseLostError, match="free now, its fence is 2"):
        getattr(ada, what)()


@pytest.mark.parametrize("what", ["release", "note"])
def test_when_nobody_holds_it_there_is_nothing_to_write(ada: Clone, bob: Clone, what: str) -> None:
    with pytest.raises(BlockedError, match="nobody holds T1"):
        getattr(ada, what)()
    ada.acquire("n1")
    ada.release()
    with pytest.raises(BlockedError, match="nobody holds T1"):
        getattr(bob, what)()
    with pytest.raises(BlockedError, match="nobody holds T1"):
        ada.note()


@pytest.mark.parametrize("what", ["release", "note"])
def test_a_fence_that_is_not_the_current_one_is_a_lost_lease(
    ada: Clone, bob: Clone, what: str
) -> None:
    """The agent of fence 1 comes back after its own daemon claimed again at 3."""
    ada.acquire("n1")
    bob.take_over("n2")
    bob.release()
    ada.deadlines.clear()
    assert ada.acquire("n3").lease.fence == 3
    with pytest.raises(LeaseLostError, match="you hold it under fence 3 now") as caught:
        getattr(ada, what)(fence=1)
    assert caught.value.data["fence"] == 1
    getattr(ada, what)(fence=3)


@pytest.mark.parametrize("what", ["release", "note"])
def test_the_current_fence_does_not_make_a_holder_of_somebody_else(
    ada: Clone, bob: Clone, what: str
) -> None:
    ada.acquire("n1")
    for clone, worker in ((bob, "w1"), (ada, "w2")):
        with pytest.raises(HeldError):
            getattr(clone, what)(worker, fence=1)


def test_a_holder_past_its_deadline_may_write_while_nobody_took_it(ada: Clone) -> None:
    ada.acquire("n1")
    ada.now += 10 * TTL
    assert ada.note(fence=1).fence == 1
    assert ada.release(fence=1).fence == 1


def test_a_note_is_in_the_audit_and_leaves_the_lease_alone(ada: Clone) -> None:
    ada.acquire("n1")
    before = ada.store.snapshot.get(KEY)
    ada.note(nonce="t")
    assert ada.store.snapshot.get(KEY) == before
    found = ada.store.snapshot.get(f"audit/{ada.instance}/1")
    assert found is not ABSENT
    last = json.loads(found.value.splitlines()[-1])
    assert (last["event"], last["text"], last["fence"], last["nonce"]) == ("note", "hi", 1, "t")


def test_a_note_that_took_effect_already_is_not_written_twice(ada: Clone) -> None:
    """After a lost answer the rule is run on a snapshot that has it."""
    ada.acquire("n1")
    ada.note(nonce="t")
    before = ada.store.snapshot.get(f"audit/{ada.instance}/1")
    ada.note(nonce="t")
    assert ada.store.snapshot.get(f"audit/{ada.instance}/1") == before


def test_a_release_that_took_effect_already_is_no_lost_lease(ada: Clone, bob: Clone) -> None:
    """After a lost answer the rule is run on a snapshot where another has it by now."""
    ada.acquire("n1")
    ada.release(nonce="r")
    bob.acquire("n2")
    ada.release(nonce="r")
    assert there(ada.store).claimant == bob.who()


# Renewals


def test_a_renewal_counts_one_more_in_the_holders_presence(ada: Clone) -> None:
    grant = ada.acquire("n1")
    assert [ada.beat(grant).presence.renewals for _ in range(3)] == [{KEY: n} for n in (1, 2, 3)]


def test_a_renewal_of_a_lease_that_another_has_is_lost_and_says_what_is_there(
    ada: Clone, bob: Clone
) -> None:
    grant = ada.acquire("n1")
    ada.beat(grant)
    taken = bob.take_over("n2").lease
    beat = ada.beat(grant)
    assert beat.lost == {KEY: there(ada.store)}
    assert (taken.fence, KEY in beat.presence.renewals) == (2, False)
    bob.release()
    assert ada.beat(grant).lost == {KEY: there(ada.store)}


@pytest.mark.parametrize("held", [Held(1, "other"), Held(2, "n1"), Held(0, "n1")])
def test_a_renewal_needs_the_fence_and_the_nonce_it_was_granted(ada: Clone, held: Held) -> None:
    ada.acquire("n1")
    counters, lost = lease.renewals(View(ada.store.snapshot), ada.instance, {KEY: held}, {})
    assert (counters, list(lost)) == ({}, [KEY])


def test_a_renewal_of_what_was_given_back_or_never_there_is_lost(ada: Clone) -> None:
    ada.acquire("n1")
    freed = ada.release()
    held = {KEY: Held(1, "n1"), "leases/claim:T9": Held(1, "n9")}
    counters, lost = lease.renewals(View(ada.store.snapshot), ada.instance, held, {KEY: 4})
    assert counters == {}
    assert lost == {KEY: freed.but(rev=2), "leases/claim:T9": None}


# Take over


def test_a_take_over_from_a_live_holder_raises_the_fence_and_is_audited_with_the_reason(
    ada: Clone, bob: Clone
) -> None:
    ada.acquire("n1")
    grant = bob.take_over("n2")
    assert (grant.lease.fence, grant.took_over, grant.lease.last) == (2, ada.who(), ada.who())
    found = bob.store.snapshot.get(f"audit/{bob.instance}/1")
    assert found is not ABSENT
    entry = json.loads(found.value)
    assert (entry["event"], entry["text"], entry["fence"]) == ("taken_over", "why", 2)


def test_a_take_over_finds_itself_by_its_nonce(ada: Clone, bob: Clone) -> None:
    ada.acquire("n1")
    bob.take_over("n2")
    view = View(bob.store.snapshot)
    grant = lease.take_over(view, KEY, bob.me(), nonce="n2", ttl=TTL, reason="why")
    assert (grant.lease.fence, grant.took_over, view.writes) == (2, ada.who(), {})


def test_a_take_over_of_my_own_live_lease_is_nothing(ada: Clone) -> None:
    ada.acquire("n1")
    grant = ada.take_over("n2")
    assert (grant.already, grant.lease.fence) == (True, 1)
    assert there(ada.store).nonce == "n1"


def test_a_take_over_of_a_free_lease_takes_it(ada: Clone, bob: Clone) -> None:
    assert ada.take_over("n1").lease.fence == 1
    ada.release()
    grant = bob.take_over("n2")
    assert (grant.lease.fence, grant.took_over) == (2, None)


# Settle


def test_settling_a_claim_that_took_effect_gives_it_back(ada: Clone, bob: Clone) -> None:
    ada.acquire("n1")
    assert ada.run(lambda v: lease.settle(v, KEY, ada.me("daemon"), nonce="n1"))
    assert (there(ada.store).claimant, there(ada.store).fence) == (None, 1)
    assert bob.acquire("n2").lease.fence == 2


def test_settling_a_claim_that_did_not_take_effect_writes_all_the_same(ada: Clone) -> None:
    """Whatever is written moves the tip, so the claim that is still on its way can't land."""
    for key in (KEY, None):
        view = View(ada.store.snapshot)
        assert not lease.settle(view, key, ada.me(), nonce="n1")
        assert view.writes
        assert KEY not in view.writes


def test_settling_leaves_anothers_lease_and_a_later_one_of_my_own_alone(
    ada: Clone, bob: Clone
) -> None:
    bob.acquire("n2")
    assert not ada.run(lambda v: lease.settle(v, KEY, ada.me(), nonce="n1"))
    assert there(ada.store).claimant == bob.who()
    bob.release()
    ada.acquire("n3")
    assert not ada.run(lambda v: lease.settle(v, KEY, ada.me(), nonce="n1"))
    assert there(ada.store).nonce == "n3"


def test_settling_a_claim_of_whatever_was_next_finds_its_key(ada: Clone) -> None:
    ada.acquire("n1")
    ada.store.apply({keys.claim("T0"): b"<<<<<<< HEAD\n"})
    assert ada.run(lambda v: lease.settle(v, None, ada.me(), nonce="n1"))
    assert there(ada.store).claimant is None


# Leaving


def test_leaving_gives_back_every_lease_of_the_clone_and_no_other(ada: Clone, bob: Clone) -> None:
    other = keys.claim("T2")
    ada.acquire("n1", "w1")
    bob.run(lambda v: lease.acquire(v, other, bob.me(), nonce="n2", ttl=TTL))
    third = keys.claim("T3")
    ada.run(lambda v: lease.acquire(v, third, ada.me("w2"), nonce="n3", ttl=TTL))
    ada.store.apply({keys.claim("T4"): b"<<<<<<< HEAD\n"})
    me = ada.me("daemon")
    freed = ada.run(lambda v: lease.release_all(v, ada.instance, me, nonce="r"))
    assert freed == (KEY, third)
    view = View(ada.store.snapshot)
    left = {key: view.document(Lease, key) for key in (KEY, other, third)}
    assert {key: record.claimant for key, record in left.items() if record} == {
        KEY: None,
        other: bob.who(),
        third: None,
    }
    assert ada.run(lambda v: lease.release_all(v, ada.instance, me, nonce="r")) == ()
