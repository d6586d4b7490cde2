"""C2: wall clocks that are wrong, or jump, decide nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import Clone, World, audit_of, wait_until

from forge_collab.cli.client import Client, running
from forge_collab.cli.here import here
from forge_collab.core.errors import HeldError

TTL, BEAT, POLL = 3.0, 0.6, 0.3
TIMES = {"forge__claim_ttl_seconds": str(TTL), "forge__heartbeat_seconds": str(BEAT)}
MARGIN = 10.0  # a loaded machine takes its time; a clock that is 121 s wrong takes more

pytestmark = [
    pytest.mark.faketime,
    pytest.mark.skipif(shutil.which("faketime") is None, reason="faketime is not installed"),
]


def fake(world: World, offset: str = "", file: Path | None = None) -> dict[str, str]:
    """The environment of a process whose wall clock, and no other, is `offset` wrong.

    With `file`, the offset is what the file says at each moment. Without the `faketime` command
    itself, whose shared memory goes away with it while a daemon stays. libfaketime 0.9.10 turns
    down the absolute monotonic sleeps of Python's `time.sleep`, so that one sleeps another way.
    """
    library = subprocess.run(
        ["faketime", "-f", "+0s", "printenv", "LD_PRELOAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    shim = world.root / "shim"
    shim.mkdir(exist_ok=True)
    (shim / "sitecustomize.py").write_text(
        "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds)\n"
    )
    path = os.pathsep.join(filter(None, [str(shim), world.environ.get("PYTHONPATH")]))
    environ = {"LD_PRELOAD": library, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "PYTHONPATH": path}
    if file is None:
        return environ | {"FAKETIME": offset}
    return environ | {"FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1"}


def pair(world: World, **environ: str) -> tuple[Clone, Clone]:
    """Ada with a right clock and ben, whose every process has `environ`; both joined."""
    ada, ben = world.clone("ada", **TIMES), world.clone("ben", **TIMES)
    ada.start()
    ben.environ |= environ
    ben.start()
    return ada, ben


def check_no_take_over(ben: Clone, world: World, seconds: float) -> None:
    """For so long, ben tries and is told each time that ada has it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ran = ben.collaborate("claim", "T001")
        assert ran.code == 3, ran
        assert ran.error["data"]["holder"]["claimant"]["handle"] == "ada"
        assert world.lease("T001")["fence"] == 1  # type: ignore[index]


def check_take_over_in_time(ada: Clone, ben: Clone) -> None:
    """Ada dies; ben gets the task when a whole duration has passed, and not much later."""
    before = time.monotonic()
    ada.kill_daemon(signal.SIGKILL)
    dead = time.monotonic()
    found = running(here(str(ben.path)))
    assert found is not None
    with found[0] as daemon:
        lease = wait_until(lambda: claimed(daemon), TTL + POLL + MARGIN, pause=0.05)
    after = time.monotonic()
    # Her last renewal was at most one beat, and a push, before she died.
    assert after - before > TTL - BEAT - 1.0, "she was robbed"
    assert after - dead < TTL + POLL + MARGIN
    assert lease["fence"] == 2


def claimed(daemon: Client) -> dict[str, Any] | None:
    """The lease of T001 when the daemon gets it, else None."""
    try:
        found: dict[str, Any] = daemon.call("claim", {"task": "T001", "worker": "main"})["lease"]
    except HeldError:
        return None
    return found


def test_the_tool_fakes_the_wall_clock_and_not_the_one_that_leases_go_by(world: World) -> None:
    script = "import time; print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=world.environ | fake(world, "+121s"),
        capture_output=True,
        text=True,
        check=True,
    )
    wall, boottime = map(float, done.stdout.split())
    assert wall - time.time() == pytest.approx(121, abs=5)
    assert boottime == pytest.approx(time.clock_gettime(time.CLOCK_BOOTTIME), abs=5)


@pytest.mark.parametrize("offset", ["+121s", "-121s"])
def test_a_wrong_wall_clock_takes_nothing_from_a_live_holder_and_waits_for_a_dead_one(
    world: World, offset: str
) -> None:
    ada, ben = pair(world, **fake(world, offset))
    assert ada.collaborate("claim", "T001").code == 0
    check_no_take_over(ben, world, TTL * 1.5)
    check_take_over_in_time(ada, ben)
    # The clock was wrong indeed: what ben wrote for people says so.
    grants = [e for e in audit_of(world) if e["event"] == "claimed"]
    apart = when(grants[-1]) - when(grants[0])
    assert (apart > 100) if offset.startswith("+") else (apart < -60)


def when(entry: dict[str, Any]) -> float:
    """The wall clock of the audit line's writer, in seconds."""
    return datetime.fromisoformat(entry["ts"]).timestamp()


def test_a_wall_clock_that_jumps_takes_nothing_from_a_live_holder(
    world: World, tmp_path: Path
) -> None:
    file = tmp_path / "offset"
    file.write_text("+0s\n")
    ada, ben = pair(world, **fake(world, file=file))
    assert ada.collaborate("claim", "T001").code == 0
    for offset in ("+121s", "-121s", "+3600s", "+0s"):
        file.write_text(f"{offset}\n")
        check_no_take_over(ben, world, TTL * 0.6)
    file.write_text("+121s\n")
    check_take_over_in_time(ada, ben)


def test_a_holder_whose_wall_clock_is_wrong_keeps_what_it_renews(world: World) -> None:
    ada, ben = world.clone("ada", **TIMES), world.clone("ben", **TIMES)
    ada.environ |= fake(world, "-121s")
    ada.start()
    ben.start()
    assert ada.collaborate("claim", "T001").code == 0
    check_no_take_over(ben, world, TTL * 1.5)
    assert ada.collaborate("renew", "T001").data["lease"]["fence"] == 1
    check_take_over_in_time(ada, ben)
