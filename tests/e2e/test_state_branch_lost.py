"""A state branch that is deleted or set back: never a fresh start, whoever was awake."""

from __future__ import annotations

import pytest
from conftest import World, wait_until

BRANCH = "refs/heads/forge/collab-state"


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_deleted_branch_is_no_fresh_session(world: World, is_killed: bool) -> None:
    ada = world.clone("ada")
    ada.start()
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
    if is_killed:
        ada.kill_daemon()
    world.on_origin("update-ref", "-d", BRANCH)
    ran = ada.collaborate("claim", "T002")
    assert (ran.code, ran.error["code"]) == (6, "corrupt")
    assert "leave" in ran.error["hint"]
    assert world.on_origin("for-each-ref", BRANCH) == ""
    status = ada.collaborate("status")
    assert status.code == 0
    assert any("state branch" in warning for warning in status.data["warnings"])


def test_a_branch_set_back_while_the_daemon_was_dead_grants_no_fence_twice(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    tip = world.on_origin("rev-parse", BRANCH)
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
    newer = world.on_origin("rev-parse", BRANCH)
    ada.kill_daemon()
    world.on_origin("update-ref", BRANCH, tip)
    ran = ada.collaborate("claim", "T001", "--as", "other")
    assert (ran.code, ran.error["code"]) == (6, "corrupt")
    assert world.lease("T001") is None

    world.on_origin("update-ref", BRANCH, newer)
    wait_until(lambda: ada.collaborate("renew", "T001").code == 0)
    lease = world.lease("T001")
    assert lease is not None
    assert lease["fence"] == 1


def test_leaving_and_starting_again_takes_the_branch_as_it_is(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    world.on_origin("update-ref", "-d", BRANCH)
    wait_until(lambda: ada.collaborate("claim", "T002").code == 6)
    left = ada.collaborate("leave")
    assert left.code == 0
    assert [lapse["key"] for lapse in left.data["lapsing"]] == ["claim:T001"]
    ada.start()
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1
