"""What is measured; each function makes a world of its own and gives its rows.

Times are in ms, as the asker sees them: from the request to the answer.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.table import Row, Target
from bench.world import FORGE, Clone, World, ids, run, world
from forge_collab.cli.client import Client
from forge_collab.core.errors import HeldError

_RACERS = 8
_EACH = 10
_REST_SECONDS = 0.5
_IDLE_SECONDS = 32.0


def _timed(work: Callable[..., Any], *args: Any) -> float:
    started = time.perf_counter()
    work(*args)
    return (time.perf_counter() - started) * 1000


def _claim(client: Client, task_id: str) -> bool:
    """Whether the claim was won; a loser has to be told who holds it."""
    try:
        client.call("claim", {"task": task_id, "worker": "main"})
    except HeldError as error:
        if not error.data.get("holder"):
            raise RuntimeError("a loser wasn't told the holder") from error
        return False
    return True


def _renew(client: Client, task_id: str) -> None:
    client.call("renew", {"task": task_id, "worker": "main"})


def _give_back(client: Client, task_id: str) -> None:
    client.call("release", {"task": task_id, "worker": "main"})


def claim() -> list[Row]:
    """One claimant alone: at the daemon, through the command, and renewing."""
    count = 30
    with world(ids(2 * count)) as made:
        clone = made.clones(1)[0]
        at_daemon, by_command, renewals, releases = [], [], [], []
        pushes = []
        with clone.connect() as client:
            for task_id in ids(count):
                pushes.append(made.push())
                at_daemon.append(_timed(_claim, client, task_id))
                renewals.append(_timed(_renew, client, task_id))
                releases.append(_timed(_give_back, client, task_id))
            for task_id in ids(2 * count)[count:]:
                pushes.append(made.push())
                by_command.append(_timed(clone.forge, "collaborate", "claim", task_id))
    return [
        Row("claim, at the daemon", at_daemon, pushes[:count], Target(1.5, is_ratio=True)),
        Row("renew, at the daemon", renewals, pushes[:count]),
        Row("release, at the daemon", releases, pushes[:count]),
        Row("claim, by the command", by_command, pushes[count:]),
    ]


def land() -> list[Row]:
    """One lander alone; its yardstick is the same by hand: merge --squash, commit, push."""
    count = 30
    at_daemon, by_command, by_hand = [], [], []
    with world(ids(2 * count)) as made:
        clone = made.clones(1)[0]
        with clone.connect() as client:
            for task_id in ids(count):
                branch, tip = _work_on(made, clone, client, task_id)
                by_hand.append(made.land_by_hand())
                asked = {"task": task_id, "worker": "main", "branch": branch, "tip": tip}
                at_daemon.append(_timed(client.call, "done", asked))
            for task_id in ids(2 * count)[count:]:
                _work_on(made, clone, client, task_id)
                by_command.append(_timed(clone.forge, "collaborate", "done", task_id))
    return [
        Row("landing, at the daemon (beside: by hand)", at_daemon, by_hand, Target(1.5, True)),
        Row("landing with its branch, by the command", by_command, by_hand),
    ]


def _work_on(made: World, clone: Clone, client: Client, task_id: str) -> tuple[str, str]:
    """Claim a task and commit something on its branch, pushed; the branch and its tip."""
    held = client.call("claim", {"task": task_id, "worker": "main"})
    branch = f"forge/task/{task_id}@{held['lease']['fence']}"
    made.git("fetch", "--quiet", "origin", "main", cwd=clone.path)
    made.git("switch", "--quiet", "--create", branch, "origin/main", cwd=clone.path)
    (clone.path / f"{task_id}.txt").write_text("work\n")
    made.git("add", f"{task_id}.txt", cwd=clone.path)
    made.git("commit", "--quiet", "--message=work", cwd=clone.path)
    made.git("push", "--quiet", "origin", branch, cwd=clone.path)
    tip = run(["git", "rev-parse", branch], cwd=clone.path, environ=made.environ)
    return branch, tip.decode().strip()


def race() -> list[Row]:
    """Eight daemons and one task: until every one of them has its answer.

    At first all know the branch's tip, from the race before. Then the last winner gives its task
    back just before the next race, and all others begin a commit behind.
    """
    rounds = 20
    in_sync, behind, pushes = [], [], []
    with world(ids(2 * rounds)) as made:
        clients = [clone.connect() for clone in made.clones(_RACERS)]
        for task_id in ids(rounds):
            pushes.append(made.push())
            time.sleep(_REST_SECONDS)
            in_sync.append(_one_race(clients, task_id)[0])
        for task_id in ids(2 * rounds)[rounds:]:
            pushes.append(made.push())
            taken, winner = _one_race(clients, task_id)
            behind.append(taken)
            _give_back(winner, task_id)
        for client in clients:
            client.close()
    return [
        Row("8 race for one task, all told", in_sync, pushes[:rounds], Target(400)),
        Row("the same, 7 of them a commit behind", behind, pushes[rounds:]),
    ]


def _one_race(clients: Sequence[Client], task_id: str) -> tuple[float, Client]:
    """How long until all are told, in ms, and who won."""
    taken, won = _together([partial(_claim, client, task_id) for client in clients])
    if sum(won) != 1:
        raise RuntimeError(f"{sum(won)} winners of one race")
    return taken, clients[won.index(True)]


def crowd() -> list[Row]:
    """Eight daemons with ten different claims each, all at once: until all are held."""
    rounds = 5
    samples, pushes = [], []
    task_ids = ids(_RACERS * _EACH)
    with world(task_ids) as made:
        clones = made.clones(_RACERS)
        clients = [clones[n % _RACERS].connect() for n in range(len(task_ids))]
        pairs = list(zip(clients, task_ids, strict=True))
        for _ in range(rounds):
            pushes += made.pushes(5)
            taken, won = _together([partial(_claim, c, t) for c, t in pairs])
            if sum(won) != len(task_ids):
                raise RuntimeError(f"only {sum(won)} of {len(task_ids)} were held")
            samples.append(taken)
            _together([partial(_give_back, c, t) for c, t in pairs])
        for client in clients:
            client.close()
    return [Row("8 × 10 different claims, all held", samples, pushes, Target(3000))]


def _together(works: Sequence[Callable[[], Any]]) -> tuple[float, list[Any]]:
    """Let all begin at one moment; how long until the last has ended, in ms, and their answers."""
    gate = threading.Barrier(len(works) + 1)

    def one(work: Callable[[], Any]) -> Any:
        gate.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        answers = [pool.submit(one, work) for work in works]
        gate.wait()
        started = time.perf_counter()
        found = [answer.result() for answer in answers]
        return (time.perf_counter() - started) * 1000, found


def status() -> list[Row]:
    """A plan of 1,000 tasks, a lease on each."""
    count = 30
    task_ids = ids(1000)
    with world(task_ids) as made:
        clone = made.clones(1)[0]
        made.add_leases(clone, task_ids)
        with clone.connect() as client:
            _until(lambda: len(client.call("status")["claims"]) == len(task_ids))
            pushes = made.pushes()
            at_daemon = [_timed(client.call, "status") for _ in range(count)]
        ask = ("collaborate", "status")
        by_command = [_timed(clone.forge, *ask) for _ in range(count // 2)]
    return [
        Row("status of 1,000 leases, at the daemon", at_daemon, pushes, Target(100)),
        Row("status of 1,000 leases, by the command", by_command, pushes),
    ]


def _until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise RuntimeError("it never came true")
        time.sleep(0.1)


def command() -> list[Row]:
    """What a process costs before it does anything."""
    count = 20
    with world(ids(10)) as made:
        clone = made.clones(1)[0]
        pushes = made.pushes()
        bare = _commands(made, count, [sys.executable, "-c", "pass"])
        version = _commands(made, count, [str(FORGE), "--version"])
        shown = _commands(made, count, [str(FORGE), "-C", str(clone.path), "collaborate", "status"])
    return [
        Row("python -c pass", bare, pushes),
        Row("forge --version", version, pushes),
        Row("forge collaborate status", shown, pushes),
    ]


def _commands(made: World, count: int, words: Sequence[str]) -> list[float]:
    asked = partial(run, words, cwd=made.root, environ=made.environ)
    return [_timed(asked) for _ in range(count)]


def idle() -> list[Row]:
    """A daemon that nobody asks for anything, at the pace it has after five quiet minutes."""
    with world(ids(10)) as made:
        clone = made.clones(1, poll_seconds="15", idle_poll_seconds="15")[0]
        pushes = made.pushes()
        time.sleep(3.0)  # What starting has begun is over.
        before, started = _cpu_seconds(clone), time.monotonic()
        memory = []
        while (passed := time.monotonic() - started) < _IDLE_SECONDS:
            memory.append(_resident_mib(clone.pid))
            time.sleep(1.0)
        share = (_cpu_seconds(clone) - before) / passed * 100
        helpers = sum(_resident_mib(child) for child in _children(clone.pid))
    held = f"and {helpers:.0f} MiB in its git helper" if helpers else ""
    return [
        Row("idle daemon, resident memory", memory, pushes, Target(60), "MiB", held),
        Row(f"idle daemon, {_IDLE_SECONDS:.0f} s of CPU", [share], pushes, Target(0.3), "%"),
    ]


def _cpu_seconds(clone: Clone) -> float:
    """The processor time of a daemon and of every git it has waited for."""
    fields = Path(f"/proc/{clone.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (thread / "children").read_text().split()]
    return found


GROUPS: Mapping[str, Callable[[], list[Row]]] = {
    "claim": claim,
    "land": land,
    "race": race,
    "crowd": crowd,
    "status": status,
    "command": command,
    "idle": idle,
}
