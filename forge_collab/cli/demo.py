"""``forge demo``: two clones race for eight tasks, one daemon dies, and all of it is checked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from forge_collab.cli import options, output
from forge_collab.core.errors import EnvironmentError_, FailedError, UsageError

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
TTL_SECONDS = 4
SETTINGS = {
    "forge.claim-ttl-seconds": str(TTL_SECONDS),
    "forge.heartbeat-seconds": "1",
    "forge.poll-seconds": "0.3",
    "forge.idle-poll-seconds": "0.5",
    "forge.state-ref": "refs/heads/forge/collab-state",
    "forge.transport": "polling",
}
PEOPLE = ("ada", "ben")
_SECONDS = 120


@click.command()
@click.option("--repo", metavar="PATH", help="A repository to copy the origin from.")
@click.option("--keep", metavar="DIR", help="Work in DIR and leave everything there.")
@options.as_json
@click.pass_context
def demo(context: click.Context, repo: str | None, keep: str | None, as_json: bool) -> None:
    """Show it: two clones, a daemon each, race for eight tasks; one daemon is killed.

    Example: forge demo
    """
    say = output.notice if as_json else click.echo
    with _folder(keep) as folder:
        show = Show(folder, say)
        try:
            data = show.run(_source(repo, options.folder(context)))
        finally:
            show.end()
    rows = [
        [t["id"], *(f"{h['handle']} (fence {h['fence']})" for h in t["holders"])]
        for t in data["tasks"]
    ]
    width = max(map(len, rows))
    head = ["task", "held first by", *(["then by"] * (width - 2))]
    text = ["", *output.table(head, [row + [""] * (width - len(row)) for row in rows])]
    text += ["", f"checked on the bare repository: {data['checked']}"]
    text += [f"left in {keep}"] if keep else []
    output.done("demo", data, text, as_json=as_json)


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="forge-demo-") as name:
            yield Path(name)
        return
    folder = Path(keep).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and isn't empty", hint="name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _source(named: str | None, folder: str | None) -> Path | None:
    """The repository to copy: the one named, else the checkout we are in, else None."""
    place = Path(named or folder or os.getcwd())
    told = subprocess.run(
        ["git", "-C", str(place), "rev-parse", "--verify", "--quiet", "HEAD"],
        capture_output=True,
        check=False,
    )
    if told.returncode == 0:
        return place.absolute()
    if named is not None:
        raise EnvironmentError_(
            f"{named} is no git repository with a commit", hint="forge demo --repo PATH"
        )
    return None


@dataclass
class Show:
    """The demo in one folder; `say` prints each step as it happens."""

    folder: Path
    say: Callable[[str], object]
    won: dict[str, list[tuple[str, int]]] = field(default_factory=dict)

    @property
    def origin(self) -> Path:
        """The bare repository."""
        return self.folder / "origin.git"

    @property
    def environ(self) -> dict[str, str]:
        """Away from the settings of whoever runs the demo."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "FORGE_"))}
        return kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def run(self, source: Path | None) -> dict[str, Any]:
        """Everything, from the copy to the check.

        :raises FailedError: when what the origin says isn't what the commands said.
        """
        self._make_origin(source)
        for name in PEOPLE:
            self._make_clone(name)
        for task_id in TASKS:
            self._race(task_id)
        self._kill_and_take_over()
        return self._check()

    def git(self, *args: str, cwd: Path | None = None) -> str:
        """Run git; its output, stripped.

        :raises FailedError: when it fails.
        """
        done = subprocess.run(
            ["git", *args],
            cwd=cwd or self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        if done.returncode != 0:
            raise FailedError(f"git {args[0]} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def _forge(self, name: str, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "forge_collab", "-C", str(self.folder / name), *args, "--json"],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=_SECONDS)
        try:
            answer: dict[str, Any] = json.loads(out)
        except ValueError as error:
            raise FailedError(f"the command printed no JSON: {out} {err}") from error
        return answer

    def _done(self, name: str, *args: str) -> dict[str, Any]:
        answer = self._answer(self._forge(name, *args))
        if not answer["ok"]:
            raise FailedError(f"forge {' '.join(args)}: {answer['error']['message']}")
        data: dict[str, Any] = answer["data"]
        return data

    # The stage

    def _make_origin(self, source: Path | None) -> None:
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
        branch = "main" if is_new else self.git("symbolic-ref", "--short", "HEAD", cwd=seed)
        tasks = seed / ".forge" / "tasks"
        shutil.rmtree(tasks, ignore_errors=True)
        tasks.mkdir(parents=True)
        for task_id, title in TASKS.items():
            (tasks / f"{task_id}.yaml").write_text(f"id: {task_id}\ntitle: {title}\n")
        self._name(seed, "forge demo")
        self.git("add", "-A", "-f", ".forge/tasks", cwd=seed)
        self.git("commit", "-q", "-m", "A plan of eight tasks", cwd=seed)
        self.git("push", "-q", "origin", f"HEAD:refs/heads/{branch}", cwd=seed)
        shutil.rmtree(seed)

    def _name(self, clone: Path, name: str) -> None:
        self.git("config", "user.name", name, cwd=clone)
        self.git("config", "user.email", f"{name.replace(' ', '-')}@example.org", cwd=clone)

    def _make_clone(self, name: str) -> None:
        clone = self.folder / name
        self.git("clone", "-q", str(self.origin), str(clone))
        self._name(clone, name)
        for key, value in SETTINGS.items():
            self.git("config", key, value, cwd=clone)
        data = self._done(name, "collaborate", "start", "--handle", name)
        self.say(f"{name}: forge collaborate start -> in session {data['session']}")

    # The play

    def _race(self, task_id: str) -> None:
        running = {n: self._forge(n, "collaborate", "claim", task_id) for n in PEOPLE}
        answers = {name: self._answer(process) for name, process in running.items()}
        winners = [name for name, answer in answers.items() if answer["ok"]]
        if len(winners) != 1:
            raise FailedError(f"{task_id} has {len(winners)} winners: {answers}")
        winner = winners[0]
        loser = next(name for name in PEOPLE if name != winner)
        fence = answers[winner]["data"]["lease"]["fence"]
        told = answers[loser]["error"]["data"]["holder"]
        if (told["claimant"]["handle"], told["fence"]) != (winner, fence):
            raise FailedError(f"{loser} was told the wrong holder of {task_id}: {told}")
        self.won[task_id] = [(winner, fence)]
        self.say(f"{task_id}: both claim; {winner} has it under fence {fence}, {loser} is told so")

    def _kill_and_take_over(self) -> None:
        victim = self.won["T001"][0][0]
        survivor = next(name for name in PEOPLE if name != victim)
        pid = self._done(victim, "daemon", "status")["pid"]
        os.kill(pid, signal.SIGKILL)
        self.say(f"kill -9 {pid}: {victim}'s daemon is dead and still holds T001")
        data = self._done(survivor, "collaborate", "claim", "T001", "--wait")
        fence = data["lease"]["fence"]
        self.won["T001"].append((survivor, fence))
        self.say(
            f"T001: {survivor} watched it for its {TTL_SECONDS} s of silence and has it under "
            f"fence {fence}"
        )

    # The check

    def _check(self) -> dict[str, Any]:
        """Compare what the commands said with what is on the bare repository."""
        grants = self._grants()
        for task_id, expected in self.won.items():
            if grants.get(task_id) != expected:
                raise FailedError(
                    f"{task_id}: the origin has {grants.get(task_id)}, the commands said {expected}"
                )
            lease = json.loads(self._state(f"leases/claim%3A{task_id}.json"))
            last = expected[-1]
            is_free = lease["claimant"] is None
            if lease["fence"] != last[1] or (
                not is_free and lease["claimant"]["handle"] != last[0]
            ):
                raise FailedError(f"{task_id}: its lease on the origin is {lease}")
        return {
            "tasks": [
                {"id": t, "holders": [{"handle": h, "fence": f} for h, f in held]}
                for t, held in self.won.items()
            ],
            "checked": f"{len(self.won)} tasks, one holder for each fence",
            "origin": str(self.origin),
        }

    def _grants(self) -> Mapping[str, list[tuple[str, int]]]:
        """Who was granted each task under which fence, from the audit on the origin."""
        found: dict[str, list[tuple[str, int]]] = {}
        names = self.git("ls-tree", "-r", "--name-only", _BRANCH, "audit/", cwd=self.origin)
        lines = [line for name in names.splitlines() for line in self._state(name).splitlines()]
        entries = sorted((json.loads(line) for line in lines), key=lambda entry: entry["seq"])
        for entry in entries:
            if entry["event"] in ("claimed", "taken_over"):
                task_id = entry["key"].removeprefix("claim:")
                found.setdefault(task_id, []).append((entry["who"]["handle"], entry["fence"]))
        return found

    def _state(self, path: str) -> str:
        return self.git("show", f"{_BRANCH}:{path}", cwd=self.origin)

    def end(self) -> None:
        """Stop the daemons."""
        for name in PEOPLE:
            if (self.folder / name / ".git" / "forge" / "pid").exists():
                with contextlib.suppress(FailedError, subprocess.TimeoutExpired):
                    self._answer(self._forge(name, "daemon", "stop"))


_BRANCH = "refs/heads/forge/collab-state"
