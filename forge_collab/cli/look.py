"""A look at the session, or at a clone's own records, for commands that start no daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from forge_collab.cli import output
from forge_collab.cli.here import Here
from forge_collab.clock import SystemClock
from forge_collab.core import keys
from forge_collab.core.board import Board
from forge_collab.core.change import ABSENT, Found, Snapshot, View, readable
from forge_collab.core.errors import BlockedError, ForgeError, UnavailableError
from forge_collab.core.overview import apply_records, overview
from forge_collab.core.records import Meta, Participant
from forge_collab.daemon import connecting
from forge_collab.daemon.alone import OwnRecords
from forge_collab.daemon.plan import SessionPlan
from forge_collab.daemon.target import Target
from forge_collab.files.config import Config
from forge_collab.files.markers import ALONE
from forge_collab.files.tasks import Plan, read_checkout, read_plan
from forge_collab.git.store import Store
from forge_collab.transport import Transport, load

T = TypeVar("T")
LOOK_SECONDS = 1.0
_ASK_SECONDS = 5.0


def connected(
    clone: Here,
    use: Callable[[Transport], Awaitable[T]],
    *,
    seconds: float,
    instance: str = "0" * 16,
) -> T:
    """What `use` gives with a transport connected to this clone's session.

    :raises UnavailableError: when the remote can't be reached in so many seconds.
    :raises ForgeError: as the transport does.
    """
    config, _ = clone.config()
    name = transport_name(clone, config)
    context = connecting.context(
        clone.repository,
        config,
        instance=instance,
        environ=clone.repository.environ,
        clock=SystemClock(),
        is_look=True,
    )

    async def run() -> T:
        try:
            with anyio.fail_after(seconds):
                async with load(name)(context) as transport:
                    return await use(transport)
        except TimeoutError as error:
            raise UnavailableError(
                f"the remote gave no answer in {seconds:g} s", hint="try again"
            ) from error

    return anyio.run(run)


def transport_name(clone: Here, config: Config) -> str:
    """The transport that this clone's session uses."""
    return connecting.transport_name(clone.identity(), config, clone.repository.environ)


def own_records(clone: Here) -> Snapshot:
    """What this clone's workers did alone; nothing where they never did.

    :raises CorruptError: when the records can't be read.
    """

    async def read() -> Snapshot:
        async with OwnRecords(clone.repository.common_dir).connected(is_look=True) as own:
            return own.snapshot

    return anyio.run(read)


def check_nobody_is_there(clone: Here) -> None:
    """Nothing, when the remote's session has no participants, or nobody can tell; then says so.

    :raises BlockedError: when it has, naming them.
    """
    config, _ = clone.config()
    if config.transport == ALONE or not clone.repository.has_remote(config.remote):
        return

    async def read(transport: Transport) -> list[str]:
        present, _ = readable(Participant, transport.snapshot, keys.PARTICIPANTS)
        return sorted({record.handle for record in present.values()})

    try:
        there = connected(clone, read, seconds=_ASK_SECONDS)
    except ForgeError as error:
        if error.data.get("status") != "empty_remote":
            output.notice(f"whether somebody is in a session there isn't known: {error.message}")
        return
    if there:
        raise BlockedError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} in the session on "
            f"'{config.remote}': what is claimed here alone, they don't see",
            hint="forge collaborate join; or claim --solo, to work alone all the same",
            data={"status": "session", "waits_for": [], "participants": there},
        )


def status(clone: Here) -> dict[str, Any]:
    """What ``status`` shows where no daemon has watched: the session's records as the remote has
    them, else this clone's own; ages unknown."""
    config, _ = clone.config()
    if not clone.markers.is_absent():
        return _session(clone)[0]
    if not clone.repository.has_remote(config.remote):
        return _alone(clone, [])
    seen, is_there = _session(clone)
    if is_there or not OwnRecords(clone.repository.common_dir).exist():
        return seen
    return _alone(clone, [] if seen["online"] else seen["warnings"])


def _alone(clone: Here, warnings: list[str]) -> dict[str, Any]:
    """What is done alone here."""
    own: Snapshot = _Nothing()
    identity, is_readable, plan = None, False, read_plan(read_checkout(clone.root))
    try:
        identity, own, is_readable = clone.markers.read_alone(), own_records(clone), True
    except ForgeError as error:
        warnings = [*warnings, error.message]
    board = Board(plan.tasks, plan.broken)
    apply_records(board, own)
    found = overview(own, board, None, 0.0)
    told = [*clone.config()[1], *warnings, *plan.warnings, *found["warnings"]]
    found["warnings"] = list(dict.fromkeys(told))
    return {
        "session": ALONE,
        "class": clone.clone_class().value,
        "transport": ALONE,
        "online": is_readable,
        "me": identity.short if identity else None,
        **found,
        "daemon": {"running": False},
    }


def _session(clone: Here) -> tuple[dict[str, Any], bool]:
    """What the remote has, and whether there is a session."""
    config, warnings = clone.config()
    remote = clone.repository.remote(config.remote)
    identity = clone.identity()
    repo: str | None = None
    data: dict[str, Any] = {
        "session": identity.session if identity else remote.derived_id,
        "class": clone.clone_class().value,
        "transport": transport_name(clone, config),
        "online": False,
        "me": identity.short if identity else None,
        **overview(_Nothing(), Board(()), None, 0.0),
        "daemon": {"running": False},
    }
    if identity is not None:
        warnings = [*warnings, "this clone's daemon doesn't run: its leases aren't renewed"]

    async def look(transport: Transport) -> dict[str, Any]:
        nonlocal repo
        seen: dict[str, Any] = {"online": True}
        meta = View(transport.snapshot).document(Meta, keys.META)
        if meta is not None:
            repo = meta.repo
            seen["session"] = meta.session
        plan, board = await _plan(clone, transport, meta)
        apply_records(board, transport.snapshot)
        found = overview(transport.snapshot, board, None, 0.0)
        found["warnings"] = [*plan.warnings, *found["warnings"]]
        return {**seen, **found}

    try:
        data |= connected(clone, look, seconds=LOOK_SECONDS)
    except ForgeError as error:
        warnings = [*warnings, error.message]
    data["class"] = clone.clone_class(repo).value
    data["warnings"] = [*warnings, *data["warnings"]]
    return data, repo is not None


async def _plan(clone: Here, transport: Transport, meta: Meta | None) -> tuple[Plan, Board]:
    """The session's plan and board; the checkout's where there is no session."""
    if meta is None:
        plan = read_plan(read_checkout(clone.root))
        return plan, Board(plan.tasks, plan.broken)
    config, _ = clone.config()
    store = Store(clone.repository, clone.repository.remote(config.remote), is_look=True)
    await store.ensure()
    try:
        target = Target(store, lambda: meta.target, clock=SystemClock())
        found = SessionPlan(target, transport)
        await found.refresh()
        return found.plan, found.board
    finally:
        store.close()


class _Nothing:
    """A snapshot of a session that nobody has begun or that can't be seen."""

    def get(self, key: str) -> Found:
        return ABSENT

    def keys(self, prefix: str) -> list[str]:
        return []
