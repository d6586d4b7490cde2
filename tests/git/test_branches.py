"""The user's branches: read, checked and pushed as they are, and never moved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gitworld import World, listing

from forge_collab.core.errors import BlockedError, UnavailableError
from forge_collab.git import branches
from forge_collab.git.branches import Uncommitted
from forge_collab.git.repository import Repository, discover

WORK = "forge/task/T1@1"


@pytest.fixture
def clone(world: World) -> Path:
    made = world.clone()
    world.git("switch", "-q", "-c", WORK, cwd=made)
    world.git("commit", "-q", "--allow-empty", "-m", "work", cwd=made)
    return made


def repository(world: World, place: Path) -> Repository:
    return discover(place, world.environ)


def push(world: World, clone: Path, remote: str = "origin") -> None:
    branches.push(repository(world, clone), clone, remote=remote, branch=WORK)


def test_the_tip_is_the_branchs_whatever_else_has_its_name(world: World, clone: Path) -> None:
    head = world.git("rev-parse", "HEAD", cwd=clone)
    world.git("tag", WORK, "main", cwd=clone)
    world.git("update-ref", "refs/remotes/origin/only-there", "main", cwd=clone)
    found = repository(world, clone)
    assert branches.tip(found, WORK) == head
    for name in ("only-there", "none", "HEAD", head):
        assert branches.tip(found, name) is None, name


def test_the_work_tree_of_a_branch_is_found_from_every_other(world: World, clone: Path) -> None:
    other = world.place / "a folder\nwith a line break"
    world.git("worktree", "add", "-q", "-b", "other", str(other), cwd=clone)
    world.git("switch", "-q", "--detach", cwd=clone)
    for place in (clone, other):
        assert branches.work_tree_of(repository(world, place), "other") == other
        assert branches.work_tree_of(repository(world, place), WORK) is None


def test_a_work_tree_whose_folder_is_gone_is_none(world: World, clone: Path) -> None:
    other = world.place / "other"
    world.git("worktree", "add", "-q", "-b", "other", str(other), cwd=clone)
    shutil.rmtree(other)
    assert branches.work_tree_of(repository(world, clone), "other") is None


def test_a_rebase_under_way_is_noticed_from_every_work_tree(world: World, clone: Path) -> None:
    other = world.place / "other"
    world.git("worktree", "add", "-q", "-b", "other", str(other), cwd=clone)
    for name, place in (("mine", clone), ("theirs", other)):
        (place / "file").write_text(f"{name}\n")
        world.git("add", "file", cwd=place)
        world.git("commit", "-q", "-m", name, cwd=place)
    assert not branches.is_being_rebased(repository(world, clone), "other")
    with pytest.raises(AssertionError):
        world.git("rebase", "-q", WORK, cwd=other)
    for place in (clone, other):
        assert branches.is_being_rebased(repository(world, place), "other")
        assert not branches.is_being_rebased(repository(world, place), WORK)
    world.git("rebase", "--abort", cwd=other)
    assert not branches.is_being_rebased(repository(world, clone), "other")


def test_what_no_commit_has_is_named_and_what_is_ignored_is_not(world: World, clone: Path) -> None:
    for name in ("changed", "gone", "moved", "with\nbreak", "café"):
        (clone / name).write_text(name)
    (clone / ".gitignore").write_text("ignored\n")
    world.git("add", "-A", cwd=clone)
    world.git("commit", "-q", "-m", "files", cwd=clone)
    found = repository(world, clone)
    assert branches.uncommitted(found, clone) == Uncommitted()
    for name in ("changed", "with\nbreak", "café", "untracked", "ignored"):
        (clone / name).write_text("new")
    (clone / "folder").mkdir()
    (clone / "folder" / "untracked").write_text("new")
    (clone / "gone").unlink()
    world.git("mv", "moved", "there", cwd=clone)
    before = (clone / ".git" / "index").read_bytes()
    left = branches.uncommitted(found, clone)
    assert sorted(left.changed) == sorted(
        ["changed", "gone", "moved", "there", "with\nbreak", "café"]
    )
    assert sorted(left.untracked) == ["folder/", "untracked"]
    assert (clone / ".git" / "index").read_bytes() == before


@pytest.mark.parametrize("setting", ["push.followTags=true", "push.default=matching"])
def test_the_branch_is_pushed_and_nothing_else(world: World, clone: Path, setting: str) -> None:
    world.config(*setting.split("=", 1))
    world.git("tag", "-a", "-m", "a tag", "v1", cwd=clone)
    world.git("switch", "-q", "main", cwd=clone)
    world.git("commit", "-q", "--allow-empty", "-m", "not to be pushed", cwd=clone)
    main = world.tip("refs/heads/main")
    push(world, clone)
    assert world.tip(f"refs/heads/{WORK}") == world.git("rev-parse", WORK, cwd=clone)
    assert world.tip("refs/heads/main") == main
    assert world.tip("refs/tags/v1") is None
    push(world, clone)


def test_a_branch_that_others_pushed_further_is_not_overwritten(world: World, clone: Path) -> None:
    push(world, clone)
    theirs = world.put({b"more": b"more"}, ref=f"refs/heads/{WORK}")
    world.git("commit", "-q", "--amend", "--allow-empty", "-m", "otherwise", cwd=clone)
    with pytest.raises(BlockedError, match="doesn't have") as caught:
        push(world, clone)
    assert "git pull --rebase origin" in (caught.value.hint or "")
    assert world.tip(f"refs/heads/{WORK}") == theirs


@pytest.mark.parametrize("whose", ["the user's", "the server's"])
def test_a_hook_that_says_no_is_quoted_in_one_line(world: World, clone: Path, whose: str) -> None:
    script = "echo the tests fail >&2; echo in two lines >&2; exit 1"
    if whose == "the user's":
        hook = clone / ".git" / "hooks" / "pre-push"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\n{script}\n")
        hook.chmod(0o755)
    else:
        world.hook("pre-receive", script)
    before = listing(clone)
    with pytest.raises(BlockedError, match="the tests fail in two lines") as caught:
        push(world, clone)
    assert "\n" not in caught.value.message
    assert world.tip(f"refs/heads/{WORK}") is None
    assert listing(clone) == before


def test_a_remote_that_is_out_of_reach_is_offline(world: World, clone: Path) -> None:
    world.origin.rename(world.place / "moved.git")
    with pytest.raises(UnavailableError, match="couldn't be pushed"):
        push(world, clone)
