"""The demo's stage: a bare origin with a plan, two clones, and what is run in them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_collab.core.errors import FailedError

TASKS = {
    "T001": "Read the configuration",
    "T002": "Parse the header",
    "T003": "Write the index",
    "T004": "Cache what was read",
    "T005": "Report progress",
    "T006": "Retry what failed",
    "T007": "Document the format",
    "T008": "Measure the speed",
}
PEOPLE = ("ada", "ben")
TTL_SECONDS = 4
SETTINGS = {
    "forge.claim-ttl-seconds": str(TTL_SECONDS),
    "forge.heartbeat-seconds": "1",
    "forge.poll-seconds": "0.3",
    "forge.idle-poll-seconds": "0.5",
    "forge.state-ref": "refs/heads/forge/collab-state",
    "forge.transport": "polling",
}
_SECONDS = 120


def other(name: str) -> str:
    """The other of the two."""
    return next(one for one in PEOPLE if one != name)


@dataclass(frozen=True)
class Answer:
    """How a command ended, and the one document it printed."""

    code: int
    document: dict[str, Any]

    @property
    def is_ok(self) -> bool:
        """Whether the command did what was asked."""
        return bool(self.document["ok"])

    @property
    def data(self) -> dict[str, Any]:
        """What it did; of one that failed, what its error says beside the message."""
        found: dict[str, Any] = self.document if self.is_ok else self.document["error"]
        return dict(found["data"])

    @property
    def message(self) -> str:
        """Why it failed."""
        return str(self.document["error"]["message"])


@dataclass
class Stage:
    """The demo's folder; `say` prints each step as it happens."""

    folder: Path
    say: Callable[[str], object]
    target: str = "main"
    plan: str = ""
    _asleep: set[int] = field(default_factory=set)

    @property
    def origin(self) -> Path:
        """The bare repository."""
        return self.folder / "origin.git"

    @property
    def environ(self) -> dict[str, str]:
        """Away from the settings of whoever runs the demo."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "FORGE_"))}
        return kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    # What is run

    def git(self, *args: str, cwd: Path | str = ".", may_fail: bool = False) -> str:
        """Run git in a folder of the stage; its output, stripped.

        :raises FailedError: when it fails, and may not.
        """
        done = subprocess.run(
            ["git", *args],
            cwd=self.folder / cwd,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS,
        )
        if done.returncode != 0 and not may_fail:
            raise FailedError(f"git {args[0]} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def begin(self, name: str, *args: str) -> subprocess.Popen[str]:
        """Start a command of forge's in somebody's clone."""
        return subprocess.Popen(
            [sys.executable, "-m", "forge_collab", "-C", str(self.folder / name), *args, "--json"],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end_of(self, process: subprocess.Popen[str]) -> Answer:
        """Wait for a command's end.

        :raises FailedError: when it printed no document.
        """
        out, err = process.communicate(timeout=_SECONDS)
        try:
            return Answer(process.returncode, json.loads(out))
        except ValueError as error:
            raise FailedError(f"the command printed no JSON: {out} {err}") from error

    def forge(self, name: str, *args: str) -> Answer:
        """Run a command of forge's in somebody's clone."""
        return self.end_of(self.begin(name, *args))

    def done(self, name: str, *args: str) -> dict[str, Any]:
        """As `forge`, of a command that has to do what is asked; what it did.

        :raises FailedError: when it doesn't.
        """
        answer = self.forge(name, *args)
        if not answer.is_ok:
            raise FailedError(f"forge {' '.join(args)}: {answer.message}")
        return answer.data

    # The origin and the clones

    def make_origin(self, source: Path | None) -> None:
        """Copy `source` into a bare repository, or begin an empty one, and put a plan on it."""
        if source is None:
            self.git("init", "-q", "--bare", "-b", "main", str(self.origin))
        else:
            self.git("clone", "-q", "--bare", "--no-hardlinks", str(source), str(self.origin))
            self._forget_forge_branches()
        where = "a small built-in project" if source is None else str(source)
        self.say(f"origin.git: a bare copy of {where}, with eight tasks")
        self._add_plan(is_new=source is None)

    def _forget_forge_branches(self) -> None:
        named = self.git("for-each-ref", "--format=%(refname)", "refs/heads", cwd=self.origin)
        for ref in named.splitlines():
            if ref == "refs/heads/forge" or ref.startswith("refs/heads/forge/"):
                self.git("update-ref", "-d", ref, cwd=self.origin)

    def _add_plan(self, *, is_new: bool) -> None:
        """Commit the eight task files, in place of the plan that the copy may have."""
        seed = self.folder / "seed"
        self.git("clone", "-q", str(self.origin), str(seed))
        if not is_new:
            self.target = self.git("symbolic-ref", "--short", "HEAD", cwd=seed)
        tasks = seed / ".forge" / "tasks"
        shutil.rmtree(tasks, ignore_errors=True)
        tasks.mkdir(parents=True)
        for task_id, title in TASKS.items():
            (tasks / f"{task_id}.yaml").write_text(f"id: {task_id}\ntitle: {title}\n")
        self._name(seed, "forge demo")
        self.git("add", "-A", "-f", ".forge/tasks", cwd=seed)
        self.git("commit", "-q", "-m", "A plan of eight tasks", cwd=seed)
        self.git("push", "-q", "origin", f"HEAD:refs/heads/{self.target}", cwd=seed)
        self.plan = self.git("rev-parse", "HEAD", cwd=seed)
        shutil.rmtree(seed)

    def _name(self, clone: Path, name: str) -> None:
        self.git("config", "user.name", name, cwd=clone)
        self.git("config", "user.email", f"{name.replace(' ', '-')}@example.org", cwd=clone)

    def make_clone(self, name: str) -> None:
        """A clone for `name`, who joins the session from it."""
        clone = self.folder / name
        self.git("clone", "-q", str(self.origin), str(clone))
        self._name(clone, name)
        for key, value in SETTINGS.items():
            self.git("config", key, value, cwd=clone)
        data = self.done(name, "collaborate", "start", "--handle", name)
        self.say(f"{name}: forge collaborate start -> in session {data['session']}")

    # The daemons

    def pid(self, name: str) -> int:
        """The process of somebody's daemon."""
        return int(self.done(name, "daemon", "status")["pid"])

    def put_to_sleep(self, name: str) -> int:
        """Stop somebody's daemon where it stands; the process that sleeps."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        self._asleep.add(pid)
        return pid

    def wake(self, pid: int) -> None:
        """Let a daemon that was put to sleep go on."""
        self._asleep.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """Stop the daemons."""
        for pid in list(self._asleep):
            self.wake(pid)
        has_one = [n for n in PEOPLE if (self.folder / n / ".git" / "forge" / "pid").exists()]
        for process in [self.begin(name, "daemon", "stop") for name in has_one]:
            with contextlib.suppress(FailedError, subprocess.TimeoutExpired):
                self.end_of(process)
