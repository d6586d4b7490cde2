from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import pytest
from gitworld import World

from forge_collab.core.errors import EnvironmentError_
from forge_collab.git.runner import clean_environ, run, run_sync

pytestmark = pytest.mark.anyio
MISLEADING = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_QUARANTINE_PATH", "GIT_PREFIX"),
)
LEAVES_A_CHILD = "alias.x=!sh -c 'sleep 60 & echo $! >pid; wait'"


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead but not yet waited for doesn't."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def pid_in(folder: Path) -> int:
    path = folder / "pid"
    while not (path.exists() and path.read_text().strip()):  # noqa: ASYNC110 - another's doing
        await anyio.sleep(0.02)
    return int(path.read_text())


async def gone(pid: int) -> bool:
    for _ in range(50):
        if not is_alive(pid):
            return True
        await anyio.sleep(0.02)
    return False


@pytest.mark.parametrize("name", MISLEADING)
async def test_git_is_told_where_it_is_by_arguments_alone(world: World, name: str) -> None:
    clone = world.clone()
    environ = {**world.environ, name: "/nowhere"}
    assert name not in clean_environ(environ)
    for result in (
        run_sync(["log", "--format=%s"], cwd=clone, environ=environ),
        await run(["log", "--format=%s"], cwd=clone, environ=environ, timeout=10),
    ):
        assert (result.code, result.out) == (0, b"first\n")


def test_git_asks_nothing_and_speaks_english() -> None:
    environ = clean_environ({"LC_ALL": "de_DE.UTF-8", "PATH": "/bin", "GIT_SSH_COMMAND": "ssh -v"})
    assert environ["GIT_TERMINAL_PROMPT"] == "0"
    assert environ["GIT_OPTIONAL_LOCKS"] == "0"
    assert environ["LC_ALL"] == "C"
    assert environ["PATH"] == "/bin"
    assert environ["GIT_SSH_COMMAND"] == "ssh -v"


async def test_what_git_prints_and_its_exit_code_come_back(world: World) -> None:
    result = await run(
        ["hash-object", "--stdin"],
        cwd=world.origin,
        environ=world.environ,
        timeout=10,
        stdin=b"x" * 300_000,
    )
    assert result.is_ok
    assert len(result.out.strip()) == 40
    failed = await run(["no-such"], cwd=world.origin, environ=world.environ, timeout=10)
    assert not failed.is_ok
    assert failed.code == 1
    assert "no-such" in failed.err


async def test_input_that_git_does_not_want_is_no_error(world: World) -> None:
    result = await run(
        ["--version"], cwd=world.place, environ=world.environ, timeout=10, stdin=b"x" * 1_000_000
    )
    assert result.is_ok


async def test_at_its_time_limit_the_whole_process_group_is_killed(world: World) -> None:
    began = time.monotonic()
    result = await run(
        ["-c", LEAVES_A_CHILD, "x"], cwd=world.place, environ=world.environ, timeout=0.6
    )
    assert result.timed_out
    assert not result.is_ok
    assert time.monotonic() - began < 5
    assert await gone(await pid_in(world.place))


async def test_when_cancelled_the_whole_process_group_is_killed(world: World) -> None:
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            await run(
                ["-c", LEAVES_A_CHILD, "x"], cwd=world.place, environ=world.environ, timeout=30
            )

        tasks.start_soon(call)
        pid = await pid_in(world.place)
        assert is_alive(pid)
        tasks.cancel_scope.cancel()
    assert await gone(pid)


async def test_what_git_leaves_behind_on_purpose_is_not_waited_for(world: World) -> None:
    """A shared ssh connection outlives the git that began it, with git's pipes in its hands."""
    began = time.monotonic()
    result = await run(
        ["-c", "alias.x=!sh -c 'sleep 20 & echo $! >pid'", "x"],
        cwd=world.place,
        environ=world.environ,
        timeout=10,
    )
    assert result.is_ok
    assert time.monotonic() - began < 5
    pid = await pid_in(world.place)
    assert is_alive(pid)
    os.kill(pid, 9)


def test_a_command_that_hangs_has_a_limit_too_where_nothing_waits(world: World) -> None:
    result = run_sync(
        ["-c", "alias.x=!exec sleep 20", "x"], cwd=world.place, environ=world.environ, timeout=0.3
    )
    assert result.timed_out
    assert not result.is_ok


@pytest.mark.parametrize("secret", ["hunter2", "ghp_0123456789", "p@ss:w0rd", "p%40ss"])
async def test_secrets_of_urls_are_not_in_its_words(world: World, secret: str) -> None:
    words = f"alias.x=!echo fatal: cannot open https://me:{secret}@example.org/x.git >&2"
    for result in (
        run_sync(["-c", words, "x"], cwd=world.place, environ=world.environ),
        await run(["-c", words, "x"], cwd=world.place, environ=world.environ, timeout=10),
    ):
        assert result.err == "fatal: cannot open https://example.org/x.git"


async def test_a_machine_without_git_is_told_so(world: World) -> None:
    environ = {**world.environ, "PATH": str(world.place)}
    with pytest.raises(EnvironmentError_, match="git was not found"):
        run_sync(["--version"], cwd=world.place, environ=environ)
    with pytest.raises(EnvironmentError_, match="git was not found"):
        await run(["--version"], cwd=world.place, environ=environ, timeout=10)


async def test_a_folder_that_is_gone_is_not_taken_for_missing_git(world: World) -> None:
    gone = world.place / "gone"
    with pytest.raises(EnvironmentError_, match="no such folder"):
        run_sync(["--version"], cwd=gone, environ=world.environ)
    with pytest.raises(EnvironmentError_, match="no such folder"):
        await run(["--version"], cwd=gone, environ=world.environ, timeout=10)
