"""The task graph: what is ready, what waits for what, and what can never start.

The graph is built once from the definitions; afterwards only statuses change, and a change
touches the counters of the task's dependents and nothing else. A file that can't be used, an
unknown id and a cycle are problems of one task and of what depends on it, never of the rest.
A problem stays until the definitions change, whatever the statuses say.

Inside, a task is its place in the order (priority, id): comparing two of them is comparing ints.
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from forge_collab.core.errors import UsageError
from forge_collab.core.landing import Evidence
from forge_collab.core.tasks import Task, TaskStatus

ProblemKind = Literal["broken", "unknown_dependency", "cycle", "duplicate_id"]

_DIGITS = re.compile(r"([0-9]+)")
# Behind every priority a file can give in earnest: nobody knows what an unreadable file says.
_LAST = 1 << 30
# Ids of a cycle that a message shows; the whole of it is in the problem's path.
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a task can't start before a person edits a file.

    `path` is a cycle from `task_id` back to itself, each id depending on the next one.
    `upstream` is the task that has the problem, where `task_id` only depends on it.
    """

    task_id: str
    message: str
    kind: ProblemKind
    path: tuple[str, ...] = ()
    upstream: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The problem as commands show it."""
        shown = {"task": self.task_id, "message": self.message, "kind": str(self.kind)}
        return {**shown, "cycle": list(self.path)}


def natural_key(text: str) -> tuple[list[str | int], str]:
    """A sort key that puts T2 before T10, and case last."""
    parts = _DIGITS.split(text.casefold())
    return [int(p) if i % 2 else p for i, p in enumerate(parts)], text


class Board:
    """The plan as a graph, with a status for each task; all start as pending.

    `broken` maps an id to why its file can't be used; `seen` is what the target branch shows as
    landed, by id and uid. ``blocks: [B]`` in A is the same as
    ``depends_on: [A]`` in B. Of two ids that differ only in case, the later one is unusable.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        broken: Mapping[str, str] = {},
        seen: Mapping[tuple[str, str], Evidence] = {},
    ) -> None:
        self.seen = seen
        self._own: dict[int, list[Problem]] = {}
        self._turns: dict[int, tuple[tuple[str, ...], int]] = {}
        listed = list(tasks)
        by_id = {task.id: task for task in reversed(listed)}
        self._number(by_id, broken)
        self._find_unusable(listed, broken)
        self._link()
        self._find_cycles()
        self._root = self._inherit()
        self._status = [TaskStatus.PENDING] * len(self._ids)
        self._unmet = [len(needs) for needs in self._needs]
        self._ready = [i for i in range(len(self._ids)) if self._can_start(i)]

    # Building

    def _number(self, by_id: Mapping[str, Task], broken: Mapping[str, str]) -> None:
        keys = {i: natural_key(i) for i in {*by_id, *broken}}
        natural = sorted(keys, key=keys.__getitem__)
        self._ids = sorted(natural, key=lambda i: by_id[i].priority if i in by_id else _LAST)
        self._index = {task_id: i for i, task_id in enumerate(self._ids)}
        self._place = {self._index[task_id]: place for place, task_id in enumerate(natural)}
        self._natural = natural
        self.tasks: Mapping[str, Task] = MappingProxyType(
            {task_id: by_id[task_id] for task_id in natural if task_id in by_id}
        )

    def _report(self, task_id: str, kind: ProblemKind, message: str) -> None:
        problem = Problem(task_id, message, kind)
        self._own.setdefault(self._index[task_id], []).append(problem)

    def _find_unusable(self, listed: Sequence[Task], broken: Mapping[str, str]) -> None:
        for task_id, why in broken.items():
            self._report(task_id, "broken", why)
        if len(listed) != len(self.tasks):
            seen: set[str] = set()
            for task_id in (task.id for task in listed):
                if task_id in seen:
                    self._report(task_id, "duplicate_id", f"two tasks have the id {task_id}")
                seen.add(task_id)
        first: dict[str, str] = {}
        for task_id in self.tasks:
            other = first.setdefault(task_id.casefold(), task_id)
            if other != task_id:
                why = f"{task_id} and {other} differ only in case; rename one"
                self._report(task_id, "duplicate_id", why)

    def _link(self) -> None:
        needs: list[set[int]] = [set() for _ in self._ids]
        self._missing: dict[int, set[str]] = {}
        index = self._index
        for task_id, task in self.tasks.items():
            me = index[task_id]
            needs[me].update(index[other] for other in task.depends_on if other in index)
            for other in task.blocks:
                if other in index:
                    needs[index[other]].add(me)
        self._find_missing()
        self._needs = [self._in_id_order(need) for need in needs]
        self._feeds: list[list[int]] = [[] for _ in self._ids]
        for task_id in self._natural:
            for need in self._needs[index[task_id]]:
                self._feeds[need].append(index[task_id])

    def _in_id_order(self, nodes: Iterable[int]) -> list[int]:
        return sorted(nodes, key=self._place.__getitem__)

    def _find_missing(self) -> None:
        alike = {task_id.casefold(): task_id for task_id in self._ids}
        for task_id, task in self.tasks.items():
            named = [("depends on", other) for other in task.depends_on]
            named += [("blocks", other) for other in task.blocks]
            for verb, other in dict.fromkeys(named):
                if other not in self._index:
                    guess = alike.get(other.casefold())
                    why = f"{task_id} {verb} {other}, which doesn't exist"
                    why += f"; is it {guess}?" if guess else ""
                    self._report(task_id, "unknown_dependency", why)
            if missing := {other for other in task.depends_on if other not in self._index}:
                self._missing[self._index[task_id]] = missing

    def _sort(self) -> tuple[list[int], list[int]]:
        """The nodes in topological order, and those on or behind a cycle, which have none."""
        unmet = [len(needs) for needs in self._needs]
        heap = [i for i, count in enumerate(unmet) if not count]
        order: list[int] = []
        while heap:
            node = heapq.heappop(heap)
            order.append(node)
            for other in self._feeds[node]:
                unmet[other] -= 1
                if not unmet[other]:
                    heapq.heappush(heap, other)
        return order, [i for i, count in enumerate(unmet) if count]

    def _find_cycles(self) -> None:
        self._order, tangled = self._sort()
        for knot in _knots(tangled, self._needs):
            cycle = self._shortest_cycle(knot)
            first = _cycle_problem(cycle, 0)
            self._own.setdefault(self._index[first.task_id], []).append(first)
            # The other members' problems are made when asked for: together they are quadratic.
            self._turns |= {self._index[task_id]: (cycle, at) for at, task_id in enumerate(cycle)}

    def _shortest_cycle(self, knot: set[int]) -> tuple[str, ...]:
        start = min(knot, key=self._place.__getitem__)
        came_from: dict[int, int] = {}
        queue = deque([start])
        while start not in came_from:
            node = queue.popleft()
            for need in self._needs[node]:
                if need in knot and need not in came_from:
                    came_from[need] = node
                    queue.append(need)
        path = [came_from[start]]
        while path[-1] != start:
            path.append(came_from[path[-1]])
        return tuple(self._ids[i] for i in reversed(path))

    def _inherit(self) -> dict[int, int]:
        """Each node that can't start, with the nearest node whose own problem stops it."""
        root = {i: i for i in self._in_id_order({*self._own, *self._turns})}
        queue = deque(root)
        while queue:
            node = queue.popleft()
            for other in self._feeds[node]:
                if other not in root:
                    root[other] = root[node]
                    queue.append(other)
        return root

    # Statuses

    def _can_start(self, node: int) -> bool:
        is_pending = self._status[node] is TaskStatus.PENDING
        return is_pending and not self._unmet[node] and node not in self._root

    def _refresh(self, node: int) -> None:
        at = bisect_left(self._ready, node)
        is_listed = at < len(self._ready) and self._ready[at] == node
        if self._can_start(node) == is_listed:
            return
        if is_listed:
            del self._ready[at]
        else:
            self._ready.insert(at, node)

    def _node(self, task_id: str) -> int:
        try:
            return self._index[task_id]
        except KeyError:
            raise UsageError(f"there is no task {task_id}", hint="forge task list") from None

    def set_status(self, task_id: str, status: TaskStatus) -> None:
        """Take over what a task's record says; any status may follow any other here.

        :raises UsageError: when the plan has no such task.
        """
        node = self._node(task_id)
        was_done = self._status[node] is TaskStatus.DONE
        self._status[node] = status
        change = was_done - (status is TaskStatus.DONE)
        self._refresh(node)
        if change:
            for other in self._feeds[node]:
                self._unmet[other] += change
                self._refresh(other)

    def status(self, task_id: str) -> TaskStatus:
        """The status last set, pending at first.

        :raises UsageError: when the plan has no such task.
        """
        return self._status[self._node(task_id)]

    # Questions

    def evidence(self, task: Task) -> Evidence | None:
        """What the target branch shows of `task`, or None."""
        return self.seen.get((task.id, task.uid))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What a person has to edit, in the order of ids; of entangled cycles only one."""
        return tuple(p for i in self._in_id_order(self._own) for p in self._own[i])

    def problem_of(self, task_id: str) -> Problem | None:
        """The task's own problem, or the nearest one upstream of it.

        :raises UsageError: when the plan has no such task.
        """
        node = self._node(task_id)
        if node not in self._root:
            return None
        problem = self._own_problem(self._root[node])
        if problem.task_id == task_id:
            return problem
        why = f"{task_id} depends on {problem.task_id}, which can't start: {problem.message}"
        return Problem(task_id, why, problem.kind, problem.path, problem.task_id)

    def _own_problem(self, node: int) -> Problem:
        return self._own[node][0] if node in self._own else _cycle_problem(*self._turns[node])

    def ready(self) -> tuple[str, ...]:
        """The tasks that can start now, by priority, then by id."""
        return tuple(self._ids[i] for i in self._ready)

    def dependencies(self, task_id: str) -> tuple[str, ...]:
        """What the task directly depends on, by its own file or another's ``blocks``.

        :raises UsageError: when the plan has no such task.
        """
        node = self._node(task_id)
        return self._with_missing(node, self._needs[node])

    def dependents(self, task_id: str) -> tuple[str, ...]:
        """What directly depends on the task.

        :raises UsageError: when the plan has no such task.
        """
        return tuple(self._ids[i] for i in self._feeds[self._node(task_id)])

    def waits_for(self, task_id: str) -> tuple[str, ...]:
        """The direct dependencies that aren't done, unknown ones included.

        :raises UsageError: when the plan has no such task.
        """
        return self._waits_for(self._node(task_id))

    def _waits_for(self, node: int) -> tuple[str, ...]:
        unmet = (i for i in self._needs[node] if self._status[i] is not TaskStatus.DONE)
        return self._with_missing(node, unmet)

    def _with_missing(self, node: int, nodes: Iterable[int]) -> tuple[str, ...]:
        known = (self._ids[i] for i in nodes)
        if node not in self._missing:
            return tuple(known)
        return tuple(sorted((*known, *self._missing[node]), key=natural_key))

    def blocked(self) -> Mapping[str, tuple[str, ...]]:
        """The pending tasks that wait, by id, with what each waits for."""
        waits: dict[str, tuple[str, ...]] = {}
        for task_id in self._natural:
            node = self._index[task_id]
            waiting = self._unmet[node] or node in self._missing
            if waiting and self._status[node] is TaskStatus.PENDING:
                waits[task_id] = self._waits_for(node)
        return waits

    def order(self) -> tuple[str, ...]:
        """The tasks, each behind its dependencies, else by priority and id.

        Tasks on or behind a cycle have no place in an order and are left out.
        """
        return tuple(self._ids[i] for i in self._order)


def _cycle_problem(cycle: tuple[str, ...], start: int) -> Problem:
    """The problem that the member at `start` has with the ring `cycle`."""
    path = (*cycle[start:], *cycle[: start + 1])
    shown = path if len(path) <= _SHOWN else (*path[: _SHOWN - 2], "…", *path[-1:])
    return Problem(path[0], f"{path[0]} waits for itself: {' → '.join(shown)}", "cycle", path)


def _knots(nodes: Iterable[int], needs: Sequence[Sequence[int]]) -> list[set[int]]:
    """The sets of nodes that all depend on each other (Tarjan's, without recursion)."""
    depth: dict[int, int] = {}
    low: dict[int, int] = {}
    unassigned: dict[int, None] = {}
    knots: list[set[int]] = []
    work: list[tuple[int, Iterator[int]]] = []

    def enter(node: int) -> None:
        depth[node] = low[node] = len(depth)
        unassigned[node] = None
        work.append((node, iter(needs[node])))

    def leave(node: int) -> None:
        if low[node] < depth[node]:
            return
        knot: set[int] = set()
        while node not in knot:
            knot.add(unassigned.popitem()[0])
        if len(knot) > 1 or node in needs[node]:
            knots.append(knot)

    for start in nodes:
        if start not in depth:
            enter(start)
        while work:
            node, rest = work[-1]
            need = next(rest, None)
            if need is None:
                work.pop()
                leave(node)
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
            elif need not in depth:
                enter(need)
            elif need in unassigned:
                low[node] = min(low[node], depth[need])
    return knots
