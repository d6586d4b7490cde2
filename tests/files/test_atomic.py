"""What stands on the disk after a write that worked, one that failed, and one that was killed."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from forge_collab.core.errors import EnvironmentError_
from forge_collab.files.atomic import append_line, read_or_none, remove, write_atomic


def failing(number: int) -> Any:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A real short write: the kernel refuses every byte past `size` in this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_written_file_holds_the_bytes_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"one\r\n\0")
    assert (tmp_path / "a").read_bytes() == b"one\r\n\0"
    assert os.listdir(tmp_path) == ["a"]


def test_a_second_write_replaces_the_first_with_the_mode_asked_for(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"one")
    write_atomic(tmp_path / "a", b"two", mode=0o600)
    assert (tmp_path / "a").read_bytes() == b"two"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_the_umask_narrows_the_mode(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomic(tmp_path / "a", b"one")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_symbolic_link_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "a").symlink_to("theirs")
    write_atomic(tmp_path / "a", b"ours")
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


def test_a_name_as_long_as_the_file_system_allows_can_be_written(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("n" * 255), b"one")
    assert (tmp_path / ("n" * 255)).read_bytes() == b"one"


def test_a_write_that_is_cut_short_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path,
) -> None:
    write_atomic(tmp_path / "a", b"old")
    with files_of_at_most(1000), pytest.raises(EnvironmentError_) as caught:
        write_atomic(tmp_path / "a", b"x" * 100_000)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]
    assert caught.value.exit_code == 9
    assert caught.value.data == {"path": str(tmp_path / "a"), "errno": errno.EFBIG}


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES, errno.EIO])
def test_an_error_at_any_step_is_explained_and_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    write_atomic(tmp_path / "a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, failing(number))
        with pytest.raises(EnvironmentError_) as caught:
            write_atomic(tmp_path / "a", b"new")
    assert caught.value.message == f"can't write {tmp_path / 'a'}: {os.strerror(number)}"
    assert caught.value.hint
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_an_interrupt_removes_the_temporary_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "a", b"new")
    assert os.listdir(tmp_path) == []


def test_a_process_killed_before_the_rename_leaves_the_old_content(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", b"old")
    program = (
        "import os, pathlib, signal\n"
        "from forge_collab.files.atomic import write_atomic\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"write_atomic(pathlib.Path({str(tmp_path / 'a')!r}), b'new')\n"
    )
    folder = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", program], cwd=folder, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert (tmp_path / "a").read_bytes() == b"old"
    assert len(list(tmp_path.glob(".forge-*.tmp"))) == 1


def test_a_file_system_without_folder_sync_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def only_files(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    write_atomic(tmp_path / "a", b"one")
    assert (tmp_path / "a").read_bytes() == b"one"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: write_atomic(folder / "new", b"new"),
        lambda folder: remove(folder / "old"),
        lambda folder: append_line(folder / "log", b"one", sync=True),
    ],
    ids=["write", "remove", "append"],
)
def test_a_folder_that_could_not_be_synced_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    real = os.fsync

    def only_files(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "Input/output error")
        real(descriptor)

    (tmp_path / "old").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", only_files)
    with pytest.raises(EnvironmentError_, match="Input/output error"):
        change(tmp_path)


def test_a_missing_folder_is_an_environment_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentError_, match="No such file or directory") as caught:
        write_atomic(tmp_path / "no" / "a", b"one")
    assert caught.value.hint == "the folder it belongs in is missing: forge init"


def test_reading_gives_the_bytes_and_none_only_for_an_absent_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert read_or_none(tmp_path / "a") == b""
    assert read_or_none(tmp_path / "b") is None
    assert read_or_none(tmp_path / "no" / "b") is None


def test_reading_a_folder_or_below_a_file_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(EnvironmentError_, match=r"can't read .*: Is a directory"):
        read_or_none(tmp_path)
    with pytest.raises(EnvironmentError_, match=r"can't read .*: Not a directory"):
        read_or_none(tmp_path / "a" / "b")


def test_removing_twice_is_removing_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    remove(tmp_path / "a")
    remove(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_removing_with_bak_keeps_the_content_even_the_second_time(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"one")
    remove(tmp_path / "a.json", keep_bak=True)
    remove(tmp_path / "a.json", keep_bak=True)
    assert os.listdir(tmp_path) == ["a.json.bak"]
    assert (tmp_path / "a.json.bak").read_bytes() == b"one"


def test_a_folder_is_not_removed(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentError_, match="can't remove"):
        remove(tmp_path)


def test_lines_are_appended_each_with_one_end(tmp_path: Path) -> None:
    append_line(tmp_path / "log", b"one", sync=True)
    append_line(tmp_path / "log", b"two\n", sync=False)
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_two_lines_are_not_appended_as_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one line"):
        append_line(tmp_path / "log", b"one\ntwo", sync=False)
    assert not (tmp_path / "log").exists()


def test_a_torn_last_line_spoils_only_itself(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"a":1}\n{"b"')
    append_line(tmp_path / "log", b'{"c":3}', sync=True)
    assert (tmp_path / "log").read_bytes() == b'{"a":1}\n{"b"\n{"c":3}\n'


def test_a_line_that_is_cut_short_is_taken_back_whole(tmp_path: Path) -> None:
    append_line(tmp_path / "log", b"one", sync=False)
    with files_of_at_most(1000), pytest.raises(EnvironmentError_, match="can't write"):
        append_line(tmp_path / "log", b"x" * 5000, sync=False)
    assert (tmp_path / "log").read_bytes() == b"one\n"


def test_a_line_that_could_not_be_synced_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_line(tmp_path / "log", b"one", sync=True)
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(EnvironmentError_, match="can't write"):
        append_line(tmp_path / "log", b"two", sync=True)
    assert (tmp_path / "log").read_bytes() == b"one\n"
