"""``forge demo``: what it prints is what is on its bare repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Ran, World, audit_of, clean_environ

from forge_collab.cli.demo.play import tasks_of, to_give

pytestmark = pytest.mark.timeout(300)
NAMES = [f"T00{n}" for n in range(1, 9)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Ran]]:
    """The folder that one run of the demo left, as a world, and what the run printed."""
    root = tmp_path_factory.mktemp("k")
    home = World(root, clean_environ(root))
    home.make_origin({"X001": "id: X001\ntitle: Of the copied project\n"}, "trunk")
    clone = home.clone("ada")
    ran = clone.forge("demo", "--keep", str(root / "kept"), "--json", timeout=280)
    yield World(root / "kept", home.environ), ran
    home.end()


def test_the_demo_ends_well_and_says_each_step(kept: tuple[World, Ran]) -> None:
    _, ran = kept
    assert ran.code == 0, ran
    assert [task["id"] for task in ran.data["tasks"]] == NAMES
    for step in ("both claim", "kill -9", "4 s of silence", "at the same time", "merge_blocked"):
        assert step in ran.err
    assert "keeps both lines" in ran.err
    assert "awake again" in ran.err
    assert "(exit 5)" in ran.err


@pytest.mark.parametrize("task_id", ["T001", "T008"])
def test_a_killed_or_sleeping_holders_task_is_taken_over_with_a_higher_fence(
    kept: tuple[World, Ran], task_id: str
) -> None:
    world, ran = kept
    [first, second] = next(t["holders"] for t in ran.data["tasks"] if t["id"] == task_id)
    assert (first["fence"], second["fence"]) == (1, 2)
    assert first["handle"] != second["handle"]
    lease = world.lease(task_id)
    assert lease is not None
    assert (lease["fence"], lease["claimant"]) == (2, None)
    assert lease["last"]["handle"] == second["handle"]


def test_every_task_is_on_the_target_exactly_once(kept: tuple[World, Ran]) -> None:
    world, ran = kept
    for task in ran.data["tasks"]:
        line = f"^Forge-Task: {task['id']}$"
        assert world.on_origin("log", "--format=%H", f"--grep={line}", "trunk") == task["commit"]
        fence = f"Forge-Fence: {task['holders'][-1]['fence']}"
        assert fence in world.on_origin("show", "-s", "--format=%B", task["commit"])
        record = world.record(f"tasks/{task['id']}.json")
        assert record is not None
        assert (record["status"], record["landed"]["commit"]) == ("done", task["commit"])
    listed = world.on_origin("ls-tree", "--name-only", "trunk:forge-demo").split()
    assert listed == [*(f"{name}.md" for name in NAMES), "index.md"]


def test_both_sides_of_the_conflict_are_on_the_target(kept: tuple[World, Ran]) -> None:
    world, ran = kept
    lines = world.on_origin("show", "trunk:forge-demo/index.md").splitlines()
    named = [line.partition(":")[0].removeprefix("- ") for line in lines if line.startswith("- ")]
    assert len(named) == 2
    holders = {t["id"]: t["holders"][-1]["handle"] for t in ran.data["tasks"]}
    assert {holders[name] for name in named} == {"ada", "ben"}
    blocked = [e for e in audit_of(world) if e["event"] == "merge_blocked"]
    assert [entry["key"] for entry in blocked] == [f"claim:{named[1]}"]


def test_it_leaves_the_copied_repository_alone(kept: tuple[World, Ran]) -> None:
    world, _ = kept
    clone = world.root.parent / "ada"
    assert not (clone / ".git" / "forge").exists()
    source = world.run("git", "branch", "-a", "--format=%(refname)", cwd=clone)
    assert "forge/" not in source


def test_a_folder_that_is_in_use_is_refused(world: World) -> None:
    clone = world.clone("ada")
    ran = clone.forge("demo", "--keep", str(clone.path))
    assert ran.code == 2
    assert "isn't empty" in ran.err


def test_a_path_without_a_repository_is_refused(world: World) -> None:
    clone = world.clone("ada")
    Path(world.root / "empty").mkdir()
    ran = clone.forge("demo", "--repo", str(world.root / "empty"))
    assert ran.code == 9
    assert "no git repository" in ran.err


def test_who_won_nearly_all_gives_back_until_the_other_has_two() -> None:
    held = {name: [("ada", 1)] for name in NAMES}
    given = []
    while (found := to_give(held)) is not None:
        giver, task_id = found
        given.append(task_id)
        held[task_id].append(("ben" if giver == "ada" else "ada", 2))
    assert given == ["T007", "T006"]
    assert tasks_of(held, "ben") == ["T006", "T007"]
    assert tasks_of(held, "ada") == ["T001", "T002", "T003", "T004", "T005"]
