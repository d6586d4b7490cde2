"""Which transport a session uses, and which branch its finished tasks land on."""

from __future__ import annotations

from collections.abc import Collection


def transport(configured: str, *, has_key: bool, installed: Collection[str]) -> str:
    """The transport's name: what was asked for, else ably where there is a key for it, else
    polling."""
    if configured != "auto":
        return configured
    return "ably" if has_key and "ably" in installed else "polling"


def target(
    configured: str | None, remote_head: str | None, upstream: str | None, branch: str | None
) -> str:
    """The target branch of a new session; ``forge/*`` is never one."""
    candidates = (configured, remote_head, upstream, branch)
    usable = (name for name in candidates if name and not name.startswith("forge/"))
    return next(usable, "main")
