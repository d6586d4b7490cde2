"""C7: done means merged. What can't be merged is kept, named, and nothing depends on it."""

from __future__ import annotations

from pathlib import Path

from conftest import Clone, World, put_on_main, refusal, set_hook, wait_until
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

PROTECTED = 'case "$1" in refs/heads/main) echo main is protected; exit 1;; esac'


def blocked_of(clone: Clone) -> dict[str, list[str]]:
    return {one["task"]: one["waits_for"] for one in clone.collaborate("status").data["blocked"]}


def conflict(world: World, clone: Clone) -> str:
    """Work on T001 that conflicts with what the target has meanwhile; its branch."""
    branch = work(clone, "T001", {"README": "a project of ada's\n"})
    put_on_main(world, {"README": "a project of everybody's\n"})
    return branch


def test_a_conflict_is_named_and_kept_and_the_holder_lands_after_merging(world: World) -> None:
    ada = joined(world, "ada")
    branch = conflict(world, ada)
    tip = world.on_origin("rev-parse", "main")
    shown_first = not_done(ada, "T001", "--dry-run")["data"]
    assert (shown_first["status"], shown_first["conflicts"]) == ("pending", ["README"])
    assert world.record("tasks/T001.json") is None, "a preview changes nothing"
    error = refusal(ada, "collaborate", "done", "T001", code=7, says=("README", "git merge"))
    data = error["data"]
    assert (data["status"], data["conflicts"], data["branch"]) == (
        "merge_blocked",
        ["README"],
        branch,
    )
    assert world.on_origin("rev-parse", "main") == tip
    about = record(world, "T001")
    assert about["status"] == "merge_blocked"
    assert "README" in about["reason"]
    assert world.lease("T001")["claimant"]["handle"] == "ada"  # type: ignore[index]
    assert branch in branches(world)
    assert ada.git("branch", "--show-current").out.strip() == branch
    assert blocked_of(ada)["T004"] == ["T001"]
    refused = ada.collaborate("claim", "T004")
    assert (refused.code, refused.error["data"]["waits_for"]) == (7, ["T001"])

    ada.git("fetch", "-q", "origin")
    ada.git("merge", "-q", "origin/main", check=False)
    (ada.path / "README").write_text("a project of ada's and everybody's\n")
    ada.git("commit", "-q", "-am", "Merge main")
    told = done(ada, "T001")
    assert told["fence"] == data["fence"]
    assert shown(world, "README") == "a project of ada's and everybody's"
    check_whole(world, "T001")
    assert ada.collaborate("claim", "T004").code == 0


def test_somebody_else_can_take_a_blocked_task_on_after_its_release(world: World) -> None:
    ada, ben = pair(world)
    conflict(world, ada)
    not_done(ada, "T001")
    assert ben.collaborate("claim", "--next").data["task"] == "T002", "only when asked for by name"
    assert ben.collaborate("claim", "T001").code == 3
    assert ada.collaborate("release", "T001").code == 0
    fence = claim(ben, "T001")
    assert fence == 2
    assert record(world, "T001")["status"] == "pending"
    commit(ben, f"forge/task/T001@{fence}", {"ben.txt": "ben's\n"})
    done(ben, "T001")
    check_whole(world, "T001")
    assert not_done(ada, "T001", code=5)["data"]["holder"]["fence"] == 2


def test_a_target_that_moved_without_a_conflict_is_merged_again(world: World) -> None:
    ada = joined(world, "ada")
    work(ada, "T001", {"README": "a project\nwith more\n"})
    put_on_main(world, {"news.txt": "news\n"})
    # A teammate's push lands between the merge and its push, once.
    flag, other = world.root / "once", world.root / "seed"
    put_on_main(world, {"news.txt": "more news\n"})
    (other / "late.txt").write_text("late\n")
    world.run("git", "add", "-A", cwd=other)
    world.run("git", "commit", "-q", "-m", "late", cwd=other)
    world.run("git", "push", "-q", str(world.origin), "main:refs/heads/late", cwd=other)
    flag.write_text("")
    set_hook(
        world,
        "pre-receive",
        f"grep -q refs/heads/main$ || exit 0\nif [ -e '{flag}' ]; then rm '{flag}'\n"
        "unset GIT_QUARANTINE_PATH\ngit update-ref refs/heads/main refs/heads/late; fi",
    )
    done(ada, "T001")
    assert not flag.exists()
    assert {"news.txt", "late.txt"} <= files(world)
    assert shown(world, "README") == "a project\nwith more"
    check_whole(world, "T001")


def test_a_file_of_the_users_that_isnt_tracked_is_not_touched(world: World) -> None:
    ada = joined(world, "ada")
    branch = work(ada, "T001", {"generated.txt": "from the task\n"})
    ada.git("switch", "-q", "main")
    (ada.path / "generated.txt").write_text("precious\n")
    before = ada.git("status", "--porcelain").out
    done(ada, "T001", "--branch", branch)
    assert shown(world, "generated.txt") == "from the task"
    assert (ada.path / "generated.txt").read_text() == "precious\n"
    assert ada.git("status", "--porcelain").out == before
    assert ada.git("branch", "--show-current").out.strip() == "main"


# A protected target


def awaiting(world: World) -> tuple[Clone, Clone, str]:
    """Ada's T001 awaits its merge by whoever may; she, ben, and the branch."""
    ada, ben = pair(world)
    set_hook(world, "update", PROTECTED)
    branch = work(ada, "T001", {"a.txt": "one\n"})
    commit(ada, branch, {"a.txt": "one\ntwo\n"}, "More")
    error = not_done(ada, "T001")
    assert error["data"]["status"] == "awaiting_merge"
    assert "main is protected" in error["message"]
    assert error["hint"] == f"open a request to merge {branch} into main"
    set_hook(world, "update", "exit 0")
    return ada, ben, branch


