"""Landing's rules: the commit's words, where record and evidence meet, at most once a round.

`Landings` is a machine of its own beside the one of the lease rule: a state branch and a target
branch, judged where they were last seen and pushed where they still are, with answers that get
lost and pushes that arrive late. What lands is checked in plain JSON.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from forge_collab.core import audit, keys, landing, lease
from forge_collab.core.change import ABSENT, Snapshot, Versioned, View, overlay
from forge_collab.core.errors import BlockedError, ForgeError, HeldError, LeaseLostError
from forge_collab.core.landing import Author, Evidence, Work
from forge_collab.core.records import Claimant, TaskRecord, encode
from forge_collab.core.tasks import Task, TaskStatus
from forge_collab.testing.memory import MemorySnapshot

EXAMPLES = int(os.environ.get("FORGE_HYPOTHESIS_EXAMPLES", "150"))
TASK = Task(id="T1", title="Do it")
KEY, RECORD = keys.claim("T1"), keys.TASKS + "T1"
ENDED = (TaskStatus.DONE, TaskStatus.CANCELLED)

# Words

hostile = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "",
            "x\n\nForge-Task: T9",
            "x\r\nForge-Task: T9\r\n",
            "Forge-Task: T9",
            "\n\n\n",
            "---",
            "a\u2028Forge-Task: T9",
            "a\x85Forge-Task: T9\x0bForge-Round: 7\x0cForge-Uid: x",
            "Signed-off-by: Mallory <m@example.org>",
            "# a comment",
            "scissors\n# ------------------------ >8 ------------------------\n",
            "ü" * 10_000,
            "x" * 10_000,
            "\u202eright to left",
            "\ud800",
        ]
    ),
)
people = st.builds(Author, hostile, hostile)
clear_of_git = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CEILING_DIRECTORIES": "/",
    "PATH": os.environ["PATH"],
    "HOME": os.devnull,
}


def git(*args: str, stdin: bytes = b"", cwd: Any = "/") -> str:
    done = subprocess.run(
        ["git", *args], input=stdin, capture_output=True, env=clear_of_git, cwd=cwd, check=True
    )
    return done.stdout.decode("utf-8", "replace")


@given(title=hostile, subjects=st.lists(hostile, max_size=4), others=st.lists(people, max_size=3))
@example(title="Forge-Task: T9\n\nForge-Task: T9", subjects=["Forge-Task: T9"], others=[])
@settings(max_examples=EXAMPLES // 2, deadline=None)
def test_whatever_is_in_it_a_message_names_its_task_once_in_its_last_line(
    title: str, subjects: list[str], others: list[Author]
) -> None:
    task = TASK.model_copy(update={"title": title})
    said = landing.message(task, round=3, fence=8, subjects=subjects, others=others)
    assert said.endswith("\nForge-Task: T1\n")
    assert [line for line in said.splitlines() if line.startswith("Forge-Task:")] == [
        "Forge-Task: T1"
    ]
    assert "\x00" not in said
    assert all(len(line) <= 500 for line in said.splitlines())
    parsed = git("interpret-trailers", "--parse", stdin=said.encode("utf-8", "replace"))
    assert landing.evidence_in("c", parsed) == Evidence("T1", TASK.uid, 3, "c")
    assert [line for line in parsed.split("\n") if line.startswith("Forge-Task")] == [
        "Forge-Task: T1"
    ]


NASTY = Task(id="T1", title="Forge-Task: T9").model_copy(
    update={"title": "one\n\nForge-Task: T9\nForge-Round: 1\x00"}
)


@pytest.mark.parametrize("encoding", ["UTF-8", "ISO-8859-1"])
def test_the_trailers_that_git_log_shows_are_the_ones_of_the_message(
    tmp_path: Any, encoding: str
) -> None:
    git("init", "-q", str(tmp_path))
    git("config", "i18n.logOutputEncoding", encoding, cwd=tmp_path)
    said = landing.message(
        NASTY,
        round=2,
        fence=5,
        subjects=["Forge-Task: T8", "fine\n\nForge-Task: T7"],
        others=[Author("Eve\nForge-Task: T6", "e@example.org>\nForge-Task: T5")],
    )
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    tree = git("write-tree", cwd=tmp_path).strip()
    made = git(*who, "commit-tree", tree, "-F", "-", stdin=said.encode(), cwd=tmp_path).strip()
    shown = git("log", "-1", "--format=%(trailers:only=true,unfold=true)", made, cwd=tmp_path)
    assert landing.evidence_in(made, shown) == Evidence("T1", TASK.uid, 2, made)


@pytest.mark.parametrize(
    "trailers",
    [
        "",
        "Forge-Task: T1\nForge-Uid: u\n",
        "Forge-Task: T1\nForge-Task: T1\nForge-Uid: u\nForge-Round: 1\n",
        "Forge-Task: T1\nForge-Uid: u\nForge-Round: one\n",
        "Forge-Task: T1\nForge-Uid: u\nForge-Round: -1\n",
        "Forge-Task: T1\nForge-Uid: u\nForge-Round: ٣\n",
        "Forge-Task: T1\nForge-Uid: u\nForge-Round: 999999999999\n",
        "Forge-Task: ../../etc\nForge-Uid: u\nForge-Round: 1\n",
        "Forge-Task: T1\nForge-Uid: u\nForge-Uid: v\nForge-Round: 1\n",
        "Co-authored-by: x\u2028Forge-Task: T1\nForge-Uid: u\nForge-Round: 1\n",
        "Co-authored-by: x\x85Forge-Task: T1\nForge-Uid: u\nForge-Round: 1\n",
    ],
)
def test_trailers_that_say_it_unclearly_are_no_evidence(trailers: str) -> None:
    assert landing.evidence_in("c", trailers) is None


def test_of_the_evidence_the_highest_round_counts_and_of_a_round_the_first_commit() -> None:
    shown = [Evidence("T1", "u", 1, "a"), Evidence("T1", "u", 2, "b"), Evidence("T1", "u", 2, "c")]
    other = Evidence("T1", "v", 1, "d")
    assert landing.newest([*shown, other]) == {("T1", "u"): shown[1], ("T1", "v"): other}


@pytest.mark.parametrize("branch", ["main", "forge/task/T1", "forge/task/T1@", "x/T1@3", "T1@²"])
def test_a_branch_of_another_kind_belongs_to_no_task(branch: str) -> None:
    assert landing.task_of(branch) is None


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,9}", fullmatch=True), st.integers(1, 10**9))
def test_a_fenced_branch_says_whose_it_is(task_id: str, fence: int) -> None:
    assert landing.task_of(landing.branch_of(task_id, fence)) == (task_id, fence)


@given(title=hostile, branch=st.text("abc'\"$`;& -", min_size=1, max_size=9))
def test_the_command_that_opens_a_request_is_safe_to_paste(title: str, branch: str) -> None:
    for host in ("github.com", "gitlab.com"):
        said = landing.request_command(host, branch=branch, target="main", title=title)
        assert said is not None
        assert "\n" not in said
        words = shlex.split(said)
        assert branch in words
        assert words[-1] == landing.one_line(title)
    assert landing.request_command("example.org", branch="b", target="main", title="t") is None


# Where record and evidence meet

rounds = st.integers(1, 4)
statuses = st.sampled_from(list(TaskStatus))
records = st.none() | st.builds(
    lambda uid, round, status: TaskRecord(uid=uid, round=round, status=status, rev=1),
    st.sampled_from([TASK.uid, "another"]),
    rounds,
    statuses,
)
evidences = st.none() | st.builds(
    Evidence, st.just("T1"), st.sampled_from([TASK.uid, "another"]), rounds, st.just("c")
)


def how_far(record: TaskRecord) -> tuple[int, bool]:
    return record.round, record.status is TaskStatus.DONE


@given(record=records, seen=evidences, more=evidences)
def test_more_evidence_never_makes_a_task_less_done(
    record: TaskRecord | None, seen: Evidence | None, more: Evidence | None
) -> None:
    once = landing.progress(record, TASK, seen)
    assert once.uid == TASK.uid
    assert how_far(once) >= how_far(landing.progress(record, TASK, None))
    both = landing.newest(filter(None, (seen, more))).get(("T1", TASK.uid))
    assert how_far(landing.progress(record, TASK, both)) >= how_far(once)
    assert landing.progress(once, TASK, seen) == once, "saying it twice says no more"
    if seen is not None and seen.uid == TASK.uid:
        assert how_far(once) >= (seen.round, True) or once.round > seen.round


@given(record=records, seen=evidences)
def test_another_task_that_had_the_same_id_counts_for_nothing(
    record: TaskRecord | None, seen: Evidence | None
) -> None:
    next_months = TASK.model_copy(update={"uid": "next-month"})
    found = landing.progress(record, next_months, seen)
    assert (found.uid, *how_far(found), found.landed) == ("next-month", 1, False, None)
    assert found.rev == (record.rev if record else 0), "the record is written over, not beside"


def test_a_record_that_isnt_closed_is_found_and_closed_but_not_twice() -> None:
    seen = Evidence("T1", TASK.uid, 2, "c")
    snapshot = MemorySnapshot({})
    (work,) = landing.unclosed([TASK], View(snapshot), {("T1", TASK.uid): seen})
    view = View(snapshot)
    landing.close(view, work, me("a"), nonce="n")
    closed = overlay(snapshot, view.writes)
    assert landing.unclosed([TASK], View(closed), {("T1", TASK.uid): seen}) == []
    again = View(closed)
    assert landing.close(again, work, me("a"), nonce="m").already
    assert again.writes == {}


def me(name: str, worker: str = "w") -> lease.Me:
    who = Claimant(handle=name, instance=name * 16, worker=worker)
    return lease.Me(who, lease.Watch(), 0.0, "now", None)


def with_status(status: TaskStatus) -> Snapshot:
    """A snapshot in which `a` holds T1 under fence 1 and its record has `status`."""
    view = View(MemorySnapshot({}))
    lease.acquire(view, KEY, me("a"), nonce="n0", ttl=60)
    view.put(RECORD, encode(TaskRecord(uid=TASK.uid, status=status, rev=1)))
    return overlay(MemorySnapshot({}), view.writes)


@pytest.mark.parametrize("status", list(TaskStatus))
def test_only_an_ended_or_stopped_task_is_reopened_and_only_an_ended_one_in_a_new_round(
    status: TaskStatus,
) -> None:
    view, work = View(with_status(status)), Work(TASK, None, None)
    if status is TaskStatus.PENDING:
        with pytest.raises(BlockedError):
            landing.reopen(view, work, me("a"), nonce="n1")
        assert view.writes == {}
        return
    opened = landing.reopen(view, work, me("a"), nonce="n1")
    assert opened.record.status is TaskStatus.PENDING
    assert opened.record.round == (2 if status in ENDED else 1)
    assert opened.fence == 2, "whoever held it is fenced out"
    with pytest.raises(LeaseLostError):
        landing.check(view, work, me("a"), fence=1)
    after = landing.reopen(view, work, me("a"), nonce="n1")
    assert (after.already, after.fence, after.record.round) == (True, 2, opened.record.round)


@pytest.mark.parametrize("status", [s for s in TaskStatus if s not in (*ENDED, TaskStatus.PENDING)])
def test_a_stopped_task_that_another_works_on_is_neither_reopened_nor_cancelled(
    status: TaskStatus,
) -> None:
    for change in (landing.reopen, landing.cancel):
        view = View(with_status(status))
        with pytest.raises(HeldError):
            change(view, Work(TASK, None, None), me("b"), nonce="n1")
        assert view.writes == {}


# The machine


@dataclass
class Actor:
    """A clone: what it last saw of both branches."""

    name: str
    seen: int = 0
    looked: int = 0
    fence: int | None = None
    nonce: str = ""


@dataclass
class Ask:
    """A change that somebody wants, and the commit that goes with it, for the target at `at`."""

    actor: Actor
    kind: str
    judge: Callable[[View], Any]
    fence: int | None = None
    commit: Evidence | None = None
    at: int = 0


@dataclass
class Push:
    """What is on its way; it lands only where both branches are as it expects them."""

    ask: Ask
    base: int
    writes: dict[str, Any] = field(default_factory=dict)


picks = st.integers(0, 9)
fates = st.sampled_from(("answered", "answered", "asked twice", "unanswered", "delayed"))


class Landings(RuleBasedStateMachine):
    """Claims, landings of both kinds, conflicts, refusals, reopenings, and merges by hand."""

    @initialize(is_atomic=st.booleans(), actors=st.integers(2, 3))
    def begin(self, is_atomic: bool, actors: int) -> None:
        self.is_atomic = is_atomic
        self.actors = [Actor("abc"[n]) for n in range(actors)]
        self.history: list[Snapshot] = [MemorySnapshot({})]
        self.target: list[Evidence | None] = [None]
        self.network: list[Push] = []
        self.unanswered: list[Ask] = []
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def actor(self, pick: int) -> Actor:
        return self.actors[pick % len(self.actors)]

    def evidence(self, actor: Actor) -> Evidence | None:
        return landing.newest(filter(None, self.target[: actor.looked])).get(("T1", TASK.uid))

    def work(self, actor: Actor) -> Work:
        return Work(TASK, f"forge/task/T1@{actor.fence}", f"tip{actor.fence}", self.evidence(actor))

    def raw(self, key: str, snapshot: Snapshot | None = None) -> dict[str, Any] | None:
        found = (snapshot or self.history[-1]).get(key)
        return None if found is ABSENT else json.loads(found.value)

    # How a push goes

    def attempt(self, ask: Ask, fate: str) -> Any:
        """Judge and push until it lands or is refused on a fresh look; the answer, if it came."""
        for _ in range(3):
            is_fresh = ask.actor.seen == len(self.history) - 1
            view = View(self.history[ask.actor.seen])
            try:
                answer = ask.judge(view)
            except ForgeError:
                answer = None
            if answer is None or not view.writes:
                if is_fresh:
                    return answer
                ask.actor.seen = len(self.history) - 1
                continue
            push = Push(ask, ask.actor.seen, view.writes)
            if fate == "delayed":
                self.network.append(push)
                return None
            if self.land(push):
                ask.actor.seen = len(self.history) - 1
                if fate == "answered":
                    return answer
                if fate == "asked twice":
                    return self.attempt(ask, "answered")
                if ask.kind != "claim":  # What becomes of those is the other machine's matter.
                    self.unanswered.append(ask)
                return None
            if ask.commit is not None and ask.at != len(self.target):
                return None
            ask.actor.seen = len(self.history) - 1
        return None

    def land(self, push: Push) -> bool:
        ask = push.ask
        if push.base != len(self.history) - 1:
            return False
        if ask.commit is not None and ask.at != len(self.target):
            return False
        before = self.history[-1]
        self.check_step(ask, before, overlay(before, push.writes))
        files = {key: found for key in before.keys("") if (found := before.get(key))}
        for key, value in push.writes.items():
            files[key] = Versioned(value, f"{len(self.history)}:{key}")
        self.history.append(MemorySnapshot(files))
        if ask.commit is not None:
            self.put_on_target(ask.commit)
        return True

    def put_on_target(self, commit: Evidence | None) -> None:
        before = self.how_far(self.history[-1])
        self.target.append(commit)
        assert self.how_far(self.history[-1]) >= before
        landed = Counter(e.round for e in self.target if e is not None)
        assert all(count == 1 for count in landed.values()), f"landed twice in a round: {landed}"

    # What has to hold

    def how_far(self, snapshot: Snapshot) -> tuple[int, bool]:
        seen = landing.newest(filter(None, self.target)).get(("T1", TASK.uid))
        return how_far(landing.record_of(View(snapshot), TASK, seen))

    def check_step(self, ask: Ask, before: Snapshot, after: Snapshot) -> None:
        old, new = self.raw(KEY, before), self.raw(KEY, after)
        assert old is None or (new is not None and new["fence"] >= old["fence"])
        assert self.how_far(after) >= self.how_far(before), f"{ask.kind} undid a landing"
        was, now = self.raw(RECORD, before), self.raw(RECORD, after)
        if was is not None and was["status"] == "done" and now != was:
            assert now is not None
            assert (ask.kind, now["round"]) == ("reopen", was["round"] + 1) or (
                ask.kind == "close" and now["status"] == "done"
            ), f"{ask.kind} changed a closed round"
        said = Counter(entry.nonce for entry in audit.history(after))
        assert set(said.values()) <= {1}, f"{ask.kind} took effect twice"
        if ask.kind in ("land", "announce", "block", "await"):
            assert old is not None
            assert old["claimant"] == me(ask.actor.name).claimant.model_dump()
            assert ask.fence == old["fence"], f"{ask.kind} under fence {ask.fence} took effect"
        if ask.kind == "land":
            assert now is not None
            assert new is not None
            assert new["claimant"] is None
            landed = next(e for e in [ask.commit, *self.target] if e and e.commit == now_is(now))
            assert (landed.round, landed.uid) == (now["round"], now["uid"])

    # What people do

    @rule(pick=picks, fate=fates, is_takeover=st.booleans())
    def claim(self, pick: int, fate: str, is_takeover: bool) -> None:
        actor, nonce = self.actor(pick), self.fresh()

        def judge(view: View) -> lease.Grant:
            status = landing.record_of(view, TASK, self.evidence(actor)).status
            if status not in landing.CLAIMABLE:
                raise BlockedError("it isn't open")
            mine = me(actor.name)
            if is_takeover:
                return lease.take_over(view, KEY, mine, nonce=nonce, ttl=60, reason="why")
            grant = lease.acquire(view, KEY, mine, nonce=nonce, ttl=60)
            landing.take_on(view, TASK, self.evidence(actor))
            return grant

        grant = self.attempt(Ask(actor, "claim", judge), fate)
        if grant is not None:
            actor.fence = grant.lease.fence

    @rule(pick=picks)
    def look(self, pick: int) -> None:
        actor = self.actor(pick)
        actor.seen, actor.looked = len(self.history) - 1, len(self.target)

    @rule(pick=picks, fate=fates, stops_after=st.integers(0, 3))
    def finish(self, pick: int, fate: str, stops_after: int) -> None:
        """`done`: look at the target, squash on it, push; a zombie does so with an old fence."""
        actor, nonce = self.actor(pick), self.fresh()
        actor.looked, fence = len(self.target), actor.fence
        work = self.work(actor)
        asked = Ask(actor, "check", lambda v: landing.check(v, work, me(actor.name), fence=fence))
        found = self.attempt(asked, "answered")
        if found is None:
            return
        if found.already:
            self.close(pick, fate)
            return
        commit = Evidence("T1", TASK.uid, found.record.round, f"commit {nonce}")
        at = actor.looked

        def judge(view: View) -> landing.Landed:
            mine = me(actor.name)
            return landing.land(
                view, work, mine, nonce=nonce, fence=found.fence, commit=commit.commit
            )

        if self.is_atomic:
            self.attempt(Ask(actor, "land", judge, found.fence, commit, at), fate)
            return
        said, stops = self.fresh(), iter([stops_after == n for n in range(3)])

        def announce(view: View) -> landing.Landed:
            mine = me(actor.name)
            return landing.announce(
                view, work, mine, nonce=said, fence=found.fence, commit=commit.commit
            )

        announced = Ask(actor, "announce", announce, found.fence)
        if self.attempt(announced, "answered") is None or next(stops):
            return
        if len(self.target) != at:
            return
        self.put_on_target(commit)
        if next(stops):
            return
        if self.attempt(Ask(actor, "land", judge, found.fence), fate) is None:
            shown = Work(TASK, work.branch, work.tip, commit)
            self.attempt(Ask(actor, "close", self.closing(actor, shown)), fate)

    def closing(self, actor: Actor, work: Work) -> Callable[[View], Any]:
        nonce = self.fresh()
        return lambda view: landing.close(view, work, me(actor.name), nonce=nonce)

    @rule(pick=picks, fate=fates)
    def close(self, pick: int, fate: str) -> None:
        """Anybody writes down what the target showed when they last looked."""
        actor = self.actor(pick)
        seen = self.evidence(actor)
        if seen is not None:
            self.attempt(Ask(actor, "close", self.closing(actor, self.work(actor))), fate)

    @rule(pick=picks, fate=fates, kind=st.sampled_from(("block", "await")))
    def stop(self, pick: int, fate: str, kind: str) -> None:
        actor, nonce = self.actor(pick), self.fresh()
        work, fence = self.work(actor), actor.fence
        if fence is None:
            return

        def judge(view: View) -> landing.Landed:
            mine = me(actor.name)
            if kind == "block":
                return landing.block(view, work, mine, nonce=nonce, fence=fence, conflicts=("a",))
            return landing.await_merge(view, work, mine, nonce=nonce, fence=fence, reason="no")

        self.attempt(Ask(actor, kind, judge, fence), fate)

    @rule(pick=picks, fate=fates)
    def confirm_by_hand(self, pick: int, fate: str) -> None:
        """What awaits its merge is merged by a person, who says by which commit."""
        actor, nonce = self.actor(pick), self.fresh()
        record = self.raw(RECORD)
        if record is None or record["status"] != "awaiting_merge":
            return
        self.put_on_target(None)

        def judge(view: View) -> landing.Landed:
            if landing.record_of(view, TASK, None).status is not TaskStatus.AWAITING_MERGE:
                raise BlockedError("only that is tried here")
            mine, work = me(actor.name), self.work(actor)
            return landing.confirm(view, work, mine, nonce=nonce, fence=None, commit="by hand")

        self.attempt(Ask(actor, "confirm", judge), fate)

    @rule(pick=picks, fate=fates, kind=st.sampled_from(("reopen", "reopen", "cancel")))
    def reopen(self, pick: int, fate: str, kind: str) -> None:
        actor, nonce = self.actor(pick), self.fresh()
        work = self.work(actor)
        change = landing.reopen if kind == "reopen" else landing.cancel

        def judge(view: View) -> landing.Landed:
            return change(view, work, me(actor.name), nonce=nonce)

        self.attempt(Ask(actor, kind, judge), fate)

    @precondition(lambda self: self.network)
    @rule(pick=picks)
    def deliver(self, pick: int) -> None:
        self.land(self.network.pop(pick % len(self.network)))

    @precondition(lambda self: self.unanswered)
    @rule(pick=picks)
    def ask_again(self, pick: int) -> None:
        """What was never answered is judged again, under the nonce it had."""
        self.attempt(self.unanswered.pop(pick % len(self.unanswered)), "answered")

    def teardown(self) -> None:
        """Whatever happened, the task can be brought to an end: once more and no more."""
        if not hasattr(self, "target"):
            return
        for push in self.network:
            self.land(push)
        actor = self.actors[0]
        self.look(0)
        view = View(self.history[-1])
        if landing.record_of(view, TASK, self.evidence(actor)).status not in landing.CLAIMABLE:
            self.reopen(0, "answered", "reopen")
        before = sum(one is not None for one in self.target)
        self.claim(0, "answered", True)
        self.claim(0, "answered", False)
        self.finish(0, "answered", 9)
        self.finish(0, "answered", 9)
        assert sum(one is not None for one in self.target) == before + 1
        record = self.raw(RECORD)
        assert record is not None
        assert record["status"] == "done"


def now_is(record: dict[str, Any]) -> str:
    found: str = record["landed"]["commit"]
    return found


Landings.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, deadline=None, report_multiple_bugs=False
)
TestNoInterleavingLandsATaskTwiceInARound = pytest.mark.timeout(0 if EXAMPLES > 200 else 120)(
    Landings.TestCase
)


def test_what_an_earlier_round_showed_does_not_end_the_waiting_of_a_later_one() -> None:
    task = Task(id="T1", title="first")
    record = TaskRecord(uid=task.uid, round=2, status=TaskStatus.AWAITING_MERGE)
    for round, is_awaited in ((1, True), (2, False)):
        seen = landing.newest([landing.Evidence("T1", task.uid, round, "c")])
        found = landing.awaited([task], {"tasks/T1": record}, seen)
        assert found == ([(task, record)] if is_awaited else [])
