"""What the next daemon of a clone finds of the last one's claims and leases."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from forge_collab.core import keys
from forge_collab.core.errors import EnvironmentError_
from forge_collab.files.journal import Granted, Journal, Unsettled, load_journal

ADA, BEN = "a" * 16, "b" * 16


def granted(task: str = "T001", *, deadline: float = 90.0, worker: str = "w1") -> Granted:
    return Granted(
        key=keys.claim(task),
        fence=3,
        nonce=f"nonce-{task}",
        worker=worker,
        ttl_seconds=120.0,
        deadline=deadline,
        boot="boot-1",
        since="2030-01-01T00:00:00Z",
    )


def claim(nonce: str, task: str | None = "T001") -> Unsettled:
    return Unsettled(nonce, keys.claim(task) if task else None, "w1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def journal(path: Path) -> Journal:
    return load_journal(path, ADA)


def reloaded(journal: Journal) -> Journal:
    """What the next daemon of the same instance finds."""
    return load_journal(journal.path, journal.instance)


def test_where_none_was_left_the_journal_is_empty_and_nothing_is_written(path: Path) -> None:
    journal = load_journal(path, ADA)
    assert (journal.unsettled, journal.granted) == ({}, {})
    assert os.listdir(path.parent) == []


def test_a_claim_that_was_sent_survives_a_reload(journal: Journal) -> None:
    journal.sent(claim("n1"))
    journal.sent(claim("n2", None))
    assert reloaded(journal).unsettled == {"n1": claim("n1"), "n2": claim("n2", None)}


def test_a_claim_that_was_granted_is_settled_and_its_lease_survives_a_reload(
    journal: Journal,
) -> None:
    journal.sent(claim("n1"))
    journal.settled("n1", granted())
    found = reloaded(journal)
    assert found.unsettled == {}
    assert found.granted == {keys.claim("T001"): granted()}


def test_a_claim_that_came_to_nothing_is_settled_and_leaves_no_lease(journal: Journal) -> None:
    journal.sent(claim("n1"))
    journal.sent(claim("n2"))
    journal.settled("n1")
    found = reloaded(journal)
    assert found.unsettled == {"n2": claim("n2")}
    assert found.granted == {}


def test_settling_a_claim_that_is_not_known_leaves_the_others(journal: Journal) -> None:
    journal.sent(claim("n1"))
    journal.settled("n9")
    assert reloaded(journal).unsettled == {"n1": claim("n1")}


def test_a_renewal_replaces_all_leases_with_those_that_are_held_now(journal: Journal) -> None:
    for task in ("T001", "T002"):
        journal.settled("n", granted(task))
    later = granted("T002", deadline=120.0)
    journal.renewed({later.key: later})
    assert reloaded(journal).granted == {later.key: later}


def test_a_lease_that_ended_is_gone_and_the_others_stay(journal: Journal) -> None:
    for task in ("T001", "T002"):
        journal.settled("n", granted(task))
    journal.ended(keys.claim("T001"))
    assert reloaded(journal).granted == {keys.claim("T002"): granted("T002")}


def test_ending_a_lease_that_is_not_held_writes_nothing(journal: Journal) -> None:
    journal.ended(keys.claim("T001"))
    assert not journal.path.exists()


def test_numbers_and_text_come_back_as_they_were(journal: Journal) -> None:
    odd = granted("Tä-1", deadline=1234567.890123, worker="ada@host:7/é")
    journal.settled("n", odd)
    assert reloaded(journal).granted == {odd.key: odd}


def test_nothing_but_the_journal_lies_in_the_folder_after_many_changes(journal: Journal) -> None:
    for number in range(5):
        journal.sent(claim(f"n{number}"))
        journal.settled(f"n{number}", granted(f"T{number}"))
        journal.ended(keys.claim(f"T{number}"))
    assert os.listdir(journal.path.parent) == ["journal"]


# Not ours, or not readable


def test_what_another_instance_left_is_not_ours(journal: Journal) -> None:
    journal.sent(claim("n1"))
    journal.settled("n2", granted())
    other = load_journal(journal.path, BEN)
    assert (other.instance, other.unsettled, other.granted) == (BEN, {}, {})


def test_what_another_instance_left_stays_until_this_one_writes(journal: Journal) -> None:
    journal.sent(claim("n1"))
    other = load_journal(journal.path, BEN)
    assert reloaded(journal).unsettled == {"n1": claim("n1")}
    other.sent(claim("n2"))
    assert reloaded(other).unsettled == {"n2": claim("n2")}
    assert reloaded(journal).unsettled == {}


@pytest.mark.parametrize(
    "torn",
    [
        b"",
        b"\0" * 64,
        b'{"v": 1, "inst',
        b"\xff\xfe",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'{"instance": "aaaaaaaaaaaaaaaa"}',
        b'{"instance": "aaaaaaaaaaaaaaaa", "unsettled": [1], "granted": []}',
        b'{"instance": "aaaaaaaaaaaaaaaa", "unsettled": 1, "granted": []}',
    ],
)
def test_one_that_can_not_be_read_is_kept_and_an_empty_one_begins(path: Path, torn: bytes) -> None:
    path.write_bytes(torn)
    journal = load_journal(path, ADA)
    assert (journal.unsettled, journal.granted) == ({}, {})
    assert path.with_name("journal.bad").read_bytes() == torn
    assert not path.exists()
    journal.sent(claim("n1"))
    assert reloaded(journal).unsettled == {"n1": claim("n1")}


def test_one_that_can_be_read_in_part_begins_empty_too(journal: Journal) -> None:
    journal.sent(claim("n1"))
    journal.settled("n2", granted())
    data: dict[str, Any] = json.loads(journal.path.read_bytes())
    del data["granted"][0]["nonce"]
    journal.path.write_text(json.dumps(data))
    found = reloaded(journal)
    assert (found.unsettled, found.granted) == ({}, {})
    assert journal.path.with_name("journal.bad").exists()


# A disk that doesn't do as it is told


def test_a_folder_that_is_not_there_is_explained(tmp_path: Path) -> None:
    journal = load_journal(tmp_path / "none" / "journal", ADA)
    with pytest.raises(EnvironmentError_) as caught:
        journal.sent(claim("n1"))
    assert caught.value.data == {"path": str(journal.path), "errno": errno.ENOENT}


def test_a_disk_that_can_not_be_written_is_explained_and_the_old_journal_stays(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    journal.sent(claim("n1"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(EnvironmentError_, match="No space left") as caught:
            journal.settled("n1", granted())
    assert (caught.value.exit_code, bool(caught.value.hint)) == (9, True)
    found = reloaded(journal)
    assert (found.unsettled, found.granted) == ({"n1": claim("n1")}, {})


def test_a_journal_that_is_no_file_is_explained(path: Path) -> None:
    path.mkdir()
    with pytest.raises(EnvironmentError_):
        load_journal(path, ADA)
