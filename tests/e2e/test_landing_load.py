"""Four daemons land four tasks each at once, again and again: all of them, exactly once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import Clone, Ran, World
from landworld import check_whole, files, joined, landed, work

RUNS = int(os.environ.get("FORGE_LANDING_RUNS", "5"))
PEOPLE = ("ada", "ben", "cyd", "dan")
EACH = 4


@pytest.fixture(scope="module")
def crowd(make_world: Callable[[int], World]) -> tuple[World, list[Clone]]:
    world = make_world(RUNS * len(PEOPLE) * EACH)
    with ThreadPoolExecutor(len(PEOPLE)) as pool:
        return world, list(pool.map(lambda name: joined(world, name), PEOPLE))


def shares(run: int) -> list[list[str]]:
    """The tasks of a run, by person."""
    size = len(PEOPLE) * EACH
    first = run * size + 1
    tasks = [f"T{number:03}" for number in range(first, first + size)]
    return [tasks[n * EACH : (n + 1) * EACH] for n in range(len(PEOPLE))]


def prepare(clone: Clone, tasks: list[str]) -> None:
    for task in tasks:
        work(clone, task, {f"{task}.txt": f"{clone.handle}\n"})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("run", range(RUNS))
def test_everything_lands_exactly_once_and_nobody_gives_up(
    crowd: tuple[World, list[Clone]], run: int
) -> None:
    world, clones = crowd

    def finish(clone: Clone, tasks: list[str]) -> list[Ran]:
        """Odd runs: one after another; even runs: all of a clone's at once."""
        with ThreadPoolExecutor(1 if run % 2 else EACH) as pool:
            return list(pool.map(lambda task: clone.collaborate("done", task), tasks))

    with ThreadPoolExecutor(len(PEOPLE)) as pool:
        list(pool.map(prepare, clones, shares(run)))
        answers = [ran for rans in pool.map(finish, clones, shares(run)) for ran in rans]
    assert [ran for ran in answers if ran.code != 0] == []
    assert all(not ran.data["already"] for ran in answers)
    check_all(world, run)


def check_all(world: World, run: int) -> None:
    """All tasks up to this run are on the target once; trailers and records agree."""
    expected = [task for r in range(run + 1) for share in shares(r) for task in share]
    assert Counter(landed(world)) == Counter((task, 1) for task in expected)
    for task in (task for share in shares(run) for task in share):
        check_whole(world, task)
    assert {f"{task}.txt" for task in expected} <= files(world)
