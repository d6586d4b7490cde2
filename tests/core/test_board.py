from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_collab.core.board import Board, Problem, natural_key
from forge_collab.core.errors import UsageError
from forge_collab.core.tasks import Task, TaskStatus

DONE, PENDING, FAILED = TaskStatus.DONE, TaskStatus.PENDING, TaskStatus.FAILED


def task(task_id: str, *depends_on: str, **fields: Any) -> Task:
    return Task.model_validate({"id": task_id, "title": "x", "depends_on": depends_on, **fields})


def test_ready_is_sorted_by_priority_then_by_number() -> None:
    board = Board([task("T10"), task("T2"), task("T1", priority=4), task("Z9", priority=1)])
    assert board.ready() == ("Z9", "T2", "T10", "T1")


def test_a_task_is_ready_the_moment_its_own_dependencies_are_done() -> None:
    board = Board([task("T1"), task("T2"), task("T3", "T1"), task("T4", "T1", "T2")])
    assert board.ready() == ("T1", "T2")
    board.set_status("T1", DONE)
    assert board.ready() == ("T2", "T3")
    assert board.waits_for("T4") == ("T2",)
    assert dict(board.blocked()) == {"T4": ("T2",)}


def test_a_reopened_dependency_takes_its_dependents_out_again() -> None:
    board = Board([task("T1"), task("T2", "T1")])
    board.set_status("T1", DONE)
    board.set_status("T1", DONE)
    board.set_status("T1", PENDING)
    assert board.ready() == ("T1",)
    assert board.status("T2") is PENDING


def test_a_failed_dependency_is_not_done() -> None:
    board = Board([task("T1"), task("T2", "T1")])
    board.set_status("T1", FAILED)
    assert board.ready() == ()
    assert dict(board.blocked()) == {"T2": ("T1",)}


def test_blocks_in_one_task_is_depends_on_in_the_other() -> None:
    board = Board([task("T1", blocks=["T2"]), task("T2", "T1")])
    assert board.dependencies("T2") == ("T1",)
    assert board.dependents("T1") == ("T2",)
    assert board.ready() == ("T1",)


def test_a_broken_file_blocks_its_task_and_dependents_only() -> None:
    board = Board([task("T2", "T1"), task("T3", "T2"), task("T4")], {"T1": "T1.yaml:3: no"})
    assert board.ready() == ("T4",)
    assert board.problems == (Problem("T1", "T1.yaml:3: no", "broken"),)
    inherited = board.problem_of("T3")
    assert inherited is not None
    assert (inherited.task_id, inherited.upstream, inherited.kind) == ("T3", "T1", "broken")
    assert "T1.yaml:3" in inherited.message
    assert board.problem_of("T4") is None
    assert list(board.tasks) == ["T2", "T3", "T4"]
    board.set_status("T1", DONE)
    assert board.ready() == ("T4",)


def test_an_unknown_dependency_blocks_its_task_and_says_what_may_be_meant() -> None:
    board = Board([task("T1"), task("T2", "t1"), task("T3", "T2"), task("T4", blocks=["T9"])])
    assert board.ready() == ("T1",)
    assert [(p.task_id, p.kind) for p in board.problems] == [
        ("T2", "unknown_dependency"),
        ("T4", "unknown_dependency"),
    ]
    assert board.problems[0].message == "T2 depends on t1, which doesn't exist; is it T1?"
    assert board.waits_for("T2") == ("t1",)
    assert dict(board.blocked()) == {"T2": ("t1",), "T3": ("T2",)}


def test_a_cycle_is_reported_once_with_its_path_and_blocks_only_itself_and_behind() -> None:
    board = Board([task("T1", "T2"), task("T2", "T1"), task("T3", "T2"), task("T4")])
    assert board.ready() == ("T4",)
    assert [(p.task_id, p.path) for p in board.problems] == [("T1", ("T1", "T2", "T1"))]
    assert board.problems[0].message == "T1 waits for itself: T1 → T2 → T1"
    second = board.problem_of("T2")
    behind = board.problem_of("T3")
    assert second is not None
    assert behind is not None
    assert (second.path, second.upstream) == (("T2", "T1", "T2"), None)
    assert behind.upstream == "T2"
    assert board.order() == ("T4",)


def test_a_task_that_depends_on_itself_is_a_cycle() -> None:
    assert Board([task("T1", "T1")]).problems[0].path == ("T1", "T1")


def test_of_ids_that_differ_only_in_case_the_later_is_unusable() -> None:
    board = Board([task("t1"), task("T1"), task("T2", "t1"), task("T3", "T1")])
    assert board.ready() == ("T1",)
    assert [(p.task_id, p.kind) for p in board.problems] == [("t1", "duplicate_id")]
    assert "T1" in board.problems[0].message
    board.set_status("T1", DONE)
    assert board.ready() == ("T3",)


def test_an_id_that_is_defined_twice_is_unusable() -> None:
    board = Board([task("T1", title="first"), task("T1", title="second"), task("T2")])
    assert board.ready() == ("T2",)
    assert board.problems[0].kind == "duplicate_id"
    assert board.tasks["T1"].title == "first"


def test_the_order_puts_dependencies_first_and_then_goes_by_priority() -> None:
    tasks = [task("T1", "T3"), task("T2"), task("T3"), task("T4", priority=1), task("T5", "T2")]
    assert Board(tasks).order() == ("T4", "T2", "T3", "T1", "T5")


