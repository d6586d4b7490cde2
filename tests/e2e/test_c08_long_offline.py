"""C8: a clone that was away for long comes back to a task that others took, finished and closed."""

from __future__ import annotations

from conftest import SHORT, Clone, World, audit_of, refusal, wait_until
from landworld import branch_of, check_whole, claim, commit, done, joined, landed, named, record


def cable(world: World, clone: Clone) -> None:
    """Let the clone reach its remote by a link of its own, which can be cut."""
    link = world.root / f"{clone.handle}-cable.git"
    link.symlink_to(world.origin)
    clone.git("remote", "set-url", "origin", str(link))


def cut(world: World, clone: Clone) -> None:
    (world.root / f"{clone.handle}-cable.git").unlink()


def mend(world: World, clone: Clone) -> None:
    (world.root / f"{clone.handle}-cable.git").symlink_to(world.origin)


def state_of(world: World) -> tuple[object, ...]:
    said = [entry for entry in audit_of(world) if entry["key"] == "claim:T001"]
    return record(world, "T001"), world.lease("T001"), said, landed(world)


def test_what_was_closed_meanwhile_stays_closed(world: World) -> None:
    ada = world.clone("ada", **SHORT)
    named(ada, "ada")
    cable(world, ada)
    ada.start()
    mine = claim(ada, "T001")
    branch = branch_of("T001", mine)
    tip = commit(ada, branch, {"ada.txt": "half done\n"})
    cut(world, ada)

    ben = joined(world, "ben", **SHORT)
    taken = ben.collaborate("claim", "T001", "--wait", timeout=60)
    assert taken.code == 0, taken
    theirs = int(taken.data["lease"]["fence"])
    assert theirs > mine
    commit(ben, branch_of("T001", theirs), {"ben.txt": "whole\n"})
    done(ben, "T001")
    closed = state_of(world)

    refusal(ada, "collaborate", "note", "T001", "still at it", code=4)
    assert ada.collaborate("status").data["online"] is False
    mend(world, ada)
    wait_until(lambda: ada.collaborate("status").data["online"])
    for _ in range(2):
        for words in (["renew"], ["note", "mine?"], ["release"], ["done"]):
            command, *more = words
            error = refusal(ada, "collaborate", command, "T001", *more, code=5)
            assert (error["data"]["fence"], error["data"]["holder"]["fence"]) == (mine, theirs)
        error = refusal(ada, "collaborate", "claim", "T001", code=7)
        assert error["data"]["status"] == "done"
        assert state_of(world) == closed
    check_whole(world, "T001")
    assert ada.git("rev-parse", branch).out.strip() == tip
    assert (ada.path / "ada.txt").read_text() == "half done\n"
