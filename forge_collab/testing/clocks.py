"""Clocks for tests: one that the test moves, one that follows the event loop's virtual time."""

from __future__ import annotations

import anyio


class ManualClock:
    """A clock that stands still until a test moves it; `skew` seconds off everybody else's."""

    def __init__(self, *, start: float = 1000.0, boot_id: str = "boot-1") -> None:
        self.seconds = start
        self.boot_id = boot_id

    def now(self) -> float:
        """The seconds a test has set."""
        return self.seconds

    def wall(self) -> str:
        """The same seconds, as a wall clock would show them."""
        return f"T+{self.seconds:.3f}"

    def boot(self) -> str:
        """The boot id a test has set."""
        return self.boot_id


class LoopClock:
    """A clock that shows the event loop's time, virtual where the loop's is."""

    def __init__(self, *, offset: float = 0.0) -> None:
        self.offset = offset

    def now(self) -> float:
        """The loop's time plus this clock's offset."""
        return anyio.current_time() + self.offset

    def wall(self) -> str:
        """The same seconds, as a wall clock would show them."""
        return f"T+{self.now():.3f}"

    def boot(self) -> str:
        """Always the same boot."""
        return "loop"
