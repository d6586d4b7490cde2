"""The user's repository, only ever read: where it is, its configuration, remote and identity."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from forge_collab.core import identity, names
from forge_collab.core.errors import EnvironmentError_, UsageError
from forge_collab.git.runner import MIN_VERSION, Result, run_sync


@dataclass(frozen=True)
class Repository:
    """A clone as seen from one of its work trees.

    `common_dir` is shared by all its work trees; `root` is None in a bare repository.
    """

    common_dir: Path
    git_dir: Path
    root: Path | None
    environ: Mapping[str, str]

    @property
    def forge_dir(self) -> Path:
        """Where forge keeps what belongs to this clone: ``<common dir>/forge``."""
        return self.common_dir / "forge"

    @property
    def home(self) -> Path:
        """Where a remote's relative path counts from, the same for every work tree."""
        return self.common_dir.parent if self.common_dir.name == ".git" else self.common_dir

    def git(self, *args: str) -> Result:
        """Run a git command that reads this repository.

        Without a work tree git is told where it is: ``safe.bareRepository`` may forbid it to look.
        """
        where = () if self.root else ("--git-dir", str(self.common_dir))
        cwd = self.root or self.home
        return run_sync([*where, *args], cwd=cwd, environ=self.environ)

    def config_pairs(self) -> list[tuple[str, str]]:
        """All ``forge.*`` settings of git's configuration, later ones win."""
        result = self.git("config", "-z", "--get-regexp", r"^forge\.")
        entries = result.out.decode("utf-8", "replace").split("\0")
        pairs = (entry.partition("\n") for entry in entries if entry)
        return [(key, value) for key, _, value in pairs]

    def config(self, key: str) -> str | None:
        """One setting of git's configuration, or None."""
        result = self.git("config", "--get", key)
        return result.out.decode("utf-8", "replace").strip() if result.is_ok else None

    def branch(self) -> str | None:
        """The current branch, or None on a detached HEAD."""
        result = self.git("symbolic-ref", "--quiet", "--short", "HEAD")
        return result.out.decode("utf-8", "replace").strip() if result.is_ok else None

    def upstream(self, remote: str) -> str | None:
        """The branch on `remote` that the current branch follows, or None."""
        branch = self.branch()
        if branch is None or self.config(f"branch.{branch}.remote") != remote:
            return None
        merge = self.config(f"branch.{branch}.merge") or ""
        return merge.removeprefix("refs/heads/") or None

    def remote_head(self, remote: str) -> str | None:
        """The branch of `remote` that this clone's ``refs/remotes/REMOTE/HEAD`` names, or None."""
        prefix = f"refs/remotes/{remote}/"
        result = self.git("symbolic-ref", "--quiet", f"{prefix}HEAD")
        named = result.out.decode("utf-8", "replace").strip()
        return named.removeprefix(prefix) if named.startswith(prefix) else None

    def has_branch(self, name: str) -> bool:
        """Whether this clone has a branch `name` of its own."""
        return self.git("show-ref", "--verify", "--quiet", f"refs/heads/{name}").is_ok

    def has_remote(self, name: str) -> bool:
        """Whether a remote is called `name`.

        :raises UsageError: when none can be.
        """
        names.remote(name)
        return self.git("remote", "get-url", name).is_ok

    def remote(self, name: str) -> Remote:
        """The remote called `name`.

        :raises EnvironmentError_: when there is none, or it has several push URLs.
        """
        names.remote(name)
        fetch = self.git("remote", "get-url", name)
        push = self.git("remote", "get-url", "--push", "--all", name)
        if not fetch.is_ok or not push.is_ok:
            raise EnvironmentError_(
                f"this repository has no remote called '{name}', and forge coordinates through it",
                hint=f"git remote add {name} URL, or git config forge.remote NAME",
            )
        pushes = push.out.decode("utf-8", "replace").split("\n")[:-1]
        if len(pushes) != 1:
            raise EnvironmentError_(
                f"the remote '{name}' has {len(pushes)} push URLs; a session needs one judge",
                hint="git config forge.remote NAME, for a remote with one push URL",
            )
        url = fetch.out.decode("utf-8", "replace").removesuffix("\n")
        return Remote(name, url, pushes[0], self._resolved(pushes[0]))

    def to_read(self, remote: str, branch: str) -> tuple[str, str]:
        """The command by which a person fetches a branch from the one judge, and its name then.

        Where a remote is fetched from elsewhere than it is pushed to, that is the push URL.
        """
        fetch = self.git("remote", "get-url", remote)
        push = self.git("remote", "get-url", "--push", remote)
        if fetch.out == push.out:
            return f"git fetch {remote} {branch}", f"{remote}/{branch}"
        return f'git fetch "$(git remote get-url --push {remote})" {branch}', "FETCH_HEAD"

    def _resolved(self, url: str) -> str:
        if not identity.is_path(url):
            return url
        path = Path(self.home, os.path.expanduser(identity.local_path(url)))
        return str(path.resolve())

    def handle(self, configured: str | None) -> str:
        """The person's name in a session: what was configured, else one derived.

        :raises UsageError: when it was given and can't be one, or none could be derived.
        """
        if configured:
            return names.handle(configured)
        mail = self.config("user.email") or ""
        for candidate in (mail.partition("@")[0], getpass.getuser()):
            if (name := names.suggested_handle(candidate)) is not None:
                return name
        raise UsageError("no handle could be derived", hint="forge collaborate start --handle NAME")

    def author(self) -> tuple[str, str]:
        """The user's name and e-mail as git would use them, else forge's own."""
        return author_of(self.environ, self.config("user.name"), self.config("user.email"))

    def excludes(self) -> Path:
        """The clone's own exclude file, shared by its work trees."""
        return self.common_dir / "info" / "exclude"


