"""A remote over ssh: the whole scenario, and one connection for the daemon's many git commands."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Clone, World, wait_until
from e2e.scenario import race_and_land

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="no sshd or no ssh"),
]


@pytest.fixture
def ssh_world(world: World) -> Iterator[World]:
    """A world whose origin is reached through a server of its own on loopback."""
    assert SSHD is not None
    folder = world.root / "sshd"
    folder.mkdir(mode=0o700)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runtime = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))  # Paths of sockets must be short.
    world.environ["XDG_RUNTIME_DIR"] = str(runtime)
    for name in ("host", "user"):
        world.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
    shutil.copy(folder / "user.pub", folder / "authorized")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin yes\nLogLevel VERBOSE\n"
    )
    home = Path(world.environ["HOME"]) / ".ssh"
    home.mkdir(mode=0o700)
    settings = (
        f"Host judge\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"  IdentityFile {folder}/user\n  StrictHostKeyChecking no\n"
        f"  UserKnownHostsFile {folder}/known\n"
    )
    (folder / "client").write_text(settings)
    # ssh finds its settings by the password file's home, not by HOME: a wrapper called ssh names
    # them, and git and forge both find it first.
    wrapper = world.root / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/client "$@"\n')
    wrapper.chmod(0o755)
    world.environ["PATH"] = f"{wrapper.parent}:{world.environ['PATH']}"
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "config")], stdin=subprocess.DEVNULL, stderr=log
        )
        try:
            wait_until(lambda: is_listening(port))
            yield world
        finally:
            world.end()
            server.kill()
            server.wait()
            shutil.rmtree(runtime)


def is_listening(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def over_ssh(world: World, name: str, **settings: str) -> Clone:
    """A clone whose remote is the ssh URL."""
    clone = world.clone(name, **settings)
    clone.git("remote", "set-url", "origin", f"ssh://judge{world.origin}")
    return clone


def logins(world: World) -> int:
    """How many connections the server has let in."""
    return (world.root / "sshd" / "log").read_text().count("Accepted publickey")


def shared_connections(world: World) -> list[Path]:
    """The sockets of connections that are kept open."""
    return list((Path(world.environ["XDG_RUNTIME_DIR"]) / "forge").glob("ssh-*"))


def close_shared(world: World) -> None:
    """End the kept connections, which outlive their daemon by two minutes."""
    for path in shared_connections(world):
        world.run("ssh", "-o", f"ControlPath={path}", "-O", "exit", "judge")


def test_many_claims_go_over_one_shared_connection(ssh_world: World) -> None:
    ada = over_ssh(ssh_world, "ada")
    ada.start()
    assert len(shared_connections(ssh_world)) == 1
    before = logins(ssh_world)
    for task in ("T001", "T002", "T003"):
        assert ada.collaborate("claim", task).code == 0
        assert ada.collaborate("note", task, "over ssh").code == 0
    assert logins(ssh_world) == before == 1
    lease = ssh_world.lease("T003")
    assert lease is not None
    assert lease["claimant"]["handle"] == "ada"
    close_shared(ssh_world)


@pytest.mark.timeout(300)
def test_two_clones_race_over_ssh_and_land_what_they_have(ssh_world: World) -> None:
    calm = {"forge__poll_seconds": "2"}  # Each poll starts a shell on the server.
    race_and_land(ssh_world, over_ssh(ssh_world, "ada", **calm), over_ssh(ssh_world, "ben", **calm))
    close_shared(ssh_world)


def test_the_users_own_shared_connection_is_left_alone(ssh_world: World) -> None:
    settings = ssh_world.root / "sshd" / "client"
    own = ssh_world.root / "own.sock"
    settings.write_text(settings.read_text() + f"  ControlMaster no\n  ControlPath {own}\n")
    ada = over_ssh(ssh_world, "ada")
    ada.start()
    assert ada.collaborate("claim", "T001").code == 0
    assert shared_connections(ssh_world) == []
    assert logins(ssh_world) > 2


def test_a_server_that_lets_nobody_in_is_offline_and_says_why(ssh_world: World) -> None:
    (ssh_world.root / "sshd" / "authorized").write_text("")
    ran = over_ssh(ssh_world, "ada").forge("collaborate", "start")
    assert ran.code == 4
    assert "Permission denied" in ran.err
    assert "try: " in ran.err
