"""When to push, beat and poll: measured rules, as functions of what was measured.

Fairness between the writers of one branch (spec: W writers among the last 24 commits, T one's
own push time): a winner that isn't alone waits T + U(0, W*T) before its next change, a loser
U(0, W*T). With jitter for the losers alone the last winner runs away with the branch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

RECENT_COMMITS = 24
FAST_SECONDS = 300.0
RIDE_SECONDS = 10.0
PRESENCE_SECONDS = 300.0
DEADLINE_SECONDS = 15.0
CONTENDED_SECONDS = 60.0
OFFLINE_SECONDS = 4.0
MANY_HOLDERS = 3
_SMOOTHING = 0.3


class Fairness:
    """How long to hold back on a branch that others write too; all durations in seconds."""

    def __init__(self, *, push_seconds: float = 0.05) -> None:
        self.push_seconds = push_seconds
        self._recent: deque[str] = deque(maxlen=RECENT_COMMITS)

    def saw_commits(self, writers: Iterable[str]) -> None:
        """Note who wrote the newest commits, oldest first."""
        self._recent.extend(writers)

    def took(self, seconds: float) -> None:
        """Note how long a push of one's own took."""
        self.push_seconds += _SMOOTHING * (seconds - self.push_seconds)

    @property
    def writers(self) -> int:
        """How many different writers the last commits have; at least 1."""
        return max(1, len(set(self._recent)))

    def after_success(self, chance: float) -> float:
        """How long to wait before the next change that isn't urgent; `chance` in [0, 1)."""
        return self.push_seconds * (1 + self.writers * chance) if self.writers > 1 else 0.0

    def after_loss(self, chance: float) -> float:
        """How long to wait before trying again; `chance` in [0, 1)."""
        return self.push_seconds * max(2, self.writers) * chance


def poll_seconds(fast: float, idle: float, *, quiet_for: float, chance: float) -> float:
    """How long to the next poll: fast for five minutes after anything happened, with jitter."""
    base = fast if quiet_for < FAST_SECONDS else idle
    return base * (0.85 + 0.3 * chance)


def beat_seconds(beat: float, ttl: float, holders: int) -> float:
    """How often to renew: pushes are scarce, so a team of many holders beats less often."""
    return max(beat, ttl / 3) if holders > MANY_HOLDERS else beat
