"""Working alone: the same commands on the clone's own records, into a session and out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import Clone, World, instance_of, put_on_state, refusal, wait_until

TASKS = {
    "T001": "id: T001\ntitle: First\n",
    "T002": "id: T002\ntitle: Second\n",
    "T003": "id: T003\ntitle: Later\ndepends_on: [T001]\n",
}


def plain(world: World, tasks: Mapping[str, str] = TASKS, *, has_commit: bool = True) -> Clone:
    """A repository that nobody shares: no remote at all."""
    path = world.root / "plain"
    world.run("git", "init", "-q", "-b", "main", str(path))
    (path / ".forge" / "tasks").mkdir(parents=True)
    for name, text in tasks.items():
        (path / ".forge" / "tasks" / f"{name}.yaml").write_text(text)
    made = Clone(path, dict(world.environ), handle="ada")
    if has_commit:
        made.git("add", "-A", "-f")
        made.git("commit", "-q", "-m", "a plan")
    world.clones.append(made)
    return made


def worktree(clone: Clone, name: str) -> Clone:
    """Another work tree of the same clone."""
    path = clone.path.parent / name
    clone.git("worktree", "add", "-q", "--detach", str(path))
    return Clone(path, clone.environ, clone.handle)


def claim(clone: Clone, *args: str, **environ: str) -> dict[str, Any]:
    ran = clone.collaborate("claim", *args, **environ)
    assert ran.code == 0, ran
    return ran.data


def fence_of(clone: Clone, task_id: str) -> int | None:
    """The fence of a task in the clone's own records."""
    records = json.loads((clone.forge_dir / "local" / "records.json").read_text())["records"]
    found = records.get(f"leases/claim:{task_id}")
    return None if found is None else int(json.loads(found[1])["fence"])


def holder_of(clone: Clone, task_id: str) -> dict[str, Any] | None:
    """Who has a task in the clone's own records."""
    records = json.loads((clone.forge_dir / "local" / "records.json").read_text())["records"]
    found: dict[str, Any] | None = json.loads(records[f"leases/claim:{task_id}"][1])["claimant"]
    return found


def status(clone: Clone) -> dict[str, Any]:
    ran = clone.collaborate("status")
    assert ran.code == 0, ran
    return ran.data


# A repository without a remote


def test_alone_everything_a_holder_does_works_without_a_remote(world: World) -> None:
    clone = plain(world)
    assert claim(clone, "T001")["lease"]["fence"] == 1
    assert clone.collaborate("renew", "T001", "--fence", "1").data["renewed"]
    assert clone.collaborate("note", "T001", "half way").data["noted"]
    assert clone.collaborate("release", "T001").data["released"]
    assert claim(clone, "--next")["lease"]["fence"] == 2
    taken = clone.collaborate("takeover", "T001", "--reason", "mine", "--as", "other")
    assert taken.data["lease"]["fence"] == 3
    entries = clone.collaborate("log").data["entries"]
    told = ["claimed", "note", "released", "claimed", "taken_over"]
    assert [entry["event"] for entry in entries] == told
    assert clone.forge("task", "show", "T001", "--json").data["tasks"][0]["status"] == "claimed"


def test_alone_a_claim_names_a_branch_from_the_clones_own_target(world: World) -> None:
    clone = plain(world)
    ran = clone.forge("collaborate", "claim", "T001")
    assert "  git switch -c forge/task/T001@1 main" in ran.out.splitlines()
    assert "git fetch" not in ran.out
    assert "working alone" in ran.err
    again = clone.forge("collaborate", "claim", "T002")
    assert "working alone" not in again.err


def test_alone_what_waits_for_another_task_is_blocked(world: World) -> None:
    clone = plain(world)
    error = clone.collaborate("claim", "T003").error
    assert (error["code"], error["data"]["waits_for"]) == ("blocked", ["T001"])


def test_alone_a_task_file_counts_from_when_it_is_written(world: World) -> None:
    clone = plain(world)
    claim(clone, "T001")
    (clone.path / ".forge" / "tasks" / "T009.yaml").write_text("id: T009\ntitle: New\n")
    assert claim(clone, "T009")["acquired"]
    (clone.path / ".forge" / "tasks" / "T002.yaml").write_text(
        "id: T002\ntitle: Second\ndepends_on: [T009]\n"
    )
    assert clone.collaborate("claim", "T002").code == 7
    assert clone.forge("task", "add", "Another", "--json").data["tasks"][0]["id"] == "T004"
    assert claim(clone, "T004")["acquired"]


