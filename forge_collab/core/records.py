"""The documents on the state branch and their codec: versioned, unknown fields kept.

Unreadable is never empty: a document that doesn't parse raises, with the place, and is not
written over by any rule. One written by a newer forge is read as far as it goes and never
written over either.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forge_collab.core.errors import BlockedError, CorruptError
from forge_collab.core.tasks import TaskStatus

VERSION = 1
LARGEST = 2**53
"""The largest number that every JSON reader keeps; a larger one is damage."""
MESSAGES_KEPT = 200
MESSAGES_BYTES = 256 * 1024
AUDIT_SEGMENT_LINES = 256


class Document(BaseModel):
    """What all documents share: frozen, unknown fields kept, a schema version."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="allow")

    v: int = VERSION

    def but(self, **changes: Any) -> Self:
        """This document with some fields changed, its unknown fields kept."""
        return type(self).model_validate({**self.model_dump(), **changes})


class Record(Document):
    """A document under a key of its own; `rev` rises with every write of it."""

    rev: int = Field(default=0, le=LARGEST)


class Claimant(BaseModel):
    """Who holds a lease: a person's handle, the clone (instance), the worker inside it."""

    model_config = ConfigDict(frozen=True)

    handle: str
    instance: str
    worker: str


class Meta(Record):
    """``meta``: the identity of the session, made once; `ended` says when and by whom it ended."""

    session: str
    repo: str
    target: str
    ended: str | None = None


class Lease(Record):
    """``leases/<key>``: who may work on `key`, until it stops being renewed.

    `fence` rises with every new claimant and never falls; a released lease has no claimant,
    keeps its fence, and names in `last` who had it. The next fence is above `floor` too, which a
    clone that worked alone may have left while somebody else held the lease.
    """

    fence: int = Field(ge=1, le=LARGEST)
    floor: int = Field(default=0, le=LARGEST)
    nonce: str
    claimant: Claimant | None = None
    last: Claimant | None = None
    ttl_seconds: float = Field(default=120.0, allow_inf_nan=False)
    definition: str | None = None


class Participant(Record):
    """``participants/<instance>``: presence, and the renewal counter of every lease it holds.

    `run` is the daemon process that writes it, `beat` counts that process's writes, `nonce`
    tells one write from a copy's.
    """

    handle: str
    run: str
    beat: int = Field(default=0, le=LARGEST)
    nonce: str = ""
    renewals: dict[str, Annotated[int, Field(le=LARGEST)]] = Field(default_factory=dict)
    email_hash: str | None = None
    version: str | None = None


class TaskRecord(Record):
    """``tasks/<id>``: what became of a task; its definition is elsewhere.

    `landed` has the `commit` on the target and the `tip` of the branch it came from; `landing`
    the same of a commit that is about to be pushed to a server that takes one ref at a time;
    `old_tips` are the tips that landed in rounds that are over; `reason` is why a stopped task is
    stopped.
    """

    uid: str
    round: int = 1
    status: TaskStatus = TaskStatus.PENDING
    fence: int = 0
    landed: dict[str, str] | None = None
    landing: dict[str, str] | None = None
    old_tips: tuple[str, ...] = ()
    reason: str | None = None
    branch: str | None = None
    waits_for: tuple[str, ...] = ()


class AuditEntry(Document):
    """One line of ``audit/<instance>/<n>``: who did what, in the order of the branch.

    `seq` is larger than that of every line that was on the branch before; `ts` is the writer's
    wall clock, for people only.
    """

    seq: int = Field(le=LARGEST)
    ts: str
    event: str
    who: Claimant
    key: str | None = None
    fence: int | None = None
    nonce: str
    text: str | None = None


class Message(Document):
    """One line of ``messages/<instance>``; the sender is the owner of the file it is in."""

    seq: int = Field(le=LARGEST)
    event: str
    to: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)
    ts: str | None = None


D = TypeVar("D", bound=Document)


def encode(document: Document) -> bytes:
    """The one byte string for a document: sorted keys, one line, UTF-8; a lone surrogate is `?`."""
    data = document.model_dump(mode="json")
    text = json.dumps(data, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


def decode(kind: type[D], data: bytes, where: str) -> D:
    """The document in `data`.

    :raises CorruptError: when it isn't one; data has `path` and `line`.
    """
    document = _decode_once(kind, data, where)
    assert isinstance(document, kind)
    return document


@lru_cache(maxsize=4096)
def _decode_once(kind: type[Document], data: bytes, where: str) -> Document:
    """Documents are frozen and most of a snapshot is what the last one had."""
    return _decode_line(kind, data, where, 1)


def _decode_line(kind: type[D], data: bytes, where: str, line: int) -> D:
    try:
        document = kind.model_validate(json.loads(data.decode("utf-8")))
    except UnicodeDecodeError as error:
        raise _corrupt(where, line + data[: error.start].count(b"\n"), "not UTF-8") from error
    except json.JSONDecodeError as error:
        raise _corrupt(where, line + error.lineno - 1, error.msg) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise _corrupt(where, line, f"{field}: {first['msg']}") from error
    except RecursionError as error:
        raise _corrupt(where, line, "nested too deep") from error
    except ValueError as error:
        raise _corrupt(where, line, str(error)) from error
    return document


def _corrupt(where: str, line: int, why: str) -> CorruptError:
    return CorruptError(
        f"{where}:{line} on the state branch can't be read: {why}",
        hint="forge doctor",
        data={"path": where, "line": line},
    )


def encode_lines(documents: tuple[Document, ...]) -> bytes:
    """Documents one per line."""
    return b"".join(encode(document) for document in documents)


def decode_lines(kind: type[D], data: bytes, where: str) -> tuple[D, ...]:
    """The documents of a file that has one per line.

    :raises CorruptError: when a line isn't one; data has `path` and `line`.
    """
    lines = data.split(b"\n")
    return tuple(
        _decode_line(kind, line, where, number)
        for number, line in enumerate(lines, 1)
        if line.strip()
    )


def check_writable(document: Document, where: str) -> None:
    """Nothing, when this version of forge may write `document` again.

    :raises BlockedError: when a newer forge wrote it.
    """
    if document.v > VERSION:
        raise BlockedError(
            f"{where} was written by a newer forge (schema {document.v}, this one knows {VERSION})",
            hint="upgrade forge on this machine",
            data={"path": where},
        )


def shown_lease(
    key: str,
    lease: Lease,
    *,
    last_seen_seconds: float | None = None,
    takeover_in_seconds: float | None = None,
) -> dict[str, Any]:
    """A lease as commands show it in JSON."""
    return {
        "key": key,
        "claimant": None if lease.claimant is None else lease.claimant.model_dump(),
        "fence": lease.fence,
        "ttl_seconds": lease.ttl_seconds,
        "last_seen_seconds": _tenth(last_seen_seconds),
        "takeover_in_seconds": _tenth(takeover_in_seconds),
    }


def _tenth(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
