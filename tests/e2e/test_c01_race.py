"""C1: N processes want one task at once; one gets it, and everybody is told who."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import FORGE, Clone, Ran, World, audit_of, instance_of

from forge_collab.cli.client import Client, running
from forge_collab.cli.here import here
from forge_collab.core.errors import HeldError

RACERS = 8
CALM = {"forge__poll_seconds": "1", "forge__idle_poll_seconds": "2"}


def joined(world: World, count: int = RACERS) -> list[Clone]:
    """So many clones in one session, each with its daemon."""
    clones = [world.clone(f"racer{n}", **CALM) for n in range(count)]
    clones[0].start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Clone.start, clones[1:]))
    return clones


def connect(clone: Clone) -> Client:
    """A connection to the daemon that runs for `clone`."""
    found = running(here(str(clone.path)))
    assert found is not None, f"{clone.handle} has no daemon"
    return found[0]


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """What the calls give, all begun from one barrier, each in its own thread."""
    barrier = threading.Barrier(len(calls))

    def go(call: Callable[[], Any]) -> Any:
        barrier.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(go, calls))


def commands_at_once(clones: Sequence[Clone], *args: str) -> list[Ran]:
    """The real command in every clone; each process waits for one signal to begin."""
    waiting, signal = os.pipe()
    script = 'read _; exec "$@"'
    command = ["sh", "-c", script, "sh", str(FORGE), *args]
    racing = [
        subprocess.Popen(
            command,
            cwd=clone.path,
            env=clone.environ,
            stdin=waiting,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for clone in clones
    ]
    os.close(waiting)
    os.close(signal)
    ended = [(process, *process.communicate(timeout=60)) for process in racing]
    return [Ran(process.returncode, out, err) for process, out, err in ended]


def claims_at_once(clients: Iterable[Client], task: str) -> list[dict[str, Any]]:
    """What each daemon says to a claim of one task, asked over its socket."""
    return at_once([lambda client=client: told(client, task) for client in clients])


def told(client: Client, task: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = client.call("claim", {"task": task, "worker": "main"})
    except HeldError as error:
        return error.data
    return answer


def check_round(
    world: World, clones: Sequence[Clone], task: str, answers: Sequence[dict[str, Any]]
) -> int:
    """One winner, who is on the branch, whom everybody was told; the number of the winner."""
    winners = [number for number, answer in enumerate(answers) if answer["acquired"]]
    assert len(winners) == 1, (task, answers)
    record = world.lease(task)
    assert record is not None
    winner = clones[winners[0]]
    assert record["claimant"]["handle"] == winner.handle
    assert record["claimant"]["instance"] == instance_of(winner)
    for answer in answers:
        lease = answer["lease"] if answer["acquired"] else answer["holder"]
        assert answer["task"] == task
        assert lease["key"] == f"claim:{task}"
        assert lease["claimant"] == record["claimant"], (task, answers)
        assert lease["fence"] == record["fence"], (task, answers)
    return winners[0]


def check_command_round(
    world: World, clones: Sequence[Clone], task: str, runs: Sequence[Ran]
) -> int:
    """As `check_round`, and the exit codes: one 0, for everybody else 3."""
    assert sorted(run.code for run in runs) == [0] + [3] * (len(clones) - 1), runs
    for run in runs:
        if run.code == 3:
            assert run.error["code"] == "held"
            assert run.error["data"]["reason"] in ("held", "lost_race")
    answers = [run.data if run.code == 0 else run.error["data"] for run in runs]
    return check_round(world, clones, task, answers)


@dataclass(frozen=True)
class Race:
    """A session of eight clones, each with its daemon."""

    world: World
    clones: list[Clone]


@pytest.fixture(scope="module")
def race(make_world: Callable[[int], World]) -> Race:
    """Eight clones and 188 tasks: 100 for rounds, 80 to hold, 8 for whoever asks for the next."""
    world = make_world(188)
    return Race(world, joined(world))


@pytest.mark.timeout(240)
def test_one_of_eight_wins_each_of_a_hundred_rounds_and_all_are_told_who(race: Race) -> None:
    world, clones = race.world, race.clones
    tasks = [f"T{number:03}" for number in range(1, 101)]
    for task in tasks[:10]:
        runs = commands_at_once(clones, "collaborate", "claim", task, "--json")
        check_command_round(world, clones, task, runs)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(clone)) for clone in clones]
        for task in tasks[10:]:
            check_round(world, clones, task, claims_at_once(clients, task))
    granted = [entry for entry in audit_of(world) if entry["event"] == "claimed"]
    keys = [entry["key"] for entry in granted if entry["key"] <= "claim:T100"]
    assert sorted(keys) == [f"claim:{task}" for task in tasks]
    assert {entry["fence"] for entry in granted} == {1}


@pytest.mark.timeout(180)
def test_eight_clones_with_ten_tasks_each_get_eighty_of_eighty(race: Race) -> None:
    world, clones = race.world, race.clones
    wanted = [(clones[n % RACERS], f"T{n + 101:03}") for n in range(80)]
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(clone)) for clone, _ in wanted]
        calls = [
            lambda client=client, task=task: told(client, task)
            for client, (_, task) in zip(clients, wanted, strict=True)
        ]
        answers = at_once(calls)
    assert [answer["acquired"] for answer in answers] == [True] * 80
    for (clone, task), answer in zip(wanted, answers, strict=True):
        record = world.lease(task)
        assert record is not None
        assert record["claimant"] == answer["lease"]["claimant"]
        assert record["claimant"]["instance"] == instance_of(clone)
        assert record["fence"] == answer["lease"]["fence"] == 1


@pytest.mark.timeout(120)
def test_eight_who_ask_for_whatever_is_next_get_eight_different_tasks(race: Race) -> None:
    world, clones = race.world, race.clones
    runs = commands_at_once(clones, "collaborate", "claim", "--next", "--json")
    assert [run.code for run in runs] == [0] * RACERS, runs
    assert len({run.data["task"] for run in runs}) == RACERS
    for clone, run in zip(clones, runs, strict=True):
        record = world.lease(run.data["task"])
        assert record is not None
        assert record["claimant"]["instance"] == instance_of(clone)
        assert record["fence"] == run.data["lease"]["fence"]


@pytest.mark.timeout(180)
def test_the_only_task_there_is_has_one_winner_in_every_round(
    make_world: Callable[[int], World],
) -> None:
    world = make_world(1)
    clones = joined(world)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(clone)) for clone in clones]
        for fence in range(1, 11):
            is_by_command = fence <= 2
            if is_by_command:
                runs = commands_at_once(clones, "collaborate", "claim", "T001", "--json")
                winner = check_command_round(world, clones, "T001", runs)
            else:
                answers = claims_at_once(clients, "T001")
                winner = check_round(world, clones, "T001", answers)
            record = world.lease("T001")
            assert record is not None
            assert record["fence"] == fence
            clients[winner].call("release", {"task": "T001", "worker": "main"})
