"""What names from outside may look like, checked before any path, ref or key is built from them."""

from __future__ import annotations

import re

from forge_collab.core.errors import UsageError

_HANDLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_WORKER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,127}")
_TASK = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_INSTANCE = re.compile(r"[0-9a-f]{16}")
_REF = re.compile(r"refs(/[A-Za-z0-9_+@-][A-Za-z0-9_.+@-]*)+")
_NOT_IN_A_REF = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]")
_DEVICES = {"con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(1, 10))}


def handle(text: str) -> str:
    """`text` itself, when it can be a person's name in a session.

    :raises UsageError: when it is not 1 to 64 of letters, digits, ``_ . -``, the first a letter
        or digit.
    """
    if _HANDLE.fullmatch(text):
        return text
    raise UsageError(
        f"'{text}' can't be a handle: letters, digits, '_', '.', '-', at most 64, "
        "starting with a letter or digit",
        hint="forge collaborate start --handle NAME",
    )


def suggested_handle(text: str) -> str | None:
    """A legal handle made of `text` (an e-mail's local part, a login name), or None."""
    cleaned = re.sub(r"[^A-Za-z0-9_.-]", "-", text).strip("-._")[:64]
    return cleaned if _HANDLE.fullmatch(cleaned) else None


def worker(text: str) -> str:
    """`text` itself, when it can name who works inside a participant.

    :raises UsageError: when it is empty, longer than 128, or has other characters.
    """
    if _WORKER.fullmatch(text):
        return text
    raise UsageError(
        f"'{text}' can't name a worker: letters, digits and '_ . : @ / + -', at most 128",
        hint="forge collaborate claim T001 --as NAME",
    )


def task_id(text: str) -> str:
    """`text` itself, when it can be a task's id, a file name and part of a branch name.

    :raises UsageError: when it can't.
    """
    ok = (
        _TASK.fullmatch(text)
        and not text.endswith((".", ".lock"))
        and ".." not in text
        and text.upper() != "HEAD"
        and text.split(".")[0].lower() not in _DEVICES
    )
    if ok:
        return text
    raise UsageError(
        f"'{text}' can't be a task id: a letter, then letters, digits, '_', '.', '-', at most 64, "
        "no trailing dot, not a device name",
        hint="forge task list",
    )


def is_instance(text: str) -> bool:
    """Whether `text` looks like an instance id: 16 lower-case hex digits."""
    return _INSTANCE.fullmatch(text) is not None


def ref(text: str) -> str:
    """`text` itself, when it is a full ref name that git and forge can use safely.

    :raises UsageError: when it doesn't start with ``refs/`` or has odd characters.
    """
    has_bad_part = any(part.endswith((".", ".lock")) for part in text.split("/"))
    if _REF.fullmatch(text) and ".." not in text and not has_bad_part:
        return text
    raise UsageError(f"'{text}' is no full ref name such as refs/heads/forge/collab-state")


def branch(text: str) -> str:
    """`text` itself, when git can have a branch of that name and no command takes it for another
    thing.

    :raises UsageError: when it can't be one; see git-check-ref-format.
    """
    parts = text.split("/")
    has_bad_part = any(not p or p.startswith(".") or p.endswith((".", ".lock")) for p in parts)
    is_odd = text.startswith(("-", "refs/")) or text in ("@", "HEAD") or ".." in text
    if has_bad_part or is_odd or "@{" in text or _NOT_IN_A_REF.search(text):
        raise UsageError(f"'{text}' can't be the name of a branch", hint="git branch --list")
    return text


def oid(text: str) -> str:
    """`text` itself, when it is the whole name of an object.

    :raises UsageError: when it isn't 40 or 64 hex digits.
    """
    if re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", text):
        return text
    raise UsageError(f"'{text}' is no object's name")


def remote(text: str) -> str:
    """`text` itself, when it can be the name of a git remote.

    :raises UsageError: when it is empty or begins with a dash.
    """
    if text and not text.startswith("-") and re.fullmatch(r"[A-Za-z0-9_./-]+", text):
        return text
    raise UsageError(f"'{text}' can't be the name of a remote")
