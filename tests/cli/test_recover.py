"""`forge collaborate recover`: each class shown, mended by --apply, then left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Clone, World, bytes_below, is_alive, refusal, wait_until


@pytest.fixture
def clone(world: World) -> Clone:
    return world.clone("ada")


def recover(clone: Clone, *flags: str) -> dict[str, Any]:
    ran = clone.collaborate("recover", *flags)
    assert ran.code == 0, ran
    text = clone.forge("collaborate", "recover").out
    assert text.startswith("class ")
    return ran.data


def look_changes_nothing(clone: Clone, world: World) -> dict[str, Any]:
    """What a dry run says; it changed neither the clone's state nor the remote."""

    def state() -> tuple[dict[str, bytes], str]:
        mine = bytes_below(
            clone.forge_dir, clone.forge_dir / "state.git", clone.forge_dir / "look.git"
        )
        return mine, world.on_origin("for-each-ref")

    before = state()
    data = recover(clone)
    assert data["applied"] is False
    assert state() == before
    assert clone.daemon_pid() is None, "recover starts no daemon"
    return data


def crash(clone: Clone, missing: str) -> str:
    """Kill the daemon, take a marker away; returns the clone's instance."""
    instance = str(clone.collaborate("status").data["me"]["instance"])
    clone.kill_daemon()
    (clone.forge_dir / missing).unlink()
    return instance


def test_inactive_needs_nothing(world: World, clone: Clone) -> None:
    for flags in ((), ("--apply",)):
        data = recover(clone, *flags)
        assert data == {"class": "inactive", "actions": [], "applied": False}
    says = ("in no session", "forge collaborate start")
    error = refusal(clone, "daemon", "start", code=7, says=says)
    assert error["data"]["class"] == "inactive"
    assert clone.collaborate("claim", "T001").code == 0, "alone"


def test_healthy_needs_nothing(world: World, clone: Clone) -> None:
    clone.start()
    clone.collaborate("claim", "T001")
    for flags in ((), ("--apply",)):
        data = recover(clone, *flags)
        assert data == {"class": "healthy", "actions": [], "applied": False}
    clone.kill_daemon()
    assert look_changes_nothing(clone, world)["class"] == "healthy"
    assert clone.collaborate("claim", "T001").data["already"] is True, "and the daemon carries on"


def test_stale_participant_gives_its_leases_back(world: World, clone: Clone) -> None:
    other = world.clone("ben")
    clone.start()
    other.start()
    clone.collaborate("claim", "T001")
    clone.collaborate("claim", "T002", "--as", "agent")
    other.collaborate("claim", "T003")
    crash(clone, "enabled")

    for verb in (("claim", "T002"), ("renew", "T001"), ("release", "T001"), ("note", "T001", "x")):
        error = refusal(clone, "collaborate", *verb, code=7, says=("collaborate recover",))
        assert error["data"]["class"] == "stale_participant"
    assert clone.collaborate("status").data["class"] == "stale_participant"

    path = str(clone.forge_dir / "participant.json")
    actions = [
        {"what": "release", "key": "claim:T001"},
        {"what": "release", "key": "claim:T002"},
        {"what": "remove", "path": path},
    ]
    data = look_changes_nothing(clone, world)
    assert data == {"class": "stale_participant", "actions": actions, "applied": False}

    kept = Path(path).read_bytes()
    data = recover(clone, "--apply")
    assert data == {"class": "stale_participant", "actions": actions, "applied": True}
    for task in ("T001", "T002"):
        lease = world.lease(task)
        assert lease is not None
        assert (lease["claimant"], lease["fence"]) == (None, 1)
    assert (world.lease("T003") or {})["claimant"]["handle"] == "ben"
    assert not Path(path).exists()
    assert Path(f"{path}.bak").read_bytes() == kept

    tip = world.on_origin("rev-parse", "forge/collab-state")
    again = recover(clone, "--apply")
    assert again == {"class": "inactive", "actions": [], "applied": False}
    assert world.on_origin("rev-parse", "forge/collab-state") == tip
    assert Path(f"{path}.bak").read_bytes() == kept
    clone.start()
    assert clone.collaborate("claim", "T001").data["lease"]["fence"] == 2


def test_start_carries_on_where_a_start_was_cut_short(world: World, clone: Clone) -> None:
    clone.start()
    clone.collaborate("claim", "T001")
    instance = crash(clone, "enabled")
    again = clone.start()
    assert again["me"]["instance"] == instance
    ran = clone.collaborate("claim", "T001")
    assert ran.data["lease"]["fence"] == 1, "what the instance held it holds"
    assert recover(clone)["class"] == "healthy"


