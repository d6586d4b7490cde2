"""The daemon as a process: its folder, its lock and what proves it, its log."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forge_collab.core.errors import EnvironmentError_
from forge_collab.daemon import process
from forge_collab.daemon.process import Lock, Place, log_to, runtime_dir

MIB = 1024 * 1024
HOLDER = """
import pathlib, sys
from forge_collab.daemon.process import Lock
lock = Lock(pathlib.Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    common_dir = tmp_path / "clone" / ".git"
    common_dir.mkdir(parents=True)
    return Place(common_dir)


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that tries to take the lock at `path` and stays; its answer is its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as made:
        try:
            yield made
        finally:
            made.kill()


def answer(made: subprocess.Popen[str]) -> str:
    assert made.stdout is not None
    return made.stdout.readline().strip()


# The folder for sockets


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "run").mkdir()
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run")}


def test_the_folder_for_sockets_is_in_the_runtime_folder_and_ours_alone(
    environ: dict[str, str], tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        folder = runtime_dir(environ)
    finally:
        os.umask(before)
    assert folder == tmp_path / "run" / "forge"
    assert mode(folder) == 0o700
    assert folder.stat().st_uid == os.getuid()
    assert runtime_dir(environ) == folder


@pytest.mark.parametrize("found", [0o777, 0o755, 0o710, 0o701])
def test_a_folder_that_others_could_enter_is_closed_to_them(
    environ: dict[str, str], tmp_path: Path, found: int
) -> None:
    folder = tmp_path / "run" / "forge"
    folder.mkdir()
    folder.chmod(found)
    assert mode(runtime_dir(environ)) == 0o700


def test_a_folder_of_somebody_else_is_refused(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runtime_dir(environ)
    uid = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: uid + 1)
    with pytest.raises(EnvironmentError_, match="belongs to somebody else") as caught:
        runtime_dir(environ)
    assert str(folder) in caught.value.message
    assert caught.value.hint == "set XDG_RUNTIME_DIR to a folder of yours"


def test_a_symbolic_link_in_its_place_is_refused_and_its_target_left_alone(
    environ: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs").chmod(0o755)
    (tmp_path / "run" / "forge").symlink_to(tmp_path / "theirs")
    with pytest.raises(EnvironmentError_):
        runtime_dir(environ)
    assert mode(tmp_path / "theirs") == 0o755


def test_a_file_in_its_place_is_explained(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run" / "forge").write_bytes(b"")
    with pytest.raises(EnvironmentError_, match="can't make"):
        runtime_dir(environ)


@pytest.mark.parametrize("base", [None, "", "not there"])
def test_without_a_runtime_folder_it_is_one_of_the_users_in_tmp(
    tmp_path: Path, base: str | None
) -> None:
    environ = {} if base is None else {"XDG_RUNTIME_DIR": base and str(tmp_path / base)}
    folder = runtime_dir(environ)
    assert folder == Path(f"/tmp/forge-{os.getuid()}")
    assert (mode(folder), folder.stat().st_uid) == (0o700, os.getuid())


# The socket


def test_a_clone_has_the_same_socket_each_time_and_another_clone_another(
    place: Place, environ: dict[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other" / ".git"
    other.mkdir(parents=True)
    socket = place.new_socket(environ)
    assert socket == Place(place.common_dir).new_socket(environ)
    assert socket != Place(other).new_socket(environ)
    assert socket.parent == runtime_dir(environ)


def test_a_clone_made_anew_under_the_same_path_has_another_socket(
    place: Place, environ: dict[str, str], tmp_path: Path
) -> None:
    before = place.new_socket(environ)
    place.common_dir.rename(tmp_path / "old")
    place.common_dir.mkdir()
    assert place.new_socket(environ) != before


def test_a_clone_and_its_copy_have_two_sockets_and_two_identities(
    place: Place, environ: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(place.common_dir, tmp_path / "copy")
    copy = Place(tmp_path / "copy")
    assert copy.new_socket(environ) != place.new_socket(environ)
    assert copy.identity() != place.identity() == Place(place.common_dir).identity()


def test_a_path_that_is_no_text_has_a_socket_too(tmp_path: Path, environ: dict[str, str]) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9")
    (odd / "forge").mkdir(parents=True)
    place = Place(odd)
    socket = place.new_socket(environ)
    assert socket == place.new_socket(environ)
    place.point_to(odd / "s.sock")
    assert os.fsdecode(place.pointer.read_bytes()) == f"{odd / 's.sock'}\n"


def test_tidying_removes_pid_pointer_and_socket_and_leaves_the_rest(
    place: Place, tmp_path: Path
) -> None:
    place.folder.mkdir()
    socket = tmp_path / "s.sock"
    socket.write_bytes(b"")
    place.log_path.write_bytes(b"")
    place.point_to(socket)
    place.note_pid()
    assert place.pid() == os.getpid()
    for _ in range(2):
        place.tidy(socket)
        assert os.listdir(place.folder) == ["daemon.log"]
        assert not socket.exists()
    assert place.pid() is None


@pytest.mark.parametrize("data", [b"", b"-1\n", b"abc", b"\xff"])
def test_a_pid_file_that_holds_no_pid_is_none(place: Place, data: bytes) -> None:
    place.folder.mkdir()
    place.pid_path.write_bytes(data)
    assert place.pid() is None


# The lock


def test_the_second_taker_is_refused_until_the_first_gives_it_back(place: Place) -> None:
    first, second = Lock(place.lock_path), Lock(place.lock_path)
    assert first.take()
    assert not second.take()
    assert (first.is_mine(), second.is_mine()) == (True, False)
    first.drop()
    assert not first.is_mine()
    assert second.take()
    assert second.is_mine()
    second.drop()


def test_another_process_is_refused_while_this_one_has_it(place: Place) -> None:
    lock = Lock(place.lock_path)
    assert lock.take()
    with another_process(place.lock_path) as other:
        assert answer(other) == "False"
    assert lock.is_mine()
    lock.drop()


def test_a_killed_process_leaves_the_lock_to_the_next_however_young_its_file_is(
    place: Place,
) -> None:
    lock = Lock(place.lock_path)
    with another_process(place.lock_path) as other:
        assert answer(other) == "True"
        assert not lock.take()
        other.kill()
        other.wait()
        assert lock.take()
    lock.drop()


def test_a_lock_file_that_was_replaced_or_removed_is_not_mine(place: Place) -> None:
    lock = Lock(place.lock_path)
    assert lock.take()
    kept = place.lock_path.rename(place.folder / "kept")
    assert not lock.is_mine()
    place.lock_path.write_bytes(b"")
    assert not lock.is_mine()
    kept.replace(place.lock_path)
    assert lock.is_mine()
    lock.drop()


def test_a_lock_that_was_never_taken_is_not_mine(place: Place) -> None:
    assert not Lock(place.lock_path).is_mine()


def test_a_lock_that_can_not_be_made_is_explained(place: Place) -> None:
    place.folder.write_bytes(b"")
    with pytest.raises(EnvironmentError_, match="can't lock"):
        Lock(place.lock_path).take()


linux = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux's /proc")


@linux
def test_a_clone_is_locked_by_the_process_that_has_its_lock_and_by_no_other(place: Place) -> None:
    lock = Lock(place.lock_path)
    assert not place.is_locked_by(os.getpid())
    with another_process(place.lock_path) as other:
        assert answer(other) == "True"
        assert place.is_locked_by(other.pid)
        assert not place.is_locked_by(os.getpid())
        assert not place.is_locked_by(1)
        other.kill()
        other.wait()
        assert not place.is_locked_by(other.pid)
    assert lock.take()
    assert place.is_locked_by(os.getpid())
    lock.drop()
    assert not place.is_locked_by(os.getpid())


@linux
def test_who_was_refused_the_lock_is_not_taken_for_the_one_who_has_it(place: Place) -> None:
    lock = Lock(place.lock_path)
    assert lock.take()
    with another_process(place.lock_path) as other:
        assert answer(other) == "False"
        assert not place.is_locked_by(other.pid)
    lock.drop()


@linux
def test_a_clone_is_locked_however_many_files_its_daemon_opens_and_closes(place: Place) -> None:
    lock, is_over = Lock(place.lock_path), threading.Event()
    assert lock.take()

    def churn() -> None:
        while not is_over.is_set():
            for descriptor in [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]:
                os.close(descriptor)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        missed = sum(not place.is_locked_by(os.getpid()) for _ in range(300))
    finally:
        is_over.set()
        thread.join()
        lock.drop()
    assert missed == 0


# The log


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("forge")
    before = (found.level, found.propagate, list(found.handlers))
    yield found
    for handler in found.handlers[:]:
        if handler not in before[2]:
            found.removeHandler(handler)
            handler.close()
    found.level, found.propagate = before[:2]


def test_the_log_has_time_level_and_message(logger: logging.Logger, tmp_path: Path) -> None:
    log_to(tmp_path / "forge" / "daemon.log", also_stderr=False)
    logger.info("hello %s", "ada")
    logger.debug("too much")
    (line,) = (tmp_path / "forge" / "daemon.log").read_text().splitlines()
    assert line.endswith(" INFO hello ada")
    assert line[:2] == "20"


def test_the_log_goes_to_the_terminal_too_only_when_asked(
    logger: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to(tmp_path / "a.log", also_stderr=False)
    logger.warning("quiet")
    assert capsys.readouterr().err == ""
    log_to(tmp_path / "b.log", also_stderr=True)
    logger.warning("loud")
    assert "WARNING loud" in capsys.readouterr().err


def test_the_log_is_rotated_at_one_mebibyte_and_three_old_ones_are_kept(
    logger: logging.Logger, tmp_path: Path
) -> None:
    path = tmp_path / "daemon.log"
    log_to(path, also_stderr=False)
    for number in range(12):
        logger.info("%d %s", number, "x" * (MIB // 2 - 100))
    files = [path, *(tmp_path / f"daemon.log.{n}" for n in (1, 2, 3))]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    for newest, file in zip((11, 9, 7, 5), files, strict=True):
        assert file.stat().st_size <= MIB
        texts = [line.split(" INFO ")[1].split()[0] for line in file.read_text().splitlines()]
        assert texts == [str(newest - 1), str(newest)]


def test_a_log_that_can_not_be_written_is_explained(logger: logging.Logger, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentError_, match="can't write"):
        log_to(tmp_path, also_stderr=False)


# What a daemon that ended at once left


def test_the_last_line_of_a_daemon_that_ended_at_once_is_its_error(place: Place) -> None:
    place.folder.mkdir()
    (place.folder / "daemon.err").write_bytes(b'a warning\n{"code": "environment"}\n')
    assert process.failure(place.common_dir) == {"code": "environment"}


@pytest.mark.parametrize("data", [None, b"", b"Killed\n", b"[1]\n", b"\xff\xfe\n"])
def test_a_daemon_that_left_no_error_has_none(place: Place, data: bytes | None) -> None:
    place.folder.mkdir()
    if data is not None:
        (place.folder / "daemon.err").write_bytes(data)
    assert process.failure(place.common_dir) is None
