"""C4, the same person twice: one git user, one host, one task; and who gets which exit code."""

from __future__ import annotations

import pytest
from conftest import Clone, World, put_status, refusal


def test_a_second_clone_of_one_person_is_told_that_her_other_clone_holds_the_task(
    world: World,
) -> None:
    first, second = world.clone("first"), world.clone("second")
    me, other = (clone.collaborate("start").data["me"] for clone in (first, second))
    assert me["handle"] == other["handle"] == "ada"
    assert me["instance"] != other["instance"]
    lease = first.collaborate("claim", "T001").data["lease"]

    error = refusal(
        second, "collaborate", "claim", "T001", code=3, says=("held by your other clone",)
    )
    assert error["code"] == "held"
    assert error["data"]["reason"] == "held"
    assert error["data"]["holder"]["claimant"] == lease["claimant"]
    assert error["data"]["holder"]["fence"] == 1
    assert (world.lease("T001") or {})["claimant"]["instance"] == me["instance"]


def test_two_work_trees_of_one_clone_are_two_workers_of_one_participant(world: World) -> None:
    clone = world.clone("ada")
    clone.start()
    tree = world.root / "tree two"
    clone.git("worktree", "add", "-q", str(tree), "-b", "two")
    lease = clone.collaborate("claim", "T001").data["lease"]

    there = Clone(tree, clone.environ, "ada")
    error = refusal(
        there, "collaborate", "claim", "T001", code=3, says=("held by your other worker 'main'",)
    )
    assert error["data"]["holder"]["claimant"] == lease["claimant"]
    other = there.collaborate("claim", "T002").data["lease"]["claimant"]
    assert other["instance"] == lease["claimant"]["instance"]
    assert other["worker"] != lease["claimant"]["worker"]
    refusal(clone, "collaborate", "claim", "T002", code=3, says=("held by your other worker",))
    assert there.daemon_pid() == clone.daemon_pid(), "one daemon for all work trees"


@pytest.fixture(scope="module")
def ada(shared_world: World) -> Clone:
    made = shared_world.clone("ada")
    made.start()
    return made


@pytest.fixture(scope="module")
def ben(shared_world: World) -> Clone:
    made = shared_world.clone("ben")
    made.start()
    return made


@pytest.fixture
def a_fresh_task(ada: Clone) -> str:
    return str(ada.forge("task", "add", "Fresh", "--json").data["tasks"][0]["id"])


AGENTS = [
    pytest.param(((), {"FORGE_WORKER": "a"}), ((), {"FORGE_WORKER": "b"}), id="FORGE_WORKER"),
    pytest.param((("--as", "a"), {}), (("--as", "b"), {}), id="--as"),
    pytest.param(((), {"FORGE_WORKER": "a"}), (("--as", "b"), {}), id="mixed"),
]
Acting = tuple[tuple[str, ...], dict[str, str]]


@pytest.mark.parametrize(("one", "two"), AGENTS)
def test_two_agents_in_one_work_tree_never_hold_one_task(
    ada: Clone, a_fresh_task: str, one: Acting, two: Acting
) -> None:
    lease = ada.collaborate("claim", a_fresh_task, *one[0], **one[1]).data["lease"]
    assert lease["claimant"]["worker"] == "a"
    says = ("held by your other worker 'a'",)
    refusal(ada, "collaborate", "claim", a_fresh_task, *two[0], code=3, says=says, **two[1])
    for verb in ("renew", "release"):
        refusal(ada, "collaborate", verb, a_fresh_task, *two[0], code=3, says=says, **two[1])
    refusal(ada, "collaborate", "note", a_fresh_task, "hm", *two[0], code=3, says=says, **two[1])


def test_forge_worker_is_stronger_than_as(ada: Clone, a_fresh_task: str) -> None:
    ran = ada.collaborate("claim", a_fresh_task, "--as", "b", FORGE_WORKER="a")
    assert ran.data["lease"]["claimant"]["worker"] == "a"