def test_a_daemon_whose_marker_is_taken_away_ends(world: World, clone: Clone) -> None:
    clone.start()
    pid = clone.daemon_pid()
    assert pid
    (clone.forge_dir / "enabled").unlink()
    wait_until(lambda: not is_alive(pid))
    assert recover(clone, "--apply")["applied"] is True
    assert recover(clone)["class"] == "inactive"


@pytest.mark.parametrize("text", ["", '{"handle": "../x"}'], ids=["empty", "another shape"])
def test_a_torn_participant_file_is_kept_aside(world: World, clone: Clone, text: str) -> None:
    clone.start()
    clone.kill_daemon()
    path = clone.forge_dir / "participant.json"
    path.write_text(text)
    for verb in (("claim", "T001"), ("start",)):
        error = refusal(clone, "collaborate", *verb, code=7, says=("collaborate recover",))
        assert error["data"]["class"] == "stale_participant"
    assert look_changes_nothing(clone, world)["class"] == "stale_participant"
    assert recover(clone, "--apply")["applied"] is True
    assert path.with_name("participant.json.bak").read_text() == text
    assert not path.exists()
    assert recover(clone, "--apply")["applied"] is False
    clone.start()
    assert clone.collaborate("claim", "T001").code == 0


def test_stale_enabled_is_rebuilt(world: World, clone: Clone) -> None:
    clone.start()
    crash(clone, "participant.json")
    for verb in (("claim", "T001"), ("start",)):
        error = refusal(clone, "collaborate", *verb, code=7, says=("collaborate recover",))
        assert error["data"]["class"] == "stale_enabled"
    path = str(clone.forge_dir / "participant.json")
    data = look_changes_nothing(clone, world)
    assert data["class"] == "stale_enabled"
    assert data["actions"] == [{"what": "rebuild", "path": path}]
    assert recover(clone, "--apply")["applied"] is True
    rebuilt = Path(path).read_bytes()
    again = recover(clone, "--apply")
    assert again == {"class": "healthy", "actions": [], "applied": False}
    assert Path(path).read_bytes() == rebuilt
    assert clone.collaborate("claim", "T001").code == 0
    assert clone.collaborate("leave").code == 0


def test_stale_enabled_is_not_rebuilt_without_a_remote(world: World, clone: Clone) -> None:
    clone.start()
    crash(clone, "participant.json")
    clone.git("remote", "remove", "origin")
    assert recover(clone)["class"] == "stale_enabled"
    says = ("no remote called 'origin'",)
    error = refusal(clone, "collaborate", "recover", "--apply", code=9, says=says)
    assert error["code"] == "environment"
    assert not (clone.forge_dir / "participant.json").exists()


def test_a_remote_out_of_reach_changes_no_class(world: World, clone: Clone) -> None:
    clone.start()
    clone.collaborate("claim", "T001")
    clone.kill_daemon()
    world.origin.rename(world.root / "away.git")
    assert recover(clone)["class"] == "healthy"
    (clone.forge_dir / "enabled").unlink()
    assert recover(clone)["class"] == "stale_participant"
    assert recover(clone, "--apply")["applied"] is True
    assert recover(clone)["class"] == "inactive"


def test_another_session_on_the_remote_is_a_mismatch(world: World, clone: Clone) -> None:
    clone.start()
    clone.collaborate("claim", "T001")
    instance = clone.collaborate("status").data["me"]["instance"]
    clone.kill_daemon()
    world.on_origin("update-ref", "-d", "refs/heads/forge/collab-state")
    other = world.clone("ben")
    other.start()

    data = look_changes_nothing(clone, world)
    assert data["class"] == "session_mismatch"
    path = str(clone.forge_dir / "participant.json")
    assert data["actions"] == [{"what": "move over", "path": path}]
    assert clone.collaborate("status").data["class"] == "session_mismatch"
    says = ("another session", "collaborate recover")
    error = refusal(clone, "collaborate", "claim", "T002", code=7, says=says)
    assert error["data"]["class"] == "session_mismatch"
    assert world.record(f"participants/{instance}.json") is None, "it writes to no other session"

    before = json.loads(Path(path).read_text())
    assert recover(clone, "--apply")["applied"] is True
    moved = json.loads(Path(path).read_text())
    assert moved["repo"] == other.start()["repo"]
    assert moved["migrated_from"] == before["repo"]
    assert (moved["handle"], moved["instance"] != instance) == (before["handle"], True)
    assert json.loads(Path(f"{path}.bak").read_text()) == before
    assert recover(clone, "--apply") == {"class": "healthy", "actions": [], "applied": False}
    assert clone.collaborate("claim", "T001").code == 0
