"""The whole of forge on one page: two clones race for a task, land it and the one behind it.

Every kind of remote has to carry it; what came of it is asked of the bare repository.
"""

from __future__ import annotations

import subprocess

from conftest import Clone, Ran, World, wait_until


def branch_of(task: str, fence: int) -> str:
    """The branch that the work under this fence is on."""
    return f"forge/task/{task}@{fence}"


def race(task: str, *clones: Clone) -> tuple[Clone, int]:
    """All claim at once; who got it, and the fence. All others are told so."""
    running = [clone.popen("collaborate", "claim", task, "--json") for clone in clones]
    ends = [(process, *process.communicate(timeout=60)) for process in running]
    told = [Ran(process.returncode, out, err) for process, out, err in ends]
    assert sorted(ran.code for ran in told) == [0, *[3] * (len(clones) - 1)], told
    [winner] = [clone for clone, ran in zip(clones, told, strict=True) if ran.code == 0]
    [lease] = [ran.data["lease"] for ran in told if ran.code == 0]
    for ran in told:
        if ran.code:
            holder = ran.error["data"]["holder"]
            assert holder["claimant"]["handle"] == winner.handle
            assert holder["fence"] == lease["fence"]
    return winner, lease["fence"]


def work(clone: Clone, task: str, fence: int) -> None:
    """A commit on the task's branch, as somebody does it who types what `claim` prints."""
    shown = clone.forge("collaborate", "claim", task)
    assert shown.code == 0, shown
    commands = [line.strip() for line in shown.out.splitlines() if line.startswith("  git ")]
    assert len(commands) == 2, shown.out
    for command in commands:
        typed(clone, command)
    assert clone.git("branch", "--show-current").out.strip() == branch_of(task, fence)
    (clone.path / f"{task}.txt").write_text(f"{task} under {fence}\n")
    clone.git("add", "-A")
    clone.git("commit", "-q", "-m", f"Write {task}")


def at_work(world: World, name: str, **settings: str) -> Clone:
    """A clone in the session whose T001 is committed and waits to be landed."""
    clone = world.clone(name, **settings)
    clone.start()
    work(clone, "T001", clone.collaborate("claim", "T001").data["lease"]["fence"])
    return clone


def typed(clone: Clone, command: str) -> None:
    """Run a command as a shell in the clone does."""
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=clone.path,
        env=clone.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (command, done.stderr)


def land(clone: Clone, task: str) -> str:
    """Land a task; the commit."""
    ran = clone.collaborate("done", task)
    assert ran.code == 0, ran
    assert ran.data["status"] == "done"
    commit: str = ran.data["commit"]
    return commit


def race_and_land(world: World, ada: Clone, ben: Clone) -> None:
    """From `start` to `leave`: T001 is raced for and landed, then T004, which waits for it."""
    ada.start()
    ben.start()
    winner, fence = race("T001", ada, ben)
    loser = ben if winner is ada else ada
    assert loser.collaborate("claim", "T004").code == 7
    work(winner, "T001", fence)
    commits = {"T001": land(winner, "T001")}
    wait_until(lambda: "T004" in loser.collaborate("status").data["claimable"])
    fence = loser.collaborate("claim", "T004").data["lease"]["fence"]
    work(loser, "T004", fence)
    commits["T004"] = land(loser, "T004")
    for clone in (ada, ben):
        assert clone.collaborate("leave").code == 0
    check_landed(world, commits)
    wait_until(lambda: not world.on_origin("for-each-ref", "refs/heads/forge/task"))


def check_landed(world: World, commits: dict[str, str], target: str = "main") -> None:
    """Each task is on the target by one commit, its record says so, and nobody holds it."""
    for task, commit in commits.items():
        line = f"^Forge-Task: {task}$"
        assert world.on_origin("log", "--format=%H", f"--grep={line}", target) == commit
        assert world.on_origin("show", f"{target}:{task}.txt").startswith(f"{task} under ")
        record, lease = world.record(f"tasks/{task}.json"), world.lease(task)
        assert record is not None
        assert lease is not None
        assert (record["status"], record["landed"]["commit"]) == ("done", commit)
        assert lease["claimant"] is None
