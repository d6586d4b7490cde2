"""What a branch that was set back has lost, and that all who heal it make the same of it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forge_collab.core import audit, healing, keys, lease
from forge_collab.core.change import ABSENT, Versioned, View, overlay
from forge_collab.core.records import (
    AuditEntry,
    Claimant,
    Lease,
    Message,
    Meta,
    Participant,
    Record,
    TaskRecord,
    decode,
    encode,
    encode_lines,
)
from forge_collab.core.tasks import TaskStatus
from forge_collab.testing.memory import MemorySnapshot

ME = Claimant(handle="ada", instance="a" * 16, worker="-")
small = st.integers(1, 3)
broken = st.sampled_from([b"<<<<<<<\n", b"", b"[]\n"])
claimants = st.none() | st.builds(
    Claimant, handle=st.just("x"), instance=st.sampled_from("ab"), worker=st.just("w")
)
audit_lines = st.builds(
    AuditEntry, seq=small, ts=st.just(""), event=st.just("note"), who=st.just(ME), nonce=st.text()
)
messages = st.builds(Message, seq=small, event=st.sampled_from("xy"))
VALUES: dict[str, st.SearchStrategy[bytes]] = {
    "leases/claim:T1": st.builds(
        Lease,
        fence=small,
        floor=st.integers(0, 3),
        rev=small,
        nonce=st.sampled_from("nm"),
        claimant=claimants,
    ).map(encode),
    "tasks/T1": st.builds(
        TaskRecord,
        uid=st.sampled_from("uv"),
        rev=small,
        round=small,
        fence=small,
        status=st.sampled_from(TaskStatus),
    ).map(encode),
    "meta": st.builds(
        Meta,
        rev=small,
        session=st.just("s"),
        repo=st.just("r"),
        target=st.just("main"),
        ended=st.none() | st.just("by ada"),
    ).map(encode),
    "participants/a": st.builds(
        Participant, rev=small, handle=st.just("a"), run=st.sampled_from("rs"), beat=small
    ).map(encode),
    "messages/a": st.lists(messages, max_size=3).map(tuple).map(encode_lines),
    "audit/a/1": st.lists(audit_lines, max_size=4).map(tuple).map(encode_lines),
    "shared/tasks/T1.yaml": st.sampled_from([b"id: T1\n", b"id: T2\n"]),
    "of/a/newer/forge": st.builds(Record, rev=small).map(encode),
}
three = st.sampled_from(sorted(VALUES)).flatmap(
    lambda key: st.tuples(st.just(key), *[VALUES[key] | broken] * 3)
)


def snapshot(records: dict[str, bytes]) -> MemorySnapshot:
    return MemorySnapshot(
        {key: Versioned(value, f"{key}{value!r}") for key, value in records.items()}
    )


def tree_of(view: View) -> dict[str, bytes]:
    found = {key: view.get(key) for key in view.keys("")}
    return {key: value for key, value in found.items() if value is not ABSENT}


# The join


@given(three)
def test_joining_is_the_same_in_any_order_and_however_often(
    these: tuple[str, bytes, bytes, bytes],
) -> None:
    key, a, b, c = these

    def join(one: bytes, other: bytes) -> bytes:
        return healing.join(key, one, other)

    assert join(a, a) == a
    assert join(a, b) == join(b, a)
    assert join(a, join(a, b)) == join(a, b)
    assert join(join(a, b), c) == join(a, join(b, c))


leases = st.builds(
    Lease,
    fence=small,
    floor=st.integers(0, 5),
    rev=small,
    nonce=st.sampled_from("nmo"),
    claimant=claimants,
)


@given(st.lists(leases, min_size=1, max_size=5))
def test_a_joined_fence_never_fell_and_names_one_claim(several: list[Lease]) -> None:
    joined = encode(several[0])
    for other in several[1:]:
        joined = healing.join("leases/claim:T1", joined, encode(other))
    result = decode(Lease, joined, "")
    highest = max(one.fence for one in several)
    assert result.floor == max(one.floor for one in several)
    nonces = {one.nonce for one in several if one.fence == highest}
    if len(nonces) == 1:
        assert (result.fence, {result.nonce}) == (highest, nonces)
        last = max(one.rev for one in several if one.fence == highest)
        assert result.rev == last
    else:
        assert (result.fence, result.claimant, result.rev) == (highest + 1, None, 0)


@given(st.permutations(list(TaskStatus)), small)
def test_a_closed_task_stays_closed_within_its_round(order: list[TaskStatus], rev: int) -> None:
    joined = encode(TaskRecord(uid="u", status=order[0], rev=rev))
    for place, status in enumerate(order):
        other = encode(TaskRecord(uid="u", status=status, rev=place))
        joined = healing.join("tasks/T1", joined, other)
    assert decode(TaskRecord, joined, "").status is TaskStatus.DONE
    reopened = encode(TaskRecord(uid="u", status=TaskStatus.PENDING, round=2))
    assert healing.join("tasks/T1", reopened, joined) == reopened


@given(*[st.lists(audit_lines, max_size=6)] * 2)
def test_the_audit_keeps_every_line_in_order(a: list[AuditEntry], b: list[AuditEntry]) -> None:
    joined = healing.join("audit/a/1", encode_lines(tuple(a)), encode_lines(tuple(b)))
    found = snapshot({"audit/a/1": joined})
    assert {encode(entry) for entry in audit.history(found)} == {encode(x) for x in (*a, *b)}
    assert [e.seq for e in audit.history(found)] == sorted(e.seq for e in audit.history(found))


# What is lost

trees = st.fixed_dictionaries({}, optional={k: v | broken for k, v in VALUES.items()})


@given(trees, trees)
def test_after_healing_nothing_is_lost_and_healing_again_is_nothing(
    held: dict[str, bytes], there: dict[str, bytes]
) -> None:
    view = View(snapshot(there))
    healed = healing.heal(view, snapshot(held), ME, ts="", nonce="n")
    after = snapshot(tree_of(view))
    assert healing.lost(snapshot(held), after, "a", is_descendant=False) == []
    assert healing.lost(snapshot(there), after, "a", is_descendant=False) == []
    again = View(after)
    assert healing.heal(again, snapshot(held), ME, ts="", nonce="m") == ()
    assert again.writes == {}
    assert bool(healed) == bool(view.writes)


@given(trees, trees, trees)
def test_two_who_heal_make_the_same_records_in_either_order(
    one: dict[str, bytes], other: dict[str, bytes], there: dict[str, bytes]
) -> None:
    def healed_by(*healers: dict[str, bytes]) -> dict[str, bytes]:
        tree = there
        for held in healers:
            view = View(snapshot(tree))
            healing.heal(view, snapshot(held), ME, ts="", nonce="n")
            tree = tree_of(view)
        return {key: value for key, value in tree.items() if ME.instance not in key}

    assert healed_by(one, other) == healed_by(other, one)


def test_what_ordinary_changes_do_is_no_loss() -> None:
    before = {
        "participants/a": encode(Participant(handle="a", run="r", rev=9)),
        "messages/a": b"",
        "tasks/T1": encode(TaskRecord(uid="u", status=TaskStatus.DONE, round=3, rev=2)),
        "shared/tasks/T1.yaml": b"id: T1\n",
    }
    after = {
        "tasks/T1": encode(TaskRecord(uid="next month's", rev=3)),
        "shared/tasks/T1.yaml": b"id: T1\ntitle: x\n",
    }
    assert healing.lost(snapshot(before), snapshot(after), "a", is_descendant=True) == []


def test_a_rule_never_lowers_a_rev_or_drops_a_lease_so_that_is_a_loss() -> None:
    older, newer = (encode(Lease(fence=2, nonce="n", rev=rev)) for rev in (3, 4))
    before = {"leases/claim:T1": newer, "leases/claim:T2": newer}
    after = {"leases/claim:T1": older}
    found = healing.lost(snapshot(before), snapshot(after), "a", is_descendant=True)
    assert found == ["leases/claim:T1", "leases/claim:T2"]


def test_a_record_that_cannot_be_read_is_not_called_lost() -> None:
    good, bad = {"tasks/T1": encode(TaskRecord(uid="u", rev=2))}, {"tasks/T1": b"<<<<<<<\n"}
    for is_descendant in (True, False):
        for before, after in ((good, bad), (bad, good)):
            assert not healing.lost(
                snapshot(before), snapshot(after), "a", is_descendant=is_descendant
            )


def test_another_sessions_branch_is_no_loss() -> None:
    metas = (Meta(session="s", repo=repo, target="main") for repo in ("old", "new"))
    old, new = ({"meta": encode(meta)} for meta in metas)
    held = {**old, "leases/claim:T1": encode(Lease(fence=1, nonce="n"))}
    assert healing.lost(snapshot(held), snapshot(new), "a", is_descendant=False) == []
    assert healing.lost(snapshot(held), snapshot({}), "a", is_descendant=False) != []


# Fences, whatever is done to the branch


@dataclass
class Daemon:
    """What one clone holds: the records, and the leases that it was granted."""

    who: Claimant
    tree: dict[str, bytes] = field(default_factory=dict)
    granted: dict[str, tuple[int, str]] = field(default_factory=dict)
    has_forgotten: bool = False


KEYS = [keys.claim("T1"), keys.claim("T2")]
daemons = st.integers(0, 2)
places = st.integers(0, 1)


class SetBack(RuleBasedStateMachine):
    """Daemons that claim and give back on a branch that somebody sets back, deletes, rewrites.

    A daemon looks at the branch before it decides, and heals it, as the transport does.
    """

    @initialize(seed=st.integers(0, 9))
    def begin(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.nonces = 0
        self.branch: dict[str, bytes] = {}
        self.past: list[dict[str, bytes]] = [{}]
        self.daemons = [
            Daemon(Claimant(handle=name, instance=name * 16, worker="w")) for name in "abc"
        ]

    def fresh(self) -> str:
        self.nonces += 1
        return f"n{self.nonces}"

    def move(self, tree: dict[str, bytes]) -> None:
        self.branch = tree
        self.past.append(tree)

    def sync(self, daemon: Daemon) -> View:
        there = snapshot(self.branch)
        if healing.lost(snapshot(daemon.tree), there, "a", is_descendant=False):
            view = View(there)
            healing.heal(view, snapshot(daemon.tree), daemon.who, ts="", nonce=self.fresh())
            self.move(tree_of(view))
        daemon.tree = self.branch
        view = View(snapshot(self.branch))
        for key, mine in list(daemon.granted.items()):
            record = view.document(Lease, key)
            if record is None or record.claimant is None or (record.fence, record.nonce) != mine:
                del daemon.granted[key]
        return view

    def me(self, daemon: Daemon) -> lease.Me:
        return lease.Me(daemon.who, lease.Watch(), 0.0, "", own_deadline=1.0)

    @rule(number=daemons, place=places, is_forced=st.booleans())
    def claim(self, number: int, place: int, is_forced: bool) -> None:
        daemon, key = self.daemons[number], KEYS[place]
        view = self.sync(daemon)
        try:
            if is_forced:
                grant = lease.take_over(
                    view, key, self.me(daemon), nonce=self.fresh(), ttl=9, reason="r"
                )
            else:
                grant = lease.acquire(view, key, self.me(daemon), nonce=self.fresh(), ttl=9)
        except lease.HeldError:
            return
        self.move(tree_of(view))
        daemon.tree = self.branch
        daemon.granted[key] = (grant.lease.fence, grant.lease.nonce)

    @rule(number=daemons, place=places)
    def give_back(self, number: int, place: int) -> None:
        daemon, key = self.daemons[number], KEYS[place]
        view = self.sync(daemon)
        if key in daemon.granted:
            lease.release(view, key, self.me(daemon), nonce=self.fresh())
            self.move(tree_of(view))
            daemon.tree = self.branch
            del daemon.granted[key]

    @rule(number=daemons)
    def look(self, number: int) -> None:
        self.sync(self.daemons[number])

    @rule()
    def set_back(self) -> None:
        self.branch = self.chance.choice(self.past)

    @rule(number=daemons)
    def forget(self, number: int) -> None:
        """A clone whose memory was deleted; what it was granted it still has in its journal.

        It takes a branch that was set back as it is. What others bring back of it then is nobody's
        until it lapses.
        """
        self.daemons[number].tree = {}
        self.daemons[number].has_forgotten = True

    @rule()
    def agree(self) -> None:
        """Everybody has looked, and looked at what the others healed."""
        held = [dict(daemon.granted) for daemon in self.daemons]
        for daemon in (*self.daemons, *self.daemons):
            self.sync(daemon)
        tree: Any = overlay(snapshot(self.branch), {})
        for key in KEYS:
            holders = [daemon for daemon in self.daemons if key in daemon.granted]
            assert len(holders) <= 1, f"two hold {key}"
            record = View(tree).document(Lease, key)
            for before, daemon in zip(held, self.daemons, strict=True):
                if key in before and daemon not in holders and not daemon.has_forgotten:
                    assert record is None or record.nonce != before[key][1] or not record.claimant

    @invariant()
    def what_a_daemon_remembers_is_on_the_branch_once_it_has_looked(self) -> None:
        for daemon in self.daemons:
            if daemon.tree is not self.branch:
                continue
            for key, (fence, nonce) in daemon.granted.items():
                record = decode(Lease, self.branch[key], key)
                assert (record.fence, record.nonce) == (fence, nonce)

    @rule(number=daemons)
    def a_fence_never_falls_for_who_remembers(self, number: int) -> None:
        daemon = self.daemons[number]
        before = {key: decode(Lease, daemon.tree[key], key) for key in KEYS if key in daemon.tree}
        self.sync(daemon)
        for key, record in before.items():
            assert decode(Lease, self.branch[key], key).fence >= record.fence


TestSetBack = SetBack.TestCase