def test_a_repeated_claim_has_the_same_fence_and_says_since_when(
    ada: Clone, a_fresh_task: str
) -> None:
    first = ada.collaborate("claim", a_fresh_task)
    assert first.err == ""
    assert not first.data.get("already")
    again = ada.collaborate("claim", a_fresh_task)
    assert again.code == 0
    assert again.data["already"] is True
    assert again.data["lease"]["fence"] == first.data["lease"]["fence"]
    assert again.data["lease"]["claimant"] == first.data["lease"]["claimant"]
    assert again.data["since"] in again.err
    assert "since" in again.err
    assert "Traceback" not in again.err


def test_a_repeated_claim_leaves_nothing_in_the_queue(ada: Clone, a_fresh_task: str) -> None:
    for _ in range(3):
        assert ada.collaborate("claim", a_fresh_task).code == 0
    assert ada.forge("daemon", "status", "--json").data["queued"] == 0


def test_an_agent_of_an_older_fence_is_refused_with_both_fences(
    ada: Clone, a_fresh_task: str
) -> None:
    old = ada.collaborate("claim", a_fresh_task).data["lease"]["fence"]
    ada.collaborate("release", a_fresh_task)
    new = ada.collaborate("claim", a_fresh_task).data["lease"]["fence"]
    assert new == old + 1
    for args in (("renew",), ("note",), ("release",)):
        words = ("still here",) if args == ("note",) else ()
        verb = ("collaborate", *args, a_fresh_task, *words)
        for flags, environ in ((("--fence", str(old)), {}), ((), {"FORGE_FENCE": str(old)})):
            says = (f"fence {old}", f"fence {new}")
            error = refusal(ada, *verb, *flags, code=5, says=says, **environ)
            assert error["code"] == "lease_lost"
            assert error["data"]["fence"] == old
            assert error["data"]["holder"]["fence"] == new
    assert ada.collaborate("renew", a_fresh_task, "--fence", str(new)).code == 0
    assert ada.collaborate("renew", a_fresh_task, FORGE_FENCE=str(new)).code == 0


def test_a_fence_of_the_future_is_refused_too(ada: Clone, a_fresh_task: str) -> None:
    ada.collaborate("claim", a_fresh_task)
    refusal(ada, "collaborate", "renew", a_fresh_task, "--fence", "9", code=5)


@pytest.mark.parametrize("bad", ["x", "-1", "1.5", "²"])
def test_a_fence_that_is_no_number_is_a_usage_error(
    ada: Clone, a_fresh_task: str, bad: str
) -> None:
    ada.collaborate("claim", a_fresh_task)
    for flags, environ in (((f"--fence={bad}",), {}), ((), {"FORGE_FENCE": bad})):
        ran = ada.collaborate("renew", a_fresh_task, *flags, **environ)
        assert ran.code == 2, ran


@pytest.mark.parametrize("args", [("renew",), ("note", "hello"), ("release",)], ids=lambda a: a[0])
def test_what_somebody_else_holds_is_held(
    ada: Clone, ben: Clone, a_fresh_task: str, args: tuple[str, ...]
) -> None:
    ada.collaborate("claim", a_fresh_task)
    verb, *words = args
    error = refusal(ben, "collaborate", verb, a_fresh_task, *words, code=3, says=("held by ada",))
    assert error["data"]["holder"]["claimant"]["handle"] == "ada"


@pytest.mark.parametrize("args", [("renew",), ("note", "hello"), ("release",)], ids=lambda a: a[0])
def test_what_was_lost_to_a_takeover_is_lost(
    ada: Clone, ben: Clone, a_fresh_task: str, args: tuple[str, ...]
) -> None:
    ada.collaborate("claim", a_fresh_task)
    taken = ben.collaborate("takeover", a_fresh_task, "--reason", "holiday")
    assert taken.data["lease"]["fence"] == 2
    verb, *words = args
    says = ("fence 1", "ben holds it under fence 2")
    error = refusal(ada, "collaborate", verb, a_fresh_task, *words, code=5, says=says)
    assert error["data"]["holder"]["claimant"]["handle"] == "ben"


