"""One commit of a branch's work on top of the target: merged by tree, without any work tree.

Everything happens in the private repository. The merge sees the attributes of the target and
nobody else's, so it comes out the same in every clone, whatever is checked out there.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
from dulwich.objects import ShaFile

from forge_collab.core.errors import BlockedError, CorruptError, FailedError
from forge_collab.core.landing import OWN_PATHS, TASK_TRAILER, Author, Evidence, evidence_in
from forge_collab.git import store as git
from forge_collab.git.repository import author_of, is_true
from forge_collab.git.runner import Result
from forge_collab.git.store import Store

_FOLDER = 0o040000
_CONFLICT = 1
_PATCHES_AT_MOST = 200
_DEEPER = (50, 500, 0)
_ON_TOP_AT_MOST = 20
_ATTRIBUTES = ".gitattributes"
_NO_FOLDERS = frozenset({"", ".", "..", ".git"})
_TARGETS_ALONE = ("-c", "core.attributesFile=/dev/null", "-c", "core.bare=false")
_AS_IN_EVERY_CLONE = (
    *("-c", "merge.default=text", "-c", "merge.renames=true", "-c", "merge.renormalize=false"),
    *("-c", "merge.directoryRenames=conflict", "-c", "merge.renameLimit=7000"),
)
_IN_UTF8 = ("-c", "i18n.commitEncoding=UTF-8", "-c", "i18n.logOutputEncoding=UTF-8")
_PLAIN_TRAILERS = ("-c", "trailer.separators=:", "-c", "core.commentChar=#")


@dataclass(frozen=True)
class Merged:
    """What a merge came to: a tree, or the paths that conflict."""

    tree: str
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """The commits that a squash takes together: their authors and subjects, oldest first."""

    authors: tuple[Author, ...]
    subjects: tuple[str, ...]
    date: str | None

    def by(self) -> list[Author]:
        """Who wrote it: whoever wrote most of the commits first."""
        return [author for author, _ in Counter(self.authors).most_common()]


async def merge(store: Store, ref: str, target: str, tip: str) -> Merged:
    """The tree that `tip` merged into `target` has; forge's own paths are the target's.

    `ref` is the target's on the remote: a shallow private repository is deepened from there
    until the two meet.

    :raises BlockedError: when the two have no history in common.
    :raises UnavailableError: when the remote is needed and can't be reached.
    :raises FailedError: when git can't merge them; data has its words.
    """
    theirs, tip_tree = (await store.head(target)).tree, (await store.head(tip)).tree
    tree = await anyio.to_thread.run_sync(_with_own_paths, store, tip_tree, theirs)
    if await _is_on_top(store, target, tip):
        return Merged(tree)
    await _meet(store, ref, target, tip)
    if tree != tip_tree:
        author = store.repository.author()
        made = git.commit(tree, tip, author=author, seconds=0, message="forge")
        await anyio.to_thread.run_sync(store.write, [made])
        tip = made.id.decode()
    return await _merge(store, target, tip)


async def _is_on_top(store: Store, target: str, tip: str) -> bool:
    """Whether `tip` is a few commits on top of the target: then there is nothing to merge."""
    oid = tip
    for _ in range(_ON_TOP_AT_MOST):
        if oid == target:
            return True
        try:
            parents = (await store.head(oid)).parents
        except CorruptError:  # A shallow history ends here.
            return False
        if len(parents) != 1:
            return False
        oid = parents[0]
    return False


async def _meet(store: Store, ref: str, target: str, tip: str) -> None:
    for deeper in (None, *_DEEPER):
        if deeper is not None:
            if not (store.path / "shallow").exists():
                break
            await store.deepen(ref, deeper)
        if (await store.git("merge-base", target, tip)).is_ok:
            return
    raise BlockedError(
        "the branch and the target have no commit in common",
        hint="git rebase the branch onto the target, then try again",
        data={"status": "unrelated", "waits_for": []},
    )


async def _merge(store: Store, target: str, tip: str) -> Merged:
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=store.path.parent) as scratch:
        await _lay_out_attributes(store, target, Path(scratch))
        found = await store.git(
            *("--work-tree", scratch, *_TARGETS_ALONE, *_AS_IN_EVERY_CLONE),
            *("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", target, tip),
            cwd=Path(scratch),
            more={"GIT_ATTR_NOSYSTEM": "1"},
        )
    parts = found.out.decode("utf-8", "surrogateescape").split("\0")
    if found.is_ok:
        return Merged(parts[0])
    if found.code == _CONFLICT and parts[0]:
        return Merged(parts[0], tuple(dict.fromkeys(filter(None, parts[1:]))))
    raise _failed("merge the branch", found)


async def _lay_out_attributes(store: Store, target: str, scratch: Path) -> None:
    listed = await store.git("ls-tree", "-r", "-z", "--full-tree", target)
    if not listed.is_ok:
        raise _failed("list the target's files", listed)
    await anyio.to_thread.run_sync(_write_attributes, store, listed.out, scratch)


def _write_attributes(store: Store, listing: bytes, scratch: Path) -> None:
    for line in listing.split(b"\0"):
        about, _, path = line.decode("utf-8", "surrogateescape").partition("\t")
        mode, _, oid = about.split(" ") if about else ("", "", "")
        *folders, name = path.split("/")
        leads_out = _NO_FOLDERS.intersection(folders)  # Whoever may push can make such a tree.
        if name == _ATTRIBUTES and mode.startswith("100") and not leads_out:
            place = scratch / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(store.blob(oid))


def _with_own_paths(store: Store, tree: str, target: str) -> str:
    """`tree` with forge's own paths as they are in `target`."""
    objects: list[ShaFile] = []
    paths = [tuple(path.split("/")) for path in OWN_PATHS]
    made = _taken(store, tree, target, paths, objects)
    if made is None:
        objects.append(git.folder({}))
    store.write(objects)
    return made or objects[-1].id.decode()


