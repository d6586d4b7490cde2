"""Real clones, real daemons, the real command: what tests of several rooms stand on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FORGE = Path(sys.executable).with_name("forge")


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on stdout."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def data(self) -> dict[str, Any]:
        """`data` of a document that says ok."""
        assert self.document["ok"], self.document
        found: dict[str, Any] = self.document["data"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        """`error` of a document that doesn't."""
        assert not self.document["ok"], self.document
        found: dict[str, Any] = self.document["error"]
        return found


@dataclass
class Clone:
    """A clone of the world's origin, and the command run in it."""

    path: Path
    environ: dict[str, str]
    handle: str

    @property
    def common_dir(self) -> Path:
        """The clone's git common directory."""
        told = self.git("rev-parse", "--path-format=absolute", "--git-common-dir")
        return Path(told.out.strip())

    @property
    def forge_dir(self) -> Path:
        """Where forge keeps what belongs to this clone."""
        return self.common_dir / "forge"

    def git(self, *args: str, check: bool = True, **environ: str) -> Ran:
        """Run git in the work tree."""
        done = subprocess.run(
            ["git", *args],
            cwd=self.path,
            env=self.environ | environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert not check or done.returncode == 0, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    def forge(
        self, *args: str, cwd: Path | None = None, timeout: float = 60, **environ: str
    ) -> Ran:
        """Run the real command in the work tree (or in `cwd`)."""
        done = subprocess.run(
            [str(FORGE), *args],
            cwd=cwd or self.path,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=timeout,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def popen(self, *args: str, **environ: str) -> subprocess.Popen[str]:
        """Start the real command and go on."""
        return subprocess.Popen(
            [str(FORGE), *args],
            cwd=self.path,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def collaborate(self, *args: str, **environ: str) -> Ran:
        """``forge collaborate … --json``."""
        return self.forge("collaborate", *args, "--json", **environ)

    def start(self, **environ: str) -> dict[str, Any]:
        """Bring this clone into the session; must succeed."""
        ran = self.collaborate("start", "--handle", self.handle, **environ)
        assert ran.code == 0, ran
        return ran.data

    def daemon_pid(self) -> int | None:
        """The process id of this clone's running daemon, or None."""
        about = self.forge("daemon", "status", "--json").data
        pid = about["pid"]
        return pid if about["running"] else None

    def kill_daemon(self, how: int = signal.SIGKILL) -> int:
        """Send a signal to this clone's daemon; returns its pid."""
        pid = self.daemon_pid()
        assert pid is not None, "no daemon runs"
        os.kill(pid, how)
        if how == signal.SIGKILL:
            wait_until(lambda: not is_alive(pid))
        return pid


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie doesn't)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(holds: Callable[[], Any], seconds: float = 20.0, pause: float = 0.03) -> Any:
    """The first true value of `holds`; fails when there is none in time."""
    until = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < until, "it never came true"
        time.sleep(pause)
    return found


@dataclass
class World:
    """A bare origin with a plan, and clones of it, away from the machine's own settings."""

    root: Path
    environ: dict[str, str]
    clones: list[Clone] = field(default_factory=list)

    @property
    def origin(self) -> Path:
        """The bare repository that is the remote of every clone."""
        return self.root / "origin.git"

    def run(self, *args: str, cwd: Path | None = None) -> str:
        """Run a command; its output, stripped."""
        done = subprocess.run(
            args,
            cwd=cwd or self.root,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout.strip()

    def on_origin(self, *args: str) -> str:
        """Run git on the bare repository; its output, stripped."""
        return self.run("git", "--git-dir", str(self.origin), *args)

    def make_origin(self, tasks: Mapping[str, str], branch: str = "main") -> None:
        """Make the bare repository with task files (id to YAML text) on `branch`."""
        self.run("git", "init", "-q", "--bare", "-b", branch, str(self.origin))
        seed = self.root / "seed"
        self.run("git", "init", "-q", "-b", branch, str(seed))
        (seed / ".forge" / "tasks").mkdir(parents=True)
        (seed / "README").write_text("a project\n")
        for task_id, text in tasks.items():
            (seed / ".forge" / "tasks" / f"{task_id}.yaml").write_text(text)
        self.run("git", "add", "-A", "-f", cwd=seed)
        self.run("git", "commit", "-q", "-m", "a project with a plan", cwd=seed)
        self.run("git", "push", "-q", str(self.origin), branch, cwd=seed)

    def clone(self, name: str, *flags: str, **settings: str) -> Clone:
        """A new clone; `settings` are git config values, with `__` for a dot and `_` for a dash."""
        path = self.root / name
        self.run("git", "clone", "-q", *flags, str(self.origin), str(path))
        made = Clone(path, dict(self.environ), handle=name)
        for key, value in (FAST | settings).items():
            made.git("config", key.replace("__", ".").replace("_", "-"), value)
        self.clones.append(made)
        return made

    def lease(self, task_id: str) -> dict[str, Any] | None:
        """The lease of a task as the state branch on the origin has it."""
        return self.record(f"leases/claim%3A{task_id}.json")

    def record(self, path: str) -> dict[str, Any] | None:
        """A file of the state branch on the origin, parsed."""
        done = subprocess.run(
            ["git", "--git-dir", str(self.origin), "show", f"forge/collab-state:{path}"],
            capture_output=True,
            check=False,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def end(self) -> None:
        """Kill every daemon of this world."""
        for clone in self.clones:
            pid = clone.path / ".git" / "forge" / "pid"
            for found in {pid, *clone.path.glob("**/forge/pid")}:
                _kill(found)
        for found in self.root.glob("**/forge/pid"):
            _kill(found)


FAST = {"forge__poll_seconds": "0.3", "forge__idle_poll_seconds": "0.5"}


def _kill(pid_file: Path) -> None:
    try:
        pid = int(pid_file.read_text())
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return
    if b"forge_collab.daemon" in line or b"forge" in line:
        os.kill(pid, signal.SIGKILL)


def clean_environ(root: Path) -> dict[str, str]:
    """An environment with a home of its own and none of this machine's settings."""
    home = root / "home"
    runtime = root / "run"
    for folder in (home, runtime):
        folder.mkdir(parents=True, exist_ok=True)
    runtime.chmod(0o700)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "FORGE_", "XDG_"))}
    kept.pop("SSH_AUTH_SOCK", None)
    kept.pop("ABLY_KEY", None)
    config = home / ".gitconfig"
    config.write_text("[user]\n\tname = Ada Example\n\temail = ada@example.org\n")
    return kept | {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(runtime),
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_CONFIG_NOSYSTEM": "1",
        "NO_COLOR": "1",
    }


def _four_tasks(root: Path) -> Iterator[World]:
    """A world in a folder of a short name, since the paths of sockets have to be short."""
    made = World(root, clean_environ(root))
    made.make_origin(
        {
            **{f"T00{n}": f"id: T00{n}\ntitle: Task {n}\n" for n in (1, 2, 3)},
            "T004": "id: T004\ntitle: Later\ndepends_on: [T001]\n",
        }
    )
    yield made
    made.end()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with tasks T001 to T003 and T004, which waits for T001."""
    yield from _four_tasks(tmp_path_factory.mktemp("w"))


SHORT = {"forge__claim_ttl_seconds": "2", "forge__heartbeat_seconds": "0.5"}
"""Settings of a clone whose leases lapse after two silent seconds."""


def new_world(root: Path, tasks: int) -> World:
    """A world in `root` with so many tasks, T001 and on, of which none waits for another."""
    made = World(root, clean_environ(root))
    names = [f"T{number:03}" for number in range(1, tasks + 1)]
    made.make_origin({name: f"id: {name}\ntitle: Do {name}\n" for name in names})
    return made


@pytest.fixture(scope="module")
def make_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], World]]:
    """Makes worlds with so many tasks; they end with the module."""
    made: list[World] = []

    def make(tasks: int) -> World:
        made.append(new_world(tmp_path_factory.mktemp("w"), tasks))
        return made[-1]

    yield make
    for one in made:
        one.end()
        shutil.rmtree(one.root, ignore_errors=True)


def instance_of(clone: Clone) -> str:
    """The instance id of a joined clone."""
    found: str = json.loads((clone.forge_dir / "participant.json").read_text())["instance"]
    return found


def audit_of(world: World) -> list[dict[str, Any]]:
    """Every line of every audit on the origin's state branch, in the order of the branch."""
    listed = world.on_origin("ls-tree", "-r", "--name-only", "forge/collab-state", "audit/")
    found = [
        json.loads(line)
        for path in listed.splitlines()
        for line in world.on_origin("show", f"forge/collab-state:{path}").splitlines()
    ]
    return sorted(found, key=lambda entry: entry["seq"])


def set_hook(world: World, name: str, script: str) -> Path:
    """Give the origin a server hook."""
    hook = world.origin / "hooks" / name
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{script}\n")
    hook.chmod(0o755)
    return hook


@pytest.fixture(scope="module")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world like `world` for all tests of a file; they see each other's doings."""
    yield from _four_tasks(tmp_path_factory.mktemp("m"))


def put_on_state(world: World, files: Mapping[str, bytes]) -> None:
    """Push a commit with these files to the state branch, as a person with plain git would."""
    for attempt in range(20):
        folder = world.root / f"by-hand-{time.monotonic_ns()}"
        world.run("git", "clone", "-q", "-b", "forge/collab-state", str(world.origin), str(folder))
        for name, data in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        world.run("git", "add", "-A", "-f", cwd=folder)
        world.run("git", "commit", "-q", "-m", "by hand", cwd=folder)
        pushed = subprocess.run(
            ["git", "push", "-q"], cwd=folder, env=world.environ, capture_output=True, check=False
        )
        shutil.rmtree(folder)
        if pushed.returncode == 0:
            return
        time.sleep(0.05 * attempt)
    raise AssertionError("somebody else's push always came first")


def put_on_main(world: World, files: Mapping[str, str], branch: str = "main") -> None:
    """Push a commit with these files to the project's branch."""
    seed = world.root / "seed"
    for name, text in files.items():
        (seed / name).parent.mkdir(parents=True, exist_ok=True)
        (seed / name).write_text(text)
    world.run("git", "add", "-A", "-f", cwd=seed)
    world.run("git", "commit", "-q", "-m", "more of the project", cwd=seed)
    world.run("git", "push", "-q", str(world.origin), branch, cwd=seed)


def put_status(world: World, clone: Clone, task_id: str, status: str) -> None:
    """Let the state branch say that a task has this status, as `done` will one day."""
    shown = clone.forge("task", "show", task_id, "--json").data["tasks"][0]
    record = {"v": 1, "rev": 1, "uid": shown["uid"], "round": 1, "status": status, "fence": 1}
    put_on_state(world, {f"tasks/{task_id}.json": json.dumps(record).encode() + b"\n"})


def refusal(
    clone: Clone,
    *args: str,
    code: int,
    says: tuple[str, ...] = (),
    is_partial: bool = False,
    **environ: str,
) -> dict[str, Any]:
    """What a command that must fail says: a sentence and a `try:`, or one JSON document.

    One that shows what it can (`is_partial`) prints that, and further sentences before the last.
    Returns the `error` of the document.
    """
    told = clone.forge(*args, **environ)
    assert told.code == code, told
    assert (told.out != "") == is_partial, told
    lines = [line[:7] for line in told.err.splitlines() if line]
    assert lines[-2:] == ["forge: ", "  try: "], told.err
    assert set(lines[:-2]) <= ({"forge: "} if is_partial else set()), told.err
    assert "Traceback" not in told.err
    as_json = clone.forge(*args, "--json", **environ)
    assert as_json.code == code, as_json
    assert as_json.out.count("\n") == 1, as_json
    assert "Traceback" not in as_json.err
    for word in says:
        assert word in told.err, told.err
    assert set(as_json.document) == {"v", "ok", "command", "error"}
    assert set(as_json.error) == {"code", "message", "hint", "data"}
    return as_json.error


def bytes_below(folder: Path, *without: Path) -> dict[str, bytes]:
    """Every file below `folder` with its bytes (a link with its target), but for what is below
    `without`."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if any(path == other or other in path.parents for other in without):
            continue
        if path.is_symlink():
            found[str(path.relative_to(folder))] = b"-> " + os.fsencode(os.readlink(path))
        else:
            is_file = path.is_file()
            found[str(path.relative_to(folder))] = path.read_bytes() if is_file else b"<folder>"
    return found
