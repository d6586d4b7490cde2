"""Where time comes from: the Clock protocol and the system's own."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol


class Clock(Protocol):
    """Seconds that run evenly, also while the machine sleeps, and the wall clock for people."""

    def now(self) -> float:
        """Seconds since some fixed moment of this boot; never compared across machines."""
        ...

    def wall(self) -> str:
        """The wall clock in ISO 8601, UTC; shown to people, never compared."""
        ...

    def boot(self) -> str:
        """Which boot `now` counts in: a stored `now` is void under another."""
        ...


class SystemClock:
    """CLOCK_BOOTTIME on Linux, CLOCK_MONOTONIC_RAW on macOS (it runs in sleep there)."""

    def __init__(self) -> None:
        if sys.platform == "darwin":
            self._id = time.CLOCK_MONOTONIC_RAW
        else:
            self._id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> float:
        """Seconds since boot, sleep included."""
        return time.clock_gettime(self._id)

    def wall(self) -> str:
        """The wall clock to the millisecond."""
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def boot(self) -> str:
        """The kernel's boot id; where there is none, the moment of boot to the minute."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return f"boot-{round((time.time() - self.now()) / 60)}"
