"""`done` with a daemon that dies on the way: asked again, it is on the target exactly once."""

from __future__ import annotations

import pytest
from conftest import World
from landworld import check_whole, done, joined, landed, work

# The first push of a daemon that has just begun says that it is here; the second is the landing.
POINTS = (
    ("land.before", False),
    ("push.before_send#2", False),
    ("push.after_send#2", True),
    ("push.after_record#2", True),
    ("land.after", True),
)


@pytest.mark.parametrize(("point", "has_landed"), POINTS)
def test_killed_on_the_way_and_asked_again_it_has_landed_once(
    shared_world: World, point: str, has_landed: bool
) -> None:
    number = [known for known, _ in POINTS].index(point)
    clone = joined(shared_world, f"ada{number}")
    added = clone.forge("task", "add", f"More {number}", "--json").data["tasks"][0]["id"]
    work(clone, added)
    clone.kill_daemon()
    ran = clone.collaborate("done", added, FORGE_FAULTS=f"{point}=kill")
    assert ran.code == 4, ran
    assert clone.daemon_pid() is None, f"{point} was never reached"
    assert ((added, 1) in landed(shared_world)) is has_landed
    done(clone, added)
    check_whole(shared_world, added)
    assert done(clone, added)["already"]
    clone.kill_daemon()
