"""What anybody with push rights can put on the state branch: one key is blocked, nobody falls."""

from __future__ import annotations

import json
import subprocess

import pytest
from conftest import Clone, World, wait_until

BRANCH = "refs/heads/forge/collab-state"


def put(world: World, mode: str, path: str, data: bytes) -> None:
    """Put an entry of any mode on the state branch with plain git."""

    def git(*args: str, stdin: bytes = b"") -> str:
        command = ["git", "--git-dir", str(world.origin), *args]
        index = {"GIT_INDEX_FILE": str(world.root / "index")}
        done = subprocess.run(
            command, input=stdin, env=world.environ | index, capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    tip = git("rev-parse", BRANCH)
    is_link = mode == "160000"
    oid = tip if is_link else git("hash-object", "-w", "--stdin", stdin=data)
    git("read-tree", tip)
    git("rm", "-q", "-r", "--cached", "--ignore-unmatch", path.removesuffix("/x"))
    git("update-index", "--add", "--cacheinfo", f"{mode},{oid},{path}")
    tree = git("write-tree")
    git("update-ref", BRANCH, git("commit-tree", tree, "-p", tip, "-m", "by hand"), tip)


@pytest.fixture
def two(world: World) -> tuple[Clone, Clone]:
    """Two clones in the session; ada holds T001."""
    ada, ben = world.clone("ada"), world.clone("ben")
    ada.start()
    ben.start()
    assert ada.collaborate("claim", "T001").code == 0
    return ada, ben


LEASE = "leases/claim%3AT001.json"


@pytest.mark.parametrize(
    ("mode", "path"),
    [("120000", LEASE), ("160000", LEASE), ("100644", f"{LEASE}/x")],
    ids=["link", "gitlink", "folder"],
)
def test_what_is_no_file_is_a_record_that_cannot_be_read(
    world: World, two: tuple[Clone, Clone], mode: str, path: str
) -> None:
    """Read as absent it would be granted again, under a fence that fell."""
    _, ben = two
    put(world, mode, path, b"elsewhere")
    ran = ben.collaborate("claim", "T001")
    assert (ran.code, ran.error["code"]) == (6, "corrupt")
    assert ran.error["data"]["path"] == LEASE
    assert ben.collaborate("claim", "T002").code == 0
    doctor = ben.forge("doctor", "--json")
    checks = {c["name"]: c for c in json.loads(doctor.out)["data"]["checks"]}
    assert LEASE in checks["state branch"]["message"]


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("participants/%ED%A0%80.json", b"{}"),
        ("leases/%ED%A0%80.json", b"{}"),
        ("audit/evil/" + "9" * 60 + ".jsonl", b"{}\n"),
        ("audit/evil/1.jsonl", b'{"seq": ' + b"9" * 4300 + b"}\n"),
        ("audit/evil/1.jsonl", b"no line\n" * 200_000),
        ("messages/evil.jsonl", b"[" * 100_000),
        ("leases/claim%3AT003.json", b"[" * 100_000),
    ],
    ids=["surrogate", "surrogate-lease", "number", "seq", "long", "deep", "deep-lease"],
)
def test_hostile_records_stop_nobody(
    world: World, two: tuple[Clone, Clone], path: str, data: bytes
) -> None:
    ada, ben = two
    pids = [clone.daemon_pid() for clone in two]
    put(world, "100644", path, data)
    wait_until(lambda: ben.collaborate("claim", "T002").code == 0, seconds=5)
    assert ada.collaborate("note", "T001", "still here").code == 0
    for clone in two:
        assert clone.collaborate("status").code == 0
        assert clone.collaborate("log").code == 0
    assert [clone.daemon_pid() for clone in two] == pids


def test_a_disk_that_takes_no_journal_costs_no_lease(
    world: World, two: tuple[Clone, Clone]
) -> None:
    ada, ben = two
    assert ada.collaborate("claim", "T002").code == 0
    pid = ada.daemon_pid()
    (ada.forge_dir / "journal.new").mkdir()
    assert ben.collaborate("takeover", "T001", "--reason", "now mine").code == 0
    wait_until(lambda: ada.collaborate("renew", "T001").code == 5)
    assert ada.collaborate("renew", "T002").code == 0
    assert ada.daemon_pid() == pid
    refused = ada.collaborate("claim", "T003")
    assert (refused.code, refused.error["code"]) == (9, "environment")
