"""The two markers of a clone: in which order they come and go, and whose they are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge_collab.core.errors import CorruptError, EnvironmentError_
from forge_collab.core.lifecycle import Class, classify
from forge_collab.files.markers import Identity, Markers, Place

ADA, BEN = "a" * 16, "b" * 16


@pytest.fixture
def markers(tmp_path: Path) -> Markers:
    (tmp_path / "clone" / ".git").mkdir(parents=True)
    return Markers(tmp_path / "clone" / ".git")


@pytest.fixture
def root(markers: Markers) -> Path:
    return markers.common_dir.parent


@pytest.fixture
def identity(markers: Markers, root: Path) -> Identity:
    return Identity(
        handle="ada",
        instance=ADA,
        session="s-1",
        started="2030-01-01T00:00:00Z",
        place=Place.of(markers.common_dir),
        repo="r-1",
        target="main",
        roots=(str(root),),
    )


def start(markers: Markers, identity: Identity) -> None:
    markers.write(identity)
    markers.enable(identity)


def leave(markers: Markers, identity: Identity) -> None:
    markers.disable(identity)
    markers.forget(identity)


@contextmanager
def stopped_after(steps: int) -> Iterator[list[Path]]:
    """Lets so many files appear or vanish, in order; the next one fails."""
    done: list[Path] = []
    really_replace, really_unlink = os.replace, os.unlink

    def step(path: Any, act: Callable[[], None]) -> None:
        if len(done) == steps:
            raise OSError(5, "stopped here")
        act()
        done.append(Path(path))

    def replace_file(old: Any, new: Any, **more: Any) -> None:
        step(new, lambda: really_replace(old, new, **more))

    def unlink(path: Any, **more: Any) -> None:
        if os.fspath(path).endswith(".tmp"):
            really_unlink(path, **more)
        else:
            step(path, lambda: really_unlink(path, **more))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace_file)
        patch.setattr(os, "unlink", unlink)
        yield done


def class_of(markers: Markers) -> Class:
    return classify(
        has_participant=markers.participant.exists(),
        is_readable=markers.read() is not None,
        is_enabled=markers.is_enabled(),
        own_repo=None,
        remote_repo=None,
    )


# What is in them


def test_a_clone_that_never_started_has_no_identity_and_is_not_enabled(markers: Markers) -> None:
    assert markers.read() is None
    assert not markers.is_enabled()


def test_what_was_written_is_read_back_the_same(markers: Markers, identity: Identity) -> None:
    markers.write(identity)
    assert markers.read() == identity
    assert identity.short == {"handle": "ada", "instance": ADA}


def test_only_the_owner_can_read_the_identity(markers: Markers, identity: Identity) -> None:
    markers.write(identity)
    assert markers.participant.stat().st_mode & 0o777 == 0o600


def test_fields_of_a_newer_forge_are_kept(markers: Markers, identity: Identity) -> None:
    markers.write(identity)
    data = json.loads(markers.participant.read_bytes()) | {"mood": ["calm", None]}
    markers.participant.write_text(json.dumps(data))
    found = markers.read()
    assert found is not None
    markers.write(replace(found, handle="lovelace"))
    again = json.loads(markers.participant.read_bytes())
    assert again == data | {"handle": "lovelace"}


def test_fields_that_an_older_forge_did_not_write_have_their_defaults(
    markers: Markers, identity: Identity
) -> None:
    markers.write(identity)
    data = json.loads(markers.participant.read_bytes())
    for name in ("repo", "target", "transport", "roots", "migrated_from"):
        del data[name]
    markers.participant.write_text(json.dumps(data))
    found = markers.read()
    assert found is not None
    assert (found.repo, found.target, found.transport, found.roots) == (None, None, "auto", ())


@pytest.mark.parametrize("part", [0.0, 0.2, 0.5, 0.9])
def test_a_torn_file_is_corrupt_and_says_which(
    markers: Markers, identity: Identity, part: float
) -> None:
    markers.write(identity)
    data = markers.participant.read_bytes()
    markers.participant.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(CorruptError, match=r"participant\.json can't be read") as caught:
        markers.read()
    assert caught.value.data["path"] == str(markers.participant)
    assert caught.value.data["line"] >= 1
    assert caught.value.hint


def test_the_line_at_which_a_file_breaks_off_is_named(markers: Markers) -> None:
    markers.folder.mkdir()
    markers.participant.write_bytes(b'{\n "handle": "ada",\n<<<<<<< HEAD\n')
    with pytest.raises(CorruptError) as caught:
        markers.read()
    assert caught.value.data["line"] == 3


@pytest.mark.parametrize(
    "change",
    [
        {"handle": "no spaces"},
        {"handle": 7},
        {"instance": "short"},
        {"instance": None},
        {"place": None},
        {"place": {}},
        {"roots": 7},
    ],
)
def test_a_field_that_can_not_be_is_corrupt(
    markers: Markers, identity: Identity, change: dict[str, Any]
) -> None:
    markers.write(identity)
    data = json.loads(markers.participant.read_bytes()) | change
    markers.participant.write_text(json.dumps(data))
    with pytest.raises(CorruptError):
        markers.read()


@pytest.mark.parametrize("missing", ["handle", "instance", "session", "started", "place"])
def test_a_field_that_is_missing_is_corrupt(
    markers: Markers, identity: Identity, missing: str
) -> None:
    markers.write(identity)
    data = json.loads(markers.participant.read_bytes())
    del data[missing]
    markers.participant.write_text(json.dumps(data))
    with pytest.raises(CorruptError):
        markers.read()


@pytest.mark.parametrize("data", [b"[]", b"null", b"7", b'"ada"', b"{}", b"\xff\xfe{}"])
def test_what_is_no_identity_at_all_is_corrupt(markers: Markers, data: bytes) -> None:
    markers.folder.mkdir()
    markers.participant.write_bytes(data)
    with pytest.raises(CorruptError):
        markers.read()


# The order


def test_start_writes_participant_first_and_enabled_last_each_before_its_copy(
    markers: Markers, identity: Identity, root: Path
) -> None:
    copies = root / ".forge" / "collab"
    with stopped_after(99) as steps:
        start(markers, identity)
    assert steps == [
        markers.participant,
        copies / "participant.json",
        markers.enabled,
        copies / ".enabled",
    ]


def test_leave_removes_enabled_first_and_participant_last_each_after_its_copy(
    markers: Markers, identity: Identity, root: Path
) -> None:
    copies = root / ".forge" / "collab"
    start(markers, identity)
    with stopped_after(99) as steps:
        leave(markers, identity)
    assert steps == [
        copies / ".enabled",
        markers.enabled,
        copies / "participant.json",
        markers.participant,
    ]
    assert markers.read() is None
    assert os.listdir(copies) == []


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (0, Class.INACTIVE),
        (1, Class.STALE_PARTICIPANT),
        (2, Class.STALE_PARTICIPANT),
        (3, Class.HEALTHY),
        (4, Class.HEALTHY),
    ],
)
def test_a_start_that_is_cut_short_after_any_step_leaves_a_class_with_a_remedy(
    markers: Markers, identity: Identity, steps: int, found: Class
) -> None:
    with stopped_after(steps) as done:
        if steps == 4:
            start(markers, identity)
        else:
            with pytest.raises(EnvironmentError_, match="stopped here"):
                start(markers, identity)
    assert len(done) == steps
    assert class_of(markers) is found
    start(markers, identity)
    assert class_of(markers) is Class.HEALTHY


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        (0, Class.HEALTHY),
        (1, Class.HEALTHY),
        (2, Class.STALE_PARTICIPANT),
        (3, Class.STALE_PARTICIPANT),
        (4, Class.INACTIVE),
    ],
)
def test_a_leave_that_is_cut_short_after_any_step_leaves_a_class_with_a_remedy(
    markers: Markers, identity: Identity, steps: int, found: Class
) -> None:
    start(markers, identity)
    with stopped_after(steps) as done:
        if steps == 4:
            leave(markers, identity)
        else:
            with pytest.raises(EnvironmentError_, match="stopped here"):
                leave(markers, identity)
    assert len(done) == steps
    assert class_of(markers) is found
    leave(markers, identity)
    assert class_of(markers) is Class.INACTIVE


def test_leaving_twice_or_without_an_identity_is_nothing(
    markers: Markers, identity: Identity
) -> None:
    start(markers, identity)
    for who in (identity, identity, None):
        leave(markers, who)
    assert os.listdir(markers.folder) == []


def test_a_broken_identity_can_be_kept_beside_when_it_is_forgotten(markers: Markers) -> None:
    markers.folder.mkdir()
    markers.participant.write_bytes(b"broken")
    markers.forget(None, keep_bak=True)
    assert markers.read() is None
    assert markers.participant.with_name("participant.json.bak").read_bytes() == b"broken"


# The copies


def test_a_copy_tells_other_tools_who_it_is_and_nothing_more(
    markers: Markers, identity: Identity, root: Path
) -> None:
    start(markers, identity)
    assert json.loads((root / ".forge" / "collab" / "participant.json").read_bytes()) == {
        "handle": "ada",
        "session_id": "s-1",
        "started": "2030-01-01T00:00:00Z",
    }


def test_every_work_tree_gets_copies_and_one_that_is_gone_is_passed_over(
    markers: Markers, identity: Identity, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    roots = (*identity.roots, str(tmp_path / "gone"), str(tmp_path / "second"))
    both = replace(identity, roots=roots)
    start(markers, both)
    for root in (identity.roots[0], tmp_path / "second"):
        found = sorted(os.listdir(Path(root, ".forge", "collab")))
        assert found == [".enabled", "participant.json"]
    assert not (tmp_path / "gone").exists()
    leave(markers, both)
    assert os.listdir(tmp_path / "second" / ".forge" / "collab") == []


def test_copies_are_never_read(markers: Markers, identity: Identity, root: Path) -> None:
    start(markers, identity)
    copies = root / ".forge" / "collab"
    (copies / "participant.json").write_bytes(b"broken")
    (copies / ".enabled").unlink()
    assert markers.read() == identity
    assert markers.is_enabled()


@pytest.mark.parametrize("link", [".forge", ".forge/collab"])
def test_a_forge_folder_that_is_a_symbolic_link_is_not_followed(
    markers: Markers, identity: Identity, root: Path, tmp_path: Path, link: str
) -> None:
    theirs = tmp_path / "theirs"
    (theirs / "collab").mkdir(parents=True)
    before = {"participant.json": b"theirs", ".enabled": b"theirs"}
    for folder in (theirs, theirs / "collab"):
        for name, data in before.items():
            (folder / name).write_bytes(data)
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).symlink_to(theirs)
    start(markers, identity)
    leave(markers, identity)
    for folder in (theirs, theirs / "collab"):
        assert {name: (folder / name).read_bytes() for name in before} == before


def test_a_copy_that_is_a_symbolic_link_is_replaced_and_its_target_left_alone(
    markers: Markers, identity: Identity, root: Path, tmp_path: Path
) -> None:
    copies = root / ".forge" / "collab"
    copies.mkdir(parents=True)
    (tmp_path / "theirs").write_bytes(b"theirs")
    for name in ("participant.json", ".enabled"):
        (copies / name).symlink_to(tmp_path / "theirs")
    start(markers, identity)
    assert not any((copies / name).is_symlink() for name in ("participant.json", ".enabled"))
    assert (tmp_path / "theirs").read_bytes() == b"theirs"


# Whose they are


def test_an_identity_is_at_home_in_the_clone_it_was_made_in(
    markers: Markers, identity: Identity, tmp_path: Path
) -> None:
    start(markers, identity)
    assert markers.is_here(identity)
    moved = tmp_path / "moved"
    markers.common_dir.parent.rename(moved)
    found = Markers(moved / ".git").read()
    assert found is not None
    assert Markers(moved / ".git").is_here(found)


def test_an_identity_is_not_at_home_in_a_copy_of_the_folder(
    markers: Markers, identity: Identity, root: Path, tmp_path: Path
) -> None:
    start(markers, identity)
    shutil.copytree(root, tmp_path / "copy")
    copy = Markers(tmp_path / "copy" / ".git")
    found = copy.read()
    assert found == identity
    assert copy.is_enabled()
    assert not copy.is_here(found)


def test_an_identity_is_not_at_home_on_another_machine(
    markers: Markers, identity: Identity
) -> None:
    elsewhere = replace(identity, place=replace(identity.place, machine="another"))
    assert not markers.is_here(elsewhere)


def test_a_renamed_copy_is_at_home_under_its_own_instance_and_else_as_it_was(
    markers: Markers, identity: Identity, root: Path, tmp_path: Path
) -> None:
    known = replace(identity, extra={"mood": "calm"})
    start(markers, known)
    shutil.copytree(root, tmp_path / "copy")
    copy = Markers(tmp_path / "copy" / ".git")
    fresh = copy.rename(known, BEN)
    assert copy.read() == fresh
    assert copy.is_here(fresh)
    assert replace(fresh, instance=ADA, place=known.place) == known
    assert markers.read() == known
