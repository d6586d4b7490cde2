"""A landing takes nothing from the user's git and puts nothing there; any kind of clone lands."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Clone, World, bytes_below, put_on_main, refusal, wait_until
from landworld import (
    branches,
    check_whole,
    claim,
    commit,
    done,
    files,
    joined,
    landed,
    named,
    not_done,
    shown,
    work,
)

# Without pre-push and reference-transaction: the user's own push of the branch runs those.
HOOKS = (
    *("applypatch-msg", "commit-msg", "post-checkout", "post-commit", "post-merge"),
    *("post-rewrite", "pre-auto-gc", "pre-commit", "pre-merge-commit", "pre-rebase"),
    *("prepare-commit-msg", "post-index-change", "update"),
    *("pre-receive", "post-receive", "post-update", "proc-receive", "push-to-checkout"),
)


def users_git(clone: Clone, *without: str) -> dict[str, bytes]:
    """Every byte of the clone but forge's own, and what the user's own push of a branch writes."""
    git = clone.path / ".git"
    own = (git / "forge", git / "info" / "exclude", clone.path / ".forge" / "collab")
    return bytes_below(clone.path, *own, *(git / name for name in without))


def test_nothing_of_the_users_changes_by_a_landing(world: World) -> None:
    ada = joined(world, "ada")
    branch = work(ada, "T001", {"a.txt": "".join(f"line {n}\n" for n in range(9))})
    ada.git("push", "-q", "origin", branch)
    ada.git("switch", "-q", "-c", "topic", "origin/main")
    (ada.path / "README").write_text("stashed\n")
    ada.git("stash", "push", "-q", "-m", "for later")
    (ada.path / "README").write_text("staged\n")
    ada.git("add", "README")
    (ada.path / "README").write_text("staged and more\n")
    (ada.path / "a.txt").write_text("mine, not tracked\n")
    put_on_main(world, {"news.txt": "the target moves\n"})
    log = world.root / "hooks.log"
    for name in HOOKS:
        hook = ada.path / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho {name} >> '{log}'\nexit 1\n")
        hook.chmod(0o755)
    (ada.path / ".git" / "FETCH_HEAD").unlink(missing_ok=True)
    before = users_git(ada)
    when = {n: (ada.path / ".git" / n).stat().st_mtime_ns for n in ("index", "HEAD", "config")}
    done(ada, "T001")
    wait_until(lambda: branch not in branches(world))
    assert users_git(ada) == before
    assert when == {n: (ada.path / ".git" / n).stat().st_mtime_ns for n in when}
    assert not log.exists(), log.read_text()
    assert "news.txt" in files(world)
    assert shown(world, "a.txt").startswith("line 0")
    assert ada.git("stash", "list").out.count("\n") == 1


def test_a_work_tree_of_its_own_lands_while_another_is_dirty(world: World) -> None:
    ada = joined(world, "ada")
    fence = claim(ada, "T001")
    branch = f"forge/task/T001@{fence}"
    tree = ada.path / ".forge" / "worktrees" / "T001" / str(fence)
    ada.git("worktree", "add", "-q", "-b", branch, str(tree), "origin/main")
    there = Clone(tree, ada.environ, "ada")
    (tree / "there.txt").write_text("there\n")
    there.git("add", "-A")
    there.git("commit", "-q", "-m", "work")
    (tree / "there.txt").write_text("not yet committed\n")
    (ada.path / "README").write_text("dirty\n")
    error = not_done(ada, "T001")
    assert error["data"]["paths"] == ["there.txt"]
    there.git("checkout", "-q", "--", "there.txt")
    told = there.collaborate("done", "T001", "--as", "main")
    assert told.code == 0, told
    check_whole(world, "T001")
    assert (ada.path / "README").read_text() == "dirty\n"
    assert (tree / "there.txt").exists(), "the work tree is kept"


def with_history(world: World) -> None:
    """Some history on main, and a server that serves parts of it."""
    world.on_origin("config", "uploadpack.allowFilter", "true")
    for n in range(6):
        put_on_main(world, {"history.txt": f"{n}\n", f"h{n}.txt": f"{n}\n"})


def url_clone(world: World, name: str, *flags: str) -> Clone:
    """A joined clone by a `file://` URL, which git needs for what isn't whole."""
    path = world.root / name
    world.run("git", "clone", "-q", *flags, world.origin.as_uri(), str(path))
    clone = Clone(path, dict(world.environ), name)
    world.clones.append(clone)
    for key in ("forge.poll-seconds", "forge.idle-poll-seconds"):
        clone.git("config", key, "0.4")
    named(clone, name)
    clone.start()
    return clone