def _taken(
    store: Store,
    mine: str | None,
    theirs: str | None,
    paths: Sequence[tuple[str, ...]],
    objects: list[ShaFile],
) -> str | None:
    """The folder `mine` with `paths` as they are in `theirs`; None for an empty one."""
    before = store.tree(mine).entries if mine else {}
    others = store.tree(theirs).entries if theirs else {}
    after = dict(before)
    for name in dict.fromkeys(path[0] for path in paths):
        below = [path[1:] for path in paths if path[0] == name and len(path) > 1]
        wanted = _below(store, before, others, name, below, objects) if below else others.get(name)
        after.pop(name, None)
        after |= {name: wanted} if wanted else {}
    if after == before or not after:
        return mine if after else None
    folder = git.folder(after)
    objects.append(folder)
    return folder.id.decode()


def _below(
    store: Store,
    before: Mapping[str, tuple[int, str]],
    others: Mapping[str, tuple[int, str]],
    name: str,
    paths: Sequence[tuple[str, ...]],
    objects: list[ShaFile],
) -> tuple[int, str] | None:
    mine, theirs = before.get(name), others.get(name)
    if mine is not None and mine[0] != _FOLDER:
        return mine
    source = theirs[1] if theirs and theirs[0] == _FOLDER else None
    made = _taken(store, mine[1] if mine else None, source, paths, objects)
    return (_FOLDER, made) if made else None


async def work(store: Store, target: str, tip: str) -> Work:
    """Who wrote what on the branch since it left the target, merges left out."""
    shown = "%x00%an%x01%ae%x01%ad%x01%s"
    listed = await store.git(
        *_IN_UTF8,
        *("rev-list", "--reverse", "--no-merges", "--no-commit-header", "--date=raw"),
        *(f"--format={shown}", f"{target}..{tip}"),
    )
    if not listed.is_ok:
        raise _failed("list the branch's commits", listed)
    rows = [line.split("\x01") for line in _lines(listed)]
    return Work(
        tuple(Author(row[0], row[1]) for row in rows),
        tuple(row[3] for row in rows),
        rows[-1][2] if rows else None,
    )


def _lines(result: Result) -> Iterator[str]:
    text = result.out.decode("utf-8", "replace")
    return (part.rstrip("\n") for part in text.split("\0") if part)


@dataclass(frozen=True)
class Committer:
    """Who commits a squash, and whether that person signs commits."""

    name: str
    email: str
    is_signing: bool = False


async def committer(store: Store) -> Committer:
    """The user, as git would have it; forge itself where there is no identity."""
    listed = await store.git(
        "config", "-z", "--get-regexp", r"^(user\.(name|email)|commit\.gpgsign)$"
    )
    entries = listed.out.decode("utf-8", "replace").split("\0")
    said = {key: value for key, _, value in (entry.partition("\n") for entry in entries)}
    name, email = author_of(store.environ, said.get("user.name"), said.get("user.email"))
    signs = said.get("commit.gpgsign")
    return Committer(name, email, signs is not None and is_true(signs))


