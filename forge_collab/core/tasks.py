"""What a task is and which status may follow which; files and the state branch are read elsewhere.

A task's definition comes from a file and never says how far the work is: a ``status`` in it is
dropped, so a copied or merged file can't undo what happened. How far it is lives in the task's
record on the state branch, as one of `TaskStatus`. ``claimed`` and ``running`` are not among
them: a pending task with a live lease is *shown* so, and whether a lease lives is each observer's
own judgement, so nothing has to be written when a worker dies. Unmet dependencies leave a task
pending as well; the board works them out. `NEXT` is the whole machine: a pair that isn't in it
is refused, and the state does not move. Going back from done or cancelled to pending is a reopen
and belongs to the next round, so that a commit of the round before doesn't count for it.

A field with no value (``description:`` with nothing behind it) counts as left out, and fields
forge doesn't know are kept, so that another version's files survive a rewrite.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)

from forge_collab.core import names
from forge_collab.core.errors import BlockedError, UsageError

TITLE_LENGTH: Final = 200

_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def _task_id(text: str) -> str:
    try:
        return names.task_id(text)
    except UsageError as error:
        raise ValueError(error.message) from None


def _text(text: str) -> str:
    # A lone surrogate (undecodable bytes of an argument) could be neither hashed nor written.
    if _SURROGATE.search(text):
        raise ValueError("must be Unicode text")
    return text


def _title(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if _NOT_IN_A_LINE.search(text):
        raise ValueError("must be one line, without control characters")
    if len(text) > TITLE_LENGTH:
        raise ValueError(f"must have at most {TITLE_LENGTH} characters, not {len(text)}")
    return text


def _uid(text: str) -> str:
    if not _UID.fullmatch(text):
        raise ValueError("must be letters, digits, '_', '.' and '-', at most 64")
    return text


TaskId = Annotated[str, AfterValidator(_task_id)]
Text = Annotated[str, AfterValidator(_text)]
# Strict, because a lax integer takes `true` for 1.
Count = Annotated[int, Field(strict=True, ge=1)]


def default_uid(task_id: str, plan_id: str | None = None) -> str:
    """The uid of a task whose file gives none: 16 hex digits, of its plan and id."""
    return hashlib.sha256(f"{plan_id or ''}\0{task_id}".encode(errors="replace")).hexdigest()[:16]


class _Part(BaseModel):
    """A frozen piece of a task that keeps what it doesn't know."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        return {k: v for k, v in raw.items() if v is not None or k not in cls.model_fields}


class Technical(_Part):
    """How the task might be done: hints for whoever works on it."""

    approach: Text = ""
    files_to_create: tuple[Text, ...] = ()
    files_to_modify: tuple[Text, ...] = ()
    considerations: tuple[Text, ...] = ()


class Criterion(_Part):
    """One check that decides whether the task is done; `config` belongs to its type."""

    type: Text
    name: Text = ""
    config: dict[str, JsonValue] = {}


class Execution(_Part):
    """How long and how stubbornly an engine tries."""

    max_iterations: Count = 30
    checkpoint_every: Count = 10
    on_stuck: Text = "retry-variation"
    timeout_minutes: Count | None = None


class Task(_Part):
    """A task as it is defined; only `id` and `title` have to be given.

    :raises pydantic.ValidationError: when a field can't be what it says.
    """

    id: TaskId
    title: Annotated[Text, AfterValidator(_title)]
    description: Text = ""
    depends_on: tuple[TaskId, ...] = ()
    blocks: tuple[TaskId, ...] = ()
    type: Literal["feature", "bugfix", "refactor", "test", "docs", "chore"] = "feature"
    priority: Count = 3
    complexity: Literal["low", "medium", "high"] = "medium"
    technical: Technical = Technical()
    criteria: tuple[Criterion, ...] = ()
    execution: Execution = Execution()
    goals: tuple[Text, ...] = ()
    spec_id: Text | None = None
    plan_id: Text | None = None
    uid: Annotated[str, AfterValidator(_uid)] = ""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        fields = {k: v for k, v in raw.items() if k != "status"}
        if fields.get("uid") is None:
            fields["uid"] = default_uid(str(fields.get("id")), str(fields.get("plan_id") or ""))
        return fields

    def fields(self) -> dict[str, Any]:
        """What a file has to say to define this task: JSON values, defaults left out."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        if self.uid == default_uid(self.id, self.plan_id):
            del said["uid"]
        return said

    @property
    def definition_hash(self) -> str:
        """16 hex digits that change when the definition does.

        Defaults are left out of it, so that a version of forge with one more optional field
        finds the same hash.
        """
        canonical = json.dumps(self.fields(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


class TaskStatus(StrEnum):
    """How far a task is, as its record says."""

    PENDING = "pending"
    DONE = "done"
    BLOCKED = "blocked"
    PAUSED = "paused"
    FAILED = "failed"
    MERGE_BLOCKED = "merge_blocked"
    AWAITING_MERGE = "awaiting_merge"
    CANCELLED = "cancelled"


_STOPPED: Final = frozenset({TaskStatus.PENDING, TaskStatus.DONE, TaskStatus.CANCELLED})

NEXT: Final[Mapping[TaskStatus, frozenset[TaskStatus]]] = MappingProxyType(
    {
        TaskStatus.PENDING: frozenset(TaskStatus) - {TaskStatus.PENDING},
        TaskStatus.MERGE_BLOCKED: _STOPPED,
        TaskStatus.AWAITING_MERGE: _STOPPED,
        TaskStatus.BLOCKED: _STOPPED,
        TaskStatus.PAUSED: _STOPPED,
        TaskStatus.FAILED: _STOPPED,
        TaskStatus.DONE: frozenset({TaskStatus.PENDING}),
        TaskStatus.CANCELLED: frozenset({TaskStatus.PENDING}),
    }
)


def check_transition(task_id: str, old: TaskStatus, new: TaskStatus) -> None:
    """Let a status follow another, by `NEXT`.

    :raises BlockedError: when it can't; data has `task`, `from` and `to`.
    """
    if new in NEXT[old]:
        return
    is_over = old in (TaskStatus.DONE, TaskStatus.CANCELLED)
    raise BlockedError(
        f"{task_id} is {old} already"
        if new is old
        else f"{task_id} is {old} and can't become {new}",
        hint=f"forge task {'reopen' if is_over and new is not old else 'show'} {task_id}",
        data={"task": task_id, "from": str(old), "to": str(new)},
    )