@pytest.mark.parametrize("args", [("renew",), ("note", "hello"), ("release",)], ids=lambda a: a[0])
def test_what_nobody_holds_is_blocked(
    ada: Clone, ben: Clone, a_fresh_task: str, args: tuple[str, ...]
) -> None:
    verb, *words = args
    says = (f"nobody holds {a_fresh_task}",)
    refusal(ada, "collaborate", verb, a_fresh_task, *words, code=7, says=says)
    ada.collaborate("claim", a_fresh_task)
    ada.collaborate("release", a_fresh_task)
    refusal(ben, "collaborate", verb, a_fresh_task, *words, code=7, says=says)


def test_a_release_may_be_repeated(ada: Clone, a_fresh_task: str) -> None:
    ada.collaborate("claim", a_fresh_task)
    for _ in range(2):
        ran = ada.collaborate("release", a_fresh_task)
        assert ran.code == 0
        assert ran.data["released"] is True
        assert ran.data["lease"]["fence"] == 1
    assert ada.collaborate("release", a_fresh_task, "--fence", "1").code == 0


def test_an_unknown_task_is_a_usage_error(ada: Clone) -> None:
    error = refusal(ada, "collaborate", "claim", "T999", code=2, says=("T999",))
    assert error["code"] == "usage"
    refusal(ada, "collaborate", "takeover", "T999", "--reason", "x", code=2, says=("T999",))


def test_a_blocked_task_says_what_it_waits_for(ada: Clone) -> None:
    error = refusal(ada, "collaborate", "claim", "T004", code=7, says=("waits for T001",))
    assert error["code"] == "blocked"
    assert error["data"]["waits_for"] == ["T001"]
    assert error["data"]["status"] == "pending"


@pytest.mark.parametrize("status", ["done", "cancelled", "awaiting_merge"])
def test_a_task_that_is_not_open_is_blocked(
    shared_world: World, ada: Clone, ben: Clone, a_fresh_task: str, status: str
) -> None:
    put_status(shared_world, ada, a_fresh_task, status)
    for clone in (ada, ben):
        error = refusal(clone, "collaborate", "claim", a_fresh_task, code=7, says=(status,))
        assert error["data"]["status"] == status
    says = (status,)
    refusal(ada, "collaborate", "takeover", a_fresh_task, "--reason", "x", code=7, says=says)


def test_next_ends_with_nothing_claimable_and_then_with_all_done(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    got = [ada.collaborate("claim", "--next").data["task"] for _ in range(3)]
    assert got == ["T001", "T002", "T003"], "never the same twice"
    for clone in (ada, ben):
        error = refusal(clone, "collaborate", "claim", "--next", code=7)
        assert error["code"] == "blocked"
    for task in got:
        assert ada.collaborate("release", task).code == 0
    put_status(world, ada, "T001", "done")
    assert ben.collaborate("claim", "T004").code == 0, "what it waited for is done"
    ben.collaborate("release", "T004")
    for task in ("T002", "T003", "T004"):
        put_status(world, ada, task, "done")
    for clone in (ada, ben):
        ran = clone.collaborate("claim", "--next")
        assert ran.code == 0
        assert ran.data["task"] is None
        assert clone.forge("collaborate", "claim", "--next").code == 0


def test_a_worker_name_with_odd_characters_is_a_usage_error(ada: Clone) -> None:
    for bad in ("a b", "-x", "x\n", "x\x1b[31m", "../x" * 40):
        for flags, environ in (((f"--as={bad}",), {}), ((), {"FORGE_WORKER": bad})):
            ran = ada.collaborate("claim", "T001", *flags, **environ)
            assert ran.code == 2, (bad, ran)
            assert "\x1b" not in ran.err + ran.out
