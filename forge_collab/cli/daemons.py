"""Every daemon of this user on this machine, found by its socket."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from forge_collab import __version__
from forge_collab.cli.client import Client
from forge_collab.core.errors import ForgeError
from forge_collab.daemon.process import runtime_dir


def everywhere(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """What each daemon that answers says of itself, with its clone."""
    found = []
    for path in sorted(runtime_dir(environ).glob("*.sock")):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            continue
        with Client(connection) as daemon:
            try:
                daemon.call("hello", {"version": __version__}, seconds=1.0)
                found.append(daemon.call("about", seconds=1.0))
            except ForgeError:
                continue
    return found
