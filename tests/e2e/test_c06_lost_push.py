"""C6: a push that loses, is refused, reaches nobody, or is answered too late."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from conftest import Clone, Ran, World, audit_of, is_alive, set_hook, wait_until

# A daemon's first push says that it is here; the second is its first claim.
STOP_BEFORE_CLAIM = {"FORGE_FAULTS": "push.before_send#2=stop"}


def ended(process: subprocess.Popen[str]) -> Ran:
    out, err = process.communicate(timeout=60)
    return Ran(process.returncode, out, err)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def claim_on_its_way(world: World, task: str) -> tuple[Clone, Clone, int, subprocess.Popen[str]]:
    """Ada, whose claim was judged and stands right before its push, and ben."""
    ada, ben = world.clone("ada"), world.clone("ben")
    ben.start()
    ada.start(**STOP_BEFORE_CLAIM)
    pid = ada.daemon_pid()
    assert pid is not None
    asking = ada.popen("collaborate", "claim", task, "--json")
    wait_until(lambda: is_stopped(pid))
    return ada, ben, pid, asking


def is_settled(clone: Clone) -> bool:
    """Whether the clone's daemon is in the session and nothing waits for an answer."""
    about = clone.forge("daemon", "status", "--json").data
    return bool(about["online"]) and about["queued"] == 0


def holds(clone: Clone) -> int:
    """How many leases the clone's daemon thinks it holds."""
    me = clone.collaborate("status").data
    return sum(c["claimant"]["instance"] == me["me"]["instance"] for c in me["claims"])


def test_a_claim_that_anothers_claim_overtakes_is_told_the_winner(world: World) -> None:
    ada, ben, pid, asking = claim_on_its_way(world, "T001")
    assert ben.collaborate("claim", "T001").code == 0
    os.kill(pid, signal.SIGCONT)
    lost = ended(asking)
    assert lost.code == 3, lost
    assert lost.error["data"]["acquired"] is False
    assert lost.error["data"]["reason"] == "lost_race"
    holder = lost.error["data"]["holder"]
    record = world.lease("T001")
    assert record is not None
    assert record["claimant"]["handle"] == "ben"
    assert (holder["claimant"], holder["fence"]) == (record["claimant"], 1)
    assert holds(ada) == 0


def test_a_claim_that_anothers_claim_of_another_task_overtakes_is_not_lost(world: World) -> None:
    ada, ben, pid, asking = claim_on_its_way(world, "T001")
    assert ben.collaborate("claim", "T002").code == 0
    os.kill(pid, signal.SIGCONT)
    won = ended(asking)
    assert won.code == 0, won
    record = world.lease("T001")
    assert record is not None
    assert record["claimant"] == won.data["lease"]["claimant"]
    assert holds(ada) == holds(ben) == 1


def test_a_claim_that_the_server_refuses_is_blocked_with_its_words_and_exists_nowhere(
    world: World,
) -> None:
    ada = world.clone("ada")
    ada.start()
    hook = set_hook(world, "pre-receive", "echo 'policy: the state is frozen' >&2; exit 1")
    tip = world.on_origin("rev-parse", "forge/collab-state")
    refused = ada.collaborate("claim", "T001")
    assert refused.code == 7, refused
    assert refused.error["code"] == "blocked"
    assert refused.error["data"]["status"] == "refused"
    assert "policy: the state is frozen" in refused.error["data"]["server"]
    assert "policy: the state is frozen" in refused.error["message"]
    assert world.on_origin("rev-parse", "forge/collab-state") == tip
    assert world.lease("T001") is None
    assert holds(ada) == 0
    assert ada.collaborate("renew", "T001").code == 7
    hook.unlink()
    assert ada.collaborate("claim", "T001").data["lease"]["fence"] == 1


def test_a_claim_without_a_network_is_offline_and_exists_nowhere_and_works_again_later(
    world: World,
) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    away = world.origin.with_name("away.git")
    world.origin.rename(away)
    offline = ada.collaborate("claim", "T001")
    assert offline.code == 4, offline
    assert offline.error["code"] == "offline"
    status = ada.collaborate("status").data
    assert status["online"] is False
    assert status["claims"] == []
    away.rename(world.origin)
    assert world.lease("T001") is None
    wait_until(lambda: is_settled(ada))
    record = world.lease("T001")
    assert record is None or record["claimant"] is None, "a claim that nobody waited for"
    won = ben.collaborate("claim", "T001")
    assert won.code == 0, won
    assert ada.collaborate("claim", "T001").code == 3
    assert ada.collaborate("claim", "T002").code == 0


