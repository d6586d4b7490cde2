"""The private bare repository: objects, and what is exchanged with the remote.

It stands in ``<common dir>/forge/state.git``, borrows the clone's objects, and includes the
clone's configuration, so that credentials, proxies and ssh settings are the user's. It may be
deleted at any time and is made again. Nothing here writes to the clone itself.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeAlias

import anyio.to_thread
from dulwich.object_store import DiskObjectStore
from dulwich.objects import Blob, Commit, ObjectID, ShaFile
from dulwich.objects import Tree as GitTree
from git import Git
from git.objects.fun import tree_entries_from_data

from forge_collab import faults
from forge_collab.core.errors import CorruptError, EnvironmentError_, UnavailableError
from forge_collab.git.repository import Remote, Repository
from forge_collab.git.runner import PLAIN_PUSH, Result, clean_environ, run

STATE = "refs/forge/state"
FETCHED = "refs/forge/fetched"
TARGET = "refs/forge/target"
PROBE = "refs/forge/probe"
NETWORK_SECONDS = 15.0
TARGET_SECONDS = 600.0
LOCAL_SECONDS = 60.0
_FATAL = 128
_REFUSED = "forge-refused-compaction"
_LOOSE_AT_MOST = 12
_WRITTEN_LAST = "objects/info/alternates"
_FILE = 0o100644
_FOLDER = 0o040000

_CONFIG = """\
[include]
\tpath = ../../config
[core]
\trepositoryformatversion = 0
\tbare = true
\thooksPath = /dev/null
\tlogAllRefUpdates = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[fetch]
\tprune = false
\twriteCommitGraph = false
[transfer]
\tunpackLimit = 100
"""

_OWN_RECEIVE_PACK = (
    "git -c receive.denyCurrentBranch=updateInstead -c core.hooksPath=/dev/null receive-pack"
)
"""A push into the clone itself: git moves a clean work tree along, or refuses."""

_PLAIN = {"GIT_DEFAULT_REF_FORMAT": "files", "GIT_DEFAULT_HASH": "sha1"}


class Push(Enum):
    """How a push ended, as far as git says."""

    DONE = "done"
    SAME = "the ref had that object already: decides nothing"
    REJECTED = "rejected: a race, a lock, or a refusal"
    FAILED = "no word about the ref: out of reach, no rights, or broken off"
    UNANSWERED = "killed at its time limit: it may still land"


@dataclass(frozen=True, slots=True)
class Pushed:
    """How a push ended, with the server's words."""

    how: Push
    words: str = ""


Moves: TypeAlias = Mapping[str, tuple[str | None, str | None]]
"""Refs with the objects expected before and wanted after; None: absent."""


@dataclass(frozen=True)
class Tree:
    """A folder in git: its entries, name to (mode, object), and its own object."""

    oid: str
    entries: Mapping[str, tuple[int, str]]


@dataclass(frozen=True)
class Head:
    """A commit: its parents, tree and message."""

    oid: str
    tree: str
    parents: tuple[str, ...]
    message: str = field(repr=False)