@dataclass(frozen=True)
class Remote:
    """A remote: its name and URLs, as git resolved them; `judge` with a path resolved too."""

    name: str
    fetch_url: str
    push_url: str
    judge: str

    @classmethod
    def own(cls, common_dir: Path) -> Self:
        """A clone as its own remote, for whoever works alone."""
        return cls("this clone", "", str(common_dir), str(common_dir))

    @property
    def is_own(self) -> bool:
        """Whether this is the clone itself."""
        return not self.fetch_url

    @property
    def address(self) -> str:
        """What to hand to git so that reads and writes use the one push URL.

        The name where that does: it keeps secrets out of the process list and the remote's own
        settings (proxy, pack programs) in force.
        """
        return self.name if self.fetch_url == self.push_url else self.push_url

    @property
    def derived_id(self) -> str:
        """The session id derived from the URL."""
        return identity.derived_id(self.judge)

    @property
    def shown(self) -> str:
        """The URL as it may be shown."""
        return identity.without_secret(self.push_url)


def author_of(environ: Mapping[str, str], name: str | None, email: str | None) -> tuple[str, str]:
    """A person's name and e-mail, from the environment or these settings; else forge's own."""
    given = (environ.get("GIT_COMMITTER_NAME") or name, environ.get("GIT_COMMITTER_EMAIL") or email)
    name, email = (re.sub(r"[\n<>\0]", "", text or "").strip() for text in given)
    return (name, email) if name and email else ("forge", "forge@localhost")


def is_true(value: str) -> bool:
    """Whether a setting of git's is on; one without a value is."""
    return value.lower() in ("", "true", "yes", "on", "1")


def discover(start: Path, environ: Mapping[str, str]) -> Repository:
    """The repository that `start` is in.

    :raises EnvironmentError_: when it is in none, or there is no git new enough.
    """
    wanted = ("--path-format=absolute", "--git-common-dir", "--absolute-git-dir")
    if not start.is_dir():
        raise EnvironmentError_(f"no such folder: {start}", hint="forge -C DIR …")
    found = run_sync(["rev-parse", *wanted], cwd=start, environ=environ)
    if not found.is_ok:
        check_version(start, environ)
        raise EnvironmentError_(
            f"{start} is not in a git repository: {found.err or 'git found none'}",
            hint="cd into a clone, or git clone URL",
            data={"path": str(start)},
        )
    common, own = found.out.decode("utf-8", "surrogateescape").split("\n")[:2]
    top = run_sync(["rev-parse", "--show-toplevel"], cwd=start, environ=environ)
    root = Path(top.out.decode("utf-8", "surrogateescape")[:-1]) if top.is_ok else None
    return Repository(Path(common).resolve(), Path(own).resolve(), root, environ)


def version(start: Path, environ: Mapping[str, str]) -> tuple[int, ...]:
    """git's version, such as (2, 39, 5).

    :raises EnvironmentError_: when there is no git.
    """
    out = run_sync(["--version"], cwd=start, environ=environ).out.decode("utf-8", "replace")
    match = re.search(r"\d+(\.\d+)+", out)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def check_version(start: Path, environ: Mapping[str, str]) -> str:
    """git's version, when forge can use it.

    :raises EnvironmentError_: when it is too old.
    """
    found = version(start, environ)
    shown = ".".join(map(str, found))
    if found < MIN_VERSION:
        raise EnvironmentError_(
            f"git {shown or '(unknown version)'} is too old; forge needs 2.38 or newer",
            hint="upgrade git",
            data={"found": shown, "needed": "2.38"},
        )
    return shown