def test_a_protected_target_leaves_branch_and_record_and_ends_the_lease(world: World) -> None:
    ada, ben, branch = awaiting(world)
    tip = ada.git("rev-parse", branch).out.strip()
    assert world.on_origin("rev-parse", branch) == tip
    about = record(world, "T001")
    assert (about["status"], about["branch"], about["landed"]) == (
        "awaiting_merge",
        branch,
        {"tip": tip},
    )
    assert world.lease("T001")["claimant"] is None  # type: ignore[index]
    assert blocked_of(ben)["T004"] == ["T001"]
    error = refusal(ben, "collaborate", "claim", "T001", code=7, says=("awaiting_merge",))
    assert error["data"]["status"] == "awaiting_merge"
    again = refusal(ada, "collaborate", "done", "T001", code=7, says=("--landed",))
    assert again["data"]["status"] == "awaiting_merge"
    assert landed(world) == []


def maintainer(world: World, *commands: tuple[str, ...]) -> str:
    """Somebody with plain git and all rights: what is done on main; its new tip."""
    place = world.root / "maintainer"
    world.run("git", "clone", "-q", str(world.origin), str(place))
    for command in commands:
        world.run("git", *command, cwd=place)
    world.run("git", "push", "-q", "origin", "HEAD:main", cwd=place)
    return world.run("git", "rev-parse", "HEAD", cwd=place)


def becomes_done(world: World, task: str = "T001") -> dict[str, object]:
    wait_until(lambda: record(world, task)["status"] == "done")
    return record(world, task)


def test_a_merge_by_hand_closes_it(world: World) -> None:
    _, ben, branch = awaiting(world)
    maintainer(world, ("commit", "-q", "--allow-empty", "-m", "other"))
    world.run("git", "merge", "-q", "--no-ff", f"origin/{branch}", cwd=world.root / "maintainer")
    world.run("git", "push", "-q", "origin", "HEAD:main", cwd=world.root / "maintainer")
    merge = world.on_origin("rev-parse", "main")
    about = becomes_done(world)
    assert about["landed"]["commit"] == merge  # type: ignore[index]
    assert ben.collaborate("claim", "T004").code == 0


def test_a_squash_by_hand_closes_it_though_the_branch_is_deleted_at_once(world: World) -> None:
    _, _, branch = awaiting(world)
    made = maintainer(
        world,
        ("commit", "-q", "--allow-empty", "-m", "other"),
        ("merge", "-q", "--squash", f"origin/{branch}"),
        ("commit", "-q", "-m", "A request (#1)"),
        ("push", "-q", "origin", "HEAD:main", f":refs/heads/{branch}"),
    )
    about = becomes_done(world)
    assert about["landed"]["commit"] == made  # type: ignore[index]


def test_a_trailer_closes_it(world: World) -> None:
    ada, _, branch = awaiting(world)
    uid = ada.forge("task", "show", "T001", "--json").data["tasks"][0]["uid"]
    made = maintainer(
        world,
        ("merge", "-q", "--squash", f"origin/{branch}"),
        (
            *("commit", "-q", "-m", "Rewritten on the way"),
            *("-m", f"Forge-Uid: {uid}\nForge-Round: 1\nForge-Task: T001"),
        ),
    )
    assert becomes_done(world)["landed"]["commit"] == made  # type: ignore[index]


def test_a_persons_word_closes_it_but_only_for_what_is_on_the_target(world: World) -> None:
    ada, ben, branch = awaiting(world)
    tip = ada.git("rev-parse", branch).out.strip()
    error = refusal(ben, "collaborate", "done", "T001", "--landed", tip, code=7, says=("main",))
    assert error["data"]["status"] == "not_landed"
    not_done(ben, "T001", "--landed", "no-such-thing")
    made = maintainer(world, ("commit", "-q", "--allow-empty", "-m", "done otherwise"))
    told = done(ben, "T001", "--landed", made)
    assert told["commit"] == made
    assert record(world, "T001")["status"] == "done"
    assert record(world, "T001")["landed"]["commit"] == made


def test_what_awaits_its_merge_can_be_reopened_and_landed_after_all(world: World) -> None:
    ada, ben, _ = awaiting(world)
    told = ben.forge("task", "reopen", "T001", "--json").data
    assert (told["status"], told["round"], told["fence"]) == ("pending", 1, 2)
    work(ben, "T001", {"ben.txt": "ben's\n"})
    done(ben, "T001")
    check_whole(world, "T001")
    assert not_done(ada, "T001", code=5)


def test_where_the_state_branch_is_refused_too_nothing_changes(world: World) -> None:
    ada = joined(world, "ada")
    work(ada, "T001")
    tips = [world.on_origin("rev-parse", ref) for ref in ("main", "forge/collab-state")]
    hook = set_hook(
        world, "update", 'case "$1" in refs/heads/main|*/collab-state) echo frozen; exit 1;; esac'
    )
    error = refusal(ada, "collaborate", "done", "T001", code=7, says=("frozen",))
    assert error["data"]["status"] == "refused"
    assert [world.on_origin("rev-parse", r) for r in ("main", "forge/collab-state")] == tips
    Path(hook).unlink()
    done(ada, "T001")
    check_whole(world, "T001")
