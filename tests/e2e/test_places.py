"""Clones and remotes of every kind that people have, and what is said where forge can't work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Clone, World, clean_environ, put_on_main, refusal
from e2e.httpremote import serving

SECRET = "S3cret-w0rd"
NewWorld = Callable[..., World]


@pytest.fixture
def new_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewWorld]:
    """Makes a world whose origin has one task, on a branch and in a folder of a name of choice."""
    made: list[World] = []

    def make(branch: str = "main", folder: str = "p") -> World:
        root = tmp_path_factory.mktemp("p") / folder
        root.mkdir(exist_ok=True)
        world = World(root, clean_environ(root))
        world.make_origin({"T001": "id: T001\ntitle: One\n"}, branch)
        made.append(world)
        return world

    yield make
    for world in made:
        world.end()
        shutil.rmtree(world.root, ignore_errors=True)


def check_works(world: World, clone: Clone, target: str = "main") -> None:
    """The whole round: the plan is read, a task is taken, kept and given back."""
    about = clone.start()
    assert about["target"] == target
    assert about["claimable"] == ["T001"]
    assert clone.collaborate("claim", "T001").data["lease"]["fence"] == 1
    assert (world.lease("T001") or {})["claimant"]["handle"] == clone.handle
    assert clone.collaborate("note", "T001", "grüße").code == 0
    assert clone.collaborate("release", "T001").code == 0
    status = clone.collaborate("status").data
    assert (status["class"], status["online"], status["warnings"]) == ("healthy", True, [])
    assert clone.git("status", "--porcelain").out == ""


# Clones of every kind


def test_a_clone_without_a_git_identity(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    (world.root / "home" / ".gitconfig").write_text("[user]\n\tuseConfigOnly = true\n")
    check_works(world, clone)
    author = world.on_origin("log", "-1", "--format=%an <%ae>", "forge/collab-state")
    assert author == "forge <forge@localhost>"


def test_a_handle_is_found_for_a_clone_without_a_git_identity(new_world: NewWorld) -> None:
    clone = new_world().clone("ada")
    Path(clone.environ["GIT_CONFIG_GLOBAL"]).write_text("")
    assert clone.collaborate("start").data["me"]["handle"]


def test_a_detached_head(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    clone.git("switch", "-q", "--detach")
    check_works(world, clone)


def test_a_linked_work_tree_and_a_sub_folder_of_it(new_world: NewWorld) -> None:
    world = new_world()
    main = world.clone("ada")
    main.git("worktree", "add", "-q", str(world.root / "tree"), "-b", "two")
    there = Clone(world.root / "tree", main.environ, "ada")
    check_works(world, there)
    (there.path / "deep" / "er").mkdir(parents=True)
    inside = Clone(there.path / "deep" / "er", main.environ, "ada")
    claimant = inside.collaborate("claim", "T001").data["lease"]["claimant"]
    assert claimant["worker"].startswith("worktree:")


def test_a_path_with_spaces_and_umlauts(new_world: NewWorld) -> None:
    world = new_world(folder="Schöne Grüße, 'quoted' $HOME")
    check_works(world, world.clone("ada"))
    second = world.clone("zwei Wörter")
    second.handle = "ben"
    assert second.start()["session"]


@pytest.mark.parametrize("branch", ["master", "trunk", "release/next"])
def test_a_default_branch_of_another_name(new_world: NewWorld, branch: str) -> None:
    world = new_world(branch)
    check_works(world, world.clone("ada"), target=branch)


def test_a_shallow_clone_stays_as_shallow_as_it_is(new_world: NewWorld) -> None:
    world = new_world()
    for n in range(3):
        put_on_main(world, {"README": f"{n}\n"})
    path = world.root / "ada"
    world.run("git", "clone", "-q", "--depth", "1", world.origin.as_uri(), str(path))
    clone = Clone(path, world.environ, "ada")
    world.clones.append(clone)
    shallow = (path / ".git" / "shallow").read_bytes()
    put_on_main(world, {"README": "more\n"})
    check_works(world, clone)
    assert (path / ".git" / "shallow").read_bytes() == shallow
    assert clone.git("rev-list", "--count", "HEAD").out == "1\n"
    put_on_main(world, {".forge/tasks/T002.yaml": "id: T002\ntitle: Two\n"})
    assert clone.collaborate("claim", "T002").code == 0, "the moved target is read"


def test_a_partial_clone_reads_the_plan(new_world: NewWorld) -> None:
    world = new_world()
    world.on_origin("config", "uploadpack.allowFilter", "true")
    world.on_origin("config", "uploadpack.allowAnySHA1InWant", "true")
    path = world.root / "ada"
    flags = ("--filter=blob:none", "--no-checkout")
    world.run("git", "clone", "-q", *flags, world.origin.as_uri(), str(path))
    clone = Clone(path, world.environ, "ada")
    world.clones.append(clone)
    clone.git("sparse-checkout", "set", "--no-cone", "/README")
    clone.git("checkout", "-q")
    assert not (path / ".forge").exists()
    objects = set(_objects(clone))
    check_works(world, clone)
    put_on_main(world, {".forge/tasks/T002.yaml": "id: T002\ntitle: Two\n"})
    assert clone.collaborate("claim", "T002").code == 0
    assert set(_objects(clone)) == objects, "the clone itself got no object"


def _objects(clone: Clone) -> list[str]:
    folder = clone.path / ".git" / "objects"
    return [str(path) for path in folder.rglob("*") if path.is_file()]


# Remotes of every kind


def test_a_repo_local_ssh_command_is_used_for_state_pushes(new_world: NewWorld) -> None:
    world = new_world()
    log, script = world.root / "ssh.log", world.root / "my ssh"
    script.write_text(
        f"#!/bin/sh\n[ \"$1\" = -G ] && exit 0\nprintf '%s\\n' \"$*\" >> '{log}'\n"
        'for last; do :; done\nexec sh -c "$last"\n'
    )
    script.chmod(0o755)
    clone = world.clone("ada")
    clone.git("remote", "set-url", "origin", f"ssh://git@host.test{world.origin}")
    clone.git("config", "core.sshCommand", f"'{script}' -i my-key")
    check_works(world, clone)
    lines = log.read_text().splitlines()
    assert all("-i my-key" in line and "git@host.test" in line for line in lines)
    assert [line for line in lines if "git-receive-pack" in line]
    assert [line for line in lines if "git-upload-pack" in line]


def test_a_repo_local_credential_helper_is_used(new_world: NewWorld) -> None:
    world = new_world()
    helper = world.root / "helper"
    helper.write_text(f"#!/bin/sh\n[ $1 = get ] && printf 'username=ada\\npassword={SECRET}\\n'\n")
    helper.chmod(0o755)
    with serving(world.root, password=SECRET) as server:
        clone = world.clone("ada")
        clone.git("remote", "set-url", "origin", server.url("origin.git"))
        refusal(clone, "collaborate", "start", code=4)
        clone.git("config", "credential.helper", str(helper))
        check_works(world, clone)
        pushes = [who for _, path, who in server.asked if path.endswith("/git-receive-pack")]
        assert "ada" in pushes
        clone.collaborate("leave")
    _check_secret_is_nowhere(clone)


def test_a_relative_remote(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    clone.git("remote", "set-url", "origin", "../origin.git")
    clone.git("worktree", "add", "-q", str(world.root / "elsewhere" / "tree"), "-b", "two")
    check_works(world, clone)
    (clone.path / "deep").mkdir()
    assert clone.forge("-C", "deep", "collaborate", "status", "--json").data["online"]
    tree = Clone(world.root / "elsewhere" / "tree", clone.environ, "ada")
    assert tree.collaborate("claim", "T001").code == 0


def test_insteadof_and_pushinsteadof(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    clone.git("remote", "set-url", "origin", "work:origin.git")
    clone.git("config", f"url.{world.root}/.insteadOf", "work:")
    check_works(world, clone)
    plain = world.clone("ben")
    session = clone.collaborate("status").data["session"]
    assert plain.start()["session"] == session


def test_another_remote_by_configuration(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    clone.git("remote", "rename", "origin", "shared")
    says = ("no remote called 'origin'", "forge.remote")
    assert refusal(clone, "collaborate", "start", code=9, says=says)["code"] == "environment"
    clone.git("config", "forge.remote", "shared")
    check_works(world, clone)


# What can't be, and what is said then


def test_a_remote_without_branches(new_world: NewWorld) -> None:
    world = new_world()
    world.run("git", "init", "-q", "--bare", str(world.root / "empty.git"))
    clone = world.clone("ada")
    clone.git("remote", "set-url", "origin", str(world.root / "empty.git"))
    says = ("no branches yet", "push a first commit")
    error = refusal(clone, "collaborate", "start", code=7, says=says)
    assert error["code"] == "blocked"
    _check_nothing_was_begun(clone)
    clone.git("push", "-q", "origin", "main")
    assert clone.start()["claimable"] == ["T001"]


def test_a_branch_called_forge_on_the_remote(new_world: NewWorld) -> None:
    world = new_world()
    world.on_origin("branch", "forge", "main")
    clone = world.clone("ada")
    says = ("a branch called 'forge'", "forge.state-ref")
    error = refusal(clone, "collaborate", "start", code=9, says=says)
    assert error["code"] == "environment"
    _check_nothing_was_begun(clone)
    clone.git("config", "forge.state-ref", "refs/heads/coordination")
    assert clone.start()["claimable"] == ["T001"]
    assert world.on_origin("rev-parse", "coordination")


def test_no_remote(new_world: NewWorld) -> None:
    clone = new_world().clone("ada")
    clone.git("remote", "remove", "origin")
    says = ("no remote called 'origin'", "git remote add origin URL")
    for args in (("start",), ("join",)):
        assert refusal(clone, "collaborate", *args, code=9, says=says)["code"] == "environment"
    alone = clone.collaborate("status").data
    assert (alone["class"], alone["transport"]) == ("inactive", "local")
    _check_nothing_was_begun(clone)


def test_not_a_repository(new_world: NewWorld) -> None:
    world = new_world()
    (world.root / "nowhere").mkdir()
    here = Clone(world.root / "nowhere", world.environ, "ada")
    for args in (
        *(("collaborate", "start"), ("collaborate", "status"), ("collaborate", "claim", "T001")),
        *(("task", "list"), ("init",), ("daemon", "status"), ("collaborate", "recover")),
    ):
        error = refusal(here, *args, code=9, says=("not in a git repository",))
        assert error["code"] == "environment"
    assert list(here.path.iterdir()) == []
    refusal(here, "-C", "missing", "task", "list", code=9, says=("no such folder",))


def test_several_push_urls(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    for url in (str(world.origin), "https://mirror.test/p.git"):
        clone.git("remote", "set-url", "--add", "--push", "origin", url)
    says = ("2 push URLs", "forge.remote")
    assert refusal(clone, "collaborate", "start", code=9, says=says)["code"] == "environment"
    _check_nothing_was_begun(clone)


def test_an_old_git(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    real = shutil.which("git")
    fake = world.root / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\nfor word; do [ "$word" = --version ] && echo "git version 2.30.0" && exit; '
        f'done\nexec {real} "$@"\n'
    )
    fake.chmod(0o755)
    path = f"{fake.parent}{os.pathsep}{clone.environ['PATH']}"
    says = ("git 2.30.0 is too old", "2.38")
    error = refusal(clone, "collaborate", "start", code=9, says=says, PATH=path)
    assert error["code"] == "environment"
    _check_nothing_was_begun(clone)


def test_no_git_at_all(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    (world.root / "empty").mkdir()
    for args in (("collaborate", "start"), ("task", "list"), ("collaborate", "status")):
        says = ("git was not found", "install git")
        error = refusal(clone, *args, code=9, says=says, PATH=str(world.root / "empty"))
        assert error["code"] == "environment"


def test_a_remote_that_is_gone(new_world: NewWorld) -> None:
    world = new_world()
    clone = world.clone("ada")
    world.origin.rename(world.root / "moved.git")
    error = refusal(clone, "collaborate", "start", code=4, says=("can't be reached", "ls-remote"))
    assert error["code"] == "offline"
    _check_nothing_was_begun(clone)
    status = clone.collaborate("status")
    assert status.code == 0
    assert status.data["online"] is False
    assert "can't be reached" in " ".join(status.data["warnings"])


def test_a_remote_that_refuses_connections(new_world: NewWorld) -> None:
    clone = new_world().clone("ada")
    clone.git("remote", "set-url", "origin", f"http://ada:{SECRET}@127.0.0.1:1/p.git")
    error = refusal(clone, "collaborate", "start", code=4, says=("can't be reached",))
    assert SECRET not in str(error)
    began = time.monotonic()
    status = clone.forge("collaborate", "status")
    assert status.code == 0
    assert time.monotonic() - began < 15, "the network never holds it up"
    assert SECRET not in status.out + status.err
    assert clone.forge("collaborate", "recover").code == 0
    _check_secret_is_nowhere(clone)


@pytest.mark.parametrize("login", ["", f"ada:not-{SECRET}"], ids=["no password", "a wrong one"])
def test_a_remote_that_does_not_let_us_in(new_world: NewWorld, login: str) -> None:
    world = new_world()
    with serving(world.root, password="another") as server:
        clone = world.clone("ada")
        clone.git("remote", "set-url", "origin", server.url("origin.git", login))
        error = refusal(clone, "collaborate", "start", code=4)
        words = error["message"].lower()
        assert "authentication failed" in words or "could not read username" in words
        assert SECRET not in str(error)
        doctor = clone.forge("doctor", "--json")
        assert doctor.code == 1
        assert SECRET not in doctor.out + doctor.err
    _check_secret_is_nowhere(clone)


def test_a_password_in_the_url_is_shown_and_kept_nowhere(new_world: NewWorld) -> None:
    world = new_world()
    with serving(world.root, password=SECRET) as server:
        clone = world.clone("ada")
        clone.git("remote", "set-url", "origin", server.url("origin.git", f"ada:{SECRET}"))
        with _processes_of(clone) as lines:
            said = [clone.forge("collaborate", "start", "--handle", "ada")]
            for args in (
                *(["collaborate", "claim", "T001"], ["collaborate", "note", "T001", "hello"]),
                *(["collaborate", "status"], ["collaborate", "status", "--json"]),
                *(["collaborate", "log", "--json"], ["collaborate", "release", "T001"]),
                *(["doctor"], ["doctor", "--json"], ["daemon", "status", "--json"]),
                *(["daemon", "logs"], ["collaborate", "recover", "--json"]),
            ):
                said.append(clone.forge(*args))
        assert [ran.code for ran in said] == [0] * len(said), said
        shutil.move(world.origin, world.root / "gone.git")
        said += [clone.forge("collaborate", "claim", "T001", "--json"), clone.forge("doctor")]
        said.append(clone.forge("collaborate", "status"))
    assert said[-3].code == 4
    for ran in said:
        assert SECRET not in ran.out + ran.err
    assert lines
    assert [line for line in lines if SECRET in line] == []
    _check_secret_is_nowhere(clone)
    tip = world.root / "gone.git"
    state = world.run("git", "--git-dir", str(tip), "log", "-p", "forge/collab-state")
    assert SECRET not in state


def test_a_file_where_forge_keeps_its_folder(new_world: NewWorld) -> None:
    clone = new_world().clone("ada")
    (clone.path / ".git" / "forge").write_text("in the way\n")
    for verb in ("start", "status", "recover"):
        error = refusal(clone, "collaborate", verb, code=9, says=(".git/forge",))
        assert error["code"] == "environment"


def test_a_read_only_disk(new_world: NewWorld) -> None:
    world = new_world()
    disk = world.root / "disk"
    disk.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "none", str(disk)]).returncode:
        pytest.skip("mounting a read-only disk needs root and the right to mount")
    try:
        clone = world.clone("disk/ada")
        clone.handle = "ada"
        world.run("mount", "-o", "remount,ro", str(disk))
        for args in (("collaborate", "start"), ("init",), ("task", "add", "One more")):
            error = refusal(clone, *args, code=9, says=("ead-only",))
            assert error["code"] == "environment"
        status = clone.collaborate("status")
        assert status.code == 0, status
        assert clone.collaborate("recover").code == 0
        assert clone.forge("task", "list").code == 0
    finally:
        world.end()
        world.run("umount", "-l", str(disk))


# What these tests look at


def _check_nothing_was_begun(clone: Clone) -> None:
    """A start that failed leaves the clone as if it hadn't been tried, and no daemon."""
    assert not (clone.forge_dir / "participant.json").exists()
    assert not (clone.forge_dir / "enabled").exists()
    assert clone.git("status", "--porcelain").out == ""
    for _ in range(100):
        if clone.daemon_pid() is None:
            return
        time.sleep(0.1)
    raise AssertionError("a daemon went on after a start that failed")


def _check_secret_is_nowhere(clone: Clone) -> None:
    """No file of forge's has the password."""
    for path in [*clone.forge_dir.rglob("*"), *clone.path.glob(".forge/collab/*")]:
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert SECRET not in (clone.path / ".git" / "info" / "exclude").read_text()


@contextmanager
def _processes_of(clone: Clone) -> Iterator[set[str]]:
    """The command lines of the daemon and the git processes that it starts itself, as seen.

    What git starts in its turn (git-remote-http has the URL) is git's own affair.
    """
    seen: set[str] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            try:
                pid = int((clone.path / ".git" / "forge" / "pid").read_text())
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                for child in [str(pid), *children]:
                    seen.add(Path(f"/proc/{child}/cmdline").read_text().replace("\0", " "))
            except (OSError, ValueError):
                pass
            is_over.wait(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()
    assert all(re.search(r"forge_collab|git", line) or not line for line in seen), seen
