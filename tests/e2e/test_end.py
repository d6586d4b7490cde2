"""A session that is ended for everybody: what goes, what stays, and who is told."""

from __future__ import annotations

from conftest import World, refusal, wait_until
from landworld import branches, claim, done, joined, work

STATE = "forge/collab-state"


def test_a_session_with_others_in_it_is_not_ended_by_accident(world: World) -> None:
    ada, ben = joined(world, "ada"), joined(world, "ben")
    claim(ben, "T001")
    error = refusal(ada, "collaborate", "end", code=7)
    assert error["data"]["participants"] == ["ben"]
    assert "--yes" in error["hint"]
    assert STATE in branches(world)
    assert ben.collaborate("renew", "T001").code == 0


def test_whoever_is_left_leaves_by_itself_and_the_branch_stays_gone(world: World) -> None:
    ada = joined(world, "ada")
    ben = joined(world, "ben")
    fence = claim(ben, "T001")
    ended = ada.collaborate("end", "--yes").data
    assert (ended["ended"], ended["removed"]) == (True, [STATE])
    wait_until(lambda: ben.daemon_pid() is None and ada.daemon_pid() is None)
    for clone in (ada, ben):
        assert clone.collaborate("status").data["class"] == "inactive"
        assert not (clone.forge_dir / "participant.json").exists()
    assert STATE not in branches(world)
    alone = ben.collaborate("claim", "T001", "--solo").data
    assert alone["lease"]["fence"] > fence, "fences come home"


def test_branches_that_have_landed_go_and_work_that_has_not_stays(world: World) -> None:
    ada = joined(world, "ada")
    branch = work(ada, "T001")
    tip = ada.git("rev-parse", branch).out.strip()
    done(ada, "T001")
    wait_until(lambda: branch not in branches(world))
    ada.git("push", "-q", "origin", f"{tip}:refs/heads/{branch}")
    other = work(ada, "T003")
    ada.git("push", "-q", "origin", other)
    assert set(ada.collaborate("end").data["removed"]) == {STATE, branch}
    assert branches(world) == {"main", other}


def test_another_session_begins_where_one_has_ended(world: World) -> None:
    ada = joined(world, "ada")
    before = ada.start()["repo"]
    ada.collaborate("end")
    assert ada.start()["repo"] != before
    assert STATE in branches(world)


def test_an_end_cut_short_is_an_end_for_whoever_sees_the_mark(world: World) -> None:
    ada, ben = joined(world, "ada"), joined(world, "ben")
    ada.kill_daemon()
    ada.forge("collaborate", "end", "--yes", FORGE_FAULTS="end.after_mark=kill")
    wait_until(lambda: ben.daemon_pid() is None)
    assert ben.collaborate("status").data["class"] == "inactive"
    assert STATE in branches(world)
    error = refusal(ben, "collaborate", "start", code=7)
    assert error["data"]["status"] == "ended"
    assert "--fresh" in error["hint"]
    wait_until(lambda: ada.collaborate("status").data["class"] != "session_mismatch")
    refusal(ada, "collaborate", "claim", "T001", code=7)
    assert ada.collaborate("status").data["class"] == "inactive"
