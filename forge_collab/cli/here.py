"""The clone that a command is run in: its repository, its class, who acts."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from forge_collab.core import names
from forge_collab.core.errors import BlockedError, CorruptError, EnvironmentError_, UsageError
from forge_collab.core.lifecycle import EXPLANATION, Class, classify
from forge_collab.files.markers import Identity, Markers, Place
from forge_collab.git.repository import Repository, discover

if TYPE_CHECKING:
    from forge_collab.files.config import Config


@dataclass(frozen=True)
class Here:
    """A clone as seen from one of its work trees."""

    repository: Repository
    markers: Markers

    @property
    def root(self) -> Path:
        """The work tree.

        :raises EnvironmentError_: in a bare repository.
        """
        if self.repository.root is None:
            raise EnvironmentError_(
                "this needs a work tree, and there is none here",
                hint="git worktree add PATH, then run it there",
            )
        return self.repository.root

    def identity(self) -> Identity | None:
        """Who this clone is, or None; None too when it can't be read."""
        try:
            return self.markers.read()
        except CorruptError:
            return None

    def clone_class(self, remote_repo: str | None = None) -> Class:
        """The class that this clone's markers put it in."""
        identity = self.identity()
        return classify(
            has_participant=self.markers.participant.exists(),
            is_readable=identity is not None,
            is_enabled=self.markers.is_enabled(),
            own_repo=identity.repo if identity else None,
            remote_repo=remote_repo,
        )

    def check_healthy(self) -> None:
        """Nothing, when this clone is in a session.

        :raises BlockedError: otherwise, naming the command that helps.
        """
        if self.is_alone():
            raise _blocked(Class.INACTIVE, "forge collaborate start")

    def is_alone(self) -> bool:
        """Whether this clone is in no session, so that its workers have its own records.

        :raises BlockedError: when a crash left it half in one.
        """
        found = self.clone_class()
        if found not in (Class.HEALTHY, Class.INACTIVE):
            raise _blocked(found, "forge collaborate recover")
        return found is Class.INACTIVE

    def config(self, **flags: object) -> tuple[Config, list[str]]:
        """The settings in force here, and warnings about them.

        :raises UsageError: when a value is bad; says where.
        """
        from forge_collab.files.config import load_config

        return load_config(
            flags={key: value for key, value in flags.items() if value is not None},
            environ=self.repository.environ,
            git_config=self.repository.config_pairs(),
            root=self.repository.root,
            home=Path.home(),
        )

    def worker(self, named: str | None) -> str:
        """Who acts: FORGE_WORKER, else the name given, else this work tree."""
        given = self.repository.environ.get("FORGE_WORKER") or named
        if given:
            return names.worker(given)
        if self.repository.git_dir == self.repository.common_dir:
            return "main"
        return names.worker(f"worktree:{self.repository.git_dir.name}")

    def fence(self, given: int | None) -> int | None:
        """The fence the caller acts under: ``--fence``, else FORGE_FENCE, else None."""
        text = self.repository.environ.get("FORGE_FENCE")
        if given is not None or not text:
            return given
        if not (text.isascii() and text.isdigit()):
            raise UsageError(f"FORGE_FENCE is '{text}', no number", hint="unset FORGE_FENCE")
        return int(text)

    def handle(self, configured: str | None) -> str:
        """The person's name in the session.

        :raises UsageError: when it was given and can't be one.
        """
        return self.repository.handle(configured)

    def new_identity(self, handle: str, session: str, *, transport: str = "auto") -> Identity:
        """An identity for this clone, under a new instance."""
        root = self.repository.root
        return Identity(
            handle=handle,
            instance=secrets.token_hex(8),
            session=session,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            place=Place.of(self.repository.common_dir),
            transport=transport,
            roots=() if root is None else (str(root),),
        )


def _blocked(found: Class, hint: str) -> BlockedError:
    return BlockedError(
        f"{EXPLANATION[found]} (class {found.value})",
        hint=hint,
        data={"class": found.value, "status": found.value, "waits_for": []},
    )


def here(folder: str | None) -> Here:
    """The clone that `folder`, or the current one, is in.

    :raises EnvironmentError_: when it is in none.
    """
    repository = discover(Path(folder or os.getcwd()), dict(os.environ))
    return Here(repository, Markers(repository.common_dir))
