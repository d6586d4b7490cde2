"""C10, the user's git: nothing of it changes, however busy forge is in the same clone."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Clone, World, bytes_below, put_on_main, wait_until

from forge_collab.cli.client import Client

HOOKS = (
    *("applypatch-msg", "commit-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout"),
    *("post-commit", "post-merge", "post-rewrite", "pre-applypatch", "pre-auto-gc", "pre-commit"),
    *("pre-merge-commit", "pre-push", "pre-rebase", "prepare-commit-msg", "push-to-checkout"),
    *("reference-transaction", "sendemail-validate", "post-index-change", "update"),
    *("pre-receive", "post-receive", "post-update", "proc-receive"),
)
STATE_FILE = re.compile(
    r"meta\.json|(participants|leases|tasks)/[\w.%-]+\.json|messages/[0-9a-f]{16}\.jsonl"
    r"|audit/[0-9a-f]{16}/\d+\.jsonl|shared/[\w./-]+"
)


def put_hooks(folder: Path, log: Path) -> None:
    """Hooks of every kind that note that they ran, and forbid what was to happen."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in HOOKS:
        hook = folder / name
        hook.write_text(f"#!/bin/sh\necho {name} >> '{log}'\nexit 1\n")
        hook.chmod(0o755)


def user_files(clone: Clone) -> dict[str, bytes]:
    """Every byte of the user's clone, but for what is forge's by agreement.

    (No file of these projects is in `.forge/collab`.)
    """
    git = clone.path / ".git"
    return bytes_below(
        clone.path,
        git / "forge",
        git / "info" / "exclude",
        clone.path / ".forge" / "collab",
    )


