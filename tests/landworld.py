"""Work on task branches and what became of it on the target, for tests of landing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conftest import Clone, Ran, World

from forge_collab.core.landing import branch_of


def pair(world: World, **settings: str) -> tuple[Clone, Clone]:
    """Two joined clones of people with names of their own."""
    ada, ben = (joined(world, name, **settings) for name in ("ada", "ben"))
    return ada, ben


def joined(world: World, name: str, *flags: str, **settings: str) -> Clone:
    """A joined clone of a person of this name."""
    clone = world.clone(name, *flags, **settings)
    named(clone, name)
    clone.start()
    return clone


def named(clone: Clone, name: str) -> None:
    """Let whoever commits in the clone be called `name`."""
    clone.git("config", "user.name", name.capitalize())
    clone.git("config", "user.email", f"{name}@example.org")


def claim(clone: Clone, task: str) -> int:
    """Take a task; its fence."""
    ran = clone.collaborate("claim", task)
    assert ran.code == 0, ran
    fence: int = ran.data["lease"]["fence"]
    return fence


def commit(clone: Clone, branch: str, files: Mapping[str, str | None], say: str = "work") -> str:
    """A commit on `branch`, which is made from the remote's main where it isn't there yet."""
    if clone.git("branch", "--list", branch).out:
        clone.git("switch", "-q", branch)
    else:
        clone.git("fetch", "-q", "origin")
        clone.git("switch", "-q", "--no-track", "-c", branch, "origin/main")
    for name, text in files.items():
        path = clone.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink() if text is None else path.write_text(text)
        clone.git("add", "-A", "-f", "--", name)
    clone.git("commit", "-q", "--allow-empty", "-m", say)
    return clone.git("rev-parse", "HEAD").out.strip()


def work(clone: Clone, task: str, files: Mapping[str, str | None] | None = None) -> str:
    """Claim a task and commit some work on its fenced branch; the branch."""
    branch = branch_of(task, claim(clone, task))
    commit(clone, branch, files or {f"{task}.txt": f"work of {clone.handle}\n"}, f"Work on {task}")
    return branch


def done(clone: Clone, task: str, *args: str, **environ: str) -> dict[str, Any]:
    """`done`, which must succeed."""
    ran = clone.collaborate("done", task, *args, **environ)
    assert ran.code == 0, ran
    assert ran.data["status"] == "done"
    return ran.data


def not_done(clone: Clone, task: str, *args: str, code: int = 7) -> dict[str, Any]:
    """`done`, which must fail with `code`; its error."""
    ran: Ran = clone.collaborate("done", task, *args)
    assert ran.code == code, ran
    return ran.error


def landed(world: World, branch: str = "main") -> list[tuple[str, int]]:
    """The task and round of every landing on the target, oldest first."""
    told = world.on_origin(
        *("log", "--first-parent", "--reverse", "--format=%(trailers:only,unfold)%x00", branch)
    )
    found = []
    for block in told.split("\0"):
        said = dict(line.split(": ", 1) for line in block.strip().splitlines() if ": " in line)
        if "Forge-Task" in said:
            found.append((said["Forge-Task"], int(said["Forge-Round"])))
    return found


def shown(world: World, path: str, ref: str = "main") -> str:
    """A file on the origin."""
    return world.on_origin("show", f"{ref}:{path}")


def files(world: World, ref: str = "main") -> set[str]:
    """The names of all files of the origin's branch."""
    return set(world.on_origin("ls-tree", "-r", "--name-only", ref).splitlines())


def branches(world: World) -> set[str]:
    """The branches of the origin."""
    return set(world.on_origin("for-each-ref", "--format=%(refname:short)", "refs/heads").split())


def record(world: World, task: str) -> dict[str, Any]:
    """The record of a task on the origin's state branch."""
    found = world.record(f"tasks/{task}.json")
    assert found is not None
    return found


def check_whole(world: World, task: str, round: int = 1) -> None:
    """The target's trailers and the record say the same: landed, and nobody holds it."""
    assert landed(world).count((task, round)) == 1, landed(world)
    about = record(world, task)
    assert (about["status"], about["round"]) == ("done", round)
    held = world.lease(task)
    assert held is not None
    assert held["claimant"] is None
    words = world.on_origin("log", "-1", "--format=%B", about["landed"]["commit"])
    assert words.splitlines()[-1] == f"Forge-Task: {task}"
    assert f"Forge-Round: {round}" in words