def test_a_shallow_clone_lands_on_a_target_that_moved_and_stays_as_shallow(world: World) -> None:
    with_history(world)
    ada = url_clone(world, "ada", "--depth=1")
    shallow = ada.path / ".git" / "shallow"
    branch = f"forge/task/T001@{claim(ada, 'T001')}"
    ada.git("switch", "-q", "--no-track", "-c", branch, "origin/main")
    commit(ada, branch, {"history.txt": "5\nada\n"})
    before = shallow.read_bytes()
    for n in range(3):
        put_on_main(world, {"later.txt": f"{n}\n"})
    done(ada, "T001")
    assert shallow.read_bytes() == before
    assert ada.git("rev-list", "--count", branch).out.strip() == "2"
    assert shown(world, "history.txt") == "5\nada"
    assert shown(world, "later.txt") == "2"
    check_whole(world, "T001")


def test_a_partial_clone_lands_on_a_target_that_moved(world: World) -> None:
    with_history(world)
    put_on_main(world, {"docs/.gitattributes": "*.txt merge=union\n", "docs/log.txt": "one\n"})
    ada = url_clone(world, "ada", "--filter=blob:none", "--no-checkout")
    ada.git("switch", "-q", "main")
    work(ada, "T001", {"docs/log.txt": "one\nada\n", "h0.txt": None})
    put_on_main(world, {"docs/log.txt": "one\nothers\n"})
    done(ada, "T001")
    assert sorted(shown(world, "docs/log.txt").split("\n")) == ["ada", "one", "others"]
    assert "h0.txt" not in files(world)
    check_whole(world, "T001")
    kinds = ada.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").out
    assert kinds.count("blob") < 20, "it is as partial as it was"


def test_a_union_merge_is_the_targets_wherever_the_user_is(world: World) -> None:
    put_on_main(world, {"docs/.gitattributes": "*.txt merge=union\n", "docs/log.txt": "one\n"})
    ada = joined(world, "ada")
    ada.git("fetch", "-q", "origin")
    (ada.path / ".git" / "info").mkdir(exist_ok=True)
    (ada.path / ".git" / "info" / "attributes").write_text("*.txt -merge\n")
    mine = world.root / "attributes"
    mine.write_text("* -merge\n")
    ada.git("config", "core.attributesFile", str(mine))
    ada.git("config", "merge.default", "binary")
    branch = work(ada, "T001", {"docs/log.txt": "one\nada\n"})
    put_on_main(world, {"docs/log.txt": "one\nothers\n"})
    ada.git("switch", "-q", "--orphan", "elsewhere")
    done(ada, "T001", "--branch", branch)
    assert shown(world, "docs/log.txt").split("\n") == ["one", "others", "ada"]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_who_signs_commits_signs_landings_and_who_cant_is_told(world: World) -> None:
    key = world.root / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    ada = joined(world, "ada")
    ada.git("config", "gpg.format", "ssh")
    branch = work(ada, "T001")
    ada.git("config", "commit.gpgSign", "true")
    ada.git("config", "user.signingKey", str(world.root / "lost"))
    error = refusal(ada, "collaborate", "done", "T001", code=7, says=("can't be signed", "lost"))
    assert error["data"]["status"] == "unsigned"
    assert ada.collaborate("done", "T001", "--dry-run").code == 0, "a look signs nothing"
    assert landed(world) == []
    ada.git("config", "user.signingKey", str(key))
    done(ada, "T001", "--branch", branch)
    allowed = world.root / "allowed"
    allowed.write_text(f"ada@example.org {Path(f'{key}.pub').read_text()}")
    ada.git("fetch", "-q", "origin")
    verified = ada.git(
        *("-c", f"gpg.ssh.allowedSignersFile={allowed}", "verify-commit", "origin/main")
    )
    assert "Good" in verified.err
    check_whole(world, "T001")


@pytest.mark.lfs
@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
def test_what_git_lfs_keeps_has_arrived_when_the_work_lands(world: World) -> None:
    ada = joined(world, "ada")
    ada.git("lfs", "install", "--local")
    ada.git("lfs", "track", "*.bin")
    tracked = (ada.path / ".gitattributes").read_text()
    text = "large\n" * 1000
    branch = work(ada, "T001", {".gitattributes": tracked, "large.bin": text})
    done(ada, "T001")
    pointer = shown(world, "large.bin")
    assert "git-lfs" in pointer
    oid = pointer.split("sha256:")[1].split()[0]
    kept = world.origin / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
    assert kept.read_text() == text
    assert ada.git("branch", "--list", branch).out
    reader = world.clone("reader")
    reader.git("lfs", "install", "--local")
    reader.git("lfs", "pull")
    assert (reader.path / "large.bin").read_text() == text
