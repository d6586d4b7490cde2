"""Which transport a clone uses and what it is made with: the same for a daemon and a short look."""

from __future__ import annotations

from collections.abc import Mapping

from forge_collab.clock import Clock
from forge_collab.core import choice
from forge_collab.files.config import Config
from forge_collab.files.markers import Identity
from forge_collab.git.repository import Repository
from forge_collab.transport import Context, installed


def transport_name(identity: Identity | None, config: Config, environ: Mapping[str, str]) -> str:
    """The transport of a clone: what it was started with, else its settings, else what there is."""
    chosen = identity.transport if identity else "auto"
    return choice.transport(
        config.transport if chosen == "auto" else chosen,
        has_key="ABLY_KEY" in environ,
        installed=installed(),
    )


def context(
    repository: Repository,
    config: Config,
    *,
    instance: str,
    handle: str = "",
    environ: Mapping[str, str],
    clock: Clock,
    is_look: bool = False,
) -> Context:
    """What the transport of a clone is made with."""
    return Context(
        instance=instance,
        handle=handle,
        common_dir=repository.common_dir,
        remote=config.remote,
        state_ref=config.state_ref,
        commit_subject=config.commit_subject,
        poll_seconds=float(config.poll_seconds),
        idle_poll_seconds=float(config.idle_poll_seconds),
        network_seconds=float(config.network_timeout_seconds),
        environ=environ,
        clock=clock,
        is_look=is_look,
    )
