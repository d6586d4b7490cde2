"""`forge doctor` and the tree that `forge init` makes, both asked of real git."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Clone, World, bytes_below, put_on_state, refusal

from forge_collab.files.ignore import PROBES

CHECKS = ["git", "remote", "state branch", "ignore rules", "daemon"]


def doctor(clone: Clone, code: int = 0, **environ: str) -> dict[str, dict[str, Any]]:
    """The checks by name."""
    ran = clone.forge("doctor", "--json", **environ)
    assert ran.code == code, ran
    checks = ran.data["checks"]
    assert all(c["remedy"] for c in checks if c["status"] != "pass"), checks
    return {check["name"]: check for check in checks}


def states(checks: dict[str, dict[str, Any]]) -> list[str]:
    return [check["status"] for check in checks.values()]


@pytest.fixture
def clone(world: World) -> Clone:
    return world.clone("ada")


def test_five_checks_before_and_in_a_session(world: World, clone: Clone) -> None:
    checks = doctor(clone)
    assert list(checks) == CHECKS
    assert checks["state branch"]["message"] == "there is no session on this remote yet"
    refs = world.on_origin("for-each-ref")
    assert clone.forge("doctor").code == 0
    assert world.on_origin("for-each-ref") == refs, "it asks, it doesn't push"
    assert clone.forge("init").code == 0
    clone.start()
    checks = doctor(clone)
    assert states(checks) == ["pass"] * 5
    clone.kill_daemon()
    assert doctor(clone)["daemon"]["status"] == "warn"
    assert clone.daemon_pid() is None, "doctor starts no daemon"
    text = clone.forge("doctor").out
    assert "forge daemon start" in text


def test_a_remote_out_of_reach(world: World, clone: Clone) -> None:
    clone.start()
    world.origin.rename(world.root / "away.git")
    checks = doctor(clone, code=1)
    assert checks["remote"]["status"] == "fail"
    assert "can't be reached" in checks["remote"]["message"]
    told = clone.forge("doctor")
    assert told.code == 1
    assert "fail  remote" in told.out
    assert "\n      try: " in told.out


def test_a_remote_without_branches_and_no_remote(world: World, clone: Clone) -> None:
    world.run("git", "init", "-q", "--bare", str(world.root / "empty.git"))
    clone.git("remote", "set-url", "origin", str(world.root / "empty.git"))
    assert "git push" in doctor(clone, code=1)["remote"]["remedy"]
    clone.git("remote", "remove", "origin")
    assert doctor(clone)["remote"]["message"].endswith("one works alone here")


def test_an_old_git_is_the_first_check_to_fail(world: World, clone: Clone) -> None:
    fake = world.root / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "git version 2.30.0"\n')
    fake.chmod(0o755)
    checks = doctor(clone, code=1, PATH=f"{fake.parent}:{clone.environ['PATH']}")
    assert checks["git"]["status"] == "fail"
    assert "2.38" in checks["git"]["message"]


BROKEN = {
    "conflict markers": (b'{\n<<<<<<< HEAD\n"fence": 1}\n', 2),
    "cut short": (b'{"v": 1, "fence": 3, "non', 1),
    "empty": (b"", 1),
    "no UTF-8": (b'{"v": 1,\n"nonce": "\xff"}', 2),
    "another shape": (b"[]\n", 1),
    "a field of a wrong kind": (b'{"v": 1, "fence": 0, "nonce": "x"}\n', 1),
}


def test_a_corrupt_record_blocks_its_own_task_alone(world: World, clone: Clone) -> None:
    clone.start()
    clone.collaborate("claim", "T002")
    clone.collaborate("claim", "T001")
    clone.collaborate("release", "T001")
    path = "leases/claim%3AT001.json"
    for data, line in BROKEN.values():
        put_on_state(world, {path: data})
        says = (f"{path}:{line}", "forge doctor")
        error = refusal(clone, "collaborate", "claim", "T001", code=6, says=says)
        assert error["code"] == "corrupt"
        assert (error["data"]["path"], error["data"]["line"]) == (path, line)
        checks = doctor(clone, code=1)
        assert [name for name, c in checks.items() if c["status"] == "fail"] == ["state branch"]
        assert f"{path}:{line}" in checks["state branch"]["message"]
    status = clone.collaborate("status").data
    assert "T001" not in status["claimable"]
    assert path in " ".join(status["warnings"])
    for verb in (("renew", "T001"), ("release", "T001"), ("takeover", "T001", "--reason", "x")):
        assert clone.collaborate(*verb).code == 6, verb
    assert clone.collaborate("claim", "--next").data["task"] == "T003"
    assert clone.collaborate("renew", "T002").code == 0
    assert clone.collaborate("release", "T002").code == 0
    assert clone.collaborate("log").code == 0
    kept = world.on_origin("cat-file", "-p", f"forge/collab-state:{path}")
    assert kept == BROKEN["a field of a wrong kind"][0].decode().strip(), "nobody wrote over it"
    assert clone.collaborate("leave").code == 0


def test_a_record_of_a_newer_forge_is_kept_and_blocks_alone(world: World, clone: Clone) -> None:
    clone.start()
    newer = b'{"v": 99, "rev": 1, "fence": 4, "nonce": "x", "new_field": {"a": 1}}\n'
    put_on_state(world, {"leases/claim%3AT001.json": newer})
    says = ("newer forge", "upgrade forge")
    assert refusal(clone, "collaborate", "claim", "T001", code=7, says=says)["code"] == "blocked"
    assert clone.collaborate("claim", "T002").code == 0
    assert world.record("leases/claim%3AT001.json") == json.loads(newer)


def test_other_records_that_are_corrupt_are_named_too(world: World, clone: Clone) -> None:
    clone.start()
    put_on_state(
        world,
        {
            "tasks/T002.json": b"{",
            f"participants/{'a' * 16}.json": b"nonsense",
            f"audit/{'a' * 16}/1.jsonl": b'{"seq": 1}\nnonsense\n',
            "leases/odd name.json": b"{}",
        },
    )
    checks = doctor(clone, code=1)
    assert "tasks/T002.json:1" in checks["state branch"]["message"]
    assert f"participants/{'a' * 16}.json:1" in checks["state branch"]["message"]
    assert clone.collaborate("claim", "T002").code == 6
    assert clone.collaborate("claim", "T001").code == 0
    assert clone.collaborate("status").code == 0
    log = clone.collaborate("log")
    assert log.code == 0, log


# init

USERS = {
    "nothing": None,
    "the folder ignored": ".forge/\n",
    "ignored from the root, no newline at the end": "node_modules\n/.forge",
    "everything hidden ignored": ".*\n",
    "Windows line ends": "build\r\n.forge/\r\n",
}


@pytest.mark.parametrize("users", USERS)
def test_init_is_idempotent_and_git_agrees(clone: Clone, users: str) -> None:
    text = USERS[users]
    if text is not None:
        (clone.path / ".gitignore").write_bytes(text.encode())
    first = clone.forge("init", "--json").data["made"]
    assert ".forge/config/forge.toml" in first
    for path, is_ignored in PROBES:
        told = clone.git("check-ignore", "--quiet", "--no-index", path, check=False)
        assert (told.code == 0) == is_ignored, (path, told)
    before = bytes_below(clone.path)
    assert clone.forge("init", "--json").data["made"] == []
    assert clone.forge("init").code == 0
    assert bytes_below(clone.path) == before
    if text is not None:
        assert (clone.path / ".gitignore").read_bytes().startswith(text.encode())
    assert doctor(clone)["ignore rules"]["status"] == "pass"


def test_init_wins_over_a_global_ignore_file(world: World, clone: Clone) -> None:
    ignore = world.root / "global-ignore"
    ignore.write_text(".forge/\n")
    world.run("git", "config", "--global", "core.excludesFile", str(ignore))
    assert doctor(clone)["ignore rules"]["status"] == "warn"
    assert clone.forge("init").code == 0
    assert doctor(clone)["ignore rules"]["status"] == "pass"
