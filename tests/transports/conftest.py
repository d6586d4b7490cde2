from __future__ import annotations

from pathlib import Path

import pytest
from gitworld import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
