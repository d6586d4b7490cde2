"""The lease rule under every interleaving: stale reads, lost answers, late pushes, crashes.

The store behaves as a branch does: a change is judged on what its participant last fetched, its
push names that tip, and it lands only where the tip is still that one. A push may arrive long
after its sender has given up. Everything that lands is checked, in plain JSON and the true time,
against the state it landed on. ``FORGE_HYPOTHESIS_EXAMPLES`` makes it run longer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from forge_collab.core import keys, lease, session
from forge_collab.core.board import Board
from forge_collab.core.change import ABSENT, Absent, Snapshot, Versioned, View, overlay
from forge_collab.core.errors import BlockedError, ForgeError, HeldError
from forge_collab.core.records import Claimant, Participant
from forge_collab.core.tasks import Task
from forge_collab.testing.memory import MemorySnapshot

EXAMPLES = int(os.environ.get("FORGE_HYPOTHESIS_EXAMPLES", "200"))
BOARD = Board([Task(id="T1", title="first", priority=1), Task(id="T2", title="second")])
KEYS = tuple(keys.claim(task_id) for task_id in BOARD.order())
WORKERS = ("w1", "w2")
SHORT, LONG = 3.0, 6.0
CLAIMS = ("claim", "claim_next", "takeover")


class Fate(Enum):
    """What becomes of a push."""

    ANSWERED = "it arrives at once and its sender learns of it"
    UNANSWERED = "it arrives at once and its answer gets lost"
    DELAYED = "it arrives some time, or never, and is not answered"


@dataclass(eq=False)
class Pending:
    """A change that a participant wants; `judge` runs the rule, the rest says for whom."""

    kind: str
    judge: Callable[[View], Any]
    asked_tick: int
    who: Claimant
    key: str = ""
    nonce: str = ""
    fence: int | None = None
    held: dict[str, lease.Held] = field(default_factory=dict)
    on_answer: Callable[[Any, float], None] = lambda answer, sent_at: None
    lost: int = 0
    sent: list[Push] = field(default_factory=list)
    first_sent_at: float | None = None


@dataclass(eq=False)
class Step:
    """What one change of a push found and writes."""

    pending: Pending
    answer: Any
    before: Snapshot
    writes: dict[str, bytes | Absent]


@dataclass(eq=False)
class Push:
    """Changes on their way together; they land only on `base`."""

    base: int
    steps: list[Step]
    sent_at: float
    has_landed: bool = False


@dataclass
class Hold:
    """A lease that a daemon knows it granted, with its own deadline on its own clock."""

    fence: int
    nonce: str
    worker: str
    ttl: float
    deadline: float | None


@dataclass(eq=False)
class Clone:
    """A participant: its clock is the true time plus `offset`, and never read by another."""

    instance: str
    handle: str
    offset: float
    recognises: bool
    run: str = ""
    beats: int = 0
    seen: int = 0
    seen_tick: int = 0
    watch: lease.Watch = field(default_factory=lease.Watch)
    held: dict[str, Hold] = field(default_factory=dict)
    pendings: list[Pending] = field(default_factory=list)
    told: dict[tuple[str, str], int] = field(default_factory=dict)

    def worker(self, name: str) -> Claimant:
        return Claimant(handle=self.handle, instance=self.instance, worker=name)


def raw(tree: Snapshot, key: str) -> dict[str, Any] | None:
    found = tree.get(key)
    return None if found is ABSENT else json.loads(found.value)


def owner(record: dict[str, Any]) -> tuple[str, str, str, str]:
    who = record["claimant"]
    return who["handle"], who["instance"], who["worker"], record["nonce"]


def is_held_by(record: dict[str, Any] | None, who: Claimant) -> bool:
    return record is not None and record["claimant"] == who.model_dump()


def counter(tree: Snapshot, key: str, record: dict[str, Any]) -> int:
    holder = raw(tree, keys.PARTICIPANTS + record["claimant"]["instance"])
    return holder["renewals"].get(key, 0) if holder else 0


picks = st.integers(0, 11)
workers = st.sampled_from(WORKERS)
lease_keys = st.sampled_from(KEYS)
ttls = st.sampled_from((SHORT, LONG))
fates = st.sampled_from([Fate.ANSWERED, Fate.ANSWERED, Fate.UNANSWERED, Fate.DELAYED])
fences = st.sampled_from(("none", "told", "told", "older", "newer"))


class Protocol(RuleBasedStateMachine):
    """Participants that claim, renew, note, release, take over, settle, crash and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tick = 0
        self.count = 0
        self.is_broken = False
        self.clones: list[Clone] = []
        self.network: list[tuple[Clone, Push]] = []
        self.history: list[MemorySnapshot] = [MemorySnapshot({})]
        self.owners: dict[tuple[str, int], tuple[str, str, str, str]] = {}
        self.settled: set[str] = set()
        self.renewed_at: dict[str, float] = {}
        self.versions: dict[str, tuple[int, str, int]] = {}

    # The world

    def must(self, holds: bool, why: str) -> None:
        if not holds:
            self.is_broken = True
            raise AssertionError(why)

    def fresh(self, what: str) -> str:
        self.count += 1
        return f"{what}{self.count}"

    def clock(self, clone: Clone) -> float:
        return self.now + clone.offset

    def me(self, clone: Clone, worker: str, key: str = "") -> lease.Me:
        hold = clone.held.get(key)
        deadline = hold.deadline if hold is not None and hold.worker == worker else None
        wall = f"wall {(self.tick * 7919) % 100 - 50}"
        return lease.Me(clone.worker(worker), clone.watch, self.clock(clone), wall, deadline)

    def follow(self, clone: Clone) -> None:
        """Fetch: look at every lease, recognise what landed, forget pushes that can't land."""
        self.tick += 1
        clone.seen, clone.seen_tick = len(self.history) - 1, self.tick
        view = View(self.history[clone.seen])
        held = {}
        for key in KEYS:
            record = view.document(lease.Lease, key)
            if record is not None and record.claimant is not None:
                held[key] = lease.version_in(view, key, record)
        clone.watch.forget_all_but(held)
        for key, version in held.items():
            clone.watch.see(key, version, self.clock(clone))
        for pending in list(clone.pendings):
            landed = [push for push in pending.sent if push.has_landed]
            if clone.recognises and landed:
                self.answer(clone, pending, landed[0])
            pending.sent = [p for p in pending.sent if not p.has_landed and p.base == clone.seen]

    def answer(self, clone: Clone, pending: Pending, push: Push) -> None:
        step = next(step for step in push.steps if step.pending is pending)
        clone.pendings.remove(pending)
        pending.on_answer(step.answer, push.sent_at)

    def attempt(self, clone: Clone, chosen: Iterable[Pending], fate: Fate) -> None:
        """Judge on what was fetched and push, as the transport does; presence and settling first.

        What says no, or has nothing to write, counts only on a snapshot newer than the question.
        """
        first = [p for p in clone.pendings if p.kind in ("arrive", "settle")]
        these = list(dict.fromkeys([*first, *chosen]))
        for _ in range(3):
            these = [pending for pending in these if pending in clone.pendings]
            steps, is_undecided = self.judged(clone, these)
            if is_undecided and fate is Fate.ANSWERED:
                self.follow(clone)
                continue
            if not steps:
                return
            push = Push(clone.seen, steps, self.now)
            for step in steps:
                step.pending.sent.append(push)
                step.pending.first_sent_at = step.pending.first_sent_at or self.now
            if fate is Fate.DELAYED:
                self.network.append((clone, push))
                return
            self.land(push)
            if fate is Fate.UNANSWERED:
                return
            if push.has_landed:
                for step in steps:
                    self.answer(clone, step.pending, push)
            self.follow(clone)
            for step in steps:
                step.pending.lost += 1

    def judged(self, clone: Clone, these: list[Pending]) -> tuple[list[Step], bool]:
        writes: dict[str, bytes | Absent] = {}
        steps: list[Step] = []
        is_undecided = False
        for pending in these:
            before = overlay(self.history[clone.seen], writes)
            view = View(before, lost=pending.lost)
            answer, no = None, None
            try:
                answer = pending.judge(view)
            except ForgeError as error:
                no = error
            if no is None and view.writes:
                steps.append(Step(pending, answer, before, dict(view.writes)))
                writes.update(view.writes)
            elif clone.seen_tick < pending.asked_tick:
                is_undecided = True
            elif not writes.keys() & view.reads.keys():
                clone.pendings.remove(pending)
                if no is None:
                    sent_at = pending.first_sent_at
                    pending.on_answer(answer, self.now if sent_at is None else sent_at)
                else:
                    self.check_refusal(pending, before, no)
        return steps, is_undecided

    def land(self, push: Push) -> None:
        if push.has_landed or push.base != len(self.history) - 1:
            return
        push.has_landed = True
        tree = self.history[-1]
        records = {k: f for k in tree.keys("") if (f := tree.get(k))}
        for step in push.steps:
            self.check_step(step)
            for key, value in step.writes.items():
                if value is ABSENT:
                    records.pop(key, None)
                else:
                    records[key] = Versioned(value, f"{len(self.history)}:{key}")
        self.history.append(MemorySnapshot(records))
        self.check_history()

    # What has to hold

    def check_history(self) -> None:
        """Fences never fall, and one fence of one key names one claim, in every version."""
        before, after = self.history[-2:]
        nonces: list[str] = []
        for key in KEYS:
            old, new = raw(before, key), raw(after, key)
            if new is None:
                self.must(old is None, f"{key} was dropped")
                continue
            self.must(old is None or new["fence"] >= old["fence"], f"the fence of {key} fell")
            self.must(old is None or new["rev"] >= old["rev"], f"the rev of {key} fell")
            if new["claimant"] is None:
                self.versions.pop(key, None)
                continue
            self.must(new["nonce"] not in self.settled, f"{key}: settled, then granted")
            nonces.append(new["nonce"])
            self.check_owner(key, new)
            version = (new["fence"], new["nonce"], counter(after, key, new))
            known = self.versions.get(key)
            if known is None or known[:2] != version[:2] or version[2] > known[2]:
                self.renewed_at[key] = self.now
            self.versions[key] = version
        self.must(len(nonces) == len(set(nonces)), "one claim holds two leases")

    def check_owner(self, key: str, record: dict[str, Any]) -> None:
        """A fence names one claim for ever, also where one push raises it twice."""
        first = self.owners.setdefault((key, record["fence"]), owner(record))
        self.must(first == owner(record), f"two claimants of {key} at {record['fence']}")

    def check_step(self, step: Step) -> None:
        """One change against the very state it landed on."""
        pending, after = step.pending, overlay(step.before, step.writes)
        for key in KEYS:
            old, new = raw(step.before, key), raw(after, key)
            if old == new:
                continue
            assert new is not None
            if new["claimant"] is None:
                self.check_emptied(pending, key, old, new)
            else:
                self.check_granted(pending, key, old, new)
        if pending.kind in ("note", "release"):
            record = raw(step.before, pending.key)
            self.must(is_held_by(record, pending.who), f"{pending.kind} by one who isn't holder")
            is_current = record is not None and pending.fence in (None, record["fence"])
            self.must(is_current, f"{pending.kind} under fence {pending.fence} took effect")
        elif pending.kind == "settle":
            self.settled.add(pending.nonce)
        self.check_renewed(step, after)

    def check_granted(
        self, pending: Pending, key: str, old: dict[str, Any] | None, new: dict[str, Any]
    ) -> None:
        self.must(pending.kind in CLAIMS, f"{pending.kind} granted {key}")
        self.must(new["fence"] == (old["fence"] if old else 0) + 1, "a grant raises the fence by 1")
        self.must(is_held_by(new, pending.who), "granted to another than who asked")
        self.check_owner(key, new)
        if old is None or old["claimant"] is None:
            return
        self.must(old["nonce"] != new["nonce"], "a claim didn't recognise itself")
        if pending.kind != "takeover" and not is_held_by(old, pending.who):
            silent = self.now - self.renewed_at[key]
            self.must(silent >= old["ttl_seconds"], f"{key} expired after {silent} s")
            holder = next(c for c in self.clones if c.instance == old["claimant"]["instance"])
            hold = holder.held.get(key)
            if hold is not None and hold.fence == old["fence"] and hold.deadline is not None:
                self.must(self.clock(holder) >= hold.deadline, "expired before its deadline")

    def check_emptied(
        self, pending: Pending, key: str, old: dict[str, Any] | None, new: dict[str, Any]
    ) -> None:
        assert old is not None
        self.must(old["claimant"] is not None, f"{key} was emptied twice")
        self.must(new["fence"] == old["fence"], "an ended lease keeps its fence")
        self.must(new["last"] == old["claimant"], "an ended lease says who had it")
        if pending.kind == "settle":
            self.must(old["nonce"] == pending.nonce, "settling ended another's lease")
        elif pending.kind == "depart":
            self.must(old["claimant"]["instance"] == pending.who.instance, "left for another")
        else:
            self.must(pending.kind == "release" and pending.key == key, f"by {pending.kind}")

    def check_renewed(self, step: Step, after: Snapshot) -> None:
        if step.pending.kind not in ("beat", "arrive"):
            return
        key = keys.PARTICIPANTS + step.pending.who.instance
        then, now = raw(step.before, key), raw(after, key)
        before = then["renewals"] if then else {}
        for name, number in (now["renewals"] if now else {}).items():
            if number == before.get(name, 0):
                continue
            record, mine = raw(step.before, name), step.pending.held.get(name)
            is_mine = mine is not None and record is not None and record["claimant"] is not None
            is_mine = is_mine and (record["fence"], record["nonce"]) == (mine.fence, mine.nonce)
            self.must(is_mine, f"a lease of {name} that isn't held was renewed")
            self.must(number == before.get(name, 0) + 1, "a renewal counts one")

    def check_refusal(self, pending: Pending, tree: Snapshot, no: ForgeError) -> None:
        """A no has a reason in the state it was judged on."""
        record = raw(tree, pending.key) if pending.key else None
        if pending.kind in ("note", "release"):
            is_right = is_held_by(record, pending.who)
            is_right = is_right and pending.fence in (None, record["fence"] if record else None)
            self.must(not is_right, f"the holder's {pending.kind} was refused: {no}")
        elif pending.kind == "claim":
            self.must(isinstance(no, HeldError), f"a claim was refused: {no}")
            is_free = record is None or record["claimant"] is None
            self.must(not is_free and not is_held_by(record, pending.who), f"free, but: {no}")
            self.must(no.data["holder"]["fence"] == record["fence"], "the holder's fence")
        else:
            is_next = pending.kind == "claim_next" and isinstance(no, BlockedError)
            self.must(is_next, f"{pending.kind} was refused: {no}")

    # What a participant does

    def ask(self, clone: Clone, pending: Pending) -> Pending:
        clone.pendings.append(pending)
        return pending

    def granted(
        self, clone: Clone, worker: str, ttl: float, grant: lease.Grant, sent_at: float
    ) -> None:
        key, fence, nonce = grant.key, grant.lease.fence, grant.lease.nonce
        who = clone.worker(worker)
        claim = (who.handle, who.instance, who.worker, nonce)
        self.must(self.owners.get((key, fence)) == claim, f"a grant of {key} that isn't there")
        clone.told[worker, key] = fence
        hold = clone.held.get(key)
        if hold is None or hold.fence < fence:
            deadline = sent_at + clone.offset + lease.Timing(ttl, ttl / 3).deadline(0.0)
            clone.held[key] = Hold(fence, nonce, worker, ttl, deadline)

    def claiming(
        self, clone: Clone, kind: str, worker: str, key: str, ttl: float, is_early: bool
    ) -> Pending:
        nonce, early = self.fresh("n"), self.me(clone, worker, key)

        def judge(view: View) -> lease.Grant:
            me = early if is_early else self.me(clone, worker, key)
            if kind == "takeover":
                return lease.take_over(view, key, me, nonce=nonce, ttl=ttl, reason="why")
            if kind == "claim":
                return lease.acquire(view, key, me, nonce=nonce, ttl=ttl)
            grant = session.claim_next(view, BOARD, me, nonce=nonce, ttl=ttl)
            assert grant is not None
            return grant

        def on_answer(grant: lease.Grant, sent_at: float) -> None:
            self.granted(clone, worker, ttl, grant, sent_at)

        who = clone.worker(worker)
        asked = "" if kind == "claim_next" else key
        return Pending(kind, judge, self.tick, who, asked, nonce, on_answer=on_answer)

    def settling(self, clone: Clone, key: str, nonce: str) -> Pending:
        def judge(view: View) -> bool:
            return lease.settle(view, key or None, self.me(clone, "daemon"), nonce=nonce)

        def on_answer(had_landed: bool, sent_at: float) -> None:
            self.settled.add(nonce)

        who = clone.worker("daemon")
        return Pending("settle", judge, self.tick, who, key, nonce, on_answer=on_answer)

    def give_up(self, clone: Clone, pending: Pending) -> None:
        """Tell the caller that nobody knows; a claim that may have taken effect is undone."""
        clone.pendings.remove(pending)
        if pending.kind not in CLAIMS or pending.first_sent_at is None:
            return
        if pending.sent or not clone.recognises:
            self.ask(clone, self.settling(clone, pending.key, pending.nonce))

    def presence(self, clone: Clone) -> Participant:
        written = {"run": clone.run, "beat": clone.beats, "nonce": self.fresh("n")}
        return Participant(handle=clone.handle, **written)

    def beating(self, clone: Clone) -> Pending:
        waiting = next((p for p in clone.pendings if p.kind == "beat"), None)
        if waiting is not None:
            return waiting
        clone.beats += 1
        presence = self.presence(clone)
        held = {key: lease.Held(hold.fence, hold.nonce) for key, hold in clone.held.items()}

        def judge(view: View) -> session.Beat:
            return session.beat(view, clone.instance, presence, held)

        def on_answer(beat: session.Beat, sent_at: float) -> None:
            for key, mine in held.items():
                hold = clone.held.get(key)
                if hold is None or (hold.fence, hold.nonce) != (mine.fence, mine.nonce):
                    continue
                if key in beat.lost:
                    del clone.held[key]
                else:
                    timing = lease.Timing(hold.ttl, hold.ttl / 3)
                    hold.deadline = timing.deadline(sent_at + clone.offset)

        who = clone.worker("daemon")
        pending = Pending("beat", judge, self.tick, who, held=held, on_answer=on_answer)
        return self.ask(clone, pending)

    def arrive(self, clone: Clone, fate: Fate = Fate.ANSWERED) -> None:
        clone.run, clone.beats, clone.watch = self.fresh("run"), 0, lease.Watch()
        presence = self.presence(clone)
        self.follow(clone)

        def judge(view: View) -> Participant:
            return session.arrive(view, clone.instance, presence)

        who = clone.worker("daemon")
        self.attempt(clone, [self.ask(clone, Pending("arrive", judge, self.tick, who))], fate)

    def clone(self, pick: int) -> Clone:
        self.tick += 1
        return self.clones[pick % len(self.clones)]

    def is_any_held(self) -> bool:
        return any(clone.held for clone in self.clones)

    def is_holder(self, clone: Clone, told: tuple[str, str], fence: int) -> bool:
        worker, key = told
        record = raw(self.history[-1], key)
        return is_held_by(record, clone.worker(worker)) and record["fence"] == fence

    # The rules of the machine

    @initialize(
        offsets=st.lists(st.integers(-100_000, 100_000), min_size=2, max_size=4),
        recognises=st.booleans(),
    )
    def begin(self, offsets: list[int], recognises: bool) -> None:
        for number, offset in enumerate(offsets):
            handle = ("alice", "bob", "alice", "carol")[number]
            clone = Clone(f"{number:016x}", handle, float(offset), recognises)
            self.clones.append(clone)
            self.arrive(clone)

    @rule(
        pick=picks,
        worker=workers,
        key=lease_keys,
        ttl=ttls,
        fate=fates,
        kind=st.sampled_from(("claim", "claim", "claim_next", "takeover")),
        is_early=st.booleans(),
    )
    def claim(
        self,
        pick: int,
        worker: str,
        key: str,
        ttl: float,
        fate: Fate,
        kind: str,
        is_early: bool,
    ) -> None:
        clone = self.clone(pick)
        pending = self.ask(clone, self.claiming(clone, kind, worker, key, ttl, is_early))
        self.attempt(clone, [pending], fate)

    @rule(pick=picks, worker=workers, key=lease_keys, ttl=ttls, fate=fates)
    def look_and_claim(self, pick: int, worker: str, key: str, ttl: float, fate: Fate) -> None:
        clone = self.clone(pick)
        self.follow(clone)
        pending = self.ask(clone, self.claiming(clone, "claim", worker, key, ttl, False))
        self.attempt(clone, [pending], fate)

    @precondition(lambda self: any(clone.told for clone in self.clones))
    @rule(
        pick=picks,
        stranger=st.none() | workers,
        fate=fates,
        kind=st.sampled_from(("note", "note", "release")),
        which=fences,
    )
    def write_as_holder(
        self, pick: int, stranger: str | None, fate: Fate, kind: str, which: str
    ) -> None:
        """By a worker that was granted the lease once, or by its neighbour."""
        self.tick += 1
        granted = [(clone, *told) for clone in self.clones for told in clone.told.items()]
        holders = [one for one in granted if self.is_holder(*one)] if pick % 4 else []
        chosen = holders or granted
        clone, (worker, key), told = chosen[pick % len(chosen)]
        worker = stranger or worker
        shift = {"told": 0, "older": -1, "newer": 1}
        fence = None if which == "none" else told + shift[which]
        nonce = self.fresh("n")

        def judge(view: View) -> lease.Lease:
            me = self.me(clone, worker, key)
            if kind == "note":
                return lease.note(view, key, me, nonce=nonce, text="t", fence=fence)
            return lease.release(view, key, me, nonce=nonce, fence=fence)

        def on_answer(answer: lease.Lease, sent_at: float) -> None:
            hold = clone.held.get(key)
            if kind == "release" and hold is not None and hold.fence <= answer.fence:
                del clone.held[key]

        who = clone.worker(worker)
        pending = Pending(kind, judge, self.tick, who, key, nonce, fence, on_answer=on_answer)
        self.attempt(clone, [self.ask(clone, pending)], fate)

    @precondition(lambda self: self.is_any_held())
    @rule(pick=picks, fate=fates)
    def beat(self, pick: int, fate: Fate) -> None:
        clone = self.clone(pick)
        self.attempt(clone, [self.beating(clone)], fate)

    @precondition(lambda self: self.is_any_held())
    @rule(
        pick=picks,
        watcher=picks,
        ttl=ttls,
        beats=st.integers(2, 5),
        restarts=st.integers(0, 4),
        looks_often=st.booleans(),
    )
    def live_on(
        self, pick: int, watcher: int, ttl: float, beats: int, restarts: int, looks_often: bool
    ) -> None:
        """A holder renews in time, also over a restart, while another waits for it to die."""
        holders = [clone for clone in self.clones if clone.held]
        clone, other = holders[pick % len(holders)], self.clone(watcher)
        for number in range(beats):
            if number == restarts:
                self.restart(clone, "all", Fate.ANSWERED)
            self.attempt(clone, [self.beating(clone)], Fate.ANSWERED)
            if looks_often or number == 0:
                self.follow(other)
            self.now += SHORT / 3
        for key in list(clone.held):
            self.tick += 1
            claim = self.ask(other, self.claiming(other, "claim", "w1", key, ttl, False))
            self.attempt(other, [claim], Fate.ANSWERED)

    @rule(
        seconds=st.sampled_from((0.5, 1.0, 2.0, SHORT, SHORT, LONG, LONG, 4 * LONG)),
        watchers=st.sets(picks, max_size=4),
    )
    def let_time_pass(self, seconds: float, watchers: set[int]) -> None:
        """Some look, time passes; they don't look again before they act."""
        for pick in sorted(watchers):
            self.follow(self.clone(pick))
        self.now += seconds

    @precondition(lambda self: any(clone.pendings for clone in self.clones))
    @rule(pick=picks, fate=fates)
    def try_again(self, pick: int, fate: Fate) -> None:
        """All that waits goes out together."""
        waiting = [clone for clone in self.clones if clone.pendings]
        clone = waiting[pick % len(waiting)]
        self.attempt(clone, clone.pendings, fate)

    @precondition(lambda self: any(clone.pendings for clone in self.clones))
    @rule(pick=picks, which=picks, fate=fates)
    def give_up_one(self, pick: int, which: int, fate: Fate) -> None:
        clone = self.clones[pick % len(self.clones)]
        given_up = [p for p in clone.pendings if p.kind not in ("settle", "arrive")]
        if given_up:
            self.give_up(clone, given_up[which % len(given_up)])
            self.attempt(clone, [], fate)

    @rule(
        pick=picks,
        worker=workers,
        key=lease_keys,
        kind=st.sampled_from(CLAIMS),
        fate=st.sampled_from((Fate.UNANSWERED, Fate.DELAYED)),
        does_give_up=st.booleans(),
        arrives_first=st.booleans(),
    )
    def get_no_answer(
        self,
        pick: int,
        worker: str,
        key: str,
        kind: str,
        fate: Fate,
        does_give_up: bool,
        arrives_first: bool,
    ) -> None:
        """A claim without an answer is asked again or given up, while it is on its way."""
        clone = self.clone(pick)
        self.follow(clone)
        pending = self.ask(clone, self.claiming(clone, kind, worker, key, SHORT, False))
        self.attempt(clone, [pending], fate)
        on_its_way = self.network[-1:] if fate is Fate.DELAYED else []
        for _, push in on_its_way if arrives_first else []:
            self.land(push)
        if does_give_up and pending in clone.pendings:
            self.give_up(clone, pending)
        self.attempt(clone, [pending], Fate.ANSWERED)
        for _, push in on_its_way:
            self.land(push)

    @precondition(lambda self: self.network)
    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        tip = len(self.history) - 1
        can_land = [waiting for waiting in self.network if waiting[1].base == tip]
        chosen = can_land if pick % 4 and can_land else self.network
        waiting = chosen[pick % len(chosen)]
        self.network.remove(waiting)
        self.land(waiting[1])

    @precondition(lambda self: self.is_any_held())
    @rule(pick=picks, keeps=st.sampled_from(("all", "no deadlines", "nothing")), fate=fates)
    def crash(self, pick: int, keeps: str, fate: Fate) -> None:
        self.restart(self.clone(pick), keeps, fate)

    def restart(self, clone: Clone, keeps: str, fate: Fate) -> None:
        """Killed and started again: what was watched is forgotten, the journal may be there."""
        for pending in [p for p in clone.pendings if p.kind != "settle"]:
            self.give_up(clone, pending)
        if keeps == "nothing":
            clone.held.clear()
        elif keeps == "no deadlines":
            for hold in clone.held.values():
                hold.deadline = None
        self.arrive(clone, fate)

    @precondition(lambda self: self.is_any_held())
    @rule(pick=picks)
    def leave_and_come_back(self, pick: int) -> None:
        clone = self.clone(pick)
        for pending in [p for p in clone.pendings if p.kind not in ("settle", "arrive")]:
            self.give_up(clone, pending)
        self.attempt(clone, [], Fate.ANSWERED)
        nonce, who = self.fresh("n"), clone.worker("daemon")

        def judge(view: View) -> tuple[str, ...]:
            return session.depart(view, clone.instance, self.me(clone, "daemon"), nonce=nonce)

        pending = self.ask(clone, Pending("depart", judge, self.tick, who, nonce=nonce))
        self.attempt(clone, [pending], Fate.ANSWERED)
        clone.held.clear()
        for record in filter(None, (raw(self.history[-1], key) for key in KEYS)):
            is_ours = (record["claimant"] or {}).get("instance") == clone.instance
            self.must(not is_ours, "left, and still a holder")
        self.arrive(clone)

    def teardown(self) -> None:
        """Whatever happened: all that is on its way arrives, then silence; everything is free."""
        if self.is_broken or not self.clones:
            return
        for _, push in self.network:
            self.land(push)
        for clone in self.clones:
            self.follow(clone)
        self.now += LONG
        newcomer = self.clones[self.count % len(self.clones)]
        self.tick += 1
        for key in KEYS:
            claim = self.ask(newcomer, self.claiming(newcomer, "claim", "late", key, LONG, False))
            self.attempt(newcomer, [claim], Fate.ANSWERED)
            record = raw(self.history[-1], key)
            self.must(is_held_by(record, newcomer.worker("late")), f"{key} can't be had any more")


Protocol.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TestNoInterleavingBreaksTheLeaseRule = pytest.mark.timeout(0 if EXAMPLES > 200 else 120)(
    Protocol.TestCase
)
