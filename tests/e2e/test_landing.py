"""`done`: what lands, from which branch, for whom, and what it says otherwise."""

from __future__ import annotations

import os
import signal

from conftest import SHORT, World, audit_of, put_on_main, refusal, set_hook, wait_until
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


def test_work_lands_as_one_commit_and_its_record_with_it(world: World) -> None:
    ada = joined(world, "ada")
    branch = work(ada, "T001", {"a.txt": "one\n"})
    commit(ada, branch, {"a.txt": "two\n"}, "Second thoughts")
    before = world.on_origin("rev-parse", "main")
    told = done(ada, "T001")
    assert (told["fence"], told["round"], told["already"]) == (1, 1, False)
    assert world.on_origin("rev-parse", "main") == told["commit"]
    assert world.on_origin("rev-parse", "main^") == before
    assert world.on_origin("log", "-1", "--format=%s|%an|%cn", "main") == (
        "feat: Task 1 [T001]|Ada|Ada"
    )
    assert shown(world, "a.txt") == "two"
    check_whole(world, "T001")
    events = [(e["event"], e["fence"]) for e in audit_of(world) if e["key"] == "claim:T001"]
    assert events == [("claimed", 1), ("landed", 1)]
    assert wait_until(lambda: branch not in branches(world)), "the landed branch goes"
    listed = ada.forge("task", "show", "T001", "--json").data["tasks"][0]
    assert (listed["status"], listed["round"]) == ("done", 1)
    assert "T004" in ada.collaborate("status").data["claimable"], "it waited for T001"


def test_done_again_says_already_and_claim_says_done(world: World) -> None:
    ada, ben = pair(world)
    work(ada, "T001")
    first = done(ada, "T001")
    again = done(ada, "T001")
    assert (again["already"], again["commit"]) == (True, first["commit"])
    assert done(ada, "T001", "--fence", "1")["already"]
    assert "already" in ada.forge("collaborate", "done", "T001").out
    error = refusal(ben, "collaborate", "claim", "T001", code=7, says=("T001 is done", "reopen"))
    assert error["data"]["status"] == "done"
    check_whole(world, "T001")


def test_who_may_not_land_it_is_told_why(world: World) -> None:
    ada, ben = pair(world)
    not_done(ada, "T999", code=2)
    not_done(ada, "../x", code=2)
    assert not_done(ben, "T001", code=7)["data"]["status"] == "free"
    work(ada, "T001")
    error = not_done(ben, "T001", code=3)
    assert error["data"]["holder"]["claimant"]["handle"] == "ada"
    assert not_done(ada, "T001", "--as", "other", code=3)["code"] == "held"
    wrong = not_done(ada, "T001", "--fence", "7", code=5)
    assert wrong["data"]["fence"] == 7
    assert wrong["data"]["holder"]["fence"] == 1
    assert landed(world) == []
    done(ada, "T001", "--fence", "1")


def test_a_holder_that_was_overruled_is_refused_with_both_fences(world: World) -> None:
    ada, ben = pair(world)
    branch = work(ada, "T001")
    assert ben.collaborate("takeover", "T001", "--reason", "in a hurry").code == 0
    error = refusal(ada, "collaborate", "done", "T001", code=5, says=("fence 1", "fence 2", "ben"))
    assert (error["data"]["fence"], error["data"]["holder"]["fence"]) == (1, 2)
    assert landed(world) == []
    assert ada.git("rev-parse", branch).code == 0


def test_a_zombie_cant_win_neither_by_done_nor_by_its_old_branch(world: World) -> None:
    """C3: ada's daemon sleeps past its lease, ben takes the task over and lands it."""
    ada, ben = pair(world, **SHORT)
    old = work(ada, "T001", {"T001.txt": "ada's\n"})
    pid = ada.kill_daemon(signal.SIGSTOP)
    wait_until(lambda: ben.collaborate("claim", "T001").code == 0, pause=0.2)
    new = "forge/task/T001@2"
    commit(ben, new, {"T001.txt": "ben's\n"})
    ada.git("push", "-q", "origin", old)
    done(ben, "T001")
    os.kill(pid, signal.SIGCONT)
    ada.git("push", "-q", "--force", "origin", f"{old}:refs/heads/{old}")
    for fence in ((), ("--fence", "1")):
        error = not_done(ada, "T001", *fence, code=5)
        assert (error["data"]["fence"], error["data"]["holder"]["fence"]) == (1, 2)
    assert shown(world, "T001.txt") == "ben's"
    check_whole(world, "T001")
    assert (ada.path / "T001.txt").read_text() == "ada's\n"


