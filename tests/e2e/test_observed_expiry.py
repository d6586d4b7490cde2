"""Expiry is observed, never computed: who hasn't watched for a whole duration takes nothing."""

from __future__ import annotations

import time

from conftest import SHORT, Clone, World, is_alive, wait_until

from forge_collab.cli.client import Client, running
from forge_collab.cli.here import here
from forge_collab.core.errors import HeldError

TTL = 5.0
TIMES = {"forge__claim_ttl_seconds": str(TTL), "forge__heartbeat_seconds": "1"}


def connect(clone: Clone) -> Client:
    """A connection to the clone's running daemon."""
    found = running(here(str(clone.path)))
    assert found is not None
    return found[0]


def is_granted(daemon: Client) -> bool:
    """Whether a claim of T001 is granted now; every other answer is `held`."""
    try:
        daemon.call("claim", {"task": "T001", "worker": "main"})
    except HeldError:
        return False
    return True


def seconds_until_taken(clone: Clone) -> float:
    """How long the clone's daemon has to try before it gets T001."""
    with connect(clone) as daemon:
        began = time.monotonic()
        wait_until(lambda: is_granted(daemon), TTL * 3 + 10, pause=0.05)
        return time.monotonic() - began


def dead_holder(world: World) -> Clone:
    """Ada, who claimed T001 and was killed so long ago that a watcher would have taken it."""
    ada = world.clone("ada", **TIMES)
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    ada.kill_daemon()
    time.sleep(TTL + 1)
    return ada


def test_a_newcomer_watches_a_whole_duration_before_it_takes_over(world: World) -> None:
    dead_holder(world)
    ben = world.clone("ben", **TIMES)
    began = time.monotonic()
    ben.start()
    first = ben.collaborate("claim", "T001")
    assert first.code == 3, first
    assert 0 < first.error["data"]["holder"]["takeover_in_seconds"] <= TTL
    seconds_until_taken(ben)
    assert time.monotonic() - began >= TTL
    record = world.lease("T001")
    assert record is not None
    assert (record["claimant"]["handle"], record["fence"]) == ("ben", 2)


def test_a_daemon_that_was_restarted_watches_a_whole_duration_again(world: World) -> None:
    dead_holder(world)
    ben = world.clone("ben", **TIMES)
    ben.start()
    time.sleep(TTL / 2)  # What it has seen by now goes with it.
    ben.kill_daemon()
    restarted = time.monotonic()
    assert ben.forge("daemon", "start").code == 0
    seconds_until_taken(ben)
    assert time.monotonic() - restarted >= TTL


def test_a_daemon_that_has_watched_takes_over_without_waiting_again(world: World) -> None:
    ada, ben = world.clone("ada", **TIMES), world.clone("ben", **TIMES)
    ada.start()
    ben.start()
    assert ada.collaborate("claim", "T001").code == 0
    ada.kill_daemon()
    time.sleep(TTL + 2)
    assert ben.collaborate("claim", "T001").code == 0


def test_a_holder_that_renews_is_never_taken_over(world: World) -> None:
    ada, ben = world.clone("ada", **SHORT), world.clone("ben", **SHORT)
    ada.start()
    ben.start()
    assert ada.collaborate("claim", "T001").code == 0
    until = time.monotonic() + 3 * 2.0 + 1
    with connect(ben) as daemon:
        while time.monotonic() < until:
            assert not is_granted(daemon)
            time.sleep(0.1)
    assert ada.collaborate("note", "T001", "done soon", "--fence", "1").code == 0


def test_a_lease_whose_worker_is_silent_is_given_back_and_the_log_says_so(world: World) -> None:
    ada = world.clone("ada", **SHORT, forge__idle_release_minutes="0.05")
    ada.start()
    pid = ada.daemon_pid()
    assert ada.collaborate("claim", "T001").code == 0

    def is_free() -> bool:
        record = world.lease("T001")
        return record is not None and record["claimant"] is None

    wait_until(is_free)
    entries = ada.collaborate("log").data["entries"]
    assert [entry["event"] for entry in entries if entry["key"]] == ["claimed", "released_idle"]
    assert any("silent" in line for line in ada.collaborate("status").data["warnings"])
    assert pid is not None
    assert is_alive(pid)