def test_alone_it_works_before_the_first_commit(world: World) -> None:
    clone = plain(world, has_commit=False)
    ran = clone.forge("collaborate", "claim", "T001")
    assert ran.code == 0
    assert "no commits here yet" in ran.err


def test_alone_the_class_stays_inactive_and_the_users_git_is_as_it_was(world: World) -> None:
    clone = plain(world)
    before = clone.git("status", "--porcelain", "--ignored").out, clone.git("for-each-ref").out
    claim(clone, "T001")
    seen = status(clone)
    assert (seen["class"], seen["transport"], seen["online"]) == ("inactive", "local", True)
    assert seen["me"]["handle"] == seen["claims"][0]["claimant"]["handle"] == "ada"
    assert not (clone.forge_dir / "participant.json").exists()
    assert not (clone.forge_dir / "enabled").exists()
    after = clone.git("status", "--porcelain", "--ignored").out, clone.git("for-each-ref").out
    assert after == before


def test_alone_looking_starts_no_daemon_and_shows_what_is_held(world: World) -> None:
    clone = plain(world)
    for args in (("collaborate", "status"), ("collaborate", "log"), ("task", "list")):
        assert clone.forge(*args).code == 0
    assert not clone.forge("daemon", "status", "--json").data["running"]
    assert not clone.forge_dir.exists()
    claim(clone, "T001")
    running = status(clone)
    assert clone.forge("daemon", "stop").code == 0
    stopped = status(clone)
    assert stopped["claims"][0]["fence"] == running["claims"][0]["fence"] == 1
    assert stopped["claimable"] == running["claimable"] == ["T002"]
    assert (stopped["class"], stopped["transport"]) == ("inactive", "local")
    listed = clone.forge("task", "list", "--json").data["tasks"]
    assert {task["id"]: task["status"] for task in listed}["T001"] == "claimed"
    assert len(clone.collaborate("log").data["entries"]) == 1
    assert clone.daemon_pid() is None


def test_alone_doctor_finds_nothing_wrong(world: World) -> None:
    clone = plain(world)
    assert clone.forge("init").code == 0
    for _ in range(2):
        checks = clone.forge("doctor", "--json").data["checks"]
        assert {check["status"] for check in checks} == {"pass"}
        claim(clone, "T001")
    assert clone.forge("daemon", "status", "--json").data["transport"] == "local"


def test_a_bare_repository_has_nothing_to_work_on_alone(world: World) -> None:
    world.run("git", "init", "-q", "--bare", str(world.root / "bare.git"))
    bare = Clone(world.root / "bare.git", dict(world.environ), "ada")
    error = refusal(bare, "collaborate", "claim", "T001", code=9, says=("work tree",))
    assert error["code"] == "environment"
    assert not (bare.path / "forge").exists()


# One daemon for all work trees


def test_two_work_trees_that_race_for_a_task_have_one_winner(world: World) -> None:
    clone = plain(world)
    other = worktree(clone, "second")
    racing = [tree.popen("collaborate", "claim", "T001", "--json") for tree in (clone, other)]
    ended = [(process.communicate(timeout=60)[0], process.returncode) for process in racing]
    assert sorted(code for _, code in ended) == [0, 3]
    won, lost = sorted((json.loads(out) for out, _ in ended), key=lambda told: not told["ok"])
    holder = lost["error"]["data"]["holder"]
    assert holder["claimant"] == won["data"]["lease"]["claimant"]
    assert "your other worker" in lost["error"]["message"]


def test_a_work_tree_has_the_plan_of_its_own_checkout(world: World) -> None:
    clone = plain(world)
    other = worktree(clone, "second")
    (other.path / ".forge" / "tasks" / "T050.yaml").write_text("id: T050\ntitle: Here alone\n")
    claim(clone, "T001")
    assert clone.collaborate("claim", "T050").code == 2
    assert claim(other, "T050")["acquired"]
    assert [task["id"] for task in clone.forge("task", "list", "--json").data["tasks"]] == [*TASKS]


