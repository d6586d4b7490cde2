"""Rounds: what is reopened lands once more with new work only; lost memory comes back."""

from __future__ import annotations

import pytest
from conftest import Clone, World, audit_of, put_on_main, refusal, wait_until
from landworld import (
    branches,
    check_whole,
    claim,
    commit,
    done,
    files,
    joined,
    landed,
    not_done,
    pair,
    record,
    shown,
    work,
)


def reopen(clone: Clone, task: str) -> dict[str, object]:
    ran = clone.forge("task", "reopen", task, "--reason", "it broke", "--json")
    assert ran.code == 0, ran
    return ran.data


def revert_last(world: World) -> None:
    """A teammate reverts what landed last, by plain git."""
    seed = world.root / "seed"
    world.run("git", "pull", "-q", str(world.origin), "main", cwd=seed)
    world.run("git", "revert", "--no-edit", "HEAD", cwd=seed)
    world.run("git", "push", "-q", str(world.origin), "main", cwd=seed)


def test_a_reopened_task_lands_only_its_new_work(world: World) -> None:
    ada = joined(world, "ada")
    old = work(ada, "T001", {"bad.txt": "bad\n"})
    done(ada, "T001")
    revert_last(world)
    told = reopen(ada, "T001")
    assert (told["status"], told["round"], told["fence"]) == ("pending", 2, 2)
    assert claim(ada, "T001") == 3
    error = refusal(
        ada, "collaborate", "done", "T001", "--branch", old, code=7, says=("earlier round",)
    )
    assert error["data"]["status"] == "old_branch"
    commit(ada, old, {"good.txt": "good\n"})
    not_done(ada, "T001", "--branch", old)
    assert landed(world) == [("T001", 1)]

    commit(ada, "forge/task/T001@3", {"good.txt": "good\n"})
    assert done(ada, "T001")["round"] == 2
    assert {"good.txt", "bad.txt"} & files(world) == {"good.txt"}
    assert landed(world) == [("T001", 1), ("T001", 2)]
    check_whole(world, "T001", round=2)


def test_a_conflict_in_the_new_round_doesnt_let_the_old_branch_in(world: World) -> None:
    ada = joined(world, "ada")
    old = work(ada, "T001", {"bad.txt": "bad\n"})
    done(ada, "T001")
    revert_last(world)
    reopen(ada, "T001")
    claim(ada, "T001")
    commit(ada, "forge/task/T001@3", {"README": "ada's\n"})
    put_on_main(world, {"README": "everybody's\n"})
    assert not_done(ada, "T001")["data"]["status"] == "merge_blocked"
    assert not_done(ada, "T001", "--branch", old)["data"]["status"] == "old_branch"
    assert landed(world) == [("T001", 1)]


def test_the_branch_of_a_round_before_the_last_is_refused_as_well(world: World) -> None:
    ada = joined(world, "ada")
    first = work(ada, "T001", {"bad.txt": "bad\n"})
    done(ada, "T001")
    revert_last(world)
    reopen(ada, "T001")
    work(ada, "T001", {"fine.txt": "fine\n"})
    done(ada, "T001")
    reopen(ada, "T001")
    claim(ada, "T001")
    assert not_done(ada, "T001", "--branch", first)["data"]["status"] == "old_branch"
    assert "bad.txt" not in files(world)


def test_a_round_that_landed_nothing_leaves_no_old_branch(world: World) -> None:
    ada = joined(world, "ada")
    claim(ada, "T001")
    ada.git("branch", "--no-track", "forge/task/T001@1", "origin/main")
    done(ada, "T001")
    reopen(ada, "T001")
    work(ada, "T001", {"new.txt": "new\n"})
    assert done(ada, "T001")["round"] == 2
    assert "new.txt" in files(world)


