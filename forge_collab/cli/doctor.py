"""``forge doctor``: is everything as it has to be, and if not, what helps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import click

from forge_collab import __version__
from forge_collab.cli import client, look, options, output
from forge_collab.cli.here import Here, here
from forge_collab.core import keys
from forge_collab.core.change import readable
from forge_collab.core.errors import CorruptError, FailedError, ForgeError
from forge_collab.core.lifecycle import EXPLANATION, Class
from forge_collab.core.records import Lease, Meta, Participant, TaskRecord
from forge_collab.files.ignore import PROBES
from forge_collab.git.repository import check_version
from forge_collab.git.store import Push, Store, how_it_ended
from forge_collab.transport import Transport

_SECONDS = 15.0
_DAY_SECONDS = 86400.0
Check = dict[str, Any]


@click.command()
@options.as_json
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Check git, the remote, the state branch, the ignore rules and the daemon.

    Example: forge doctor
    """
    folder = options.folder(context)
    git = _checked("git", lambda: _git(Path(folder or os.getcwd())))
    checks = [git]
    if git["status"] == "pass":
        clone = here(folder)
        checks += [
            _checked("remote", lambda: _remote(clone)),
            _checked("state branch", lambda: _state(clone)),
            _checked("ignore rules", lambda: _ignore(clone)),
            _checked("daemon", lambda: _daemon(clone)),
        ]
    text = [_line(check) for check in checks]
    output.done("doctor", {"checks": checks}, text, as_json=as_json)
    if any(check["status"] == "fail" for check in checks):
        context.exit(FailedError.exit_code)


def _line(check: Check) -> str:
    remedy = f"\n      try: {check['remedy']}" if check["remedy"] else ""
    return f"{check['status']:<5} {check['name']}: {check['message']}{remedy}"


def _checked(name: str, check: Callable[[], Check]) -> Check:
    """A check's result; an expected failure in it is a failed check."""
    try:
        return {"name": name, **check()}
    except ForgeError as error:
        return {"name": name, **_result("fail", error.message, error.hint)}


def _result(status: str, message: str, remedy: str | None = None) -> Check:
    return {"status": status, "message": message, "remedy": remedy}


def _git(folder: Path) -> Check:
    return _result("pass", f"git {check_version(folder, dict(os.environ))}")


def _remote(clone: Here) -> Check:
    """Reachable, and pushable as far as a push that only asks can tell."""
    config, _ = clone.config()
    if _is_without_remote(clone):
        return _result("pass", f"there is none called '{config.remote}': one works alone here")
    remote = clone.repository.remote(config.remote)

    async def ask() -> tuple[list[str], Push, str]:
        store = Store(clone.repository, remote, is_look=True)
        await store.ensure()
        try:
            branches = await store.branches()
            asked = await store.dry_push("refs/heads/forge/doctor-asks", branches)
            return branches, how_it_ended(asked, ["refs/heads/forge/doctor-asks"]), asked.err
        finally:
            store.close()

    branches, how, words = anyio.run(ask)
    if not branches:
        return _result(
            "fail",
            f"'{remote.name}' ({remote.shown}) has no branches yet",
            f"push a first commit: git push {remote.name} HEAD",
        )
    if how not in (Push.DONE, Push.SAME):
        return _result(
            "fail",
            f"'{remote.name}' ({remote.shown}) can be read, not pushed: {words}",
            "ask for write access, or git config forge.remote NAME",
        )
    return _result("pass", f"'{remote.name}' ({remote.shown}) can be read and pushed")


def _is_without_remote(clone: Here) -> bool:
    config, _ = clone.config()
    return clone.markers.is_absent() and not clone.repository.has_remote(config.remote)


def _state(clone: Here) -> Check:
    async def read(transport: Transport) -> tuple[bool, list[CorruptError]]:
        snapshot, bad = transport.snapshot, []
        for kind, prefix in (
            (Meta, keys.META),
            (Lease, keys.LEASES),
            (TaskRecord, keys.TASKS),
            (Participant, keys.PARTICIPANTS),
        ):
            bad += readable(kind, snapshot, prefix)[1]
        return bool(list(snapshot.keys(keys.META))), bad

    if clone.markers.is_absent():
        look.own_records(clone)
    if _is_without_remote(clone):
        return _result("pass", "there is no remote to have one; what is done alone can be read")
    exists, bad = look.connected(clone, read, seconds=_SECONDS)
    if bad:
        places = "; ".join(error.message for error in bad)
        return _result(
            "fail",
            f"{len(bad)} records can't be read: {places}",
            "mend these files on the state branch; all others work meanwhile",
        )
    identity = clone.identity()
    if not exists and identity is not None and identity.repo is not None:
        return _result(
            "fail",
            "the remote has lost the session this clone is in",
            "push it back from a clone that has it; or forge collaborate start --fresh",
        )
    if not exists:
        return _result("pass", "there is no session on this remote yet")
    config, _ = clone.config()
    store = Store(clone.repository, clone.repository.remote(config.remote))
    if (words := store.refused_within(_DAY_SECONDS)) is not None:
        return _result(
            "warn",
            f"every record on it can be read; its history only grows, since the server refuses "
            f"to have it shortened: {' '.join(words.split())}",
            "allow force pushes to that one branch, or leave it: all else works",
        )
    return _result("pass", "every record on it can be read")


def _ignore(clone: Here) -> Check:
    """Whether real git agrees with what has to be tracked and what never is."""
    wrong = []
    for path, should_be_ignored in PROBES:
        told = clone.repository.git("check-ignore", "--quiet", "--no-index", path)
        if told.code not in (0, 1):
            return _result("fail", f"git check-ignore: {told.err}")
        if (told.code == 0) != should_be_ignored:
            wrong.append(f"{path} is {'ignored' if told.code == 0 else 'not ignored'}")
    if wrong:
        return _result("warn", "; ".join(wrong), "forge init")
    return _result("pass", "what is shared can be tracked, what is this machine's is ignored")


def _daemon(clone: Here) -> Check:
    found = clone.clone_class()
    running = client.running(clone)
    if running is None:
        if found is Class.HEALTHY:
            return _result(
                "warn",
                "doesn't run, so leases of this clone aren't renewed",
                "forge daemon start",
            )
        if found is not Class.INACTIVE:
            return _result("fail", EXPLANATION[found], "forge collaborate recover --apply")
        return _result("pass", "doesn't run, and needn't: this clone is in no session")
    with running[0] as daemon:
        about = daemon.call("about")
    if about["version"] != __version__:
        return _result("warn", f"is version {about['version']}", "forge daemon stop")
    if not about["online"]:
        return _result("fail", f"is offline: {'; '.join(about['warnings'])}", "forge daemon logs")
    return _result("pass", f"runs as process {about['pid']}, online over {about['transport']}")
