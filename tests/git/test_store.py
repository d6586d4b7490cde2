"""The private repository in every kind of clone, and that the clone itself stays as it is."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gitworld import STATE_REF, World, listing

from forge_collab.core.errors import CorruptError, EnvironmentError_, UnavailableError
from forge_collab.git.repository import discover
from forge_collab.git.store import STATE, TARGET, Push, Store, blob, commit, folder

pytestmark = pytest.mark.anyio
FILE = 0o100644
PLAN = {f"T{n}.md": b"plan %d" % n for n in range(3)}


@pytest.fixture
def target(world: World) -> World:
    """Origin's main gets some history: a plan that was changed twice."""
    for n in range(3):
        world.put({b"plan/T%d.md" % n: b"plan %d" % n}, ref="refs/heads/main")
    return world


@asynccontextmanager
async def store_in(world: World, place: Path) -> AsyncIterator[Store]:
    repository = discover(place, world.environ)
    store = Store(repository, repository.remote("origin"), network_seconds=10)
    await store.ensure()
    try:
        yield store
    finally:
        store.close()


def made(store: Store, text: bytes, parent: str | None = None) -> str:
    """A commit in the private repository with one file, `shared/file`."""
    file = blob(text)
    inner = folder({"file": (FILE, file.id.decode())})
    root = folder({"shared": (0o040000, inner.id.decode())})
    author = ("A B", "a@example.org")
    whole = commit(
        root.id.decode(), parent, author=author, seconds=1_700_000_000, message=f"write {text!r}"
    )
    store.write([file, inner, root, whole])
    return whole.id.decode()


async def exercise(store: Store, world: World, *, is_shallow: bool = False) -> None:
    """Everything that forge does with a remote."""
    assert await store.tips([STATE_REF]) == {}
    ours = made(store, b"ours")
    pushed = await store.push(ours, STATE_REF, None)
    assert pushed.how is Push.DONE, pushed.words
    store.record(STATE, ours)
    assert await store.tips([STATE_REF, "refs/heads/none"]) == {STATE_REF: ours}
    theirs = world.put({b"tasks/T1.json": b"{}"})
    assert await store.fetch(STATE_REF, STATE) == theirs
    assert (await store.head(theirs)).parents == (ours,)
    assert await store.contains(theirs, ours)
    assert await store.files(theirs, "tasks") == {"T1.json": b"{}"}
    assert await store.files(theirs, "shared") == {"file": b"ours"}
    assert (await store.push(made(store, b"late", ours), STATE_REF, ours)).how is Push.REJECTED
    again = made(store, b"again", theirs)
    assert (await store.push(again, STATE_REF, theirs)).how is Push.DONE
    assert (await store.push(again, STATE_REF, theirs)).how is Push.SAME

    assert await store.remote_head() == "main"
    assert "main" in await store.branches()
    main = await store.fetch("refs/heads/main", TARGET, whole=True)
    assert main == world.tip("refs/heads/main")
    assert await store.files(main, "plan") == PLAN
    first = world.git("rev-list", "--max-parents=0", "refs/heads/main", cwd=world.origin)
    assert is_shallow or await store.contains(main, first)
    newer = world.put({b"plan/T9.md": b"plan 9"}, ref="refs/heads/main")
    assert await store.fetch("refs/heads/main", TARGET, whole=True) == newer
    assert await store.contains(newer, main)
    assert await store.files(newer, "plan") == {**PLAN, "T9.md": b"plan 9"}
    await store.tidy()
    assert await store.files(newer, "plan") == {**PLAN, "T9.md": b"plan 9"}


# Every kind of clone


def plain(world: World) -> Path:
    return world.clone()


def odd_path(world: World) -> Path:
    return world.clone("Ein Klon für 日本 'x' $y")


def submodule(world: World) -> Path:
    outer = world.clone("outer")
    world.git("submodule", "--quiet", "add", str(world.origin), "sub", cwd=outer)
    return outer / "sub"


def separate(world: World) -> Path:
    return world.clone("apart", "--separate-git-dir", str(world.place / "elsewhere"))


def linked(world: World) -> Path:
    world.git("worktree", "add", "--quiet", str(world.place / "linked"), cwd=world.clone())
    return world.place / "linked"


def own_work_tree_settings(world: World) -> Path:
    clone = world.clone()
    world.git("config", "extensions.worktreeConfig", "true", cwd=clone)
    world.git("sparse-checkout", "set", "plan", cwd=clone)
    return clone


