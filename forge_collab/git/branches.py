"""The user's branches: which one work is on, whether all of it is committed, and its push.

Nothing here moves a branch, an index or a work tree.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forge_collab.core.errors import BlockedError, UnavailableError
from forge_collab.git.repository import Repository
from forge_collab.git.runner import PLAIN_PUSH, Result, run_sync

PUSH_SECONDS = 3600.0
"""A push runs the user's hook, which may upload files or run tests."""


@dataclass(frozen=True)
class Uncommitted:
    """What a work tree has that no commit has."""

    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()


def tip(repository: Repository, branch: str) -> str | None:
    """The commit that a local branch is on, or None where there is no such branch."""
    ref = f"refs/heads/{branch}^{{commit}}"
    found = repository.git("rev-parse", "--verify", "--quiet", "--end-of-options", ref)
    return found.out.decode().strip() if found.is_ok else None


def work_tree_of(repository: Repository, branch: str) -> Path | None:
    """The work tree that has `branch` checked out, if its folder is there, or None."""
    listed = repository.git("worktree", "list", "--porcelain", "-z")
    place: str | None = None
    for line in listed.out.decode("utf-8", "surrogateescape").split("\0"):
        word, _, rest = line.partition(" ")
        if word == "worktree":
            place = rest
        elif word == "branch" and rest == f"refs/heads/{branch}" and place is not None:
            return Path(place) if Path(place).is_dir() else None
    return None


def is_being_rebased(repository: Repository, branch: str) -> bool:
    """Whether a rebase of `branch` is under way in some work tree, so that it isn't final."""
    common = repository.common_dir
    for folder in (common, *sorted((common / "worktrees").glob("*"))):
        for kind in ("rebase-merge", "rebase-apply"):
            with suppress(OSError):
                name = (folder / kind / "head-name").read_text("utf-8", "surrogateescape")
                if name.strip() == f"refs/heads/{branch}":
                    return True
    return False


def uncommitted(repository: Repository, work_tree: Path) -> Uncommitted:
    """What is changed or untracked in a work tree; ignored files don't count."""
    args = ("status", "--porcelain", "-z", "--untracked-files=normal", "--no-renames")
    found = run_sync(args, cwd=work_tree, environ=repository.environ, timeout=120)
    entries = found.out.decode("utf-8", "surrogateescape").split("\0")
    changed = tuple(e[3:] for e in entries if e and not e.startswith("??"))
    return Uncommitted(changed, tuple(e[3:] for e in entries if e.startswith("??")))


def push(repository: Repository, work_tree: Path | None, *, remote: str, branch: str) -> None:
    """Push a branch as the user would, with the user's pre-push hook; never by force.

    :raises BlockedError: when the hook or the server refuses it; data has the words.
    :raises UnavailableError: when the remote can't be reached.
    :raises EnvironmentError_: when the remote isn't one place: it has several push URLs.
    """
    repository.remote(remote)
    where = () if work_tree or repository.root else ("--git-dir", str(repository.common_dir))
    ref = f"refs/heads/{branch}"
    result = run_sync(
        [*where, *PLAIN_PUSH, "push", "--porcelain", remote, f"{ref}:{ref}"],
        cwd=work_tree or repository.root or repository.home,
        environ=repository.environ,
        timeout=PUSH_SECONDS,
    )
    if not result.is_ok:
        raise _refused(result, remote, branch)


def _refused(result: Result, remote: str, branch: str) -> BlockedError | UnavailableError:
    lines = result.out.decode("utf-8", "replace").splitlines()
    refused = next((line.split("\t")[2] for line in lines if line.startswith("!\t")), None)
    words = result.said or refused or "no word why"
    data = {"branch": branch, "status": "refused", "server": words, "waits_for": []}
    if refused and "[rejected]" in refused:
        return BlockedError(
            f"'{remote}' has commits on {branch} that this clone's branch doesn't have",
            hint=f"git pull --rebase {remote} {branch}; or, to give those up, "
            f"git push --force-with-lease {remote} {branch}",
            data=data,
        )
    if result.timed_out or (result.code == 128 and refused is None):
        return UnavailableError(
            f"{branch} couldn't be pushed to '{remote}': {words}",
            hint=f"git push {remote} {branch} shows more; then try again",
            data=data,
        )
    return BlockedError(
        f"the push of {branch} to '{remote}' was refused: {words}",
        hint=f"git push {remote} {branch} shows more; then try again",
        data=data,
    )
