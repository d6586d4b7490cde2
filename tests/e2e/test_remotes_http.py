"""The whole scenario over smart HTTP: a password from a credential helper, and through a proxy."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Clone, World, refusal, set_hook, wait_until
from e2e.httpproxy import proxying
from e2e.httpremote import Server, serving
from e2e.scenario import check_landed, land, race_and_land, work


@pytest.fixture
def secret() -> str:
    """A password that nothing else on the machine has in it."""
    return f"S3cret-{secrets.token_hex(8)}"


@pytest.fixture
def server(world: World, secret: str) -> Iterator[Server]:
    """A server for the origin; it lets one user in."""
    with serving(world.root, password=secret) as running:
        yield running


def over_http(world: World, name: str, url: str, password: str, **settings: str) -> Clone:
    """A clone whose remote is a URL without a login, and whose own helper knows the password."""
    clone = world.clone(name, **settings)
    helper = world.root / f"helper-{name}"
    helper.write_text(
        f"#!/bin/sh\n[ $1 = get ] && printf 'username=ada\\npassword={password}\\n'\n"
    )
    helper.chmod(0o700)
    clone.git("remote", "set-url", "origin", url)
    clone.git("config", "credential.helper", str(helper))
    return clone


@contextmanager
def unseen(secret: str) -> Iterator[None]:
    """Checks that no process of the machine has the secret in its command line meanwhile."""
    seen: set[str] = set()
    looks = 0
    is_over = threading.Event()

    def watch() -> None:
        nonlocal looks
        while not is_over.wait(0.05):
            looks += 1
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = place.read_text(errors="replace").replace("\0", " ")
                except OSError:
                    continue
                if secret in line:
                    seen.add(line)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert looks > 10
    assert not seen


def check_kept_nowhere(secret: str, *clones: Clone) -> None:
    """No file of a clone has the secret, nor does anything that commands tell afterwards."""
    for clone in clones:
        for path in clone.path.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert secret.encode() not in path.read_bytes(), path
        for words in (["collaborate", "status"], ["doctor"], ["daemon", "logs"]):
            ran = clone.forge(*words)
            assert secret not in ran.out + ran.err, words


def test_over_http_with_a_password_from_a_credential_helper(
    world: World, server: Server, secret: str
) -> None:
    url = server.url("origin.git")
    ada, ben = (over_http(world, name, url, secret) for name in ("ada", "ben"))
    with unseen(secret):
        race_and_land(world, ada, ben)
    check_kept_nowhere(secret, ada)
    state = world.on_origin("log", "-p", "forge/collab-state")
    assert secret not in state
    assert {who for _, path, who in server.asked if path.endswith("/git-receive-pack")} == {"ada"}


def test_a_wrong_password_is_told_with_what_to_try_and_never_shown(
    world: World, server: Server, secret: str
) -> None:
    wrong = f"wr0ng-{secrets.token_hex(8)}"
    clone = over_http(world, "ada", server.url("origin.git"), wrong)
    with unseen(wrong):
        says = ("can't be reached", "Authentication failed", "try: git ls-remote origin")
        error = refusal(clone, "collaborate", "start", code=4, says=says)
    assert error["code"] == "offline"
    assert wrong not in str(error)
    assert not (clone.forge_dir / "participant.json").exists()
    check_kept_nowhere(wrong, clone)


def test_a_password_that_changes_before_the_landing_stops_it_and_nothing_is_lost(
    world: World, server: Server, secret: str
) -> None:
    clone = over_http(world, "ada", server.url("origin.git"), secret)
    clone.start()
    work(clone, "T001", clone.collaborate("claim", "T001").data["lease"]["fence"])
    main = world.on_origin("rev-parse", "main")
    server.let_in("another")
    with unseen(secret):
        error = refusal(clone, "collaborate", "done", "T001", code=4, says=("Authentication",))
    assert secret not in str(error)
    assert world.on_origin("rev-parse", "main") == main
    server.let_in(secret)
    wait_until(lambda: clone.collaborate("status").data["online"])
    check_landed(world, {"T001": land(clone, "T001")})
    check_kept_nowhere(secret, clone)


def test_a_landing_that_the_server_carries_out_after_nobody_waits_is_found_and_not_repeated(
    world: World, server: Server, secret: str
) -> None:
    settings = {"forge__network_timeout_seconds": "3"}
    clone = over_http(world, "ada", server.url("origin.git"), secret, **settings)
    clone.start()
    work(clone, "T001", clone.collaborate("claim", "T001").data["lease"]["fence"])
    go, main = world.root / "go", world.on_origin("rev-parse", "main")
    waits = f"n=0; while [ ! -e {go} ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done"
    set_hook(world, "pre-receive", f"grep -q refs/heads/main || exit 0; {waits}")
    first = clone.collaborate("done", "T001")
    assert first.code == 4, first
    assert world.on_origin("rev-parse", "main") == main
    go.touch()
    wait_until(lambda: world.on_origin("rev-parse", "main") != main)
    again = clone.collaborate("done", "T001")
    assert again.code == 0, again
    check_landed(world, {"T001": again.data["commit"]})
    assert world.on_origin("rev-list", "--count", f"{main}..main") == "1"


def test_through_the_proxy_of_the_users_configuration(
    world: World, server: Server, secret: str
) -> None:
    world.environ |= {"no_proxy": "", "NO_PROXY": ""}
    url = "http://nowhere.invalid/origin.git"
    with proxying(server) as proxy:
        ada, ben = (
            over_http(world, name, url, secret, http__proxy=proxy.url) for name in ("ada", "ben")
        )
        race_and_land(world, ada, ben)
        assert all(asked.startswith(url) for _, asked in proxy.asked)
    assert [asked for asked in proxy.asked if asked == ("POST", f"{url}/git-receive-pack")]
    assert len(proxy.asked) == len(server.asked)