def test_after_a_kill_the_lease_goes_on_under_the_same_fence(world: World) -> None:
    clone = plain(world)
    first = claim(clone, "T001")["lease"]
    clone.kill_daemon()
    again = claim(clone, "T001")
    assert (again["lease"]["fence"], again["already"]) == (first["fence"], True)
    assert again["lease"]["claimant"] == first["claimant"]


@pytest.mark.parametrize(
    "point", ["claim.after_journal", "claim.before_grant", "local.after_rename"]
)
def test_a_claim_cut_short_leaves_nothing_held_for_nobody(world: World, point: str) -> None:
    clone = plain(world)
    cut = clone.collaborate("claim", "T001", FORGE_FAULTS=f"{point}=kill")
    assert cut.code == 4, cut
    assert claim(clone, "T001", "--as", "other", "--wait")["acquired"]


def test_a_copy_of_the_clone_is_somebody_else(world: World) -> None:
    clone = plain(world)
    claim(clone, "T001")
    world.run("cp", "-r", str(clone.path), str(world.root / "copy"))
    copy = Clone(world.root / "copy", clone.environ, "ada")
    world.clones.append(copy)
    assert copy.collaborate("claim", "T001").code == 3
    assert status(copy)["me"]["instance"] != status(clone)["me"]["instance"]