def test_reopening_fences_the_holder_out(world: World) -> None:
    ada, ben = pair(world)
    work(ada, "T001")
    put_on_main(world, {"T001.txt": "theirs\n"})
    not_done(ada, "T001")
    assert ben.forge("task", "reopen", "T001", "--json").code == 3, "ada works on it"
    assert ben.forge("task", "cancel", "T001", "--json").code == 3
    told = ada.forge("task", "cancel", "T001", "--reason", "not needed", "--json").data
    assert (told["status"], told["round"], told["fence"]) == ("cancelled", 1, 2)
    assert not_done(ada, "T001", code=5)["data"]["holder"]["fence"] == 2
    error = refusal(ben, "collaborate", "claim", "T001", code=7, says=("cancelled", "reopen"))
    assert error["data"]["status"] == "cancelled"
    assert ben.collaborate("claim", "T004").code == 7, "what is cancelled isn't done"
    assert refusal(ben, "task", "cancel", "T001", code=7)["data"]["to"] == "cancelled"
    told = reopen(ben, "T001")
    assert (told["status"], told["round"], told["fence"]) == ("pending", 2, 3)
    assert refusal(ben, "task", "reopen", "T001", code=7, says=("open already",))
    assert claim(ben, "T001") == 4
    said = {e["event"]: e["text"] for e in audit_of(world)}
    assert (said["cancelled"], said["reopened"]) == ("not needed", "it broke")


def test_a_task_of_another_uid_under_the_same_id_is_another_task(world: World) -> None:
    ada = joined(world, "ada")
    put_on_main(world, {".forge/tasks/T003.yaml": "id: T003\ntitle: May\nuid: may\n"})
    work(ada, "T003", {"may.txt": "may\n"})
    done(ada, "T003")
    seed = world.root / "seed"
    world.run("git", "pull", "-q", str(world.origin), "main", cwd=seed)
    put_on_main(world, {".forge/tasks/T003.yaml": "id: T003\ntitle: June\nuid: june\n"})

    def is_open() -> bool:
        return bool("T003" in ada.collaborate("status").data["claimable"])

    wait_until(is_open)
    assert claim(ada, "T003") == 2, "the fence goes on"
    commit(ada, "forge/task/T003@2", {"june.txt": "june\n"})
    assert done(ada, "T003")["round"] == 1
    assert record(world, "T003")["uid"] == "june"
    assert landed(world) == [("T003", 1), ("T003", 1)]
    assert {"may.txt", "june.txt"} <= files(world)


@pytest.mark.timeout(240)
def test_what_has_landed_stays_landed_when_all_memory_is_lost(world: World) -> None:
    ada, ben = pair(world)
    work(ada, "T001")
    done(ada, "T001")
    reopen(ada, "T001")
    work(ada, "T001", {"again.txt": "again\n"})
    done(ada, "T001")
    work(ben, "T002")
    done(ben, "T002")
    for clone in (ada, ben):
        assert clone.collaborate("leave").code == 0
    world.on_origin("update-ref", "-d", "refs/heads/forge/collab-state")
    for clone in (ada, ben):
        clone.start()
    error = refusal(ben, "collaborate", "claim", "T001", code=7, says=("T001 is done",))
    assert error["data"]["status"] == "done"
    wait_until(lambda: world.record("tasks/T002.json"))
    wait_until(lambda: world.record("tasks/T001.json"))
    about = record(world, "T001")
    assert (about["status"], about["round"]) == ("done", 2)
    tip = world.on_origin("log", "-1", "--format=%H", "--grep", "Forge-Round: 2", "main")
    assert about["landed"]["commit"] == tip
    assert claim(ben, "T004") == 1, "what waited for it doesn't wait any more"
    assert reopen(ada, "T001")["round"] == 3
    work(ada, "T001", {"third.txt": "third\n"})
    done(ada, "T001")
    assert [one for one in landed(world) if one[0] == "T001"] == [
        ("T001", 1),
        ("T001", 2),
        ("T001", 3),
    ]
    assert shown(world, "again.txt") == "again"
    assert "forge/collab-state" in branches(world)