def over_slow_ssh(world: World, clone: Clone, seconds: int) -> Path:
    """Let `clone` reach the origin through what looks like ssh: there, a push that was sent goes
    on though its client is killed. While the file that is given back exists, the next push waits
    there for so long before it lands."""
    script = world.root / "somehow"
    script.write_text('#!/bin/sh\nshift\nexec setsid -w sh -c "$*"\n')
    script.chmod(0o755)
    clone.git("config", "core.sshCommand", str(script))
    clone.git("config", "ssh.variant", "simple")
    clone.git("remote", "set-url", "origin", f"ssh://somewhere{world.origin}")
    slow = world.origin / "slow"
    late = f"sleep {seconds}; touch late"
    set_hook(world, "pre-receive", f"if mv slow slow.$$ 2>/dev/null; then {late}; fi")
    return slow


def test_a_claim_whose_push_is_killed_and_lands_three_seconds_later_is_given_back(
    world: World,
) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    slow = over_slow_ssh(world, ada, 18)  # A git command to the remote has 15 seconds.
    ben.start()
    # What settles the claim begins when the push has landed; without this it comes first.
    ada.start(FORGE_FAULTS="settle.before#1=sleep:6")
    slow.touch()
    unknown = ada.collaborate("claim", "T001")
    assert unknown.code == 4, unknown
    assert unknown.error["code"] == "offline"
    wait_until((world.origin / "late").exists, 30)
    settled = wait_until(lambda: [e for e in audit_of(world) if e["event"] == "settled"], 30)
    assert (settled[0]["who"]["handle"], settled[0]["fence"]) == ("ada", 1)
    wait_until(lambda: is_settled(ada))
    record = world.lease("T001")
    assert record is not None
    assert (record["claimant"], record["fence"]) == (None, 1)
    assert holds(ada) == 0
    assert ben.collaborate("claim", "T001").data["lease"]["fence"] == 2


def test_a_claim_whose_push_is_killed_is_pushed_again_and_the_first_push_lands_no_more(
    world: World,
) -> None:
    ada = world.clone("ada", forge__network_timeout_seconds="4")
    slow = over_slow_ssh(world, ada, 8)
    ada.start()
    slow.touch()
    won = ada.collaborate("claim", "T001")
    assert won.code == 0, won
    granted = world.lease("T001")
    assert granted is not None
    assert granted["claimant"] == won.data["lease"]["claimant"]
    wait_until((world.origin / "late").exists)
    time.sleep(1)
    assert world.lease("T001") == granted
    assert [e["event"] for e in audit_of(world)] == ["claimed"]
    assert holds(ada) == 1


def test_a_claim_whose_push_landed_and_whose_answer_got_lost_is_acquired(world: World) -> None:
    ada = world.clone("ada")
    over_slow_ssh(world, ada, 0)
    ada.start()
    # The connection breaks after the ref has moved, before the client hears of it.
    set_hook(world, "post-receive", "if mv drop dropped 2>/dev/null; then kill -9 $PPID; fi")
    (world.origin / "drop").touch()
    won = ada.collaborate("claim", "T001")
    assert (world.origin / "dropped").exists()
    assert won.code == 0, won
    record = world.lease("T001")
    assert record is not None
    assert record["claimant"] == won.data["lease"]["claimant"]
    assert record["fence"] == won.data["lease"]["fence"] == 1
    assert holds(ada) == 1


def test_a_daemon_killed_with_a_claim_on_its_way_gives_it_back_when_it_runs_again(
    world: World,
) -> None:
    ada, ben, pid, asking = claim_on_its_way(world, "T001")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))
    unknown = ended(asking)
    assert unknown.code == 4, unknown
    assert ada.forge("daemon", "start").code == 0
    wait_until(lambda: is_settled(ada))
    assert holds(ada) == 0
    assert ben.collaborate("claim", "T001").code == 0
