from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from forge_collab.git import ssh

URL = "git@example.org:team/project.git"
SOCKETS = Path("/run/user/1000/forge")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which the first `ssh` says of a host what the test has written."""
    fake = tmp_path / "ssh"
    fake.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\ncat {tmp_path}/config\n')
    fake.chmod(0o755)
    (tmp_path / "config").write_text("hostname example.org\ncontrolmaster false\n")
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]) -> None:
    monkeypatch.setenv("PATH", environ["PATH"])


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("git@example.org:a/b.git", "example.org"),
        ("example.org:a/b.git", "example.org"),
        ("ssh://git@example.org:2222/a/b.git", "example.org"),
        ("git+ssh://example.org/a", "example.org"),
        ("https://example.org/a.git", None),
        ("file:///srv/a.git", None),
        ("/srv/a.git", None),
        ("../a.git", None),
        ("./a:b", None),
        ("-oProxyCommand=x:a", None),
    ],
)
def test_the_host_is_that_of_an_ssh_url(url: str, host: str | None) -> None:
    assert ssh.host_of(url) == host


def test_one_connection_is_shared_and_nothing_is_asked(environ: dict[str, str]) -> None:
    words = shlex.split(ssh.command(URL, environ, None, SOCKETS) or "")
    assert words[0] == "ssh"
    assert "BatchMode=yes" in words
    assert "ControlMaster=auto" in words
    assert f'ControlPath="{SOCKETS}/ssh-%C"' in words


@pytest.mark.parametrize("url", ["https://example.org/a", "/srv/a.git", "file:///srv/a.git"])
def test_other_urls_are_left_to_git(environ: dict[str, str], url: str) -> None:
    assert ssh.command(url, environ, None, SOCKETS) is None


@pytest.mark.parametrize(
    "settings",
    ["controlmaster auto\n", "controlpath /home/me/%C\n", "controlmaster autoask\ncontrolpath x\n"],
)
def test_a_connection_that_the_user_shares_already_is_left_alone(
    environ: dict[str, str], tmp_path: Path, settings: str
) -> None:
    (tmp_path / "config").write_text(settings)
    assert ssh.command(URL, environ, None, SOCKETS) == "ssh -o BatchMode=yes"
    assert (tmp_path / "asked").read_text() == "-G example.org\n"


@pytest.mark.parametrize("own", ["ssh -i ~/key", "/usr/bin/ssh -F 'my config'"])
def test_the_users_own_ssh_command_only_learns_to_ask_nothing(
    environ: dict[str, str], own: str
) -> None:
    wanted = f"{own} -o BatchMode=yes"
    assert ssh.command(URL, environ, own, SOCKETS) == wanted
    assert ssh.command(URL, {**environ, "GIT_SSH_COMMAND": own}, "other", SOCKETS) == wanted


@pytest.mark.parametrize("own", ["plink -batch", "tortoiseplink.exe", "my-wrapper", "'unclosed"])
def test_another_program_stands_as_it_is(environ: dict[str, str], own: str) -> None:
    assert ssh.command(URL, environ, own, SOCKETS) is None


def test_a_program_named_by_git_ssh_stands_as_it_is(environ: dict[str, str]) -> None:
    assert ssh.command(URL, {**environ, "GIT_SSH": "/opt/ssh"}, None, SOCKETS) is None


@pytest.mark.parametrize("name", ["plain", "with spaces", "100%C", "ümlaut"])
def test_ssh_itself_understands_the_options(tmp_path: Path, name: str) -> None:
    sockets = Path("/run/forge") / name
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    words = shlex.split(ssh.command(URL, environ, None, sockets) or "")
    told = subprocess.run(
        ["/usr/bin/ssh", *words[1:], "-F", "none", "-G", "example.org"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    [path] = [line.partition(" ")[2] for line in told if line.startswith("controlpath ")]
    assert path.startswith(f"{sockets}/ssh-")
    assert len(path) == len(f"{sockets}/ssh-") + 40
    assert "controlpersist 120" in told


def test_a_machine_without_ssh_shares_nothing(tmp_path: Path) -> None:
    (tmp_path / "ssh").unlink()
    environ = {"PATH": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert ssh.command(URL, environ, None, SOCKETS) == "ssh -o BatchMode=yes"


def test_where_a_sockets_path_would_be_too_long_nothing_is_shared(
    environ: Mapping[str, str],
) -> None:
    for length, is_shared in ((42, True), (43, False)):
        sockets = Path("/" + "x" * (length - 1))
        command = ssh.command(URL, environ, None, sockets)
        assert command is not None
        assert ("ControlPath" in command) is is_shared, length
