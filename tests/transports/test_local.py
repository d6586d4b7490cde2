"""The local transport beyond the contract: other processes, damage, and locks that hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from filelock import FileLock

from forge_collab.core.change import ABSENT, Change, View
from forge_collab.core.errors import (
    BlockedError,
    CorruptError,
    EnvironmentError_,
    ForgeError,
    UnavailableError,
)
from forge_collab.testing.contract import COUNTER, count_up, value
from forge_collab.transport import Context, Transport, load

pytestmark = pytest.mark.anyio
COUNT = Change(count_up, "count")
COUNTING = """
import sys
from pathlib import Path
import anyio
from forge_collab.core.change import Change
from forge_collab.testing.contract import count_up
from forge_collab.transport import Context, load

async def main() -> None:
    context = Context(instance=sys.argv[2], common_dir=Path(sys.argv[1]))
    async with load("local")(context) as transport:
        for _ in range(int(sys.argv[3])):
            print(await transport.commit(Change(count_up, "count")), flush=True)

anyio.run(main)
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def local(common_dir: Path, **more: Any) -> Transport:
    return load("local")(Context(instance="client-0", common_dir=common_dir, **more))


def records(common_dir: Path) -> Path:
    return common_dir / "forge" / "local" / "records.json"


def counting(common_dir: Path, name: str, times: int, faults: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COUNTING, str(common_dir), name, str(times)],
        env=os.environ | {"FORGE_FAULTS": faults},
        stdout=subprocess.PIPE,
        text=True,
    )


async def counted(common_dir: Path) -> bytes | None:
    async with local(common_dir) as client:
        return value(client.snapshot, COUNTER)


async def test_processes_that_count_at_once_lose_nothing(tmp_path: Path) -> None:
    running = [counting(tmp_path, f"p{n}", 15) for n in range(4)]
    printed = [process.communicate(timeout=60)[0].split() for process in running]
    assert sorted(int(n) for lines in printed for n in lines) == list(range(1, 61))
    assert await counted(tmp_path) == b"60"


async def test_what_another_process_wrote_is_noticed_without_asking(tmp_path: Path) -> None:
    async with local(tmp_path, poll_seconds=0.05) as client:
        seen = client.snapshot
        assert counting(tmp_path, "other", 1).wait(timeout=60) == 0
        with anyio.fail_after(30):
            newer = await client.wait_moved(seen)
        assert value(newer, COUNTER) == b"1"


@pytest.mark.parametrize(
    ("point", "left"), [("local.before_rename", b"1"), ("local.after_rename", b"2")]
)
async def test_a_process_killed_in_a_write_leaves_the_old_records_or_the_new(
    tmp_path: Path, point: str, left: bytes
) -> None:
    killed = counting(tmp_path, "killed", 5, f"{point}#2=kill")
    assert killed.wait(timeout=60) == -signal.SIGKILL
    assert await counted(tmp_path) == left
    async with local(tmp_path) as client:
        assert await client.commit(COUNT) == int(left) + 1


async def test_a_write_that_may_not_last_is_told_apart_from_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge_collab import faults

    async with local(tmp_path) as client:
        for point, is_unsettled in (("local.before_rename", False), ("local.after_rename", True)):
            monkeypatch.setattr(faults, "_armed", {point: "raise"})
            with pytest.raises(EnvironmentError_) as caught:
                await client.commit(COUNT)
            assert caught.value.data.get("unsettled", False) is is_unsettled
        monkeypatch.setattr(faults, "_armed", {})
        assert await client.commit(COUNT) == 2


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"v": 1}', b'{"v": 1, "records": {"meta": 3}}'],
)
async def test_a_file_that_cant_be_read_is_never_empty_and_never_written_over(
    tmp_path: Path, damage: bytes
) -> None:
    async with local(tmp_path) as client:
        await client.commit(COUNT)
        records(tmp_path).write_bytes(damage)
        for attempt in (client.commit(COUNT), client.refresh(), local(tmp_path).connect()):
            with pytest.raises(CorruptError) as caught:
                await attempt
            assert caught.value.data["path"] == str(records(tmp_path))
        assert records(tmp_path).read_bytes() == damage


async def test_a_file_that_is_gone_is_no_fresh_start(tmp_path: Path) -> None:
    async with local(tmp_path) as client:
        await client.commit(COUNT)
        records(tmp_path).unlink()
        with pytest.raises(CorruptError, match="is gone"):
            await client.commit(COUNT)
        assert not records(tmp_path).exists()


async def test_a_file_that_came_back_is_taken_up_again(tmp_path: Path) -> None:
    async with local(tmp_path) as client:
        await client.commit(COUNT)
        kept = records(tmp_path).read_bytes()
        records(tmp_path).write_bytes(b"half")
        with pytest.raises(CorruptError):
            await client.refresh()
        records(tmp_path).write_bytes(kept)
        assert await client.commit(COUNT) == 2


async def test_what_a_newer_forge_wrote_is_left_alone(tmp_path: Path) -> None:
    records(tmp_path).parent.mkdir(parents=True)
    records(tmp_path).write_text(json.dumps({"v": 2, "records": {}}))
    with pytest.raises(BlockedError, match="schema 2"):
        await local(tmp_path).connect()


async def test_a_lock_that_hangs_ends_in_unavailable_and_nothing_is_written(tmp_path: Path) -> None:
    async with local(tmp_path, network_seconds=0.2) as client:
        await client.commit(COUNT)
        with FileLock(str(tmp_path / "forge" / "local" / "lock")):
            with pytest.raises(UnavailableError) as caught:
                await client.commit(COUNT)
            assert caught.value.data["unsettled"] is False
        assert await client.commit(COUNT) == 2


async def test_a_rule_judges_what_another_process_wrote_a_moment_ago(tmp_path: Path) -> None:
    def look(view: View) -> bytes | None:
        found = view.get(COUNTER)
        return None if found is ABSENT else found

    async with local(tmp_path, poll_seconds=3600.0) as client:
        assert counting(tmp_path, "other", 3).wait(timeout=60) == 0
        assert await client.commit(Change(look, "look")) == b"3"


async def test_a_look_leaves_no_trace(tmp_path: Path) -> None:
    async with local(tmp_path, is_look=True) as client:
        assert await client.list("") == []
    assert os.listdir(tmp_path) == []


async def test_a_cancelled_change_leaves_the_lock_free(tmp_path: Path) -> None:
    async with local(tmp_path) as first, local(tmp_path) as second:
        with anyio.move_on_after(0):
            await first.commit(COUNT)
        assert await second.commit(COUNT) in (1, 2)


def test_it_needs_a_clone() -> None:
    with pytest.raises(ForgeError, match="needs a git repository"):
        load("local")(Context(instance="client-0"))
