"""``forge collaborate status``: who is here, who holds what, what can be claimed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from forge_collab.cli import client, options, output
from forge_collab.cli.here import Here, here
from forge_collab.core.errors import UnavailableError
from forge_collab.core.lifecycle import EXPLANATION, Class
from forge_collab.files.markers import ALONE

_ANSWER_SECONDS = 1.4


@click.command()
@click.option("--watch", is_flag=True, help="Show it again whenever it changes.")
@options.as_json
@click.pass_context
def status(context: click.Context, watch: bool = False, as_json: bool = False) -> None:
    """Participants, claims, claimable tasks and warnings; works before joining too.

    Example: forge collaborate status
    """
    clone = here(options.folder(context))
    shown: object = None
    while True:
        data = _status(clone)
        comparable = _without_ages(data)
        if comparable != shown:
            output.done("collaborate status", data, _text(data), as_json=as_json)
            shown = comparable
        if not watch:
            return
        time.sleep(1)


def _status(clone: Here) -> dict[str, Any]:
    """From the daemon where one runs, else from a look of our own at the remote."""
    trouble = ""
    try:
        found = client.running(clone, seconds=0.5)
        if found is not None:
            with found[0] as daemon:
                data: dict[str, Any] = daemon.call("status", seconds=_ANSWER_SECONDS)
            return {**data, "class": clone.clone_class(_session_of(data)).value}
    except UnavailableError as error:
        trouble = error.message
    from forge_collab.cli import look

    data = look.status(clone)
    if trouble:
        data["warnings"].append(trouble)
    return data


def _session_of(data: Mapping[str, Any]) -> str | None:
    about = data.get("daemon") or {}
    repo = about.get("repo")
    return None if repo is None else str(repo)


def _without_ages(data: Any) -> Any:
    """The same without what changes by itself as time passes."""
    if isinstance(data, dict):
        return {k: _without_ages(v) for k, v in data.items() if not k.endswith("_seconds")}
    return [_without_ages(item) for item in data] if isinstance(data, list) else data


def _text(data: Mapping[str, Any]) -> list[str]:
    me = data["me"]
    mine = f"you are {me['handle']} ({me['instance']})" if me else "you are not in it"
    how = "online" if data["online"] else "OFFLINE"
    lines = [f"session {data['session']} over {data['transport']}, {how}; {mine}"]
    if data["transport"] == ALONE:
        who = f" as {me['handle']} ({me['instance']})" if me else ""
        lines = [f"alone{who}: these records are this clone's own, nobody else sees them"]
    elif data["class"] != Class.HEALTHY.value:
        lines.append(f"class {data['class']}: {EXPLANATION[Class(data['class'])]}")
    lines += ["", "participants:"] if data["participants"] else []
    lines += output.table(
        ["  handle", "instance", "last seen", "working on"],
        [
            [
                f"  {p['handle']}",
                p["instance"],
                output.ago(p["last_seen_seconds"]),
                ", ".join(p["working_on"]) or "-",
            ]
            for p in data["participants"]
        ],
    )[0 if data["participants"] else 1 :]
    lines += _claims(data["claims"])
    lines += ["", f"claimable: {', '.join(data['claimable']) or 'nothing now'}"]
    lines += [
        f"blocked: {b['task']} waits for {', '.join(b['waits_for'])}" for b in data["blocked"]
    ]
    lines += [
        f"stopped: {s['task']} is {s['status']}{': ' + s['reason'] if s['reason'] else ''}"
        for s in data["stopped"]
    ]
    lines += [f"warning: {warning}" for warning in data["warnings"]]
    return lines


def _claims(claims: list[Mapping[str, Any]]) -> list[str]:
    rows = [
        [
            "  " + claim["key"].removeprefix("claim:"),
            output.who(claim["claimant"]),
            str(claim["fence"]),
            output.ago(claim["last_seen_seconds"]),
            _takeover(claim["takeover_in_seconds"]),
        ]
        for claim in claims
    ]
    head = ["  task", "claimant", "fence", "last sign of life", "can be taken"]
    return ["", "claims:", *output.table(head, rows)] if rows else []


def _takeover(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return "now" if seconds == 0 else f"in {output.seconds(seconds)} if it stays silent"