def test_records_that_cant_be_read_are_told_and_kept(world: World) -> None:
    clone = plain(world)
    claim(clone, "T001")
    clone.kill_daemon()
    records = clone.forge_dir / "local" / "records.json"
    kept = records.read_bytes()
    records.write_bytes(kept[: len(kept) // 2])
    for args in (("claim", "T001"), ("log",)):
        error = refusal(clone, "collaborate", *args, code=6, says=("records.json",))
        assert error["data"]["path"] == str(records)
    assert "records.json" in " ".join(status(clone)["warnings"])
    assert records.read_bytes() == kept[: len(kept) // 2]
    records.write_bytes(kept)
    assert claim(clone, "T001")["lease"]["fence"] == 1


def test_the_stale_classes_refuse(world: World) -> None:
    clone = world.clone("ada")
    clone.start()
    assert clone.forge("daemon", "stop").code == 0
    (clone.forge_dir / "enabled").unlink()
    for args in (("claim", "T001"), ("renew", "T001"), ("log",)):
        error = refusal(clone, "collaborate", *args, code=7, says=("forge collaborate recover",))
        assert error["data"]["class"] == "stale_participant"
    (clone.forge_dir / "participant.json").rename(clone.forge_dir / "away")
    (clone.forge_dir / "enabled").touch()
    error = refusal(clone, "collaborate", "claim", "T001", code=7)
    assert error["data"]["class"] == "stale_enabled"


# Beside a session


def test_where_others_are_in_a_session_working_alone_has_to_be_asked_for(world: World) -> None:
    ben, ada = world.clone("ben"), world.clone("ada")
    ben.start()
    says = ("ben", "forge collaborate join", "--solo")
    error = refusal(ada, "collaborate", "claim", "T001", code=7, says=says)
    assert error["data"]["participants"] == ["ben"]
    assert ada.daemon_pid() is None
    assert claim(ada, "T001", "--solo")["acquired"]
    assert claim(ada, "T002")["acquired"]
    assert world.lease("T001") is None


def test_a_remote_out_of_reach_is_told_and_no_hindrance(world: World) -> None:
    clone = world.clone("ada")
    clone.git("remote", "set-url", "origin", str(world.root / "gone.git"))
    ran = clone.forge("collaborate", "claim", "T001")
    assert ran.code == 0
    assert "isn't known" in ran.err
    assert "working alone" in ran.err


def test_status_without_a_daemon_shows_the_session_that_is_there(world: World) -> None:
    ben, ada = world.clone("ben"), world.clone("ada")
    ben.start()
    claim(ada, "T001", "--solo")
    assert status(ada)["transport"] == "local"
    assert ada.forge("daemon", "stop").code == 0
    seen = status(ada)
    assert (seen["class"], seen["transport"]) == ("inactive", "polling")
    assert [person["handle"] for person in seen["participants"]] == ["ben"]


def test_a_session_of_others_cant_be_on_the_local_transport(world: World) -> None:
    clone = world.clone("ada", forge__transport="local")
    error = refusal(clone, "collaborate", "start", code=2, says=("working alone",))
    assert error["code"] == "usage"
    assert status(clone)["class"] == "inactive"


# Into a session and out of it


def test_joining_carries_what_is_held_and_every_fence(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    for _ in range(3):
        claim(ada, "T001")
        ada.collaborate("release", "T001")
    claim(ada, "T002")
    ada.start()
    assert (world.lease("T001") or {})["fence"] == 3
    carried = world.lease("T002") or {}
    assert carried["fence"] == 1
    assert carried["claimant"] == {"handle": "ada", "instance": instance_of(ada), "worker": "main"}
    assert claim(ada, "T002")["already"]
    assert ada.collaborate("renew", "T002", "--fence", "1").code == 0
    assert holder_of(ada, "T002") is None
    ben.start()
    assert claim(ben, "T001")["lease"]["fence"] == 4
    assert ben.collaborate("claim", "T002").error["data"]["holder"]["claimant"]["handle"] == "ada"


def test_joining_goes_on_above_the_fence_that_the_session_has(world: World) -> None:
    ben, ada = world.clone("ben"), world.clone("ada")
    ben.start()
    for _ in range(3):
        claim(ben, "T001")
        ben.collaborate("release", "T001")
    assert claim(ada, "T001", "--solo")["lease"]["fence"] == 1
    ada.start()
    assert (world.lease("T001") or {})["fence"] == 4
    lost = ada.collaborate("note", "T001", "from before", "--fence", "1").error
    assert lost["code"] == "lease_lost"
    assert claim(ada, "T001")["lease"]["fence"] == 4


def test_what_somebody_in_the_session_holds_is_lost_and_they_keep_it(world: World) -> None:
    ben, ada = world.clone("ben"), world.clone("ada")
    ben.start()
    held = claim(ben, "T001")["lease"]
    for _ in range(3):
        claim(ada, "T001", "--solo")
        ada.collaborate("release", "T001")
    claim(ada, "T001")
    ada.start()
    assert ben.collaborate("renew", "T001", "--fence", str(held["fence"])).code == 0
    told = [warning for warning in status(ada)["warnings"] if "lease lost" in warning]
    assert len(told) == 1
    assert "T001" in told[0]
    assert "ben" in told[0]
    assert ada.collaborate("note", "T001", "mine?").code in (3, 5)
    assert ben.collaborate("release", "T001").code == 0
    assert claim(ada, "T001")["lease"]["fence"] == 5


def test_a_task_that_the_session_doesnt_have_is_lost_with_its_reason(world: World) -> None:
    ada = world.clone("ada")
    (ada.path / ".forge" / "tasks" / "T090.yaml").write_text("id: T090\ntitle: Not pushed\n")
    claim(ada, "T090")
    ada.start()
    told = " ".join(status(ada)["warnings"])
    assert "T090" in told
    assert (world.lease("T090") or {})["claimant"] is None


def test_leaving_carries_fences_and_statuses_home(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    for _ in range(2):
        claim(ben, "T001")
        ben.collaborate("release", "T001")
    claim(ada, "T001")
    shown = ada.forge("task", "show", "T002", "--json").data["tasks"][0]
    record = {"v": 1, "rev": 1, "uid": shown["uid"], "round": 1, "status": "done", "fence": 7}
    put_on_state(world, {"tasks/T002.json": json.dumps(record).encode() + b"\n"})
    wait_until(lambda: "T002" not in status(ada)["claimable"])
    left = ada.collaborate("leave")
    assert left.data["released"] == ["claim:T001"]
    ben.collaborate("leave")
    assert (fence_of(ada, "T001"), holder_of(ada, "T001")) == (3, None)
    assert claim(ada, "T001")["lease"]["fence"] == 4
    assert ada.collaborate("claim", "T002").error["data"]["status"] == "done"
    ada.start()
    assert (world.lease("T001") or {})["fence"] == 4


CRASHES = [
    "carry.before",
    "carry.after",
    "start.after_connect",
    "start.after_enabled",
    "carry.before_home",
    "carry.after_home",
]


@pytest.mark.parametrize("point", CRASHES)
@pytest.mark.parametrize("remedy", ["start", "recover"])
def test_a_crash_while_joining_loses_no_fence_and_holds_nothing_twice(
    world: World, point: str, remedy: str
) -> None:
    ada = world.clone("ada")
    claim(ada, "T001")
    ada.collaborate("release", "T001")
    claim(ada, "T001")
    assert ada.forge("daemon", "stop").code == 0
    cut = ada.collaborate("start", "--handle", "ada", FORGE_FAULTS=f"{point}=kill")
    assert cut.code != 0
    if remedy == "start":
        ada.start()
        assert (world.lease("T001") or {})["fence"] == 2
        assert claim(ada, "T001")["already"]
        assert holder_of(ada, "T001") is None
        return
    assert ada.collaborate("recover", "--apply").code == 0
    if status(ada)["class"] == "healthy":
        assert claim(ada, "T001")["lease"]["fence"] == 2
        assert holder_of(ada, "T001") is None
    else:
        assert (world.lease("T001") or {"claimant": None})["claimant"] is None
        assert claim(ada, "T001", "--solo")["lease"]["fence"] >= 2


@pytest.mark.parametrize(
    "point", ["leave.after_close", "carry.before_home", "carry.after_home", "leave.after_enabled"]
)
def test_a_crash_while_leaving_loses_no_fence(world: World, point: str) -> None:
    ada = world.clone("ada")
    ada.start()
    for _ in range(2):
        claim(ada, "T001")
        ada.collaborate("release", "T001")
    claim(ada, "T001")
    assert ada.forge("daemon", "stop").code == 0
    ada.collaborate("leave", FORGE_FAULTS=f"{point}=kill")
    if status(ada)["class"] == "healthy":
        assert claim(ada, "T001")["already"]
        assert ada.collaborate("leave").code == 0
    else:
        assert ada.collaborate("recover", "--apply").code == 0
    assert status(ada)["class"] == "inactive"
    assert claim(ada, "T001")["lease"]["fence"] == 4


def test_the_daemon_alone_is_the_one_that_joins(world: World) -> None:
    ada = world.clone("ada")
    claim(ada, "T001")
    before = ada.daemon_pid()
    ada.start()
    assert ada.daemon_pid() == before
    about = ada.forge("daemon", "status", "--json").data
    assert (about["class"], about["transport"]) == ("healthy", "polling")


@pytest.mark.parametrize("command", ["start", "leave"])
def test_records_that_cant_be_read_are_no_lower_fences(world: World, command: str) -> None:
    ada = world.clone("ada")
    claim(ada, "T001")
    assert ada.forge("daemon", "stop").code == 0
    if command == "leave":
        ada.start()
    records = ada.forge_dir / "local" / "records.json"
    kept = records.read_bytes()
    records.write_bytes(b"half")
    before = status(ada)["class"]
    refusal(ada, "collaborate", command, code=6, says=("records.json",))
    assert status(ada)["class"] == before
    records.write_bytes(kept)
    assert ada.collaborate(command).code == 0


def test_a_copy_joins_without_what_the_original_holds(world: World) -> None:
    ada = world.clone("ada")
    claim(ada, "T001")
    world.run("cp", "-r", str(ada.path), str(world.root / "copy"))
    copy = Clone(world.root / "copy", ada.environ, "ben")
    world.clones.append(copy)
    copy.start()
    lease = world.lease("T001") or {}
    assert (lease["claimant"], lease["fence"]) == (None, 1)
    ada.start()
    assert (world.lease("T001") or {})["fence"] == 2
    assert claim(ada, "T001")["already"]


def test_a_start_that_fails_leaves_what_is_held_alone(world: World) -> None:
    ada = world.clone("ada")
    claim(ada, "T001")
    world.origin.rename(world.root / "unplugged.git")
    refusal(ada, "collaborate", "start", code=4)
    assert status(ada)["class"] == "inactive"
    again = claim(ada, "T001")
    assert (again["already"], again["lease"]["fence"]) == (True, 1)
    (world.root / "unplugged.git").rename(world.origin)
    ada.start()
    assert (world.lease("T001") or {})["claimant"]["instance"] == instance_of(ada)
