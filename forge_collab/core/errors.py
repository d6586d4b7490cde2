"""The one error tree: what a caller can do about it decides the class, the class the exit code.

    ForgeError
    ├── FailedError       1   the work itself failed
    ├── UsageError        2   bad arguments or a bad input file; says where
    ├── HeldError         3   somebody else holds it, or won the race
    ├── UnavailableError  4   the remote or the daemon can't be reached; nobody knows yet
    ├── LeaseLostError    5   fenced out; both fences are in the data
    ├── CorruptError      6   unreadable state; file and line are in the data
    ├── BlockedError      7   needs a person or a prerequisite
    │   └── RefusedError  7   the server decided against the push; its words are in the data
    ├── EnvironmentError_ 9   no git, not a repository, no remote, wrong version
    └── BugError         70   a defect in forge; the crash file is named

`ConflictError` is outside the tree's exit codes: it is a transport's answer to a one-key
change whose expectation did not hold, and callers handle it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class ForgeError(Exception):
    """An expected failure: what happened, why, and what to type next."""

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, hint: str | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data: dict[str, Any] = dict(data or {})

    def again(self) -> Self:
        """The same error for another asker, who gets data of its own."""
        return type(self)(self.message, hint=self.hint, data=self.data)

    def to_json(self) -> dict[str, Any]:
        """The ``error`` member of the one JSON document a command prints."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "data": self.data}


class FailedError(ForgeError):
    """The work itself failed."""


class UsageError(ForgeError):
    """Bad arguments or a bad input file; the message says where."""

    code = "usage"
    exit_code = 2


class HeldError(ForgeError):
    """Somebody else holds it, or won the race; data has `reason` and `holder`."""

    code = "held"
    exit_code = 3


class UnavailableError(ForgeError):
    """The remote or the daemon can't be reached, so nobody knows yet."""

    code = "offline"
    exit_code = 4


class LeaseLostError(ForgeError):
    """Fenced out: the lease went to another claim; data has `fence` and `holder`."""

    code = "lease_lost"
    exit_code = 5


class CorruptError(ForgeError):
    """State that can't be read; data has `path` and `line`."""

    code = "corrupt"
    exit_code = 6


class BlockedError(ForgeError):
    """A person or a prerequisite is needed first."""

    code = "blocked"
    exit_code = 7


class RefusedError(BlockedError):
    """The server decided against a push; data has its words in `server`."""


class EnvironmentError_(ForgeError):
    """The machine or the repository lacks what forge stands on."""

    code = "environment"
    exit_code = 9


class BugError(ForgeError):
    """A defect in forge."""

    code = "bug"
    exit_code = 70


class ConflictError(Exception):
    """A one-key change expected another version; `current` is what is there now."""

    def __init__(self, key: str, current: object) -> None:
        super().__init__(f"{key}: not the expected version")
        self.key = key
        self.current = current


def expected(error: BaseException) -> ForgeError | None:
    """The one expected failure that `error` is, or is a group of, or None: a defect."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ForgeError) else None


def _classes(cls: type[ForgeError]) -> list[type[ForgeError]]:
    return [cls, *(c for sub in cls.__subclasses__() for c in _classes(sub))]


def from_json(error: Mapping[str, Any]) -> ForgeError:
    """The error that `ForgeError.to_json` described; an unknown code becomes `FailedError`."""
    by_code = {cls.code: cls for cls in reversed(_classes(ForgeError))}
    cls = by_code.get(str(error.get("code")), FailedError)
    return cls(
        str(error.get("message", "unknown error")),
        hint=error.get("hint"),
        data=error.get("data") or {},
    )
