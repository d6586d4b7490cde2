"""Compaction: the records in a commit without parents, and what it says of those before it."""

from __future__ import annotations

from collections.abc import Iterable

REMEMBERED = 256
"""How many commits a compaction names; far more than come while a push is under way."""

_SWALLOWED = "Forge-Compacts: "


def trailers(commits: Iterable[str]) -> str:
    """The lines that name the commits whose place a compaction takes, newest first."""
    return "".join(f"{_SWALLOWED}{oid}\n" for oid in commits)


def compacted(message: str) -> set[str]:
    """The commits that a compaction's message names."""
    lines = message.splitlines()
    return {line.removeprefix(_SWALLOWED) for line in lines if line.startswith(_SWALLOWED)}
