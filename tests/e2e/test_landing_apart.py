"""A server that can't move two branches at once: landed at most once, and always found."""

from __future__ import annotations

import pytest
from conftest import SHORT, Clone, World, audit_of, set_hook, wait_until
from landworld import (
    check_whole,
    claim,
    commit,
    done,
    joined,
    landed,
    named,
    not_done,
    record,
    shown,
    work,
)


@pytest.fixture
def apart(world: World) -> World:
    world.on_origin("config", "receive.advertiseAtomic", "false")
    return world


def killed_in_done(clone: Clone, task: str, point: str) -> None:
    """`done`, in which the daemon kills itself at `point`; the command can't know the end."""
    clone.kill_daemon()
    ran = clone.collaborate("done", task, FORGE_FAULTS=f"{point}=kill")
    assert ran.code == 4, ran
    assert clone.daemon_pid() is None, f"{point} was never reached"


def test_it_lands_and_start_says_what_is_missing_there(apart: World) -> None:
    ada = apart.clone("ada")
    named(ada, "ada")
    assert ada.start()["lands_whole"] is False
    work(ada, "T001")
    done(ada, "T001")
    check_whole(apart, "T001")
    events = [e["event"] for e in audit_of(apart) if e["key"] == "claim:T001"]
    assert events == ["claimed", "landing", "landed"]
    assert record(apart, "T001")["landing"] is None
    assert done(ada, "T001")["already"]


@pytest.mark.parametrize("point", ["land.after_announce", "land.after_target"])
def test_killed_between_the_steps_the_same_clone_lands_it_once(apart: World, point: str) -> None:
    ada = joined(apart, "ada")
    work(ada, "T001")
    killed_in_done(ada, "T001", point)
    assert len(landed(apart)) == (point == "land.after_target")
    done(ada, "T001")
    check_whole(apart, "T001")


def test_killed_after_the_target_another_clone_closes_it(apart: World) -> None:
    ben = joined(apart, "ben", **SHORT)
    ada = joined(apart, "ada", **SHORT)
    work(ada, "T001", {"T001.txt": "ada's\n"})
    killed_in_done(ada, "T001", "land.after_target")
    wait_until(lambda: record(apart, "T001")["status"] == "done")
    refused = ben.collaborate("claim", "T001")
    assert (refused.code, refused.error["data"]["status"]) == (7, "done")
    assert shown(apart, "T001.txt") == "ada's"
    check_whole(apart, "T001")
    assert done(ada, "T001")["already"]


def test_killed_before_the_target_another_clone_takes_over_and_lands(apart: World) -> None:
    ben = joined(apart, "ben", **SHORT)
    ada = joined(apart, "ada", **SHORT)
    work(ada, "T001", {"T001.txt": "ada's\n"})
    killed_in_done(ada, "T001", "land.after_announce")
    assert record(apart, "T001")["landing"] is not None
    wait_until(lambda: ben.collaborate("claim", "T001").code == 0, pause=0.2)
    commit(ben, "forge/task/T001@2", {"T001.txt": "ben's\n"})
    done(ben, "T001")
    assert not_done(ada, "T001", code=5)["data"]["holder"]["fence"] == 2
    assert shown(apart, "T001.txt") == "ben's"
    check_whole(apart, "T001")
    assert record(apart, "T001")["landing"] is None


def test_a_protected_target_is_told_here_too(apart: World) -> None:
    ada = joined(apart, "ada")
    set_hook(apart, "update", 'case "$1" in refs/heads/main) echo no; exit 1;; esac')
    work(ada, "T001")
    assert not_done(ada, "T001")["data"]["status"] == "awaiting_merge"
    about = record(apart, "T001")
    assert (about["status"], about["landing"]) == ("awaiting_merge", None)
    assert landed(apart) == []


def test_the_fence_is_asked_for_here_too(apart: World) -> None:
    ada = joined(apart, "ada")
    ben = joined(apart, "ben")
    work(ada, "T001")
    assert ben.collaborate("takeover", "T001", "--reason", "in a hurry").code == 0
    not_done(ada, "T001", code=5)
    assert landed(apart) == []
    assert claim(ben, "T001") == 2
