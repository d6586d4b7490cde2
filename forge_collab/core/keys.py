"""Keys of records and the file names they have on the state branch, one to one."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from forge_collab.core.errors import UsageError

META = "meta"
LEASES = "leases/"
PARTICIPANTS = "participants/"
TASKS = "tasks/"
MESSAGES = "messages/"
AUDIT = "audit/"
SHARED = "shared/"
SHARED_TASKS = "shared/tasks/"

_KEPT = (META, LEASES, TASKS, SHARED, AUDIT)
_SAFE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_LINES = (MESSAGES, AUDIT)


def claim(task_id: str) -> str:
    """The key of a task's lease."""
    return f"{LEASES}claim:{task_id}"


def claimed_task(lease_key: str) -> str | None:
    """The task whose lease is under `lease_key`, or None for another kind of lease."""
    prefix = f"{LEASES}claim:"
    return lease_key[len(prefix) :] if lease_key.startswith(prefix) else None


def is_kept(key: str) -> bool:
    """Whether a record of this kind is never dropped, so that its fence and `rev` stay known."""
    return key.startswith(_KEPT)


def lease_name(lease_key: str) -> str:
    """A lease's name as commands show it: its key without the folder."""
    return lease_key.removeprefix(LEASES)


def path_of(key: str) -> str:
    """The file of `key`: its parts percent-encoded, with the suffix of its kind.

    No part begins with a dot, so none is ``..`` or ``.git``.

    :raises UsageError: when a part is empty or no text.
    """
    parts = key.split("/")
    if not all(parts):
        raise UsageError(f"'{key}' can't be a key: it has an empty part")
    encoded = "/".join(map(_encoded, parts))
    if key.startswith(SHARED):
        return encoded
    return encoded + (".jsonl" if key.startswith(_LINES) else ".json")


def _encoded(part: str) -> str:
    if _SAFE.fullmatch(part):
        return part
    try:
        quoted = quote(part, safe="")
    except UnicodeEncodeError as error:
        raise UsageError(f"{part!a} can't be part of a key: it isn't text") from error
    quoted = quoted.replace("~", "%7E")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def key_of(path: str) -> str | None:
    """The key whose file is `path`, or None when no key has that file."""
    if path.startswith(SHARED):
        stem = path
    else:
        suffix = ".jsonl" if path.startswith(_LINES) else ".json"
        if not path.endswith(suffix):
            return None
        stem = path.removesuffix(suffix)
    try:
        key = "/".join(unquote(part, errors="strict") for part in stem.split("/"))
        return key if path_of(key) == path else None
    except (UsageError, UnicodeError):
        return None
