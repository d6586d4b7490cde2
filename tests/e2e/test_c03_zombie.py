"""C3: a holder that sleeps past its lease and wakes again; a live holder that is overruled."""

from __future__ import annotations

import os
import signal
import time

from conftest import SHORT, Clone, Ran, World, audit_of, wait_until

TTL = 2.0


def pair(world: World, **settings: str) -> tuple[Clone, Clone]:
    """Two joined clones."""
    ada, ben = world.clone("ada", **settings), world.clone("ben", **settings)
    ada.start()
    ben.start()
    return ada, ben


def claim_until_granted(clone: Clone, task: str, seconds: float = 15.0) -> Ran:
    """Claim again and again until it is granted; every other answer is `held`."""

    def claimed() -> Ran | None:
        ran = clone.collaborate("claim", task)
        assert ran.code in (0, 3), ran
        return ran if ran.code == 0 else None

    return wait_until(claimed, seconds, pause=0.1)


def asleep_and_taken_over(world: World) -> tuple[Clone, Clone]:
    """Ada claims and her daemon is stopped; ben takes over; hers goes on."""
    ada, ben = pair(world, **SHORT)
    fence = ada.collaborate("claim", "T001").data["lease"]["fence"]
    pid = ada.kill_daemon(signal.SIGSTOP)
    taken = claim_until_granted(ben, "T001").data
    assert taken["lease"]["fence"] == fence + 1
    assert taken["took_over"]["handle"] == "ada"
    os.kill(pid, signal.SIGCONT)
    return ada, ben


def test_a_holder_that_wakes_after_a_take_over_is_refused_with_both_fences(world: World) -> None:
    ada, ben = asleep_and_taken_over(world)
    (ada.path / "work.txt").write_text("half done\n")
    before = world.lease("T001")
    for words in (("renew", "T001"), ("note", "T001", "still here"), ("release", "T001")):
        for fence in ((), ("--fence", "1")):
            refused = ada.collaborate(*words, *fence)
            assert refused.code == 5, (words, refused)
            assert refused.error["code"] == "lease_lost"
            assert refused.error["data"]["fence"] == 1
            holder = refused.error["data"]["holder"]
            assert holder["fence"] == 2
            assert holder["claimant"]["handle"] == "ben"
            assert world.lease("T001") == before, words
    assert [e["event"] for e in audit_of(world) if e["who"]["handle"] == "ada"] == ["claimed"]
    kept = ben.collaborate("renew", "T001")
    assert kept.code == 0, kept
    assert kept.data["lease"]["fence"] == 2
    warnings = wait_until(lambda: lost_ones(ada))
    assert "under fence 1; ben has it under fence 2" in warnings[-1]
    assert (ada.path / "work.txt").read_text() == "half done\n"


def lost_ones(clone: Clone) -> list[str]:
    """What status says of lost leases."""
    return [w for w in clone.collaborate("status").data["warnings"] if "lease lost" in w]


def test_a_holder_that_nobody_replaced_goes_on_under_its_fence(world: World) -> None:
    ada, _ = pair(world, **SHORT)
    fence = ada.collaborate("claim", "T001").data["lease"]["fence"]
    pid = ada.kill_daemon(signal.SIGSTOP)
    time.sleep(TTL + 1)
    os.kill(pid, signal.SIGCONT)
    for words in (("note", "T001", "slept well"), ("renew", "T001"), ("release", "T001")):
        ran = ada.collaborate(*words, "--fence", str(fence))
        assert ran.code == 0, ran
        assert ran.data["lease"]["fence"] == fence


def test_a_live_holder_can_be_overruled_and_hears_of_it(world: World) -> None:
    ada, ben = pair(world)
    assert ada.collaborate("claim", "T001").code == 0
    assert ben.collaborate("claim", "T001").code == 3
    taken = ben.collaborate("takeover", "T001", "--reason", "ada is on holiday")
    assert taken.code == 0, taken
    assert taken.data["acquired"] is True
    assert taken.data["lease"]["fence"] == 2
    assert taken.data["took_over"]["handle"] == "ada"
    refused = ada.collaborate("renew", "T001")
    assert refused.code == 5, refused
    assert refused.error["data"]["fence"] == 1
    assert refused.error["data"]["holder"]["fence"] == 2
    warned = wait_until(lambda: lost_ones(ada))
    assert "ben" in warned[-1]
    entry = next(e for e in audit_of(world) if e["event"] == "taken_over")
    assert (entry["text"], entry["fence"], entry["key"]) == ("ada is on holiday", 2, "claim:T001")


def test_a_takeover_without_a_reason_is_a_usage_error_and_changes_nothing(world: World) -> None:
    ada, ben = pair(world)
    assert ada.collaborate("claim", "T001").code == 0
    assert ben.collaborate("takeover", "T001").code == 2
    record = world.lease("T001")
    assert record is not None
    assert (record["fence"], record["claimant"]["handle"]) == (1, "ada")
