"""`done` with a daemon that dies on the way: asked again, it is on the target exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Clone, World, set_hook, wait_until
from landworld import check_whole, done, joined, landed, work

# A daemon that has just begun pushes that it is here and renews what it holds; then it lands.
PUSHES = ("push.before_send#3", "push.after_send#3", "push.after_record#3")


def one_more(world: World, name: str) -> tuple[Clone, str]:
    """A joined clone with work on a task of its own."""
    clone = joined(world, name)
    task = clone.forge("task", "add", f"A task of {name}", "--json").data["tasks"][0]["id"]
    work(clone, task)
    return clone, task


def check_lands_once(world: World, clone: Clone, task: str) -> None:
    done(clone, task)
    check_whole(world, task)
    assert done(clone, task)["already"]
    clone.kill_daemon()


@pytest.mark.parametrize(("point", "has_landed"), [("land.before", False), ("land.after", True)])
def test_killed_before_or_after_it_landed_it_lands_once(
    shared_world: World, point: str, has_landed: bool
) -> None:
    clone, task = one_more(shared_world, point.replace(".", "-"))
    clone.kill_daemon()
    ran = clone.collaborate("done", task, FORGE_FAULTS=f"{point}=kill")
    assert ran.code == 4, ran
    assert clone.daemon_pid() is None, f"{point} was never reached"
    assert ((task, 1) in landed(shared_world)) is has_landed
    check_lands_once(shared_world, clone, task)


@pytest.mark.parametrize("point", PUSHES)
def test_killed_at_a_push_it_lands_once(shared_world: World, point: str) -> None:
    clone, task = one_more(shared_world, point[5:-2].replace("_", "-"))
    clone.kill_daemon()
    ran = clone.collaborate("done", task, FORGE_FAULTS=f"{point}=kill")
    assert ran.code in (0, 4), ran
    assert landed(shared_world).count((task, 1)) <= 1
    check_lands_once(shared_world, clone, task)


@pytest.mark.parametrize("hook", ["pre-receive", "post-receive"])
def test_killed_while_the_server_has_the_push_it_lands_once(shared_world: World, hook: str) -> None:
    """What was sent lands after its sender's death, and nobody hears the answer."""
    clone, task = one_more(shared_world, hook)
    pid_file: Path = clone.forge_dir / "pid"
    once = shared_world.root / f"{hook}.once"
    once.write_text("")
    script = f"grep -q refs/heads/main$ || exit 0\nif [ -e '{once}' ]; then rm '{once}'\n"
    script += f"kill -9 $(cat '{pid_file}')\nsleep 1\nfi"
    path = set_hook(shared_world, hook, script)
    ran = clone.collaborate("done", task)
    assert ran.code == 4, ran
    assert not once.exists()
    wait_until(lambda: (task, 1) in landed(shared_world))
    path.unlink()
    check_lands_once(shared_world, clone, task)