async def squash(
    store: Store,
    tree: str,
    parent: str,
    *,
    by: Author | None,
    date: str | None,
    message: str,
    committer: Committer,
) -> str:
    """The commit of `tree` on `parent`, whose author is `by`; signed where the user signs.

    :raises BlockedError: when it has to be signed and can't be.
    """
    name, email = committer.name, committer.email
    by = by or Author(name, email)
    environ = {
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email,
        "GIT_AUTHOR_NAME": by.name or name,
        "GIT_AUTHOR_EMAIL": by.email or email,
        **({"GIT_AUTHOR_DATE": f"@{date}"} if date else {}),
    }
    made = await store.git(
        *_IN_UTF8,
        *("commit-tree", tree, "-p", parent, *(["-S"] if committer.is_signing else []), "-F", "-"),
        more=environ,
        stdin=message.encode("utf-8", "replace"),
    )
    if not made.is_ok and committer.is_signing:
        raise BlockedError(
            f"the commit can't be signed, and commit.gpgSign says it has to be: {made.said}",
            hint="unlock the key for this machine (gpg-agent, ssh-agent), then try again",
            data={"status": "unsigned", "waits_for": []},
        )
    if not made.is_ok:
        raise _failed("make the commit", made)
    return made.out.decode().strip()


async def evidence(store: Store, since: str | None, tip: str) -> list[Evidence]:
    """What the first-parent history of `tip` shows as landed, after `since`; newest first."""
    span = f"{since}..{tip}" if since else tip
    listed = await store.git(
        *(*_PLAIN_TRAILERS, *_IN_UTF8, "rev-list", "--first-parent", "--no-commit-header"),
        *(f"--grep=^{TASK_TRAILER}: ", "--format=%x00%H%n%(trailers:only=true,unfold=true)"),
        span,
    )
    if not listed.is_ok and since:
        return await evidence(store, None, tip)  # What it was before has been tidied away.
    if not listed.is_ok:
        raise _failed("search the target's history", listed)
    commits = (text.partition("\n") for text in _lines(listed))
    found = (evidence_in(commit, trailers) for commit, _, trailers in commits)
    return [one for one in found if one is not None]


async def merged_as(store: Store, tip: str, target: str) -> str | None:
    """The commit by which the target has `tip`, itself or as an equal patch, or None."""
    if await store.contains(target, tip):
        args = ("rev-list", "--first-parent", "--ancestry-path", f"{tip}..{target}")
        brought = (await store.git(*args)).out.decode().split()
        return brought[-1] if brought else tip
    found = await store.git("merge-base", target, tip)
    if not found.is_ok:
        return None
    start = found.out.decode().strip()
    most = f"--max-count={_PATCHES_AT_MOST}"
    listed = await store.git(
        "rev-list", "--first-parent", "--no-merges", most, f"{start}..{target}"
    )
    ours = await _patch_ids(store, await _diff(store, start, tip))
    theirs = await _patch_ids(store, await _diff(store, "--stdin", stdin=listed.out))
    return next((theirs[patch] for patch in ours if patch in theirs), None)


async def _diff(store: Store, *what: str, stdin: bytes | None = None) -> bytes:
    args = ("diff-tree", "-r", "-p", "--no-ext-diff", "--no-textconv", *what)
    return (await store.git(*args, stdin=stdin)).out


async def _patch_ids(store: Store, diff: bytes) -> dict[str, str]:
    """The commit of each patch, by the patch's id."""
    listed = await store.git("patch-id", "--stable", stdin=diff)
    rows = (line.split() for line in listed.out.decode().splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


async def changed(store: Store, before: str, after: str) -> list[str]:
    """What differs between two trees, one line a file as ``M\tpath``."""
    listed = await store.git("diff-tree", "-r", "--no-renames", "--name-status", before, after)
    return listed.out.decode("utf-8", "replace").splitlines()


def _failed(what: str, result: Result) -> FailedError:
    return FailedError(
        f"git couldn't {what}: {result.said or 'no word why'}",
        hint="forge daemon logs; forge doctor",
        data={"why": result.err},
    )