def shallow(world: World) -> Path:
    return world.clone("shallow", "--depth=1")


def partial(world: World) -> Path:
    world.git("config", "uploadpack.allowFilter", "true", cwd=world.origin)
    return world.clone("partial", "--filter=blob:none", "--no-checkout")


def bare(world: World) -> Path:
    return world.clone("bare", "--bare")


def global_hooks(world: World) -> Path:
    hooks = world.place / "hooks"
    hooks.mkdir()
    for name in ("pre-push", "reference-transaction", "post-rewrite", "pre-auto-gc"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {world.place}/hook-ran\nexit 1\n")
        (hooks / name).chmod(0o755)
    clone = world.clone()
    world.config("core.hooksPath", str(hooks))
    world.environ["GIT_CONFIG_PARAMETERS"] = f"'core.hooksPath={hooks}'"
    return clone


def settings(**values: str) -> Callable[[World], Path]:
    def make(world: World) -> Path:
        clone = world.clone()
        for key, value in values.items():
            world.git("config", "--add", key.replace("__", "."), value, cwd=clone)
        return clone

    make.__name__ = "_".join(values)
    return make


def no_bare_repositories(world: World) -> Path:
    clone = world.clone()
    world.config("safe.bareRepository", "explicit")
    return clone


def without_identity(world: World) -> Path:
    world.global_config.write_text('[protocol "file"]\n\tallow = always\n')
    return world.clone()


def own_push_url(world: World) -> Path:
    clone = world.clone()
    world.git("config", "remote.origin.url", "/nowhere/at/all", cwd=clone)
    world.git("config", "remote.origin.pushurl", str(world.origin), cwd=clone)
    return clone


def instead_of(world: World) -> Path:
    clone = world.clone()
    world.config(f"url.{world.place}/.insteadOf", "work:")
    world.git("config", "remote.origin.url", "work:origin.git", cwd=clone)
    return clone


def relative(world: World) -> Path:
    clone = world.clone()
    world.git("config", "remote.origin.url", "../origin.git", cwd=clone)
    return clone


def misleading_environment(world: World) -> Path:
    clone, other = world.clone(), world.clone("other")
    world.environ.update(
        GIT_DIR=str(other / ".git"),
        GIT_WORK_TREE=str(other),
        GIT_INDEX_FILE="/nowhere/index",
        GIT_OBJECT_DIRECTORY="/nowhere/objects",
    )
    return clone


def strict(world: World) -> Path:
    world.git("config", "receive.fsckObjects", "true", cwd=world.origin)
    world.config("transfer.fsckObjects", "true")
    return world.clone()


def newer_defaults(world: World) -> Path:
    clone = world.clone()
    world.environ.update(GIT_DEFAULT_HASH="sha256", GIT_DEFAULT_REF_FORMAT="reftable")
    return clone


KINDS: list[Callable[[World], Path]] = [
    *(plain, odd_path, submodule, separate, linked, own_work_tree_settings, shallow, partial),
    *(
        bare,
        global_hooks,
        no_bare_repositories,
        without_identity,
        own_push_url,
        instead_of,
        relative,
        strict,
    ),
    *(misleading_environment, newer_defaults),
    settings(remote__origin__mirror="true"),
    settings(fetch__prune="true", fetch__pruneTags="true", remote__origin__prune="true"),
    settings(remote__origin__tagOpt="--tags", fetch__recurseSubmodules="true"),
    settings(push__followTags="true", push__default="nothing", submodule__recurse="true"),
    settings(push__gpgSign="if-asked", push__useForceIfIncludes="true"),
    settings(remote__origin__push="refs/heads/*:refs/heads/*", fetch__fsckObjects="true"),
    settings(core__bare="false", core__logAllRefUpdates="always", gc__auto="1"),
    settings(color__ui="always", core__pager="false", core__autocrlf="true"),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_the_store_works_in_any_clone_and_leaves_it_as_it_is(
    target: World, kind: Callable[[World], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = kind(target)
    for name, value in target.environ.items():
        monkeypatch.setenv(name, value)
    repository = discover(place, target.environ)
    before = listing(repository.common_dir, without=repository.forge_dir)
    tree = listing(repository.root, without=repository.common_dir) if repository.root else {}

    async with store_in(target, place) as store:
        await exercise(store, target, is_shallow=kind is shallow)

    assert listing(repository.common_dir, without=repository.forge_dir) == before
    if repository.root:
        assert listing(repository.root, without=repository.common_dir) == tree
    assert not (target.place / "hook-ran").exists()


# The private repository itself


async def test_its_settings_are_the_users_but_for_what_must_differ(world: World) -> None:
    clone = world.clone()
    world.git("config", "credential.helper", "mine", cwd=clone)
    world.git("config", "core.hooksPath", "/some/hooks", cwd=clone)
    async with store_in(world, clone) as store:

        def setting(key: str) -> str:
            return world.git("--git-dir", str(store.path), "config", key)

        assert store.path == clone / ".git" / "forge" / "state.git"
        assert setting("credential.helper") == "mine"
        assert setting("remote.origin.url") == str(world.origin)
        assert setting("core.bare") == "true"
        assert setting("core.hooksPath") == "/dev/null"
        alternates = (store.path / "objects" / "info" / "alternates").read_text()
        assert (store.path / "objects" / alternates.strip()).resolve() == clone / ".git" / "objects"
        head = world.git("rev-parse", "HEAD", cwd=clone)
        assert (await store.head(head)).message == "first\n"


async def test_it_is_made_once_and_again_when_it_is_gone_or_broken(world: World) -> None:
    async with store_in(world, world.clone()) as store:
        assert await store.ensure() is False
        oid = made(store, b"one")
        store.record(STATE, oid)
        assert await store.resolve(STATE) == oid
        (store.path / "config").unlink()
        assert await store.ensure() is True
        assert await store.resolve(STATE) is None
        await exercise_again(store)


async def exercise_again(store: Store) -> None:
    oid = made(store, b"two")
    assert await store.files(oid, "shared") == {"file": b"two"}


async def test_one_that_can_not_be_made_is_an_error(world: World) -> None:
    clone = world.clone()
    (clone / ".git" / "forge").write_text("in the way")
    repository = discover(clone, world.environ)
    with pytest.raises(EnvironmentError_, match="can't write"):
        await Store(repository, repository.remote("origin")).ensure()


async def test_an_object_that_is_not_here_is_told_with_the_place(world: World) -> None:
    async with store_in(world, world.clone()) as store:
        with pytest.raises(CorruptError, match="missing") as caught:
            await store.head("0" * 39 + "1")
        assert caught.value.data["path"] == str(store.path)
        await exercise_again(store)


async def test_a_few_objects_are_loose_and_many_are_one_pack(world: World) -> None:
    async with store_in(world, world.clone()) as store:
        packs = store.path / "objects" / "pack"
        few = [blob(b"few %d" % n) for n in range(4)]
        store.write(few)
        assert list(packs.glob("*.pack")) == []
        many = [blob(b"many %d" % n) for n in range(300)]
        store.write(many)
        assert len(list(packs.glob("*.pack"))) == 1
        for item in (*few, *many):
            assert store.blob(item.id.decode()) == item.data


async def test_a_folder_that_is_not_there_is_empty(target: World) -> None:
    async with store_in(target, target.clone()) as store:
        main = await store.fetch("refs/heads/main", TARGET, whole=True)
        assert await store.files(main, "nothing/here") == {}
        assert await store.files(main, "plan/T0.md") == {}


async def test_a_first_fetch_takes_the_newest_commit_alone(target: World) -> None:
    for n in range(5):
        target.put({b"tasks/T%d.json" % n: b"{}"})
    async with store_in(target, target.clone("one", "--single-branch")) as store:
        tip = await store.fetch(STATE_REF, STATE)
        count = target.git("--git-dir", str(store.path), "rev-list", "--count", tip)
        assert count == "1"
        newer = target.put({b"tasks/T9.json": b"{}"})
        assert await store.fetch(STATE_REF, STATE) == newer
        assert await store.contains(newer, tip)


async def test_a_ref_that_is_not_on_the_remote_is_unavailable(world: World) -> None:
    async with store_in(world, world.clone()) as store:
        with pytest.raises(UnavailableError):
            await store.fetch(STATE_REF, STATE)


async def test_a_remote_out_of_reach_is_told_without_its_secrets(world: World) -> None:
    clone = world.clone()
    url = "http://me:hunter2@127.0.0.1:9/x.git"
    world.git("remote", "set-url", "origin", url, cwd=clone)
    async with store_in(world, clone) as store:
        for call in (store.tips([STATE_REF]), store.branches(), store.remote_head()):
            with pytest.raises(UnavailableError) as caught:
                await call
            assert "hunter2" not in str(caught.value.to_json())
            assert "127.0.0.1" in caught.value.message
        pushed = await store.push(made(store, b"one"), STATE_REF, None)
        assert pushed.how is Push.FAILED
        assert "hunter2" not in pushed.words


async def test_a_push_refused_by_a_hook_has_its_words(world: World) -> None:
    world.hook("update", "echo 'closed today' >&2\nexit 1")
    async with store_in(world, world.clone()) as store:
        pushed = await store.push(made(store, b"one"), STATE_REF, None)
        assert pushed.how is Push.REJECTED
        assert "closed today" in pushed.words


async def test_a_push_at_its_time_limit_is_unanswered(world: World) -> None:
    world.hook("pre-receive", "sleep 30")
    async with store_in(world, world.clone()) as store:
        store.network_seconds = 0.5
        assert (await store.push(made(store, b"one"), STATE_REF, None)).how is Push.UNANSWERED
        assert world.tip() is None


async def test_creating_a_ref_that_exists_is_rejected(world: World) -> None:
    async with store_in(world, world.clone()) as store:
        theirs = world.put({b"tasks/T1.json": b"{}"})
        assert (await store.push(made(store, b"one"), STATE_REF, None)).how is Push.REJECTED
        assert world.tip() == theirs


async def test_a_deleted_ref_is_not_made_again(world: World) -> None:
    async with store_in(world, world.clone()) as store:
        first = made(store, b"one")
        assert (await store.push(first, STATE_REF, None)).how is Push.DONE
        world.git("update-ref", "-d", STATE_REF, cwd=world.origin)
        pushed = await store.push(made(store, b"two", first), STATE_REF, first)
        assert pushed.how is Push.REJECTED
        assert world.tip() is None


async def test_two_stores_push_the_same_commit_and_one_is_told_that_it_decides_nothing(
    world: World,
) -> None:
    async with (
        store_in(world, world.clone("one")) as one,
        store_in(world, world.clone("two")) as two,
    ):
        same = [made(store, b"same") for store in (one, two)]
        assert same[0] == same[1]
        assert (await one.push(same[0], STATE_REF, None)).how is Push.DONE
        assert (await two.push(same[1], STATE_REF, None)).how is Push.SAME


async def test_whether_a_push_would_do_can_be_asked(world: World) -> None:
    async with store_in(world, world.clone()) as store:
        assert (await store.dry_push(STATE_REF, ["main"])).is_ok
        assert world.tip() is None
        assert not (await store.dry_push(STATE_REF, [])).is_ok


async def test_what_the_clone_throws_away_is_fetched_again_when_needed(world: World) -> None:
    """A user fetches the state branch too, then deletes and prunes what the store borrowed."""
    tip = world.put({b"tasks/T1.json": b"borrowed"})
    clone = world.clone()
    async with store_in(world, clone) as store:
        assert await store.fetch(STATE_REF, STATE) == tip
    world.git("update-ref", "-d", "refs/remotes/origin/forge/collab-state", cwd=clone)
    world.git("reflog", "expire", "--expire=now", "--all", cwd=clone)
    world.git("gc", "--quiet", "--prune=now", cwd=clone)
    async with store_in(world, clone) as store:
        await store.remake()
        assert await store.fetch(STATE_REF, STATE) == tip
        assert await store.files(tip, "tasks") == {"T1.json": b"borrowed"}


async def test_close_ends_the_helper_and_leaves_nothing_to_warn_about(world: World) -> None:
    repository = discover(world.clone(), world.environ)
    store = Store(repository, repository.remote("origin"))
    await store.ensure()
    store.write([blob(b"%d" % n) for n in range(100)])
    await exercise_again(store)
    helper = store._git.cat_file_all.proc if store._git and store._git.cat_file_all else None
    assert helper is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store.close()
        store.close()
        del store
        gc.collect()
    assert [str(w.message) for w in caught if issubclass(w.category, ResourceWarning)] == []
    assert helper.poll() is not None


SCRIPT = """
import anyio, sys
from pathlib import Path
from forge_collab.git.repository import discover
from forge_collab.git.store import Store, blob
import os

async def main():
    repository = discover(Path(sys.argv[1]), os.environ)
    store = Store(repository, repository.remote("origin"))
    await store.ensure()
    items = [blob(b"%d" % n) for n in range(100)]
    store.write(items)
    assert store.blob(items[0].id.decode()) == b"0"
    store.close()

anyio.run(main)
"""


def test_a_process_that_closed_its_store_ends_quietly(world: World) -> None:
    clone = world.clone()
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", SCRIPT, str(clone)],
        env=world.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