# Which branch


def test_the_current_branch_serves_where_there_is_no_fenced_one(world: World) -> None:
    ada = joined(world, "ada")
    claim(ada, "T001")
    error = not_done(ada, "T001", code=2)
    assert "nothing to land" in error["message"]
    assert "forge/task/T001@1" in error["message"]
    ada.git("switch", "-q", "--detach")
    not_done(ada, "T001", code=2)
    commit(ada, "forge/task/T002@1", {"other.txt": "other\n"})
    not_done(ada, "T001", code=2)
    commit(ada, "my-feature", {"mine.txt": "mine\n"})
    assert done(ada, "T001")["branch"] == "my-feature"
    assert {"mine.txt"} == files(world) & {"mine.txt", "other.txt"}
    assert "my-feature" in branches(world), "a branch of another name is never deleted"


def test_a_branch_that_is_only_on_the_remote_lands_too(world: World) -> None:
    ada, ben = pair(world)
    commit(ben, "bens-work", {"b.txt": "ben's\n"})
    ben.git("push", "-q", "origin", "bens-work")
    claim(ada, "T001")
    not_done(ada, "T001", "--branch", "nowhere", code=2)
    not_done(ada, "T001", "--branch", "--upload-pack=x", code=2)
    done(ada, "T001", "--branch", "bens-work")
    assert shown(world, "b.txt") == "ben's"
    assert world.on_origin("log", "-1", "--format=%an|%cn", "main") == "Ben|Ada"
    check_whole(world, "T001")


def test_two_authors_are_both_named(world: World) -> None:
    ada = joined(world, "ada")
    branch = work(ada, "T001")
    commit(ada, branch, {"a.txt": "a\n"})
    ada.git(
        *("commit", "-q", "--allow-empty", "-m", "helped"),
        *("--author", "Cy Öz <cy@example.org>"),
    )
    done(ada, "T001")
    assert world.on_origin("log", "-1", "--format=%an", "main") == "Ada"
    words = world.on_origin("log", "-1", "--format=%(trailers:key=Co-authored-by)", "main")
    assert words == "Co-authored-by: Cy Öz <cy@example.org>"


def test_work_that_changes_nothing_lands_as_an_empty_commit(world: World) -> None:
    ada = joined(world, "ada")
    branch = f"forge/task/T001@{claim(ada, 'T001')}"
    commit(ada, branch, {})
    before = world.on_origin("rev-parse", "main^{tree}")
    done(ada, "T001")
    assert world.on_origin("rev-parse", "main^{tree}") == before
    check_whole(world, "T001")


def test_a_preview_shows_what_would_land_and_changes_nothing(world: World) -> None:
    ada = joined(world, "ada")
    work(ada, "T001", {"a.txt": "one\n", "README": None})
    tip, state = (world.on_origin("rev-parse", r) for r in ("main", "forge/collab-state"))
    told = ada.collaborate("done", "T001", "--dry-run").data
    assert sorted(told["changes"]) == ["A\ta.txt", "D\tREADME"]
    assert told["message"].splitlines()[-1] == "Forge-Task: T001"
    assert "D\tREADME" in ada.forge("collaborate", "done", "T001", "--dry-run").out
    assert world.on_origin("rev-parse", "main") == tip
    assert world.on_origin("rev-parse", "forge/collab-state") == state
    assert branches(world) == {"main", "forge/collab-state"}
    refusal(ada, "collaborate", "done", "T001", "--dry-run", "--landed", "main", code=2)


# What a branch needs


