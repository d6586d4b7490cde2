"""Polling transports in a `gitworld.World`, and what a server's hook may do to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
from gitworld import World

from forge_collab.core.change import Change, Urgency
from forge_collab.testing.contract import count_up
from forge_transport_polling import PollingTransport

NEVER = 3600.0
COUNT = Change(count_up, "count")
HOOK_ONCE = 'if mkdir "$(dirname "$0")/../once" 2>/dev/null; then\n%s\nfi'

LANDS_LATER = r"""
read old new ref
objects="$(pwd)/objects"
cp -r "$GIT_QUARANTINE_PATH/." "$(pwd)/late"
setsid sh -c "
  unset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES
  sleep DELAY
  cp -r late/. objects/
  git --git-dir=. update-ref $ref $new $old
  touch landed
" </dev/null >/dev/null 2>&1 &
sleep 30
"""

REFUSES_SECRETS = r"""
read old new ref
echo push >> pushes
if git log -p --format= "$new" --not --all | grep -q SECRET; then
  echo 'secret found' >&2
  exit 1
fi
"""


def client_of(world: World, number: int = 0, **more: Any) -> PollingTransport:
    """A client in a clone of its own that never polls by itself, unless told to."""
    clone = world.place / f"clone-{number}"
    if not clone.exists():
        world.clone(clone.name)
    settings = {"poll_seconds": NEVER, "idle_poll_seconds": NEVER, **more}
    return PollingTransport(world.context(clone, number, **settings))


@asynccontextmanager
async def clients_of(
    world: World, count: int, *, patience: float = 30, **more: Any
) -> AsyncIterator[list[PollingTransport]]:
    """So many connected clients; the whole may take `patience` seconds."""
    made = [client_of(world, number, **more) for number in range(count)]
    with anyio.fail_after(patience):
        async with AsyncExitStack() as stack:
            for client in made:
                await stack.enter_async_context(client)
            yield made


def write(key: str, data: bytes = b"x", urgency: Urgency = Urgency.NOW) -> Change[None]:
    """A change that writes `data` under `key`."""
    return Change(lambda view: view.put(key, data), f"write {key}", urgency)


async def until(happened: Callable[[], bool]) -> None:
    """Wait for what another process does."""
    while not happened():  # noqa: ASYNC110 - there is no event for it
        await anyio.sleep(0.05)
