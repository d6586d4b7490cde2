"""The two files that decide what class a clone is in: ``participant.json`` and ``enabled``.

Both are in ``<common dir>/forge``, shared by all work trees. A work tree's `.forge/collab/` gets
copies for other tools, written in the same order, never read.
"""

from __future__ import annotations

import json
import os
import secrets
import uuid
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from forge_collab.core import names
from forge_collab.core.errors import CorruptError, UsageError
from forge_collab.files.atomic import explained, read_or_none, remove, write_atomic

ALONE = "local"
"""The session and the transport of a clone that is in no session."""


@dataclass(frozen=True)
class Place:
    """Where an identity belongs: this folder of this machine's disk, not a copy of it."""

    device: int
    inode: int
    machine: str

    @classmethod
    def of(cls, common_dir: Path) -> Self:
        """The place of a clone's common directory."""
        status = os.stat(common_dir)
        return cls(status.st_dev, status.st_ino, _machine())


def _machine() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
    node = uuid.getnode()
    is_made_up = node >> 40 & 1
    return "" if is_made_up else f"{node:012x}"


@dataclass(frozen=True)
class Identity:
    """What ``participant.json`` says: who this clone is, and in which session.

    `repo` is the session's own id, known once it was reached; `roots` the work trees that ran
    ``start``.
    """

    handle: str
    instance: str
    session: str
    started: str
    place: Place
    repo: str | None = None
    target: str | None = None
    transport: str = "auto"
    roots: tuple[str, ...] = ()
    migrated_from: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def short(self) -> dict[str, str]:
        """The identity as commands show it."""
        return {"handle": self.handle, "instance": self.instance}


class Markers:
    """The markers of one clone."""

    def __init__(self, common_dir: Path) -> None:
        self.common_dir = common_dir
        self.folder = common_dir / "forge"
        self.participant = self.folder / "participant.json"
        self.enabled = self.folder / "enabled"
        self.alone = self.folder / "local" / "identity.json"

    def read(self) -> Identity | None:
        """The identity, or None where there is none.

        :raises CorruptError: when the file can't be read as one.
        """
        data = read_or_none(self.participant)
        return None if data is None else _parse(data, self.participant)

    def is_enabled(self) -> bool:
        """Whether the last step of ``start`` was taken, and the first of ``leave`` was not."""
        return self.enabled.exists()

    def is_absent(self) -> bool:
        """Whether there is neither marker: this clone is in no session."""
        return not self.participant.exists() and not self.is_enabled()

    def write(self, identity: Identity) -> None:
        """Write ``participant.json`` and its copies."""
        _make(self.folder)
        data = asdict(identity)
        data = {**data.pop("extra"), **data}
        write_atomic(self.participant, _json(data), mode=0o600)
        seed = {k: data[k] for k in ("handle", "started")} | {"session_id": identity.session}
        for folder in _copies(identity):
            _make(folder)
            write_atomic(folder / "participant.json", _json(seed))

    def enable(self, identity: Identity) -> None:
        """Write ``enabled`` and its copies; the last step of ``start``."""
        write_atomic(self.enabled, b"")
        for folder in _copies(identity):
            if folder.is_dir():
                write_atomic(folder / ".enabled", b"")

    def disable(self, identity: Identity | None) -> None:
        """Remove ``enabled`` and its copies; the first step of ``leave``."""
        for folder in _copies(identity):
            remove(folder / ".enabled")
        remove(self.enabled)

    def forget(self, identity: Identity | None, *, keep_bak: bool = False) -> None:
        """Remove ``participant.json`` and its copies; the last step of ``leave``."""
        for folder in _copies(identity):
            remove(folder / "participant.json")
        remove(self.participant, keep_bak=keep_bak)

    def is_here(self, identity: Identity) -> bool:
        """Whether `identity` was made in this very clone, not in one this is a copy of."""
        return identity.place == Place.of(self.common_dir)

    def read_alone(self) -> Identity | None:
        """Who this clone is where it works alone, or None where it never did; no marker.

        :raises CorruptError: when the file can't be read as an identity.
        """
        data = read_or_none(self.alone)
        hint = f"rm {self.alone}: then what was held alone lapses"
        return None if data is None else _parse(data, self.alone, hint)

    def be_alone(self, handle: str) -> Identity:
        """Who this clone is where it works alone; made where nobody has been that here yet."""
        known = self.read_alone()
        if known is not None and self.is_here(known):
            return known
        identity = Identity(
            handle=known.handle if known else handle,
            instance=secrets.token_hex(8),
            session=ALONE,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            place=Place.of(self.common_dir),
            transport=ALONE,
        )
        _make(self.alone.parent)
        data = asdict(identity)
        write_atomic(self.alone, _json({**data.pop("extra"), **data}), mode=0o600)
        return identity

    def rename(self, identity: Identity, instance: str) -> Identity:
        """This clone under a new instance."""
        fresh = replace(identity, instance=instance, place=Place.of(self.common_dir))
        self.write(fresh)
        return fresh


def _make(folder: Path) -> None:
    with explained("make", folder):
        folder.mkdir(parents=True, exist_ok=True)


def _copies(identity: Identity | None) -> list[Path]:
    """The `.forge/collab` folders of the work trees that are still there."""
    roots = [Path(root) for root in identity.roots] if identity else []
    found = []
    for root in roots:
        folder = root / ".forge" / "collab"
        if root.is_dir() and not (root / ".forge").is_symlink() and not folder.is_symlink():
            found.append(folder)
    return found


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=2, ensure_ascii=False).encode() + b"\n"


def _parse(data: bytes, path: Path, hint: str = "forge collaborate recover --apply") -> Identity:
    try:
        raw = json.loads(data.decode("utf-8"))
        place = Place(**raw.pop("place"))
        known = {f.name for f in fields(Identity)} - {"place", "extra"}
        values = {key: raw.pop(key) for key in list(raw) if key in known}
        values["roots"] = tuple(str(root) for root in values.get("roots", ()))
        names.handle(values["handle"])
        if not names.is_instance(values["instance"]):
            raise ValueError("no instance id")
        return Identity(**values, place=place, extra=raw)
    except (ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise CorruptError(
            f"{path} can't be read: {error}",
            hint=hint,
            data={"path": str(path), "line": getattr(error, "lineno", 1)},
        ) from error
