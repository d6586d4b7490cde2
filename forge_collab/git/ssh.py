"""One shared ssh connection for a clone's daemon, unless the user's settings say otherwise."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from forge_collab.core.identity import is_path

_PERSIST_SECONDS = 120
_SOCKET_BYTES = 104  # What the shortest-minded system takes as a socket's path.
_NAME_BYTES = 40 + 17  # ssh's hash for %C, and what it adds while the socket is being made.


def host_of(url: str) -> str | None:
    """The ssh host that `url` names, or None when it isn't reached by ssh."""
    if "://" in url:
        parts = urlsplit(url)
        is_ssh = parts.scheme in ("ssh", "git+ssh", "ssh+git")
        return parts.hostname if is_ssh else None
    if is_path(url):
        return None
    host = re.sub(r"^[^@]*@", "", url.partition(":")[0])
    return host if host and not host.startswith("-") else None


def command(
    url: str, environ: Mapping[str, str], configured: str | None, sockets: Path
) -> str | None:
    """The value for GIT_SSH_COMMAND, or None where git's own choice is to stand.

    `configured` is ``core.sshCommand``; `sockets` a private folder for the connection's socket.
    """
    host = host_of(url)
    if host is None or "GIT_SSH" in environ:
        return None
    own = environ.get("GIT_SSH_COMMAND") or configured
    if own:
        return f"{own} -o BatchMode=yes" if _is_openssh(own) else None
    options = ["-o", "BatchMode=yes"]
    fits = len(f"{sockets}/ssh-") + _NAME_BYTES <= _SOCKET_BYTES
    if fits and not _shares_already(host, environ):
        options += ["-o", "ControlMaster=auto", "-o", f"ControlPersist={_PERSIST_SECONDS}"]
        folder = str(sockets).replace("%", "%%")
        options += ["-o", f'ControlPath="{folder}/ssh-%C"']
    return shlex.join(["ssh", *options])


def _is_openssh(own: str) -> bool:
    try:
        words = shlex.split(own)
    except ValueError:
        return False
    return bool(words) and Path(words[0]).name == "ssh"


def _shares_already(host: str, environ: Mapping[str, str]) -> bool:
    """Whether the user's ssh configuration says anything of shared connections to `host`."""
    try:
        told = subprocess.run(
            ["ssh", "-G", host],
            env=dict(environ),
            capture_output=True,
            timeout=5,
            check=False,
            stdin=subprocess.DEVNULL,
        ).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired):
        return True
    settings = dict(line.split(" ", 1) for line in told.splitlines() if " " in line)
    master = settings.get("controlmaster", "false")
    return master not in ("false", "no") or settings.get("controlpath", "none") != "none"