class Store:
    """One clone's private repository and the remote it talks to.

    A short look beside the daemon (`is_look`) has a repository of its own, ``look.git``.
    """

    def __init__(
        self,
        repository: Repository,
        remote: Remote,
        *,
        environ: Callable[[], Mapping[str, str]] | None = None,
        network_seconds: float = NETWORK_SECONDS,
        is_look: bool = False,
    ) -> None:
        self.repository = repository
        self.remote = remote
        self.path = repository.forge_dir / ("look.git" if is_look else "state.git")
        self.network_seconds = network_seconds
        self.keep_unreached = "1.hour.ago"
        self._environ = environ or (lambda: repository.environ)
        self._git: Git | None = None
        self._disk: DiskObjectStore | None = None
        self._reading = threading.Lock()

    @property
    def environ(self) -> Mapping[str, str]:
        """What git is run with, before it is cleaned."""
        return self._environ()

    # The repository itself

    async def ensure(self) -> bool:
        """Make the private repository where there is none, or a broken one; was it so?

        :raises EnvironmentError_: when it can't be made.
        """
        is_here = all((self.path / name).is_file() for name in ("HEAD", "config", _WRITTEN_LAST))
        if not is_here:
            await self.remake()
        elif self._git is None:
            self._open()
        return not is_here

    async def remake(self) -> None:
        """Throw the private repository away and make a new one."""
        self.close()
        await self._make()
        self._open()

    def forget(self) -> None:
        """Throw the private repository away, and with it what was remembered of the remote."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)

    async def _make(self) -> None:
        try:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            args = ("init", "--quiet", "--bare", "--template=", str(self.path))
            environ = {**self._environ(), **_PLAIN}
            made = await run(args, cwd=self.path.parent, environ=environ, timeout=30)
            if not made.is_ok:
                raise _cant(self.path, made.err)
            (self.path / "config").write_text(_CONFIG, encoding="utf-8")
            info = self.path / "objects" / "info"
            info.mkdir(parents=True, exist_ok=True)
            (info / "alternates").write_text("../../../objects\n", encoding="utf-8")
        except OSError as error:
            raise _cant(self.path, error.strerror or str(error)) from error

    def _open(self) -> None:
        objects = str(self.path / "objects")
        self._disk = DiskObjectStore(objects)
        git = Git(str(self.path))
        git.set_persistent_git_options(git_dir=str(self.path))
        # GitPython hands on this process's environment, so what could mislead git is overruled.
        git.update_environment(
            **clean_environ({}),
            GIT_COMMON_DIR=str(self.path),
            GIT_OBJECT_DIRECTORY=objects,
            GIT_ALTERNATE_OBJECT_DIRECTORIES="",
            GIT_NAMESPACE="",
        )
        self._git = git

    def close(self) -> None:
        """End the helper process that reads objects."""
        if self._git is not None:
            self._git.clear_cache()
        if self._disk is not None:
            self._disk.close()
        self._git = self._disk = None

    async def tidy(self) -> None:
        """Pack what has gathered; drops what nothing needs."""
        # Refs stay files of their own: when one was last written says when it was true.
        args = ("-c", "gc.packRefs=false", "gc", "--quiet", f"--prune={self.keep_unreached}")
        await self._run(*args, timeout=self.network_seconds)

    @property
    def _overrides(self) -> tuple[str, ...]:
        """What must hold even where the user's own settings say otherwise."""
        mirror = f"remote.{self.remote.name}.mirror=false"
        return ("-c", "core.hooksPath=/dev/null", "-c", mirror)

    async def git(
        self,
        *args: str,
        timeout: float = LOCAL_SECONDS,
        cwd: Path | None = None,
        more: Mapping[str, str] = {},
        stdin: bytes | None = None,
    ) -> Result:
        """Run a git command on the private repository; `more` is added to its environment."""
        whole = ("--git-dir", str(self.path), *self._overrides, *args)
        environ = {**self._environ(), **more}
        place = cwd or self.repository.home
        return await run(whole, cwd=place, environ=environ, timeout=timeout, stdin=stdin)

    async def _run(self, *args: str, timeout: float) -> Result:
        return await self.git(*args, timeout=timeout)

    # Reading objects

    async def head(self, oid: str) -> Head:
        """The commit `oid`.

        :raises CorruptError: when the object isn't here or isn't a commit.
        """
        commit = Commit.from_string(await anyio.to_thread.run_sync(self._read, oid))
        parents = tuple(parent.decode() for parent in commit.parents)
        message = commit.message.decode("utf-8", "replace")
        return Head(oid, commit.tree.decode(), parents, message)

    def tree(self, oid: str) -> Tree:
        """The folder `oid`; asks the helper process, so call it in a worker thread.

        :raises CorruptError: when the object isn't here, or has names that lead out of it.
        """
        data = self._read(oid)
        try:
            entries = tree_entries_from_data(data)
        except ValueError as error:
            raise CorruptError(
                f"the folder {oid} has an entry that no work tree can have: {error}",
                hint="git fsck shows where; take it out of that branch",
                data={"path": oid, "line": None},
            ) from error
        return Tree(oid, {str(name): (mode, sha.hex()) for sha, mode, name in entries})

    def blob(self, oid: str) -> bytes:
        """The bytes of the file `oid`; asks the helper process, so call it in a worker thread.

        :raises CorruptError: when the object isn't here.
        """
        return self._read(oid)

    def _read(self, oid: str) -> bytes:
        assert self._git is not None, "ensure() comes first"
        with self._reading:
            try:
                return bytes(self._git.get_object_data(oid)[3])
            except (ValueError, OSError):
                self._git.clear_cache()  # the helper may have been killed: once more with a new one
            try:
                return bytes(self._git.get_object_data(oid)[3])
            except (ValueError, OSError) as error:
                raise CorruptError(
                    f"object {oid} is missing in {self.path}",
                    hint="forge daemon stop, delete that folder, forge daemon start",
                    data={"path": str(self.path), "line": None},
                ) from error

    async def files(self, commit: str, folder: str) -> dict[str, bytes]:
        """The files right in `folder` of `commit`, by name; empty where there is no such folder."""
        tree = (await self.head(commit)).tree
        return await anyio.to_thread.run_sync(self._files, tree, folder)

    def _files(self, tree: str, folder: str) -> dict[str, bytes]:
        entries = self.tree(tree).entries
        for part in folder.split("/"):
            mode, oid = entries.get(part, (0, ""))
            if mode != _FOLDER:
                return {}
            entries = self.tree(oid).entries
        regular = ((n, oid) for n, (mode, oid) in entries.items() if mode & 0o170000 == 0o100000)
        return {name: self._read(oid) for name, oid in regular}

    # Writing objects

    def write(self, objects: Sequence[ShaFile]) -> None:
        """Store objects: a few as loose ones, many as one pack.

        :raises EnvironmentError_: when the disk won't take them.
        """
        assert self._disk is not None, "ensure() comes first"
        try:
            if len(objects) <= _LOOSE_AT_MOST:
                for item in objects:
                    self._disk.add_object(item)
            else:
                self._disk.add_objects([(item, None) for item in objects])
        except OSError as error:
            raise _cant(self.path, error.strerror or str(error)) from error

    # The remote

    async def tips(self, refs: Sequence[str]) -> dict[str, str]:
        """The objects that `refs` have on the remote; a ref that is absent there is left out.

        :raises UnavailableError: when the remote can't be reached.
        """
        result = await self._ask("ls-remote", self.remote.address, *refs)
        lines = (line.split("\t") for line in result.out.decode("utf-8", "replace").splitlines())
        return {ref: oid for oid, ref in lines if ref in refs}

    async def remote_head(self) -> str | None:
        """The branch that the remote's HEAD names, or None; None too where it has no branches.

        :raises UnavailableError: when the remote can't be reached.
        """
        result = await self._ask("ls-remote", "--symref", self.remote.address, "HEAD")
        for line in result.out.decode("utf-8", "replace").splitlines():
            if line.startswith("ref: refs/heads/") and line.endswith("\tHEAD"):
                return line.removeprefix("ref: refs/heads/").removesuffix("\tHEAD")
        return None

    async def branches(self) -> list[str]:
        """The branches of the remote.

        :raises UnavailableError: when the remote can't be reached.
        """
        result = await self._ask("ls-remote", "--heads", self.remote.address)
        lines = result.out.decode("utf-8", "replace").splitlines()
        return [line.partition("\trefs/heads/")[2] for line in lines]

    async def branches_in(self, folder: str) -> dict[str, str]:
        """The remote's branches whose names begin with `folder`, with their tips.

        :raises UnavailableError: when the remote can't be reached.
        """
        result = await self._ask("ls-remote", self.remote.address, f"refs/heads/{folder}*")
        lines = (line.split("\t") for line in result.out.decode("utf-8", "replace").splitlines())
        return {ref.removeprefix("refs/heads/"): oid for oid, ref in lines}

    async def _ask(self, *args: str) -> Result:
        result = await self._run(*args, timeout=self.network_seconds)
        if not result.is_ok:
            raise unreachable(self.remote, result)
        return result

    async def fetch(self, ref: str, into: str, *, whole: bool = False) -> str:
        """Fetch `ref` of the remote into `into`; returns the object.

        Without `whole`, a first fetch takes the newest commit alone.

        :raises UnavailableError: when the remote can't be reached or has no such ref.
        """
        faults.at("fetch.before")
        known = await self.resolve(into)
        depth = () if whole or known else ("--depth=1",)
        if whole:
            self._borrow_shallow()
        flags = ("--quiet", "--no-tags", "--no-write-fetch-head", "--refmap=", "--no-filter")
        flags += ("--no-prune", "--no-recurse-submodules", "--no-auto-maintenance", *depth)
        limit = TARGET_SECONDS if whole else self.network_seconds
        spec = f"+{ref}:{into}"
        result = await self._run("fetch", *flags, self.remote.address, spec, timeout=limit)
        if not result.is_ok:
            raise unreachable(self.remote, result)
        oid = await self.resolve(into)
        if oid is None:
            raise unreachable(self.remote, result)
        faults.at("fetch.after")
        return oid

    async def deepen(self, ref: str, by: int) -> None:
        """Fetch more of the history of `ref`: so many commits, all of it for 0.

        :raises UnavailableError: when the remote can't be reached.
        """
        how = f"--deepen={by}" if by else "--unshallow"
        flags = ("--quiet", "--no-tags", "--no-write-fetch-head", "--refmap=", "--no-filter", how)
        result = await self._run("fetch", *flags, self.remote.address, ref, timeout=TARGET_SECONDS)
        if not result.is_ok:
            raise unreachable(self.remote, result)

    def _borrow_shallow(self) -> None:
        """A shallow clone's borrowed objects end where its own file says."""
        try:
            borrowed = (self.repository.common_dir / "shallow").read_text("ascii").splitlines()
        except OSError:
            return
        own = self.path / "shallow"
        known = own.read_text("ascii").splitlines() if own.exists() else []
        own.write_text("".join(f"{oid}\n" for oid in sorted({*known, *borrowed})), "ascii")

    async def resolve(self, ref: str) -> str | None:
        """The object that a ref of the private repository has, or None."""
        path = self.path / ref
        try:
            return path.read_text("ascii").strip()
        except OSError:
            args = ("rev-parse", "--verify", "--quiet", ref)
            result = await self._run(*args, timeout=self.network_seconds)
            return result.out.decode().strip() or None

    def record(self, ref: str, oid: str) -> None:
        """Let a ref of the private repository name `oid`, so that it is kept."""
        path = self.path / ref
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path / "forge-ref.new"  # not among the refs, where git would read it
            fresh.write_text(f"{oid}\n", "ascii")
            fresh.replace(path)
        except OSError as error:
            raise _cant(path, error.strerror or str(error)) from error

    def note_refusal(self, words: str) -> None:
        """Remember that the server takes no push but a fast-forward, with its words."""
        with suppress(OSError):
            (self.path / _REFUSED).write_text(words, "utf-8", "surrogateescape")

    def refused_within(self, seconds: float) -> str | None:
        """The words of a refusal that was noted within the last so many seconds, or None."""
        path = self.path / _REFUSED
        try:
            is_recent = time.time() - path.stat().st_mtime < seconds
            return path.read_text("utf-8", "surrogateescape") if is_recent else None
        except OSError:
            return None

    def seen(self, ref: str) -> None:
        """Note that `ref` of the private repository is what the remote has at this moment."""
        with suppress(OSError):
            os.utime(self.path / ref)

    def seen_at(self, ref: str) -> float | None:
        """The wall time of the last `seen` or `record` of `ref`, or None."""
        try:
            return (self.path / ref).stat().st_mtime
        except OSError:
            return None

    async def history(self, tip: str, *, most: int) -> list[str]:
        """`tip` and its ancestors as far as they are here, newest first."""
        args = ("rev-list", f"--max-count={most}", tip)
        result = await self._run(*args, timeout=self.network_seconds)
        return result.out.decode().split()

    async def root(self, tip: str) -> str | None:
        """The oldest ancestor of `tip` that is here: where its history begins, or is cut."""
        args = ("rev-list", "--max-parents=0", tip)
        result = await self._run(*args, timeout=self.network_seconds)
        return next(iter(result.out.decode().split()[-1:]), None)

    async def contains(self, tip: str, commit: str) -> bool | None:
        """Whether `commit` is `tip` or one of its ancestors; None where history isn't here."""
        args = ("merge-base", "--is-ancestor", commit, tip)
        code = (await self._run(*args, timeout=self.network_seconds)).code
        return {0: True, 1: False}.get(code)

    async def push(self, oid: str, ref: str, expected: str | None) -> Pushed:
        """Move `ref` on the remote from `expected` (None: absent) to `oid`."""
        return await self.push_all({ref: (expected, oid)})

    async def push_all(self, moves: Moves) -> Pushed:
        """Move refs on the remote, all or none of them."""
        leases = [f"--force-with-lease={ref}:{old or ''}" for ref, (old, _) in moves.items()]
        specs = [f"{new or ''}:{ref}" for ref, (_, new) in moves.items()]
        how = ["--atomic"] if len(moves) > 1 else []
        how += [f"--receive-pack={_OWN_RECEIVE_PACK}"] if self.remote.is_own else []
        args = ("push", "--porcelain", "--no-verify", *how, *leases, self.remote.address, *specs)
        faults.at("push.before_send")
        result = await self._run(*PLAIN_PUSH, *args, timeout=self.network_seconds)
        faults.at("push.after_send")
        return Pushed(how_it_ended(result, moves), _words(result))

    async def is_atomic(self, oid: str, ref: str) -> bool:
        """Whether the remote takes pushes of several refs as a whole; asked with `oid` for `ref`.

        :raises UnavailableError: when it can't be asked.
        """
        ask = (*PLAIN_PUSH, "push", "--porcelain", "--no-verify", "--dry-run")
        spec = (self.remote.address, f"{oid}:{ref}")
        if (await self._run(*ask, "--atomic", *spec, timeout=self.network_seconds)).code != _FATAL:
            return True
        plain = await self._run(*ask, *spec, timeout=self.network_seconds)
        if not plain.is_ok:
            raise unreachable(self.remote, plain)
        return False

    async def dry_push(self, ref: str, branches: Sequence[str]) -> Result:
        """What git says to a push that only asks: of a branch's tip to `ref`.

        :raises UnavailableError: when the remote can't be reached.
        """
        if not branches:
            return Result(1, b"", "the remote has no branches")
        oid = await self.fetch(f"refs/heads/{branches[0]}", PROBE)
        args = ("push", "--porcelain", "--no-verify", "--dry-run", self.remote.address)
        return await self._run(*PLAIN_PUSH, *args, f"{oid}:{ref}", timeout=self.network_seconds)


