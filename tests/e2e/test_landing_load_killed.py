"""Four daemons land four tasks each at once, and one of them is killed on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import Clone, Ran, World
from landworld import check_whole, joined, landed, work

PEOPLE = ("ada", "ben", "cyd", "dan")
EACH = 4
POINTS = (
    "land.before#2",
    "push.before_send#3",
    "push.after_send#3",
    "push.after_record#3",
    "land.after#2",
)


@pytest.fixture(scope="module")
def crowd(make_world: Callable[[int], World]) -> tuple[World, list[Clone]]:
    world = make_world(len(POINTS) * len(PEOPLE) * EACH)
    with ThreadPoolExecutor(len(PEOPLE)) as pool:
        return world, list(pool.map(lambda name: joined(world, name), PEOPLE))


def shares(run: int) -> list[list[str]]:
    size = len(PEOPLE) * EACH
    tasks = [f"T{number:03}" for number in range(run * size + 1, (run + 1) * size + 1)]
    return [tasks[n * EACH : (n + 1) * EACH] for n in range(len(PEOPLE))]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", POINTS)
def test_everything_lands_exactly_once_though_a_daemon_is_killed(
    crowd: tuple[World, list[Clone]], point: str
) -> None:
    world, clones = crowd
    run = POINTS.index(point)
    victim = clones[run % len(clones)]

    def prepare(clone: Clone, tasks: list[str]) -> None:
        for task in tasks:
            work(clone, task, {f"{task}.txt": f"{clone.handle}\n"})
        if clone is victim:
            clone.kill_daemon()

    def finish(clone: Clone, tasks: list[str]) -> list[Ran]:
        faults = {"FORGE_FAULTS": f"{point}=kill"} if clone is victim else {}
        answers = [clone.collaborate("done", task, **faults) for task in tasks]
        if clone is victim:
            assert 4 in {ran.code for ran in answers}, f"{point} was never reached"
            if clone.daemon_pid() is not None:
                clone.kill_daemon()  # The next one is to live.
            answers = [clone.collaborate("done", task) for task in tasks]
        return answers

    with ThreadPoolExecutor(len(PEOPLE)) as pool:
        list(pool.map(prepare, clones, shares(run)))
        answers = [ran for rans in pool.map(finish, clones, shares(run)) for ran in rans]
    assert [ran for ran in answers if ran.code != 0] == []
    expected = [task for r in range(run + 1) for share in shares(r) for task in share]
    assert Counter(landed(world)) == Counter((task, 1) for task in expected)
    for task in (task for share in shares(run) for task in share):
        check_whole(world, task)
