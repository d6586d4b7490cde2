"""A branch's work as one commit: the same in every clone, with nothing lost of what it holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from gitworld import World, listing

from forge_collab.core.errors import BlockedError
from forge_collab.core.landing import Author, Evidence, message
from forge_collab.core.tasks import Task
from forge_collab.git import squash
from forge_collab.git.repository import discover
from forge_collab.git.store import TARGET, Store

pytestmark = pytest.mark.anyio
MAIN, WORK = "refs/heads/main", "refs/heads/work"
TASK = Task(id="T1", title="Do it")
LINES = "".join(f"line {n}\n" for n in range(30))


@dataclass
class Bench:
    """A clone in which the target and the branch are made, and another that merges them."""

    world: World
    place: Path

    def git(self, *args: str, check: bool = True, **environ: str) -> str:
        done = subprocess.run(
            ["git", *args],
            cwd=self.place,
            env={**self.world.environ, **environ},
            capture_output=True,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def inside(self, *args: str) -> str:
        """Git in the private repository of this clone."""
        return self.git("--git-dir", str(self.place / ".git" / "forge" / "state.git"), *args)

    def write(self, files: Mapping[str, str | bytes | None]) -> None:
        for name, text in files.items():
            path = self.place / name
            if text is None:
                path.unlink()
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)

    def commit(
        self,
        branch: str,
        files: Mapping[str, str | bytes | None],
        say: str = "work",
        **environ: str,
    ) -> str:
        """A commit on `branch`, made from main where there is none yet, and pushed."""
        if self.git("branch", "--list", branch):
            self.git("switch", "-q", branch)
        else:
            self.git("switch", "-q", "-c", branch)
        self.write(files)
        self.git("add", "-A", "-f")
        self.git("commit", "-q", "--allow-empty", "-m", say, **environ)
        self.git("push", "-q", "origin", branch)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def bench(world: World) -> Bench:
    return Bench(world, world.clone("bench"))


@asynccontextmanager
async def store_in(world: World, place: Path) -> AsyncIterator[Store]:
    repository = discover(place, world.environ)
    store = Store(repository, repository.remote("origin"), network_seconds=10)
    await store.ensure()
    try:
        yield store
    finally:
        store.close()


async def merged(store: Store) -> squash.Merged:
    """The work branch of the origin merged into its main."""
    target = await store.fetch(MAIN, TARGET, whole=True)
    tip = await store.fetch(WORK, "refs/forge/work", whole=True)
    return await squash.merge(store, MAIN, target, tip)


async def merged_in(world: World, place: Path) -> squash.Merged:
    async with store_in(world, place) as store:
        return await merged(store)


def by_hand(bench: Bench) -> str:
    """The tree that `git merge --squash` makes of the same in a work tree."""
    other = Bench(bench.world, bench.world.clone("by-hand"))
    other.git("-c", "protocol.file.allow=always", "merge", "-q", "--squash", "origin/work")
    return other.git("write-tree")


# The merge


@pytest.mark.parametrize(
    "where", [".gitattributes", "docs/.gitattributes", "docs/deep/.gitattributes"]
)
async def test_a_union_merge_is_the_same_whatever_a_clone_has_checked_out_and_set(
    world: World, bench: Bench, where: str
) -> None:
    path = "docs/deep/log.txt"
    bench.commit("main", {where: "*.txt merge=union\n", path: "one\n", "other.txt": "one\n"})
    bench.commit("work", {path: "one\nmine\n"})
    bench.git("switch", "-q", "main")
    bench.commit("main", {path: "one\ntheirs\n"})
    trees = [(await merged_in(world, bench.place)).tree]

    plain = world.clone("no-attributes")
    away = Bench(world, plain)
    away.git("switch", "-q", "--orphan", "elsewhere")
    trees.append((await merged_in(world, plain)).tree)

    hostile = world.clone("hostile")
    (hostile / where).write_text("*.txt -merge\n")
    (hostile / ".git" / "info" / "attributes").write_text("*.txt -merge\n")
    mine = world.place / "my-attributes"
    mine.write_text("* -merge\n")
    set_up = Bench(world, hostile)
    for key, value in {
        "core.attributesFile": str(mine),
        "merge.default": "binary",
        "merge.renames": "false",
        "merge.directoryRenames": "true",
        "merge.renormalize": "true",
        "merge.conflictStyle": "diff3",
        "diff.renames": "false",
        "core.autocrlf": "true",
        "diff.noprefix": "true",
    }.items():
        set_up.git("config", key, value)
    found = await merged_in(world, hostile)
    trees.append(found.tree)

    assert found.conflicts == ()
    assert len(set(trees)) == 1
    assert bench.inside("cat-file", "blob", f"{trees[0]}:{path}").split("\n") == [
        "one",
        "theirs",
        "mine",
    ]


async def test_settings_of_the_users_dont_decide_what_conflicts(world: World, bench: Bench) -> None:
    bench.commit("main", {"src/a.txt": LINES, "src/b.txt": "b\n", "c.txt": LINES})
    bench.commit("work", {"src/a.txt": LINES.replace("line 3\n", "mine\n"), "src/new.txt": "new\n"})
    bench.git("switch", "-q", "main")
    bench.git("mv", "src/a.txt", "moved.txt")
    bench.commit("main", {"c.txt": "theirs\n" + LINES})
    expected = by_hand(bench)
    hostile = world.clone("hostile")
    for key, value in {
        "merge.default": "binary",
        "merge.renames": "false",
        "diff.renames": "false",
        "diff.renameLimit": "1",
        "merge.renormalize": "true",
    }.items():
        Bench(world, hostile).git("config", key, value)
    found = await merged_in(world, hostile)
    assert found.conflicts == ()
    assert found.tree == expected
    assert "mine" in Bench(world, hostile).inside("cat-file", "blob", f"{found.tree}:moved.txt")


async def test_conflicts_are_named_whatever_their_names_are(world: World, bench: Bench) -> None:
    names = ["plain.txt", "dir/with blank.txt", "ümläut\n.txt", '"quoted"\t.txt']
    bench.commit("main", dict.fromkeys(names, "one\n"))
    bench.commit("work", {**dict.fromkeys(names, "mine\n"), "fine.txt": "mine\n"})
    bench.git("switch", "-q", "main")
    bench.commit("main", dict.fromkeys(names, "theirs\n"))
    assert sorted((await merged_in(world, bench.place)).conflicts) == sorted(names)


async def test_nothing_of_what_a_branch_may_hold_is_lost(world: World, bench: Bench) -> None:
    library = world.place / "library"
    world.git("init", "-q", str(library))
    world.git("commit", "-q", "--allow-empty", "-m", "a library", cwd=library)
    bench.commit(
        "main",
        {
            "moved.txt": LINES,
            "gone.txt": "gone\n",
            "tool.sh": "#!/bin/sh\n",
            "crlf.txt": "one\r\ntwo\r\n",
            "becomes-link": "text\n",
        },
    )
    bench.git("switch", "-q", "-c", "work")
    bench.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "vendor")
    bench.git("mv", "moved.txt", "there/" if (bench.place / "there").exists() else "there.txt")
    (bench.place / "becomes-link").unlink()
    (bench.place / "becomes-link").symlink_to("there.txt")
    (bench.place / "tool.sh").chmod(0o755)
    binary = bytes(range(256)) * 64
    odd = os.fsdecode(b"not-utf8-\xff.txt")
    bench.commit(
        "work",
        {
            "gone.txt": None,
            "crlf.txt": "one\r\ntwo\r\nthree\r\n",
            "image.bin": binary,
            odd: "odd\n",
            "empty": "",
        },
    )
    bench.git("switch", "-q", "main")
    bench.commit("main", {"moved.txt": LINES.replace("line 20\n", "theirs\n"), "news.txt": "new\n"})
    found = await merged_in(world, bench.place)
    assert found.conflicts == ()
    assert found.tree == by_hand(bench)
    shown = bench.inside("ls-tree", "-r", "-z", found.tree).split("\0")
    modes = {line.partition("\t")[2]: line.split(" ")[0] for line in shown if line}
    assert (modes["vendor"], modes["becomes-link"], modes["tool.sh"]) == (
        "160000",
        "120000",
        "100755",
    )
    assert odd in modes
    assert "gone.txt" not in modes
    assert bench.inside("cat-file", "blob", f"{found.tree}:there.txt").count("theirs") == 1


async def test_forges_own_paths_come_from_the_target(world: World, bench: Bench) -> None:
    own = ".forge/collab/consolidated.md"
    bench.commit("main", {own: "theirs\n", ".forge/collab/kept.md": "kept\n", "a": "a\n"})
    bench.commit(
        "work",
        {
            own: "mine\n",
            ".forge/collab/kept.md": None,
            ".forge/collab/sub/new.md": "mine\n",
            ".forge/state.md": "mine\n",
            ".forge/runs/1/log": "mine\n",
            ".forge/tasks/T9.yaml": "id: T9\ntitle: New\n",
            ".forge/collaborators.md": "not forge's\n",
            "b": "b\n",
        },
    )
    expected = [
        ".forge/collab/consolidated.md",
        ".forge/collab/kept.md",
        ".forge/collaborators.md",
        ".forge/tasks/T9.yaml",
        "a",
        "b",
    ]
    for step in ("the target hasn't moved", "it has"):
        found = await merged_in(world, bench.place)
        assert found.conflicts == (), step
        names = bench.inside("ls-tree", "-r", "--name-only", found.tree).split("\n")
        assert names == [*expected, *(["c"] if step == "it has" else [])]
        assert "theirs" in bench.inside("cat-file", "blob", f"{found.tree}:{own}")
        bench.git("switch", "-q", "main")
        bench.commit("main", {own: "theirs, again\n", "c": "c\n"})


async def test_a_branch_of_nothing_but_forges_paths_brings_nothing(
    world: World, bench: Bench
) -> None:
    bench.commit("main", {"a": "a\n"})
    bench.commit("work", {"a": None, ".forge/collab/x.md": "mine\n"})
    found = await merged_in(world, bench.place)
    assert found.conflicts == ()
    assert bench.inside("ls-tree", "-r", "--name-only", found.tree) == ""


async def test_a_target_with_paths_that_lead_out_writes_nowhere(world: World, bench: Bench) -> None:
    """A tree that no work tree could have, pushed by somebody who means harm."""
    bench.commit("work", {"w.txt": "work\n"})
    oid = world.git("hash-object", "-w", "--stdin", cwd=world.origin, stdin="* -text\n")

    def tree(*lines: str) -> str:
        return world.git("mktree", cwd=world.origin, stdin="".join(f"{x}\n" for x in lines))

    inner = tree(f"100644 blob {oid}\t.gitattributes")
    for name in ("..", "..", ".git", "..", "docs"):
        inner = tree(f"040000 tree {inner}\t{name}", f"100644 blob {oid}\t.gitattributes")
    main = world.git("rev-parse", MAIN, cwd=world.origin)
    made = world.git("commit-tree", "-p", main, "-m", "harm", inner, cwd=world.origin)
    world.git("update-ref", MAIN, made, cwd=world.origin)
    victim = world.clone("victim", "--no-checkout")
    before = listing(world.place, without=victim / ".git" / "forge" / "state.git")
    async with store_in(world, victim) as store:
        target = await store.fetch(MAIN, TARGET, whole=True)
        tip = await store.fetch(WORK, "refs/forge/work", whole=True)
        await squash.merge(store, MAIN, target, tip)
    after = listing(world.place, without=victim / ".git" / "forge" / "state.git")
    after.pop("victim/.git/forge", None)
    assert after == before


async def test_branches_without_a_common_commit_are_a_persons_matter(
    world: World, bench: Bench
) -> None:
    bench.git("switch", "-q", "--orphan", "work")
    bench.commit("work", {"a": "a\n"})
    with pytest.raises(BlockedError, match="no commit in common"):
        await merged_in(world, bench.place)


async def test_a_shallow_clone_finds_where_the_branch_left_and_stays_shallow(
    world: World, bench: Bench
) -> None:
    bench.commit("main", {"a.txt": LINES})
    bench.commit("work", {"a.txt": LINES.replace("line 3\n", "mine\n")})
    bench.git("switch", "-q", "main")
    for n in range(60):
        bench.git("commit", "-q", "--allow-empty", "-m", f"{n}")
    bench.commit("main", {"a.txt": LINES.replace("line 20\n", "theirs\n")})
    place = world.clone("shallow", "--depth=1", "--no-single-branch")
    before = listing(place, without=place / ".git" / "forge")
    found = await merged_in(world, place)
    assert found.conflicts == ()
    assert found.tree == by_hand(bench)
    after = listing(place, without=place / ".git" / "forge")
    assert {k: v for k, v in after.items() if k != ".git/forge"} == before


# The commit


async def work_of(store: Store) -> squash.Work:
    target = await store.fetch(MAIN, TARGET, whole=True)
    tip = await store.fetch(WORK, "refs/forge/work", whole=True)
    return await squash.work(store, target, tip)


def somebody(name: str, email: str, date: str = "1700000000 +0530") -> dict[str, str]:
    return {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": date}


async def test_whoever_wrote_most_is_the_author_and_the_others_are_named(
    world: World, bench: Bench
) -> None:
    ben = somebody("Ben Öz", "ben@example.org")
    bench.commit("work", {"a": "1\n"}, "first", **somebody("Cy", "cy@example.org"))
    bench.commit("work", {"a": "2\n"}, "second", **ben)
    bench.commit("work", {"a": "3\n"}, "third", **{**ben, "GIT_AUTHOR_DATE": "1700009999 -0800"})
    bench.git("switch", "-q", "main")
    bench.commit("main", {"m": "m\n"})
    bench.git("switch", "-q", "work")
    bench.git("merge", "-q", "--no-edit", "main", GIT_AUTHOR_NAME="Merger")
    bench.git("push", "-q", "origin", "work")
    async with store_in(world, bench.place) as store:
        found = await work_of(store)
    assert found.by() == [Author("Ben Öz", "ben@example.org"), Author("Cy", "cy@example.org")]
    assert found.subjects == ("first", "second", "third")


@pytest.mark.parametrize("user_setting", ["UTF-8", "ISO-8859-1"])
async def test_names_and_words_survive_whatever_encoding_commits_and_settings_have(
    world: World, bench: Bench, user_setting: str
) -> None:
    bench.git("switch", "-q", "-c", "work")
    tree = bench.git("write-tree")
    latin = (
        f"tree {tree}\nparent {bench.git('rev-parse', 'HEAD')}\n"
        "author Jörg <j@example.org> 1700000000 +0000\n"
        "committer Jörg <j@example.org> 1700000000 +0000\n"
        "encoding ISO-8859-1\n\nSüß\n"
    ).encode("latin-1")
    made = world.git("hash-object", "-t", "commit", "-w", "--stdin", cwd=bench.place, stdin=latin)
    bench.git("reset", "-q", "--hard", made)
    bench.git("push", "-q", "origin", "work")
    world.config("i18n.commitEncoding", user_setting)
    world.config("i18n.logOutputEncoding", user_setting)
    async with store_in(world, bench.place) as store:
        found = await work_of(store)
        assert (found.by(), found.subjects) == ([Author("Jörg", "j@example.org")], ("Süß",))
        task = Task(id="T1", title="Füße 日本")
        words = message(task, round=1, fence=1, subjects=found.subjects)
        commit = await landed(store, found.by()[0], found.date, words)
        raw = (await store.git("cat-file", "commit", commit)).out
        assert "Füße 日本 [T1]" in raw.decode("utf-8")
        assert b"\nencoding" not in raw
        assert "author Jörg <j@example.org>" in raw.decode("utf-8")
        (seen,) = await squash.evidence(store, None, commit)
        assert seen == Evidence("T1", task.uid, 1, commit)


async def landed(
    store: Store, by: Author | None = None, date: str | None = None, words: str = "x\n"
) -> str:
    target = await store.fetch(MAIN, TARGET, whole=True)
    tree = (await store.head(target)).tree
    who = await squash.committer(store)
    return await squash.squash(store, tree, target, by=by, date=date, message=words, committer=who)


@pytest.mark.parametrize("date", ["1700009999 -0800", "86400 +0000", "0 +0000", "99999999 +1400"])
async def test_the_authors_date_and_zone_are_kept(world: World, bench: Bench, date: str) -> None:
    who = somebody("Ben", "ben@example.org", f"@{date}")
    bench.commit("work", {"a": "1\n"}, **who)
    async with store_in(world, bench.place) as store:
        found = await work_of(store)
        commit = await landed(store, found.by()[0], found.date)
        shown = (await store.git("log", "-1", "--format=%an <%ae> %ad", "--date=raw", commit)).out
    assert shown.decode().strip() == f"Ben <ben@example.org> {date}"


async def test_the_user_is_the_committer(world: World, bench: Bench) -> None:
    bench.git("config", "user.name", "Ada Local")
    async with store_in(world, bench.place) as store:
        commit = await landed(store, Author("Ben", "ben@example.org"))
        shown = (await store.git("log", "-1", "--format=%an %cn %ce", commit)).out.decode().strip()
    assert shown == "Ben Ada Local person@example.org"


needs_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed"
)


def made_key(world: World) -> Path:
    key = world.place / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


def sign_with(world: World, key: Path) -> None:
    for name, value in {
        "gpg.format": "ssh",
        "commit.gpgSign": "true",
        "user.signingKey": str(key),
    }.items():
        world.config(name, value)


@needs_keygen
async def test_a_landing_is_signed_where_the_user_signs(world: World, bench: Bench) -> None:
    key = made_key(world)
    sign_with(world, key)
    allowed = world.place / "allowed"
    allowed.write_text(f"person@example.org {(world.place / 'key.pub').read_text()}")
    async with store_in(world, bench.place) as store:
        commit = await landed(store)
        checked = await store.git(
            "-c", f"gpg.ssh.allowedSignersFile={allowed}", "verify-commit", commit
        )
    assert checked.is_ok, checked.err
    assert 'Good "git" signature for person@example.org' in checked.err


async def test_a_key_that_cant_sign_stops_the_landing_with_gits_words(
    world: World, bench: Bench
) -> None:
    sign_with(world, world.place / "no-such-key")
    async with store_in(world, bench.place) as store:
        with pytest.raises(BlockedError, match="can't be signed") as caught:
            await landed(store)
    assert "no-such-key" in caught.value.message
    assert caught.value.hint


# Evidence


async def evidence_of(world: World, bench: Bench, since: str | None = None) -> list[Evidence]:
    async with store_in(world, bench.place) as store:
        tip = await store.fetch(MAIN, TARGET, whole=True)
        return await squash.evidence(store, since, tip)


def said(task: str = "T1", round: int = 1) -> str:
    return message(Task(id=task, title="Do it", uid=f"uid-{task}"), round=round, fence=1)


async def test_what_has_landed_is_found_in_the_first_parents_alone_newest_first(
    world: World, bench: Bench
) -> None:
    first = bench.commit("main", {"a": "1\n"}, said("T1"))
    bench.commit("work", {"b": "1\n"}, said("T2"))
    bench.git("switch", "-q", "main")
    bench.commit("main", {"a": "2\n"}, "a quote in the middle\n\nForge-Task: T3\n\nand on it goes")
    bench.git("merge", "-q", "--no-ff", "--no-edit", "work")
    bench.commit("main", {"c": "1\n"}, said("T1", 2))
    assert [(e.task_id, e.round) for e in await evidence_of(world, bench)] == [("T1", 2), ("T1", 1)]
    assert [e.round for e in await evidence_of(world, bench, first)] == [2]


async def test_no_setting_of_the_users_hides_what_has_landed(world: World, bench: Bench) -> None:
    bench.commit("main", {"a": "1\n"}, said("T1"))
    for name, value in {
        "grep.patternType": "fixed",
        "core.commentChar": "F",
        "trailer.separators": "#=",
        "trailer.ifexists": "doNothing",
        "log.showSignature": "true",
        "log.follow": "true",
        "color.ui": "always",
        "i18n.logOutputEncoding": "UTF-16",
    }.items():
        world.config(name, value)
    assert [e.task_id for e in await evidence_of(world, bench)] == ["T1"]


# Merged by other ways


async def brought(world: World, bench: Bench) -> str | None:
    async with store_in(world, bench.place) as store:
        target = await store.fetch(MAIN, TARGET, whole=True)
        tip = await store.fetch(WORK, "refs/forge/work", whole=True)
        return await squash.merged_as(store, tip, target)


async def test_a_branch_is_found_by_the_merge_that_brought_it(world: World, bench: Bench) -> None:
    bench.commit("main", {"a.txt": LINES})
    bench.commit("work", {"a.txt": LINES.replace("line 3\n", "mine\n")})
    bench.git("switch", "-q", "main")
    bench.commit("main", {"m": "m\n"})
    assert await brought(world, bench) is None
    bench.git("merge", "-q", "--no-ff", "--no-edit", "work")
    merge = bench.git("rev-parse", "HEAD")
    bench.commit("main", {"m": "later\n"})
    assert await brought(world, bench) == merge


async def test_a_branch_that_is_the_target_itself_is_found(world: World, bench: Bench) -> None:
    tip = bench.commit("work", {"a.txt": LINES})
    bench.git("push", "-q", "origin", "work:main")
    assert await brought(world, bench) == tip


@pytest.mark.parametrize(
    "setting", ["", "diff.noprefix=true", "diff.context=0", "diff.algorithm=patience"]
)
async def test_a_squash_by_hand_is_found_by_its_patch(
    world: World, bench: Bench, setting: str
) -> None:
    bench.commit("main", {"a.txt": LINES, "b.txt": LINES})
    bench.commit("work", {"a.txt": LINES.replace("line 3\n", "mine\n")})
    bench.commit("work", {"b.txt": LINES.replace("line 4\n", "mine\n"), "n.bin": bytes(range(200))})
    bench.git("switch", "-q", "main")
    bench.commit("main", {"a.txt": "theirs\n" + LINES})
    bench.git("merge", "-q", "--squash", "work")
    squashed = bench.commit("main", {}, "squashed by hand")
    bench.commit("main", {"a.txt": "later\n" + LINES})
    if setting:
        world.config(*setting.split("=", 1))
    assert await brought(world, bench) == squashed


async def test_a_patch_that_is_only_alike_is_not_taken_for_it(world: World, bench: Bench) -> None:
    bench.commit("main", {"a.txt": LINES})
    bench.commit("work", {"a.txt": LINES.replace("line 3\n", "mine\n"), "b": "b\n"})
    bench.git("switch", "-q", "main")
    bench.commit("main", {"a.txt": LINES.replace("line 3\n", "mine\n")})
    assert await brought(world, bench) is None


async def test_a_branch_with_no_work_is_not_found_as_the_first_commit_that_changes_nothing(
    world: World, bench: Bench
) -> None:
    bench.commit("work", {}, "empty")
    bench.git("switch", "-q", "main")
    bench.commit("main", {}, "empty too")
    assert await brought(world, bench) is None