def _words(result: Result) -> str:
    """What the server said; where it said nothing, what git made of it."""
    if any(line.startswith("remote:") for line in result.err.splitlines()):
        return result.err
    summaries = [line.split("\t")[2] for line in _ref_lines(result) if line.startswith("!")]
    return "\n".join([*summaries, result.err])


def _ref_lines(result: Result) -> list[str]:
    lines = result.out.decode("utf-8", "replace").splitlines()
    return [line for line in lines if line.count("\t") == 2]


def how_it_ended(result: Result, refs: Iterable[str]) -> Push:
    """How a push of `refs`, all or none, ended, as far as git's porcelain output says."""
    if result.timed_out:
        return Push.UNANSWERED
    ends = tuple(f":{ref}" for ref in refs)
    rows = (line.split("\t") for line in _ref_lines(result))
    flags = {flag for flag, names, _ in rows if names.endswith(ends)}
    if not flags:
        return Push.FAILED
    if "!" in flags:
        return Push.REJECTED
    return Push.SAME if flags == {"="} else Push.DONE


def unreachable(remote: Remote, result: Result) -> UnavailableError:
    """The error for a remote that gave no answer, with git's words."""
    words = result.err.splitlines()
    why = "no answer in time" if result.timed_out else (words[-1] if words else "no answer")
    for line in words:
        if line.startswith(("fatal:", "ssh:", "ERROR:", "remote:")) or "denied" in line:
            why = line
            break
    return UnavailableError(
        f"the remote '{remote.name}' ({remote.shown}) can't be reached: {why}",
        hint=f"git ls-remote {remote.name}; then try again",
        data={"remote": remote.shown, "why": result.err},
    )


def _cant(path: Path, why: str) -> EnvironmentError_:
    return EnvironmentError_(
        f"can't write {path}: {why}",
        hint="free space or rights on the disk that the clone is on",
        data={"path": str(path)},
    )


def blob(data: bytes) -> Blob:
    """A file as a git object."""
    return Blob.from_string(data)


def folder(entries: Mapping[str, tuple[int, str]]) -> GitTree:
    """A folder as a git object."""
    tree = GitTree()
    for name, (mode, oid) in entries.items():
        tree.add(name.encode("utf-8", "surrogateescape"), mode, ObjectID(oid.encode()))
    return tree


def commit(
    tree: str, parent: str | None, *, author: tuple[str, str], seconds: int, message: str
) -> Commit:
    """A commit as a git object; `seconds` since 1970 in UTC."""
    made = Commit()
    made.tree = ObjectID(tree.encode())
    made.parents = [ObjectID(parent.encode())] if parent else []
    made.author = made.committer = f"{author[0]} <{author[1]}>".encode("utf-8", "replace")
    made.author_time = made.commit_time = seconds
    made.author_timezone = made.commit_timezone = 0
    made.encoding = b"UTF-8"
    made.message = message.encode("utf-8", "replace")
    return made
