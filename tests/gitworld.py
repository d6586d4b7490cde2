"""A world of real git for tests: a bare origin, clones of it, and no settings from outside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_collab.transport import Context

STATE_BRANCH = "forge/collab-state"
STATE_REF = f"refs/heads/{STATE_BRANCH}"
_GLOBAL = """\
[user]
\tname = Test Person
\temail = person@example.org
[init]
\tdefaultBranch = main
[protocol "file"]
\tallow = always
"""


class World:
    """`origin` is a bare repository with one commit on `main`; all else is made on demand.

    `environ` is the user's environment; what is done on origin itself has settings of its own.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self.origin = place / "origin.git"
        self.global_config = place / "gitconfig"
        self.global_config.write_text(_GLOBAL, "utf-8")
        home = place / "home"
        home.mkdir()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "SSH_"))}
        self.environ: dict[str, str] = {
            **inherited,
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            "GIT_CONFIG_GLOBAL": str(self.global_config),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        server_config = place / "server-gitconfig"
        server_config.write_text(_GLOBAL, "utf-8")
        self.server_environ = {**self.environ, "GIT_CONFIG_GLOBAL": str(server_config)}
        self.git("init", "--quiet", "--bare", str(self.origin))
        self.git("config", "core.hooksPath", str(self.origin / "hooks"), cwd=self.origin)
        tree = self.git("write-tree", cwd=self.origin)
        first = self.git("commit-tree", "-m", "first", tree, cwd=self.origin)
        self.git("update-ref", "refs/heads/main", first, cwd=self.origin)

    def git(self, *args: str, cwd: Path | None = None, stdin: str | bytes = b"") -> str:
        """What a git command prints; it has to succeed."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            ["git", *args],
            cwd=cwd or self.place,
            env=self.server_environ if cwd == self.origin else self.environ,
            input=given,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, (args, done.stderr.decode("utf-8", "replace"))
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def config(self, key: str, value: str) -> None:
        """A setting in the user's global configuration."""
        self.git("config", "--global", "--add", key, value)

    def clone(self, name: str = "clone", *flags: str) -> Path:
        """A new clone of origin, by its ``file://`` URL where flags need one."""
        url = self.origin.as_uri() if flags else str(self.origin)
        self.git("clone", "--quiet", *flags, url, str(self.place / name))
        return self.place / name

    def hook(self, name: str, script: str) -> None:
        """A hook of origin's; an empty script takes it away."""
        path = self.origin / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        if not script:
            path.unlink()
            return
        path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        path.chmod(0o755)

    def context(self, clone: Path, number: int = 0, **more: Any) -> Context:
        """What a transport in `clone` is made with; it polls fast."""
        settings: dict[str, Any] = {
            "instance": f"client-{number}",
            "handle": f"person-{number}",
            "common_dir": self.common_dir(clone),
            "poll_seconds": 0.3,
            "network_seconds": 10.0,
            "environ": self.environ,
        }
        return Context(**{**settings, **more})

    def common_dir(self, clone: Path) -> Path:
        """The git common directory of `clone`."""
        shown = self.git("rev-parse", "--path-format=absolute", "--git-common-dir", cwd=clone)
        return Path(shown)

    def tip(self, ref: str = STATE_REF) -> str | None:
        """The object that `ref` has on origin, or None."""
        shown = self.git("for-each-ref", "--format=%(objectname)", ref, cwd=self.origin)
        return shown or None

    def commits(self, ref: str = STATE_REF) -> int:
        """How many commits `ref` on origin has."""
        return int(self.git("rev-list", "--count", ref, cwd=self.origin))

    def show(self, path: str, ref: str = STATE_REF) -> str:
        """A file on origin."""
        return self.git("cat-file", "blob", f"{ref}:{path}", cwd=self.origin)

    def objects(self) -> int:
        """How many objects origin has."""
        all_objects = self.git("cat-file", "--batch-all-objects", "--batch-check", cwd=self.origin)
        return len(all_objects.splitlines())

    def put(self, files: Mapping[bytes, bytes], ref: str = STATE_REF, **modes: str) -> str:
        """A commit on origin that sets `files` on top of `ref`, made without any clone."""
        index = {**self.server_environ, "GIT_INDEX_FILE": str(self.place / "index")}
        tip = self.tip(ref)

        def run(*args: str, stdin: bytes = b"") -> str:
            done = subprocess.run(
                ["git", *args], cwd=self.origin, env=index, input=stdin, capture_output=True
            )
            assert done.returncode == 0, done.stderr
            return done.stdout.decode().strip()

        run("read-tree", *([tip] if tip else ["--empty"]))
        for name, data in files.items():
            oid = run("hash-object", "-w", "--stdin", stdin=data)
            mode = modes.get(name.decode("utf-8", "replace"), "100644").encode()
            line = b"%s %s\t%s\0" % (mode, oid.encode(), name)
            run("update-index", "-z", "--index-info", stdin=line)
        parent = ["-p", tip] if tip else []
        made = run("commit-tree", *parent, "-m", "by hand", run("write-tree"))
        run("update-ref", ref, made)
        return made


def listing(folder: Path, *, without: Path | None = None) -> dict[str, bytes]:
    """Every file below `folder` with its bytes, but for what is below `without`."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"<folder>"
        for path in sorted(folder.rglob("*"))
        if without is None or not path.is_relative_to(without)
    }
