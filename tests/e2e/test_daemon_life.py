"""The daemon's life: one per clone, whatever is killed, deleted, replaced or left behind."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    FORGE,
    Clone,
    Ran,
    World,
    audit_of,
    instance_of,
    is_alive,
    set_hook,
    wait_until,
)


def daemons_of(clone: Clone) -> list[int]:
    """The processes that are daemons of this clone, by their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_alive(int(entry.name)):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            here = {os.fsencode(clone.common_dir), os.fsencode(clone.common_dir.resolve())}
            is_daemon = b"forge_collab.daemon" in words and here & set(words)
            is_run = words[-3:-1] == [b"daemon", b"run"] and cwd_at_start(entry) == clone.path
            if is_daemon or is_run:
                found.append(int(entry.name))
    return found


def cwd_at_start(entry: Path) -> Path | None:
    """Where a process was started, as its shell told it."""
    try:
        environ = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    told = [word[8:] for word in environ if word.startswith(b"STARTED=")]
    return Path(os.fsdecode(told[0])) if told else None


def is_settled(clone: Clone) -> bool:
    """Whether the clone's daemon is in the session and nothing waits for an answer."""
    about = clone.forge("daemon", "status", "--json").data
    return bool(about["online"]) and about["queued"] == 0


def ended(process: subprocess.Popen[str]) -> Ran:
    out, err = process.communicate(timeout=60)
    return Ran(process.returncode, out, err)


def beats(world: World, clone: Clone, task: str) -> int:
    """How often the branch says that this clone has renewed a lease."""
    record = world.record(f"participants/{instance_of(clone)}.json") or {}
    found: int = record.get("renewals", {}).get(f"leases/claim:{task}", 0)
    return found


# Killed and started again


def test_a_killed_daemon_is_followed_by_one_that_carries_on_with_the_same_leases(
    world: World,
) -> None:
    times = {"forge__claim_ttl_seconds": "4", "forge__heartbeat_seconds": "0.5"}
    ada, ben = world.clone("ada", **times), world.clone("ben", **times)
    ada.start()
    ben.start()
    for task in ("T001", "T002"):
        assert ada.collaborate("claim", task).code == 0
    before = [world.lease(task) for task in ("T001", "T002")]
    killed = ada.kill_daemon()
    left = {path.name for path in ada.forge_dir.iterdir()}
    assert {"lock", "pid", "socket"} <= left
    assert Path((ada.forge_dir / "socket").read_text().strip()).exists()
    renewed = ada.collaborate("renew", "T001")
    assert renewed.code == 0, renewed
    assert renewed.data["lease"]["fence"] == 1
    assert ada.daemon_pid() not in (None, killed)
    counts = [beats(world, ada, task) for task in ("T001", "T002")]
    wait_until(lambda: beats(world, ada, "T001") > counts[0] + 2)
    assert beats(world, ada, "T002") > counts[1] + 1
    time.sleep(4.5)
    assert ben.collaborate("claim", "T001").code == 3
    assert ben.collaborate("claim", "T002").code == 3
    assert [world.lease(task) for task in ("T001", "T002")] == before
    again = ada.collaborate("claim", "T001")
    assert again.data["already"] is True
    assert again.data["lease"]["fence"] == 1


