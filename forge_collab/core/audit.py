"""The audit: every change's nonce, who, what and fence, in segments of one file per writer."""

from __future__ import annotations

import json
from functools import lru_cache

from forge_collab.core import keys
from forge_collab.core.change import ABSENT, Snapshot, View
from forge_collab.core.errors import CorruptError
from forge_collab.core.records import (
    AUDIT_SEGMENT_LINES,
    AuditEntry,
    Claimant,
    decode,
    decode_lines,
    encode,
)

GRANTS = ("claimed", "taken_over", "carried")
_DIGITS = 9
_LOOK_BACK_BYTES = 1024 * 1024


def append(
    view: View,
    who: Claimant,
    event: str,
    *,
    ts: str,
    nonce: str,
    key: str | None = None,
    fence: int | None = None,
    text: str | None = None,
) -> AuditEntry:
    """Add a line to the writer's last segment; its `seq` is larger than all on the branch."""
    entry = AuditEntry(
        seq=_highest_seq(view) + 1,
        ts=ts,
        event=event,
        who=who,
        key=None if key is None else keys.lease_name(key),
        fence=fence,
        nonce=nonce,
        text=text,
    )
    number, before = _last_segment(view, who.instance)
    if before.count(b"\n") >= AUDIT_SEGMENT_LINES or _last_entry(before) is None:
        number, before = (number + 1, b"") if before else (number, before)
    view.put(f"{keys.AUDIT}{who.instance}/{number}", before + encode(entry))
    return entry


def _last_segment(view: View, instance: str) -> tuple[int, bytes]:
    number = max(_numbers(view, instance), default=1)
    return number, _segment(view, instance, number)


def _segment(view: View, instance: str, number: int) -> bytes:
    value = view.get(f"{keys.AUDIT}{instance}/{number}")
    return b"" if value is ABSENT else value


def _numbers(view: View, instance: str) -> list[int]:
    return _by_instance(view, f"{keys.AUDIT}{instance}/").get(instance, [])


def _by_instance(view: View, prefix: str) -> dict[str, list[int]]:
    """The numbers of every writer's segments, in order."""
    found: dict[str, list[int]] = {}
    for key in view.keys(prefix):
        instance, _, number = key.removeprefix(keys.AUDIT).partition("/")
        if number.isascii() and number.isdigit() and len(number) <= _DIGITS:
            found.setdefault(instance, []).append(int(number))
    return {instance: sorted(numbers) for instance, numbers in found.items()}


def _last_entry(segment: bytes) -> AuditEntry | None:
    line = segment.rstrip(b"\n").rpartition(b"\n")[2]
    if not line or not segment.endswith(b"\n"):
        return None
    return _readable(line)


def _readable(line: bytes) -> AuditEntry | None:
    try:
        return decode(AuditEntry, line, "")
    except CorruptError:
        return None


def _highest_seq(view: View) -> int:
    writers = _by_instance(view, keys.AUDIT).items()
    return max((_last_seq(view, instance, numbers) for instance, numbers in writers), default=0)


def _last_seq(view: View, instance: str, numbers: list[int]) -> int:
    """The `seq` of the writer's last readable line, whatever is broken behind it."""
    for number in reversed(numbers):
        entry = _last_readable(_segment(view, instance, number))
        if entry is not None:
            return entry.seq
    return 0


@lru_cache(maxsize=1024)
def _last_readable(segment: bytes) -> AuditEntry | None:
    """The last line that can be read, not looking back further than a segment is long."""
    lines = segment[-_LOOK_BACK_BYTES:].split(b"\n")[-AUDIT_SEGMENT_LINES:]
    return next((entry for line in reversed(lines) if (entry := _readable(line))), None)


def has(view: View, who: Claimant, nonce: str) -> bool:
    """Whether the change with `nonce` is among this writer's latest lines."""
    field = f'"nonce":{json.dumps(nonce)}'  # As `encode` writes it; in text a quote is escaped.
    return field.encode() in _last_segment(view, who.instance)[1]


def last_fence(view: View, who: Claimant, key: str) -> int | None:
    """The fence under which this worker last claimed `key`, or None if it never did."""
    name = keys.lease_name(key)
    for number in reversed(_numbers(view, who.instance)):
        for entry in reversed(_entries(_segment(view, who.instance, number))):
            if entry.key == name and entry.who == who and entry.event in GRANTS:
                return entry.fence
    return None


@lru_cache(maxsize=256)
def _entries(segment: bytes) -> tuple[AuditEntry, ...]:
    """The readable entries of a segment; the audit is history, so a bad line hides only itself."""
    good: list[AuditEntry] = []
    for line in segment.split(b"\n")[-4 * AUDIT_SEGMENT_LINES :]:
        try:
            good.extend(decode_lines(AuditEntry, line, ""))
        except CorruptError:
            continue
    return tuple(good)


def history(snapshot: Snapshot) -> list[AuditEntry]:
    """Every readable entry of everybody, in the order of the branch."""
    entries: list[AuditEntry] = []
    for key in snapshot.keys(keys.AUDIT):
        found = snapshot.get(key)
        if found is not ABSENT:
            entries.extend(_entries(found.value))
    return sorted(entries, key=lambda entry: (entry.seq, entry.who.instance))
