"""A state branch that is deleted, set back or replaced: healed, never a fresh start."""

from __future__ import annotations

import shutil

import pytest
from conftest import SHORT, Clone, World, audit_of, put_on_state, put_status, refusal, wait_until

BRANCH = "refs/heads/forge/collab-state"
WARNING = "the state branch was set back by somebody"


def fence(world: World, task: str) -> int:
    lease = world.lease(task)
    assert lease is not None
    return int(lease["fence"])


def heard(clone: Clone) -> bool:
    return any(WARNING in warning for warning in clone.collaborate("status").data["warnings"])


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_deleted_branch_comes_back_with_its_leases(world: World, is_killed: bool) -> None:
    ada = world.clone("ada")
    repo = ada.start()["repo"]
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
    if is_killed:
        ada.kill_daemon()
    world.on_origin("update-ref", "-d", BRANCH)
    assert ada.collaborate("claim", "T002").data["acquired"] is True
    assert fence(world, "T001") == 1
    again = ada.collaborate("claim", "T001").data
    assert (again["already"], again["lease"]["fence"]) == (True, 1)
    meta = world.record("meta.json")
    assert meta is not None
    assert meta["repo"] == repo
    assert heard(ada)
    assert not heard(ada), "it warns once"
    assert "healed" in [entry["event"] for entry in audit_of(world)]
    assert "healed" in ada.forge("collaborate", "log").out


def test_a_branch_set_back_while_the_daemon_was_dead_grants_no_fence_twice(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    tip = world.on_origin("rev-parse", BRANCH)
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
    ada.kill_daemon()
    world.on_origin("update-ref", BRANCH, tip)
    error = refusal(ada, "collaborate", "claim", "T001", "--as", "other", code=3)
    assert error["data"]["holder"]["fence"] == 1
    assert ada.collaborate("renew", "T001").code == 0
    assert fence(world, "T001") == 1


def test_one_fence_granted_twice_is_lost_by_both_and_never_used_again(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    tip = world.on_origin("rev-parse", BRANCH)
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
    ada.kill_daemon()
    world.on_origin("update-ref", BRANCH, tip)
    ben.start()
    assert ben.collaborate("claim", "T001").data["lease"]["fence"] == 1

    refusal(ada, "collaborate", "renew", "T001", "--fence", "1", code=5)
    wait_until(lambda: ben.collaborate("renew", "T001", "--fence", "1").code == 5)
    assert any("T001" in warning for warning in ben.collaborate("status").data["warnings"])
    assert ben.collaborate("claim", "T001").data["lease"]["fence"] == 3
    assert ada.collaborate("claim", "T001").error["data"]["holder"]["fence"] == 3


def test_a_closed_task_stays_closed_on_a_branch_set_back(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    tip = world.on_origin("rev-parse", BRANCH)
    put_status(world, ada, "T001", "done")
    refusal(ben, "collaborate", "claim", "T001", code=7)
    world.on_origin("update-ref", BRANCH, tip)
    error = refusal(ben, "collaborate", "claim", "T001", code=7)
    assert error["data"]["status"] == "done"


def test_daemons_that_all_heal_at_once_lose_nothing_and_agree(world: World) -> None:
    clones = [world.clone(name) for name in ("ada", "ben", "cleo")]
    for number, clone in enumerate(clones, 1):
        clone.start()
        assert clone.collaborate("claim", f"T00{number}").code == 0
    world.on_origin("update-ref", "-d", BRANCH)
    wait_until(lambda: world.on_origin("for-each-ref", BRANCH))
    for number, clone in enumerate(clones, 1):
        assert clone.collaborate("renew", f"T00{number}").code == 0
        assert fence(world, f"T00{number}") == 1
    seen = [clone.collaborate("status").data["claims"] for clone in clones]
    assert len({str([(c["key"], c["claimant"]) for c in claims]) for claims in seen}) == 1


def test_leaving_and_starting_again_takes_the_branch_as_it_is_and_brings_fences(
    world: World,
) -> None:
    ada = world.clone("ada", **SHORT)
    ada.start()
    tip = world.on_origin("rev-parse", BRANCH)
    assert ada.collaborate("claim", "T001").code == 0
    assert ada.collaborate("leave").code == 0
    world.on_origin("update-ref", BRANCH, tip)
    ada.start()
    lease = world.lease("T001")
    assert lease is not None
    assert (lease["claimant"], lease["fence"]) == (None, 1)


def test_a_memory_that_was_deleted_follows_the_branch(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    shutil.rmtree(ada.forge_dir / "state.git")
    ada.kill_daemon()
    assert ada.collaborate("renew", "T001").data["lease"]["fence"] == 1


# A new session in the place of an old one


def test_a_fresh_start_makes_a_new_session_and_old_clones_move_over(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    old = ada.start()
    ben.start()
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
    error = refusal(ada, "collaborate", "start", "--fresh", code=7, says=("ben", "--yes"))
    assert error["data"]["participants"] == ["ben"]
    assert ada.collaborate("renew", "T001").code == 0, "a refused --fresh changes nothing"

    fresh = ada.collaborate("start", "--fresh", "--yes").data
    assert fresh["repo"] != old["repo"]
    assert fresh["me"]["handle"] == "ada"
    assert [p["handle"] for p in fresh["participants"]] == ["ada"]
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 2

    wait_until(lambda: ben.collaborate("status").data["class"] == "session_mismatch")
    refusal(ben, "collaborate", "claim", "T002", code=7, says=("another session",))
    assert ben.collaborate("recover", "--apply").data["applied"] is True
    assert ben.collaborate("claim", "T002").data["acquired"] is True
    assert ben.collaborate("claim", "T001").error["data"]["holder"]["claimant"]["handle"] == "ada"


def test_a_lost_branch_and_lost_memory_need_a_fresh_start(world: World) -> None:
    ada = world.clone("ada")
    old = ada.start()
    ada.kill_daemon()
    shutil.rmtree(ada.forge_dir / "state.git")
    world.on_origin("update-ref", "-d", BRANCH)
    refusal(ada, "collaborate", "claim", "T001", code=6, says=("lost the session", "--fresh"))
    assert ada.collaborate("start", "--fresh").data["repo"] != old["repo"]
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1


def test_a_branch_whose_meta_is_damaged_is_begun_anew(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
    put_on_state(world, {"meta.json": b"<<<<<<<\n", "leases/claim%3AT002.json": b"<<<<<<<\n"})
    wait_until(lambda: ada.collaborate("claim", "T003").code == 6)
    assert ada.collaborate("start", "--fresh", "--yes").code == 0
    assert ada.collaborate("claim", "T002").data["lease"]["fence"] == 1
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 2