def test_a_daemon_told_to_end_tidies_up_and_what_it_holds_stays_held(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    socket_path = Path((ada.forge_dir / "socket").read_text().strip())
    pid = ada.kill_daemon(signal.SIGTERM)
    wait_until(lambda: not is_alive(pid))
    assert not socket_path.exists()
    assert not (ada.forge_dir / "pid").exists()
    record = world.lease("T001")
    assert record is not None
    assert record["claimant"]["handle"] == "ada"
    assert ada.collaborate("renew", "T001", "--fence", "1").code == 0


def test_a_pid_that_another_process_has_now_is_not_mistaken_for_the_daemon(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    bens = ben.daemon_pid()
    assert bens is not None
    ada.kill_daemon()
    with subprocess.Popen(["sleep", "60"]) as innocent:
        for pid in (innocent.pid, bens):
            (ada.forge_dir / "pid").write_text(f"{pid}\n")
            about = ada.forge("daemon", "status", "--json").data
            assert about["running"] is False
            assert ada.forge("daemon", "stop", "--json").data["stopped"] is False
            assert is_alive(pid)
        assert ada.forge("daemon", "start").code == 0
        assert ada.daemon_pid() not in (innocent.pid, bens, None)
        assert ben.daemon_pid() == bens
        # Not even for one that answers nobody.
        mine = ada.kill_daemon(signal.SIGSTOP)
        try:
            for pid in (innocent.pid, bens):
                (ada.forge_dir / "pid").write_text(f"{pid}\n")
                refused = ada.forge("daemon", "stop", "--json")
                assert is_alive(pid), "somebody else's process was killed"
                assert refused.code == 7, refused
        finally:
            os.kill(mine, signal.SIGKILL)
            innocent.kill()


def test_a_daemon_that_answers_nobody_can_be_stopped(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    pid = ada.kill_daemon(signal.SIGSTOP)
    stopped = ada.forge("daemon", "stop", "--json")
    assert stopped.code == 0, stopped
    assert stopped.data["stopped"] is True
    wait_until(lambda: not is_alive(pid))
    assert ada.forge("daemon", "start").code == 0
    assert ada.daemon_pid() not in (None, pid)


# One and only one


def test_a_second_daemon_of_a_clone_refuses_to_run(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    first = ada.daemon_pid()
    second = ada.forge("daemon", "run", timeout=20)
    assert second.code == 7, second
    assert "runs already" in second.err
    assert ada.daemon_pid() == first
    assert is_alive(first or 0)


def test_of_four_that_are_run_at_once_one_stays(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    ada.forge("daemon", "stop")
    running = [ada.popen("daemon", "run", STARTED=str(ada.path)) for _ in range(4)]
    wait_until(lambda: sum(process.poll() is None for process in running) == 1, 30)
    left = next(process for process in running if process.poll() is None)
    wait_until(lambda: ada.daemon_pid() == left.pid)
    for process in running:
        if process is not left:
            refused = ended(process)
            assert refused.code == 7, refused
    left.send_signal(signal.SIGINT)
    assert ended(left).code in (0, 130)


def test_five_commands_at_once_in_a_clone_without_a_daemon_start_exactly_one(
    world: World,
) -> None:
    ada = world.clone("ada")
    ada.start()
    ada.kill_daemon()
    tasks = ["T001", "T002", "T003", "T001", "T001"]
    asking = [
        ada.popen("collaborate", "claim", task, "--as", f"w{number}", "--json")
        for number, task in enumerate(tasks)
    ]
    runs = [ended(process) for process in asking]
    assert sorted(run.code for run in runs) == [0, 0, 0, 3, 3], runs
    assert daemons_of(ada) == [ada.daemon_pid()]


def test_a_socket_that_vanishes_comes_back_with_the_same_daemon(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    pid = ada.daemon_pid()
    Path((ada.forge_dir / "socket").read_text().strip()).unlink()
    claimed = ada.collaborate("claim", "T001")
    assert claimed.code == 0, claimed
    assert ada.daemon_pid() == pid
    assert daemons_of(ada) == [pid]


def test_a_daemon_whose_lock_was_replaced_ends(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    pid = ada.daemon_pid()
    assert pid is not None
    lock = ada.forge_dir / "lock"
    lock.rename(lock.with_name("lock.old"))
    lock.touch()
    wait_until(lambda: not is_alive(pid))
    assert ada.collaborate("claim", "T001").code == 0
    assert ada.daemon_pid() not in (None, pid)


def test_every_daemon_of_the_machine_is_listed_with_its_clone(world: World) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    assert ada.forge("daemon", "status", "--all", "--json").data == {"daemons": []}
    ada.start()
    ben.start()
    listed = ada.forge("daemon", "status", "--all", "--json").data["daemons"]
    found = {Path(daemon["clone"]): daemon["pid"] for daemon in listed}
    assert found == {clone.common_dir: clone.daemon_pid() for clone in (ada, ben)}
    ben.kill_daemon()
    left = ada.forge("daemon", "status", "--all", "--json").data["daemons"]
    assert [Path(daemon["clone"]) for daemon in left] == [ada.common_dir]


# It ends by itself


def test_a_daemon_ends_when_its_session_is_left(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    pid = ada.daemon_pid()
    assert pid is not None
    assert ada.collaborate("leave").code == 0
    wait_until(lambda: not is_alive(pid))
    assert ada.daemon_pid() is None
    assert not (ada.forge_dir / "pid").exists()


def test_a_daemon_ends_when_enabled_is_removed_from_outside(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    pid = ada.daemon_pid()
    assert pid is not None
    (ada.forge_dir / "enabled").unlink()
    wait_until(lambda: not is_alive(pid))
    assert ada.collaborate("status").data["class"] == "stale_participant"
    assert ada.collaborate("claim", "T001").code == 7


# What it keeps of whoever started it


@pytest.mark.parametrize("line", ['x="$("$0" collaborate start)"', '"$0" collaborate start | cat'])
def test_a_shell_that_reads_the_output_of_start_goes_on(world: World, line: str) -> None:
    ada = world.clone("ada")
    done = subprocess.run(
        ["sh", "-c", f"{line} && echo went on", str(FORGE)],
        cwd=ada.path,
        env=ada.environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "went on" in done.stdout, done
    assert ada.daemon_pid() is not None


def test_a_daemon_keeps_no_descriptor_and_no_session_of_the_command_that_started_it(
    world: World,
) -> None:
    ada = world.clone("ada")
    mine, theirs = socket.socketpair()
    with mine, theirs:
        done = subprocess.run(
            [str(FORGE), "collaborate", "start"],
            cwd=ada.path,
            env=ada.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            timeout=30,
            check=False,
        )
        assert done.returncode == 0
        theirs.close()
        mine.settimeout(10)
        assert mine.recv(1) == b"", "nobody has the other end any more"
    pid = ada.daemon_pid()
    assert pid is not None
    assert os.getsid(pid) == pid
    assert Path(f"/proc/{pid}/cwd").resolve() == Path("/")


def test_a_log_that_is_full_is_rotated_and_three_old_ones_are_kept(world: World) -> None:
    ada = world.clone("ada")
    ada.start()
    log = ada.forge_dir / "daemon.log"
    for _ in range(5):
        ada.forge("daemon", "stop")
        log.write_text("x" * 1024 * 1024 + "\n")
        assert ada.forge("daemon", "start").code == 0
    assert log.stat().st_size < 1024 * 1024
    kept = sorted(path.name for path in ada.forge_dir.glob("daemon.log.*"))
    assert kept == ["daemon.log.1", "daemon.log.2", "daemon.log.3"]


# A claim nobody waits for


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_claim_whose_command_is_killed_while_its_push_is_under_way_is_given_back(
    world: World, how: signal.Signals
) -> None:
    ada, ben = world.clone("ada"), world.clone("ben")
    ben.start()
    ada.start()
    began = world.root / "began"
    set_hook(world, "pre-receive", f"if mkdir {began} 2>/dev/null; then sleep 2; fi")
    asking = ada.popen("collaborate", "claim", "T001", "--json")
    wait_until(began.exists)
    asking.send_signal(how)
    run = ended(asking)
    assert run.code == (-9 if how is signal.SIGKILL else 130), run
    wait_until(lambda: any(entry["event"] == "settled" for entry in audit_of(world)))
    wait_until(lambda: is_settled(ada))
    record = world.lease("T001")
    assert record is None or record["claimant"] is None
    assert ben.collaborate("claim", "T001").code == 0


# A crash between any two steps


def picture(clone: Clone) -> dict[str, str]:
    """Everything of the user's that forge must leave alone."""
    found = {
        "head": (clone.common_dir / "HEAD").read_text(),
        "index": hashlib.sha256((clone.common_dir / "index").read_bytes()).hexdigest(),
        "refs": clone.git("for-each-ref").out,
        "status": clone.git("status", "--porcelain").out,
    }
    for path in sorted(clone.path.rglob("*")):
        inside = path.relative_to(clone.path)
        is_forges = inside.parts[0] == ".git" or inside.parts[:2] == (".forge", "collab")
        if path.is_file() and not is_forges:
            found[str(inside)] = path.read_text()
    return found


def with_work(world: World, name: str) -> Clone:
    """A clone with something staged, something changed and something new."""
    clone = world.clone(name)
    (clone.path / "staged").write_text("staged\n")
    clone.git("add", "staged")
    (clone.path / "README").write_text("changed\n")
    (clone.path / "new").write_text("new\n")
    return clone


def class_by_markers(clone: Clone) -> str:
    """What the two markers on disk say, by the table of the design."""
    names = {
        (False, False): "inactive",
        (True, True): "healthy",
        (True, False): "stale_participant",
        (False, True): "stale_enabled",
    }
    found = (clone.forge_dir / name for name in ("participant.json", "enabled"))
    has_participant, is_enabled = (path.exists() for path in found)
    return names[has_participant, is_enabled]


def check_healed(world: World, clone: Clone, expected: tuple[str, ...]) -> None:
    """The class is one of the expected; recover heals it, once; then a start works again."""
    shown = clone.collaborate("status").data["class"]
    assert shown == class_by_markers(clone)
    assert shown in expected
    assert clone.collaborate("recover").data["class"] == shown
    assert class_by_markers(clone) == shown, "a dry run changes nothing"
    healed = clone.collaborate("recover", "--apply")
    assert healed.code == 0, healed
    after = clone.collaborate("status").data["class"]
    assert after == class_by_markers(clone)
    assert after == ("healthy" if shown in ("healthy", "stale_enabled") else "inactive")
    again = clone.collaborate("recover", "--apply").data
    assert (again["actions"], again["applied"], again["class"]) == ([], False, after)
    if after == "inactive":
        assert held_by_handle(world, clone) == []
    clone.start()
    assert class_by_markers(clone) == "healthy"
    assert daemons_of(clone) == [clone.daemon_pid()]


def held_by_handle(world: World, clone: Clone) -> list[str]:
    tasks = ("T001", "T002", "T003")
    records = {task: world.lease(task) for task in tasks}
    return [
        task
        for task, record in records.items()
        if record and record["claimant"] and record["claimant"]["handle"] == clone.handle
    ]


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("start.before_participant", ("inactive",)),
        ("start.after_participant", ("stale_participant",)),
        # Its command outlives the daemon here, and may tidy up.
        ("start.after_connect", ("inactive", "stale_participant")),
        ("start.after_enabled", ("healthy",)),
    ],
)
def test_a_start_that_dies_halfway_is_healed(
    world: World, point: str, expected: tuple[str, ...]
) -> None:
    ada = with_work(world, "ada")
    before = picture(ada)
    crashed = ada.collaborate("start", "--handle", "ada", FORGE_FAULTS=f"{point}=kill")
    assert crashed.code in (-9, 4), crashed
    assert daemons_of(ada) == []
    check_healed(world, ada, expected)
    assert picture(ada) == before


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("leave.after_close", "healthy"),
        ("leave.after_enabled", "stale_participant"),
        ("leave.after_release", "stale_participant"),
        ("leave.after_participant", "inactive"),
    ],
)
def test_a_leave_that_dies_halfway_is_healed(world: World, point: str, expected: str) -> None:
    ada = with_work(world, "ada")
    before = picture(ada)
    ada.start(FORGE_FAULTS=f"{point}=kill")
    assert ada.collaborate("claim", "T001").code == 0
    crashed = ada.collaborate("leave")
    assert crashed.code == 4, crashed
    assert daemons_of(ada) == []
    check_healed(world, ada, (expected,))
    assert picture(ada) == before


@pytest.fixture(scope="module")
def two(make_world: Callable[[int], World]) -> tuple[World, Clone, Clone]:
    """A session of ada, whose daemon dies again and again, and ben, who watches."""
    world = make_world(40)
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    return world, ada, ben


IN_A_CLAIM = [
    "claim.before_journal",
    "claim.after_journal",
    "push.before_objects#2",
    "push.after_objects#2",
    "push.before_send#2",
    "push.after_send#2",
    "push.after_record#2",
    "claim.before_grant",
    "claim.after_grant",
    "claim.before_answer",
]
WROTE = IN_A_CLAIM[IN_A_CLAIM.index("push.after_send#2") :]
GRANTED = ("claim.after_grant", "claim.before_answer")


def restarted(clone: Clone, faults: str) -> None:
    """The clone's daemon, begun anew with these faults."""
    clone.forge("daemon", "stop")
    assert clone.forge("daemon", "start", FORGE_FAULTS=faults).code == 0


@pytest.mark.parametrize("point", IN_A_CLAIM)
def test_a_daemon_that_dies_in_a_claim_leaves_no_lease_that_nobody_knows_of(
    two: tuple[World, Clone, Clone], point: str
) -> None:
    world, ada, ben = two
    task = f"T{IN_A_CLAIM.index(point) + 1:03}"
    restarted(ada, f"{point}=kill")
    unknown = ada.collaborate("claim", task)
    assert unknown.code == 4, unknown
    wrote = world.lease(task)
    assert (wrote is not None) == (point in WROTE)
    assert ada.collaborate("status").data["class"] == "healthy"
    assert ada.collaborate("recover").data["actions"] == []
    assert ada.forge("daemon", "start").code == 0
    wait_until(lambda: is_settled(ada))
    record = world.lease(task)
    if point in GRANTED:
        # It was given to the worker, who only has to ask again.
        assert record == wrote
        again = ada.collaborate("claim", task)
        assert again.data["already"] is True
        assert again.data["lease"]["fence"] == 1
        assert ben.collaborate("claim", task).code == 3
        return
    assert record is None or record["claimant"] is None
    fence = record["fence"] if record else 0
    assert ben.collaborate("claim", task).data["lease"]["fence"] == fence + 1


@pytest.mark.parametrize("point", ["settle.before", "settle.after"])
def test_a_daemon_that_dies_settling_settles_when_it_runs_again(
    two: tuple[World, Clone, Clone], point: str
) -> None:
    world, ada, ben = two
    task = {"settle.before": "T021", "settle.after": "T022"}[point]
    restarted(ada, "claim.before_grant=kill")
    assert ada.collaborate("claim", task).code == 4
    ada.forge("daemon", "start", FORGE_FAULTS=f"{point}=kill")
    wait_until(lambda: daemons_of(ada) == [])
    assert ada.forge("daemon", "start").code == 0
    wait_until(lambda: is_settled(ada))
    record = world.lease(task)
    assert record is not None
    assert record["claimant"] is None
    assert ben.collaborate("claim", task).data["lease"]["fence"] == 2


@pytest.mark.parametrize("point", ["beat.before", "beat.after"])
def test_a_daemon_that_dies_in_a_beat_carries_on_with_the_same_fence(
    two: tuple[World, Clone, Clone], point: str
) -> None:
    world, ada, ben = two
    task = {"beat.before": "T031", "beat.after": "T032"}[point]
    assert ada.collaborate("claim", task).data["lease"]["fence"] == 1
    before = world.lease(task)
    # A daemon that carries on with leases begins with a beat.
    ada.forge("daemon", "stop")
    ada.forge("daemon", "start", FORGE_FAULTS=f"{point}=kill")
    wait_until(lambda: daemons_of(ada) == [])
    renewed: dict[str, Any] = ada.collaborate("renew", task, "--fence", "1").data
    assert renewed["lease"]["fence"] == 1
    assert world.lease(task) == before
    assert ben.collaborate("claim", task).code == 3


def test_a_claim_that_is_repeated_leaves_nothing_behind_in_the_journal(
    two: tuple[World, Clone, Clone],
) -> None:
    _, ada, _ = two
    ada.collaborate("claim", "T035")
    for _ in range(2):
        assert ada.collaborate("claim", "T035").data["already"] is True
    assert is_settled(ada)
