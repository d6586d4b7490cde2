"""The daemon of a clone that works alone: when it ends by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from conftest import World

from forge_collab.daemon.main import Daemon
from forge_collab.testing.clocks import ManualClock

pytestmark = pytest.mark.anyio
_GUARDED_SECONDS = 1.3


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def checkout(root: Path, **tasks: str) -> Path:
    folder = root / ".forge" / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    for task_id, title in tasks.items():
        (folder / f"{task_id}.yaml").write_text(f"id: {task_id}\ntitle: {title}\n")
    return root


async def test_it_ends_when_nothing_is_held_and_nobody_asks(world: World) -> None:
    root = checkout(world.root / "plain", T001="First")
    world.run("git", "init", "-q", "-b", "main", str(root))
    clock = ManualClock()
    daemon = Daemon(root / ".git", world.environ, clock=clock)
    asked: dict[str, Any] = {"root": str(root), "task": "T001", "worker": "main"}
    ended = anyio.Event()

    async def run() -> None:
        await daemon.run()
        ended.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            assert (await daemon.service.handle("claim", asked))["acquired"]
            clock.seconds += 61
            await anyio.sleep(_GUARDED_SECONDS)
            assert not ended.is_set(), "a lease is held"
            await daemon.service.handle("release", asked)
            await anyio.sleep(_GUARDED_SECONDS)
            assert not ended.is_set(), "somebody asked a moment ago"
            clock.seconds += 61
            await ended.wait()
