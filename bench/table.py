"""Figures as a table for people and as one JSON document."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

HEAD = ("what", "median", "p95", "n", "git push", "ratio", "target", "")


@dataclass(frozen=True)
class Target:
    """The most that a figure may be: an amount in its own unit, or times its yardstick."""

    most: float
    is_ratio: bool = False

    def shown(self, unit: str) -> str:
        """The target in words."""
        return f"≤ {self.most:g} × push" if self.is_ratio else f"≤ {self.most:g} {unit}"


@dataclass(frozen=True)
class Row:
    """One thing that was measured, `samples` in `unit`; `pushes` in ms, taken in between."""

    name: str
    samples: Sequence[float]
    pushes: Sequence[float]
    target: Target | None = None
    unit: str = "ms"
    note: str = ""

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        """The sample that 95 of 100 don't exceed."""
        return sorted(self.samples)[math.ceil(0.95 * len(self.samples)) - 1]

    @property
    def push(self) -> float:
        """The middle ``git push``, in ms."""
        return statistics.median(self.pushes)

    @property
    def ratio(self) -> float | None:
        """How many ``git push`` it takes; None for what isn't a time."""
        return self.median / self.push if self.unit == "ms" else None

    @property
    def is_met(self) -> bool | None:
        """Whether the median is within the target; None where there is no target."""
        if self.target is None:
            return None
        figure = self.ratio if self.target.is_ratio else self.median
        return figure is not None and figure <= self.target.most

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of `HEAD`."""
        verdict = {True: "met", False: "MISSED", None: ""}[self.is_met]
        return (
            self.name,
            _amount(self.median, self.unit),
            _amount(self.p95, self.unit),
            str(len(self.samples)),
            _amount(self.push, "ms"),
            "" if self.ratio is None else f"{self.ratio:.2f}",
            "" if self.target is None else self.target.shown(self.unit),
            "  ".join(word for word in (verdict, self.note) if word),
        )

    def to_json(self) -> dict[str, Any]:
        """The row as data."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": round(self.median, 3),
            "p95": round(self.p95, 3),
            "n": len(self.samples),
            "push_ms": round(self.push, 3),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "target": None if self.target is None else self.target.shown(self.unit),
            "is_met": self.is_met,
            "note": self.note,
        }


def _amount(value: float, unit: str) -> str:
    return f"{value:.2f} {unit}" if value < 10 else f"{value:.0f} {unit}"


def text(rows: Sequence[Row]) -> str:
    """The rows under each other, columns aligned."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    last = len(HEAD) - 1
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
