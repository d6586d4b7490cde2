"""What happens in the demo: races, a kill, landings side by side, a conflict, a zombie.

Each step is done by the real commands and printed when it has happened; one that comes out
otherwise than promised ends the demo.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeAlias

from forge_collab.cli.demo.stage import PEOPLE, TASKS, TTL_SECONDS, Answer, Stage, other
from forge_collab.core.errors import FailedError, LeaseLostError
from forge_collab.core.landing import branch_of

Held: TypeAlias = Mapping[str, list[tuple[str, int]]]
"""Who held each task, and under which fence, one after the other."""

KILLED, ZOMBIE = "T001", "T008"
FOLDER = "forge-demo"
COMMON = f"{FOLDER}/index.md"


@dataclass
class Play:
    """The story as it goes on: who `held` what, and by which commit it has `landed`."""

    stage: Stage
    held: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    landed: dict[str, str] = field(default_factory=dict)

    # Who has what

    def race(self, task_id: str) -> None:
        """Both claim a task at once: one gets it, the other is told who has."""
        asked = {name: self.stage.begin(name, "collaborate", "claim", task_id) for name in PEOPLE}
        answers = {name: self.stage.end_of(process) for name, process in asked.items()}
        winners = [name for name, answer in answers.items() if answer.is_ok]
        if len(winners) != 1:
            raise FailedError(f"{task_id} has {len(winners)} winners: {answers}")
        winner, loser = winners[0], other(winners[0])
        fence = answers[winner].data["lease"]["fence"]
        told = answers[loser].data["holder"]
        if (told["claimant"]["handle"], told["fence"]) != (winner, fence):
            raise FailedError(f"{loser} was told the wrong holder of {task_id}: {told}")
        self._has(winner, task_id, fence)
        self._say(f"{task_id}: both claim; {winner} has it under fence {fence}, {loser} is told so")

    def kill_and_take_over(self) -> None:
        """A holder's daemon dies; the other one waits for its silence to last, and takes over."""
        victim, _ = self.held[KILLED][-1]
        pid = self.stage.pid(victim)
        os.kill(pid, signal.SIGKILL)
        self._say(f"kill -9 {pid}: {victim}'s daemon is dead and still holds {KILLED}")
        self._outwait(other(victim), KILLED)

    def _outwait(self, name: str, task_id: str) -> None:
        fence = self._claim(name, task_id, "--wait")
        self._say(
            f"{task_id}: {name} watched it for its {TTL_SECONDS} s of silence and has it under "
            f"fence {fence}"
        )

    def _claim(self, name: str, task_id: str, *options: str) -> int:
        data = self.stage.done(name, "collaborate", "claim", task_id, *options)
        fence = int(data["lease"]["fence"])
        self._has(name, task_id, fence)
        return fence

    def _has(self, name: str, task_id: str, fence: int) -> None:
        self.held.setdefault(task_id, []).append((name, fence))

    def share_out(self) -> None:
        """Chance may have left one of the two with little: then the other gives tasks back."""
        while (found := to_give(self.held)) is not None:
            giver, task_id = found
            self.stage.done(giver, "collaborate", "release", task_id)
            fence = self._claim(other(giver), task_id)
            self._say(
                f"{task_id}: {giver} has won nearly all and gives it back; {other(giver)} has it "
                f"under fence {fence}"
            )

    # Work

    def land_side_by_side(self) -> None:
        """All but the zombie's task are worked on and landed, one from each clone at a time.

        The last one of each clone adds a line at the same place of the same file.
        """
        lists = [tasks_of(self.held, name) for name in PEOPLE]
        rivals = {tasks[-1] for tasks in lists}
        for name, tasks in zip(PEOPLE, lists, strict=True):
            for task_id in tasks:
                self._work(name, task_id, is_rival=task_id in rivals)
            self._say(f"{name}: works on {', '.join(tasks)}, each on a branch of its own")
        for pair in zip_longest(*(tasks[:-1] for tasks in lists)):
            self._land([task_id for task_id in pair if task_id])
        self._land(sorted(rivals))
        blocked = rivals - self.landed.keys()
        if len(blocked) != 1:
            raise FailedError(f"{len(blocked)} of {', '.join(sorted(rivals))} conflict, not one")
        self._resolve(blocked.pop())

    def _work(self, name: str, task_id: str, *, is_rival: bool = False) -> None:
        """Commits on the fenced branch, begun from the target as it is now."""
        self._branch_off(name, task_id)
        self._write(name, f"{FOLDER}/{task_id}.md", f"# {TASKS[task_id]}\n", task_id)
        if is_rival:
            line = f"- {task_id}: {TASKS[task_id]}\n"
            self._write(name, COMMON, f"# Index\n\n{line}", f"List {task_id}")

    def _branch_off(self, name: str, task_id: str) -> None:
        git, target = self.stage.git, self.stage.target
        git("fetch", "-q", "origin", target, cwd=name)
        branch = branch_of(task_id, self._fence(task_id))
        git("switch", "-q", "-c", branch, f"origin/{target}", cwd=name)

    def _fence(self, task_id: str) -> int:
        return self.held[task_id][-1][1]

    def _write(self, name: str, path: str, text: str, said: str) -> None:
        file = self.stage.folder / name / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        self.stage.git("add", "-f", path, cwd=name)
        self.stage.git("commit", "-q", "-m", said, cwd=name)

    def _land(self, tasks: Iterable[str]) -> None:
        """Land tasks at once; what can't be merged is left to its holder."""
        holders = {task_id: self.held[task_id][-1][0] for task_id in tasks}
        begun = {t: self.stage.begin(n, "collaborate", "done", t) for t, n in holders.items()}
        answers = {task_id: self.stage.end_of(process) for task_id, process in begun.items()}
        words = [self._outcome(t, holders[t], answer) for t, answer in answers.items()]
        if words:
            self._say("; at the same time ".join(words))

    def _outcome(self, task_id: str, name: str, answer: Answer) -> str:
        if answer.is_ok and answer.data["status"] == "done":
            self.landed[task_id] = answer.data["commit"]
            return f"{name} lands {task_id} as {answer.data['commit'][:12]}"
        if not answer.is_ok and answer.data.get("status") == "merge_blocked":
            where = ", ".join(answer.data["conflicts"])
            return f"{name}'s {task_id} is merge_blocked by a conflict in {where}"
        raise FailedError(f"{task_id} neither landed nor conflicts: {answer.document}")

    def _resolve(self, task_id: str) -> None:
        """The holder of a task whose work conflicts merges the target and lands it."""
        name, git, target = self.held[task_id][-1][0], self.stage.git, self.stage.target
        git("switch", "-q", branch_of(task_id, self._fence(task_id)), cwd=name)
        git("fetch", "-q", "origin", target, cwd=name)
        git("merge", "-q", f"origin/{target}", cwd=name, may_fail=True)
        theirs = git("show", f"origin/{target}:{COMMON}", cwd=name)
        resolved = f"{theirs}\n- {task_id}: {TASKS[task_id]}\n"
        self._write(name, COMMON, resolved, f"Merge {target}")
        self._say(f"{name}: merges {target} into {task_id}'s branch and keeps both lines")
        self._land([task_id])

    # The zombie

    def wake_a_zombie(self) -> None:
        """A holder sleeps past its lease; the other lands the task; awake, it is refused."""
        name, fence = self.held[ZOMBIE][-1]
        self._work(name, ZOMBIE)
        pid = self.stage.put_to_sleep(name)
        self._say(f"{name}: has worked on {ZOMBIE}; now its daemon sleeps (kill -STOP {pid})")
        self._outwait(other(name), ZOMBIE)
        self._work(other(name), ZOMBIE)
        self._land([ZOMBIE])
        self.stage.wake(pid)
        answer = self.stage.forge(name, "collaborate", "done", ZOMBIE, "--fence", str(fence))
        if answer.code != LeaseLostError.exit_code:
            raise FailedError(f"{name}'s late {ZOMBIE} was not refused: {answer.document}")
        self._say(f"{name}: awake again, wants to land {ZOMBIE} under fence {fence} and is refused")
        self._say(f"  forge: {answer.message} (exit {answer.code})")

    def _say(self, text: str) -> None:
        self.stage.say(text)


def tasks_of(held: Held, name: str) -> list[str]:
    """The tasks that `name` holds and works on beside the other; the zombie's is for later."""
    return [t for t, holders in held.items() if holders[-1][0] == name and t != ZOMBIE]


def to_give(held: Held) -> tuple[str, str] | None:
    """Who has nearly all, and one of theirs to give back; None where both have two or more."""
    for name in PEOPLE:
        if len(tasks_of(held, other(name))) < 2:
            return name, tasks_of(held, name)[-1]
    return None