def test_what_isnt_committed_stops_it_by_name(world: World) -> None:
    ada = joined(world, "ada")
    work(ada, "T001", {"a b.txt": "one\n"})
    (ada.path / "a b.txt").write_text("changed\n")
    (ada.path / "staged.txt").write_text("staged\n")
    ada.git("add", "staged.txt")
    error = refusal(ada, "collaborate", "done", "T001", code=7, says=("a b.txt", "staged.txt"))
    assert error["data"]["paths"] == ["a b.txt", "staged.txt"]
    assert landed(world) == []
    ada.git("stash", "push", "-q")
    (ada.path / "notes.txt").write_text("mine\n")
    ran = ada.collaborate("done", "T001")
    assert ran.code == 0, ran
    assert "notes.txt" in ran.err
    assert "notes.txt" not in files(world)


def test_the_users_pre_push_hook_decides_on_the_branch_and_sees_nothing_else(world: World) -> None:
    ada = joined(world, "ada")
    log = world.root / "pre-push.log"
    hook = ada.path / ".git" / "hooks" / "pre-push"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ncat >> {log}\necho no tests, no push >&2\nexit 1\n")
    hook.chmod(0o755)
    branch = work(ada, "T001")
    error = refusal(ada, "collaborate", "done", "T001", code=7, says=("no tests, no push",))
    assert error["data"]["branch"] == branch
    assert landed(world) == []
    assert world.lease("T001")["claimant"]["handle"] == "ada"  # type: ignore[index]
    log.write_text("")
    hook.write_text(f"#!/bin/sh\ncat >> {log}\n")
    done(ada, "T001")
    wait_until(lambda: branch not in branches(world))
    refs = {line.split(" ")[0] for line in log.read_text().splitlines()}
    assert refs == {f"refs/heads/{branch}"}, "the landing's own pushes run no hook"


def test_a_refused_deletion_of_the_branch_doesnt_refuse_the_landing(world: World) -> None:
    ada = joined(world, "ada")
    branch = work(ada, "T001")
    set_hook(
        world,
        "update",
        'case "$1:$3" in refs/heads/forge/task/*:0000*) echo no deletions; exit 1;; esac',
    )
    done(ada, "T001")
    check_whole(world, "T001")
    assert done(ada, "T001")["already"]
    assert branch in branches(world)


def test_a_branch_somebody_pushed_further_is_not_overwritten(world: World) -> None:
    ada, ben = pair(world)
    branch = work(ada, "T001")
    ada.git("push", "-q", "origin", branch)
    ben.git("fetch", "-q", "origin")
    ben.git("switch", "-q", branch)
    commit(ben, branch, {"ben.txt": "help\n"})
    ben.git("push", "-q", "origin", branch)
    commit(ada, branch, {"ada.txt": "more\n"})
    error = refusal(ada, "collaborate", "done", "T001", code=7, says=("git pull --rebase",))
    assert error["data"]["branch"] == branch
    assert landed(world) == []
    ada.git("pull", "-q", "--rebase", "origin", branch)
    done(ada, "T001")
    assert {"ben.txt", "ada.txt", "T001.txt"} <= files(world)


def test_forges_own_files_in_a_branch_stay_out_of_the_target(world: World) -> None:
    ada = joined(world, "ada")
    own = {".forge/collab/notes.md": "mine\n", ".forge/state.md": "mine\n", "w.txt": "work\n"}
    work(ada, "T001", own)
    done(ada, "T001")
    assert {".forge/collab/notes.md", ".forge/state.md", "w.txt"} & files(world) == {"w.txt"}


def test_a_hostile_title_cant_say_that_another_task_has_landed(world: World) -> None:
    title = "x\\n\\nForge-Task: T009\\nForge-Uid: y"
    seed = {"T005": f'id: T005\ntitle: "Forge-Task: T009 {"y" * 150}"\n'}
    put_on_main(world, {f".forge/tasks/{k}.yaml": v for k, v in seed.items()})
    ada = joined(world, "ada")
    bad = ada.forge("task", "add", title.encode().decode("unicode_escape"), "--json")
    assert bad.code == 2, bad
    branch = work(ada, "T005")
    ada.git("commit", "-q", "--amend", "-m", "Forge-Task: T008\n\nForge-Task: T007")
    assert ada.git("branch", "--show-current").out.strip() == branch
    done(ada, "T005")
    assert landed(world) == [("T005", 1)]
    assert record(world, "T005")["status"] == "done"
