"""A clone that was copied with its identity: two holders of one fence never come of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from conftest import Clone, World, instance_of, wait_until

BUSY = {"forge__claim_ttl_seconds": "20", "forge__heartbeat_seconds": "1"}


def copied(world: World, clone: Clone, name: str) -> Clone:
    """What ``cp -r`` makes of a joined clone."""
    path = world.root / name
    world.run("cp", "-r", str(clone.path), str(path))
    made = Clone(path, dict(clone.environ), handle=clone.handle)
    world.clones.append(made)
    return made


def moved_in(copy: Clone) -> None:
    """Let the copy's participant.json say that it was made here, as if a snapshot of a machine
    had been started twice."""
    marker = copy.forge_dir / "participant.json"
    data = json.loads(marker.read_text())
    status = os.stat(copy.common_dir)
    data["place"] |= {"device": status.st_dev, "inode": status.st_ino}
    marker.write_text(json.dumps(data))


def held_here(clone: Clone) -> list[tuple[str, int]]:
    """The leases that this clone's daemon has in its journal."""
    journal = json.loads((clone.forge_dir / "journal").read_text())
    return [(lease["key"], lease["fence"]) for lease in journal["granted"]]


def test_a_copy_takes_an_instance_of_its_own_and_none_of_the_leases(world: World) -> None:
    ada = world.clone("ada", **BUSY)
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    pid = ada.daemon_pid()
    copy = copied(world, ada, "copy")
    told = copy.collaborate("claim", "T001")
    assert told.code == 3, told
    assert told.error["data"]["holder"]["claimant"]["instance"] == instance_of(ada)
    assert instance_of(copy) != instance_of(ada)
    assert copy.daemon_pid() not in (None, pid)
    assert ada.daemon_pid() == pid
    for words in (("renew",), ("note", "mine"), ("release",)):
        verb, *rest = words
        assert copy.collaborate(verb, "T001", *rest).code in (3, 5)
    assert held_here(copy) == []
    kept = ada.collaborate("renew", "T001")
    assert kept.code == 0, kept
    assert kept.data["lease"]["fence"] == 1
    assert copy.collaborate("claim", "T002").code == 0
    assert ada.collaborate("claim", "T002").code == 3


def test_a_copy_that_was_made_while_nothing_ran_takes_an_instance_of_its_own(
    world: World,
) -> None:
    ada = world.clone("ada", **BUSY)
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    ada.kill_daemon()
    copy = copied(world, ada, "copy")
    assert copy.collaborate("renew", "T001").code in (3, 5)
    assert copy.collaborate("claim", "T001").code == 3
    assert instance_of(copy) != instance_of(ada)
    assert ada.collaborate("renew", "T001").data["lease"]["fence"] == 1


def test_of_two_daemons_of_one_identity_one_goes_on_under_a_new_instance(world: World) -> None:
    ada = world.clone("ada", **BUSY)
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    identity = instance_of(ada)
    copy = copied(world, ada, "copy")
    moved_in(copy)
    # The copy carries on as what it believes to be, so that its writes are those of another run.
    assert copy.forge("daemon", "start").code == 0
    wait_until(lambda: instance_of(ada) != instance_of(copy), 30)
    renamed, other = (ada, copy) if instance_of(ada) != identity else (copy, ada)
    assert instance_of(other) == identity
    log = renamed.forge_dir / "daemon.log"
    assert "duplicate_identity" in log.read_text() or "another forge daemon" in log.read_text()
    wait_until(lambda: held_here(renamed) == [])
    # From here on each fence has one holder, whoever asks.
    check_one_holder(world, renamed, other, identity)
    assert renamed.collaborate("claim", "T002").code == 0
    assert other.collaborate("claim", "T002").code == 3
    participants = [p["instance"] for p in other.collaborate("status").data["participants"]]
    assert {instance_of(renamed), identity} <= set(participants)


def check_one_holder(world: World, renamed: Clone, other: Clone, identity: str) -> None:
    """For a while, the lease is the other's alone, and only the other can act on it."""
    until = time.monotonic() + 3
    while time.monotonic() < until:
        record = world.lease("T001")
        assert record is not None
        assert (record["claimant"]["instance"], record["fence"]) == (identity, 1)
        assert ("leases/claim:T001", 1) not in held_here(renamed)
    assert renamed.collaborate("renew", "T001").code in (3, 5)
    assert renamed.collaborate("claim", "T001").code == 3
    kept = other.collaborate("renew", "T001")
    assert kept.code == 0, kept
    assert kept.data["lease"]["fence"] == 1


def test_a_renamed_folder_is_the_same_clone_and_carries_on(world: World) -> None:
    ada = world.clone("ada", **BUSY)
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    identity = instance_of(ada)
    ada.kill_daemon()
    moved = Clone(Path(f"{ada.path}-moved"), ada.environ, ada.handle)
    ada.path.rename(moved.path)
    world.clones.append(moved)
    renewed = moved.collaborate("renew", "T001")
    assert renewed.code == 0, renewed
    assert renewed.data["lease"]["fence"] == 1
    assert instance_of(moved) == identity
