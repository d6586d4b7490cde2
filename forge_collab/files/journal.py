"""The journal of one clone's daemon: what it granted and what it doesn't know the end of.

One small file, written whole at each change, so that a daemon killed at any moment can be
followed by one that carries on. It needn't survive a power cut: after another boot its
deadlines are void, and a lease that no daemon remembers lapses by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_collab.files.atomic import explained, read_or_none


@dataclass(frozen=True)
class Unsettled:
    """A claim that was sent; `key` is None where it was of whatever was next."""

    nonce: str
    key: str | None
    worker: str


@dataclass(frozen=True)
class Granted:
    """A lease a worker was given; `deadline` counts on the clock of boot `boot`."""

    key: str
    fence: int
    nonce: str
    worker: str
    ttl_seconds: float
    deadline: float
    boot: str
    since: str = ""


@dataclass
class Journal:
    """What is in the file; every method that changes it writes it."""

    path: Path
    instance: str = ""
    unsettled: dict[str, Unsettled] = field(default_factory=dict)
    granted: dict[str, Granted] = field(default_factory=dict)

    def sent(self, claim: Unsettled) -> None:
        """A claim is about to be sent."""
        self.unsettled[claim.nonce] = claim
        self._write()

    def settled(self, nonce: str, granted: Granted | None = None) -> None:
        """It is known what became of a claim: granted, or nothing."""
        self.unsettled.pop(nonce, None)
        if granted is not None:
            self.granted[granted.key] = granted
        self._write()

    def renewed(self, granted: Mapping[str, Granted]) -> None:
        """These are the leases that are held now."""
        self.granted = dict(granted)
        self._write()

    def ended(self, key: str) -> None:
        """A lease isn't held any more."""
        if self.granted.pop(key, None) is not None:
            self._write()

    def _write(self) -> None:
        data = {
            "v": 1,
            "instance": self.instance,
            "unsettled": [vars(claim) for claim in self.unsettled.values()],
            "granted": [vars(lease) for lease in self.granted.values()],
        }
        fresh = self.path.with_name(f"{self.path.name}.new")
        with explained("write", self.path):
            fresh.write_bytes(json.dumps(data, indent=1).encode() + b"\n")
            os.replace(fresh, self.path)


def load_journal(path: Path, instance: str) -> Journal:
    """The journal that the last daemon of `instance` left; an empty one where there is none.

    What another instance left isn't ours: its leases are that instance's. One that can't be read
    is kept beside as ``.bad``; the leases in it lapse by themselves.
    """
    data = read_or_none(path)
    journal = Journal(path, instance)
    if data is None:
        return journal
    try:
        raw: dict[str, Any] = json.loads(data)
        if raw["instance"] == instance:
            unsettled = {c["nonce"]: Unsettled(**c) for c in raw["unsettled"]}
            granted = {g["key"]: Granted(**g) for g in raw["granted"]}
            journal.unsettled, journal.granted = unsettled, granted
    except (ValueError, KeyError, TypeError):
        with explained("keep", path):
            os.replace(path, path.with_name(f"{path.name}.bad"))
    return journal