def test_a_task_outside_the_plan_is_a_usage_error() -> None:
    board = Board([task("T1")])
    for ask in (board.status, board.waits_for, board.dependents, board.problem_of):
        with pytest.raises(UsageError, match="T9"):
            ask("T9")
    with pytest.raises(UsageError, match="T9"):
        board.set_status("T9", DONE)


def test_ten_thousand_tasks_in_a_row_or_in_a_ring_need_no_deep_stack() -> None:
    size = 10_000
    row = [task("T0"), *(task(f"T{i}", f"T{i - 1}") for i in range(1, size))]
    board = Board(row)
    for task_id in board.order():
        assert board.ready() == (task_id,)
        board.set_status(task_id, DONE)
    ring = Board([task("T0", f"T{size - 1}"), *row[1:]])
    assert len(ring.problems[0].path) == size + 1
    assert len(ring.problems[0].message) < 200
    assert ring.ready() == ()


# Against brute force

IDS = ["T1", "T2", "T3", "T10", "A", "a", "B7", "B8", "C", "D"]
UNKNOWN = "X"


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Task], dict[str, str]]:
    ids = draw(st.lists(st.sampled_from(IDS), unique=True))
    others = st.lists(st.sampled_from([*IDS, UNKNOWN]), max_size=2).map(tuple)
    tasks = [
        task(i, *draw(others), blocks=draw(others), priority=draw(st.integers(1, 3))) for i in ids
    ]
    broken = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=1))
    return tasks, dict.fromkeys(broken, "bad file")


CHANGES = st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from([PENDING, DONE, FAILED])))


class Plain:
    """The rules of the board, said as simply and as slowly as can be."""

    def __init__(self, tasks: list[Task], broken: dict[str, str]) -> None:
        self.tasks = {t.id: t for t in tasks}
        self.ids = {*self.tasks, *broken}
        self.needs: dict[str, set[str]] = {i: set() for i in self.ids}
        self.bad = set(broken)
        for t in tasks:
            self.needs[t.id] |= set(t.depends_on)
            for other in set(t.blocks) & self.ids:
                self.needs[other].add(t.id)
            if not {*t.depends_on, *t.blocks} <= self.ids:
                self.bad.add(t.id)
        if {"A", "a"} <= set(self.tasks):
            self.bad.add("a")
        self.on_cycle = {i for i in self.ids if i in self.upstream(i)}
        self.bad |= self.on_cycle
        self.status = dict.fromkeys(self.ids, PENDING)

    def upstream(self, task_id: str) -> set[str]:
        found: set[str] = set()
        rest = [task_id]
        while rest:
            for need in self.needs.get(rest.pop(), ()):
                if need not in found:
                    found.add(need)
                    rest.append(need)
        return found

    def has_problem(self, task_id: str) -> bool:
        return bool(({task_id} | self.upstream(task_id)) & self.bad)

    def unmet(self, task_id: str) -> list[str]:
        needs = self.needs[task_id]
        return sorted((n for n in needs if self.status.get(n) is not DONE), key=natural_key)

    def ready(self) -> list[str]:
        found = [
            i
            for i in self.ids
            if self.status[i] is PENDING and not self.unmet(i) and not self.has_problem(i)
        ]
        return sorted(found, key=lambda i: (self.tasks[i].priority, natural_key(i)))


@settings(deadline=None)
@given(plans(), CHANGES)
def test_the_ready_set_stays_what_brute_force_finds(
    plan: tuple[list[Task], dict[str, str]], changes: list[tuple[str, TaskStatus]]
) -> None:
    board, plain = Board(*plan), Plain(*plan)
    assert list(board.ready()) == plain.ready()
    for task_id, status in changes:
        if task_id in plain.ids:
            board.set_status(task_id, status)
            plain.status[task_id] = status
            assert list(board.ready()) == plain.ready()
    for task_id in plain.ids:
        assert list(board.waits_for(task_id)) == plain.unmet(task_id)
        assert (task_id in board.blocked()) == (
            plain.status[task_id] is PENDING and bool(plain.unmet(task_id))
        )


@settings(deadline=None)
@given(plans())
def test_every_problem_is_real_and_none_is_missing(
    plan: tuple[list[Task], dict[str, str]],
) -> None:
    board, plain = Board(*plan), Plain(*plan)
    for task_id in plain.ids:
        problem = board.problem_of(task_id)
        assert (problem is not None) == plain.has_problem(task_id)
        if problem is not None:
            assert problem.task_id == task_id
            upstream = problem.upstream or task_id
            assert upstream in plain.bad
            assert upstream == task_id or upstream in plain.upstream(task_id)
    paths = [p.path for p in board.problems if p.kind == "cycle"]
    paths += [p.path for i in plain.ids if (p := board.problem_of(i)) and p.kind == "cycle"]
    for path in paths:
        assert path[0] == path[-1]
        assert len(set(path)) == len(path) - 1
        for waiting, need in pairwise(path):
            assert need in board.dependencies(waiting)
    assert bool(paths) or not plain.on_cycle - set(plan[1])


@settings(deadline=None)
@given(plans())
def test_the_order_is_topological_and_lacks_only_what_a_cycle_holds(
    plan: tuple[list[Task], dict[str, str]],
) -> None:
    board, plain = Board(*plan), Plain(*plan)
    order = board.order()
    stuck = {i for i in plain.ids if ({i} | plain.upstream(i)) & plain.on_cycle}
    assert set(order) == plain.ids - stuck
    seen: set[str] = set()
    for task_id in order:
        assert plain.needs[task_id] & plain.ids <= seen
        seen.add(task_id)