@contextmanager
def watched(git_dir: Path) -> Iterator[set[str]]:
    """The names that are seen in `git_dir` meanwhile; complete when the block has ended."""
    seen: set[str] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            seen.update(path.name for path in git_dir.iterdir())
            is_over.wait(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def in_the_middle_of_things(world: World) -> Clone:
    """A clone with a stash, a submodule, a half-staged conflicted rebase and a dirty tree."""
    clone = world.clone("ada", forge__poll_seconds="0.1", forge__idle_poll_seconds="0.1")
    library = world.root / "library"
    world.run("git", "init", "-q", "-b", "main", str(library))
    (library / "lib.c").write_text("int one;\n")
    world.run("git", "add", "-A", cwd=library)
    world.run("git", "commit", "-q", "-m", "a library", cwd=library)
    text = [f"line {n}" for n in range(40)]

    def write(name: str, *changed: int, to: str = "changed") -> None:
        lines = [to if n in changed else line for n, line in enumerate(text)]
        (clone.path / name).write_text("\n".join(lines) + "\n")

    write("a.txt")
    write("b.txt")
    clone.git(
        *("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "vendor")
    )
    clone.git("add", "-A")
    clone.git("commit", "-q", "-m", "two texts and a library")
    write("a.txt", 3, to="stashed")
    clone.git("stash", "push", "-q", "-m", "for later")
    clone.git("switch", "-q", "-c", "topic")
    write("a.txt", 10, to="mine")
    clone.git("commit", "-q", "-am", "mine")
    write("b.txt", 20, to="mine too")
    clone.git("commit", "-q", "-am", "mine too")
    clone.git("switch", "-q", "main")
    write("a.txt", 10, to="theirs")
    clone.git("commit", "-q", "-am", "theirs")
    clone.git("switch", "-q", "topic")
    assert clone.git("rebase", "-q", "main", check=False).code != 0
    write("b.txt", 1, to="staged")
    clone.git("add", "b.txt")
    write("b.txt", 1, 30, to="staged and more")
    (clone.path / "untracked.txt").write_text("mine alone\n")
    (clone.path / "vendor" / "lib.c").write_text("int two;\n")
    assert (clone.path / ".git" / "rebase-merge").is_dir()
    return clone


@pytest.mark.parametrize("where", ["in the clone", "by a global core.hooksPath"])
def test_nothing_of_the_users_changes_while_forge_is_busy(world: World, where: str) -> None:
    clone = in_the_middle_of_things(world)
    other = world.clone("ben")
    git, log = clone.path / ".git", world.root / "hooks.log"
    if where == "in the clone":
        put_hooks(git / "hooks", log)
    else:
        put_hooks(world.root / "hooks", log)
        world.run("git", "config", "--global", "core.hooksPath", str(world.root / "hooks"))
        # The server and the teammate who moves the target aren't this user.
        world.on_origin("config", "core.hooksPath", "/dev/null")
        world.run("git", "config", "core.hooksPath", "/dev/null", cwd=world.root / "seed")
    (git / "FETCH_HEAD").unlink(missing_ok=True)
    before = user_files(clone)
    names = {path.name for path in git.iterdir()}
    when = {name: (git / name).stat().st_mtime_ns for name in ("index", "HEAD", "config")}

    with watched(git) as seen:
        clone.start()
        assert clone.collaborate("claim", "T001").code == 0
        assert other.forge("collaborate", "start", "--handle", "ben").code == 0
        assert other.collaborate("claim", "T002").code == 0
        put_on_main(world, {"news.txt": "the target moves\n"})
        assert clone.collaborate("renew", "T001").code == 0
        assert clone.collaborate("note", "T001", "still at it").code == 0
        assert clone.collaborate("takeover", "T002", "--reason", "ben sleeps").code == 0
        assert clone.collaborate("release", "T001").code == 0
        assert clone.collaborate("claim", "--next").data["task"] == "T001"
        assert clone.forge("task", "add", "One more", "--json").code == 0
        for look in (["status"], ["log"], ["recover"]):
            assert clone.collaborate(*look).code == 0
        assert clone.forge("task", "list").code == 0
        assert clone.forge("doctor").code in (0, 1)
        assert clone.forge("daemon", "stop").code == 0
        assert clone.collaborate("renew", "T001").code == 0
        state = clone.forge_dir / "state.git" / "refs" / "forge" / "state"
        tip = world.on_origin("rev-parse", "forge/collab-state")
        wait_until(lambda: state.read_text().strip() == tip)

    after = user_files(clone)
    assert not log.exists(), log.read_text()
    assert sorted(after.keys() ^ before.keys()) == []
    assert [name for name in before if before[name] != after[name]] == []
    own = {path.name for path in (clone.path / ".forge" / "collab").iterdir()}
    assert own == {"participant.json", ".enabled"}
    assert when == {name: (git / name).stat().st_mtime_ns for name in when}
    assert seen - names == {"forge"}, "no index.lock, no FETCH_HEAD, no shallow, no temporary file"

    assert clone.collaborate("leave").code == 0
    assert user_files(clone) == before
    assert not log.exists(), log.read_text()


def test_a_work_tree_of_its_own_index_is_left_alone_too(world: World) -> None:
    clone = world.clone("ada")
    tree = world.root / "tree"
    clone.git("worktree", "add", "-q", str(tree), "-b", "two")
    (tree / "README").write_text("changed\n")
    there = Clone(tree, clone.environ, "ada")
    there.git("add", "README")
    mine = clone.path / ".git" / "worktrees"
    before = bytes_below(mine)
    there.start()
    assert there.collaborate("claim", "T001").code == 0
    assert there.collaborate("note", "T001", "hello").code == 0
    assert there.collaborate("release", "T001").code == 0
    assert bytes_below(mine) == before


def test_state_commits_hold_nothing_but_state(world: World) -> None:
    clone = world.clone("ada")
    (clone.path / "secret.txt").write_text("not for everybody\n")
    clone.git("add", "secret.txt")
    clone.start()
    assert clone.collaborate("claim", "T001").code == 0
    assert clone.collaborate("note", "T001", "hello").code == 0
    assert clone.forge("task", "add", "One more", "--json").code == 0
    assert clone.collaborate("release", "T001").code == 0
    commits = world.on_origin("rev-list", "forge/collab-state").splitlines()
    assert len(commits) >= 5
    for commit in commits:
        for line in world.on_origin("ls-tree", "-r", commit).splitlines():
            mode, kind, rest = line.split(" ", 2)
            assert (mode, kind) == ("100644", "blob")
            assert STATE_FILE.fullmatch(rest.partition("\t")[2]), line
        subject = world.on_origin("log", "-1", "--format=%s", commit)
        assert subject.endswith("[skip ci]"), subject
    mixed = world.on_origin("rev-list", "forge/collab-state", "^main")
    assert mixed.splitlines() == commits, "the state branch has a history of its own"
    heads = world.on_origin("for-each-ref", "--format=%(refname)").splitlines()
    assert heads == ["refs/heads/forge/collab-state", "refs/heads/main"]


@pytest.mark.parametrize("is_init", [False, True], ids=["without init", "after init"])
def test_git_status_is_clean_after_start(world: World, is_init: bool) -> None:
    clone = world.clone("ada")
    if is_init:
        assert clone.forge("init").code == 0
        clone.git("add", "-A")
        clone.git("commit", "-q", "-m", "forge init")
    assert clone.git("status", "--porcelain").out == ""
    clone.start()
    assert clone.collaborate("claim", "T001").code == 0
    assert clone.git("status", "--porcelain", "--untracked-files=all").out == ""
    clone.git("add", "-A")
    assert clone.git("diff", "--cached", "--name-only").out == ""
    assert clone.collaborate("leave").code == 0
    assert clone.git("status", "--porcelain", "--untracked-files=all").out == ""


@pytest.mark.timeout(400)
def test_500_renewals_cost_four_objects_each_and_the_clone_nothing(world: World) -> None:
    clone = world.clone("ada")
    clone.start()
    for task in ("T001", "T002", "T003"):
        assert clone.collaborate("claim", task).code == 0
    before = user_files(clone)
    objects, commits = _objects(world), _commits(world)

    rounds = 500
    with _connected(clone) as daemon:
        daemon.call("hello", {"version": "0", "environ": {}})
        for _ in range(rounds):
            answer = daemon.call("renew", {"task": "T001", "worker": "main", "fence": 1})
            assert answer["renewed"]

    pushed = _commits(world) - commits
    assert rounds <= pushed <= rounds + 20, "one commit renews all three leases"
    assert _objects(world) - objects <= 4 * pushed
    after = user_files(clone)
    assert sorted(after.keys() ^ before.keys()) == []
    assert [name for name in before if before[name] != after[name]] == []
    assert not (clone.path / ".git" / "shallow").exists()
    assert not (clone.path / ".git" / "FETCH_HEAD").exists()


@pytest.mark.lfs
@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
def test_the_hooks_of_git_lfs_do_not_run_for_a_push_of_the_state(world: World) -> None:
    clone = world.clone("ada")
    clone.git("lfs", "install", "--local")
    hook = clone.path / ".git" / "hooks" / "pre-push"
    assert "git lfs pre-push" in hook.read_text()
    ran = clone.path / ".git" / "ran"
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n" + hook.read_text().partition("\n")[2])
    clone.start()
    assert clone.collaborate("claim", "T001").code == 0
    assert world.lease("T001") is not None
    assert not ran.exists()
    clone.git("push", "-q", "origin", "HEAD:refs/heads/mine")
    assert ran.exists(), "it does run for the user's own push"


def _objects(world: World) -> int:
    told = world.on_origin("cat-file", "--batch-all-objects", "--batch-check", "--unordered")
    return len(told.splitlines())


def _commits(world: World) -> int:
    return int(world.on_origin("rev-list", "--count", "forge/collab-state"))


@contextmanager
def _connected(clone: Clone) -> Iterator[Client]:
    import socket

    connection = socket.socket(socket.AF_UNIX)
    connection.connect((clone.forge_dir / "socket").read_text().strip())
    with Client(connection) as daemon:
        yield daemon
