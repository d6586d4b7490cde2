"""Named fault points: where a test may stop, kill, delay or fail a forge process.

Off unless the environment has ``FORGE_FAULTS``, a comma-separated list of ``point=action``,
optionally ``point#n=action`` for its n-th pass only. Actions: ``kill`` (SIGKILL to itself),
``stop`` (SIGSTOP to itself), ``raise`` (OSError), ``sleep:SECONDS``.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import Final

POINTS: Final = (
    # forge collaborate start (coordination.md section 7)
    "start.before_participant",
    "start.after_participant",
    "start.after_connect",
    "start.after_enabled",
    # forge collaborate leave (section 7)
    "leave.after_close",
    "leave.after_enabled",
    "leave.after_release",
    "leave.after_participant",
    # forge collaborate end
    "end.after_mark",
    "end.after_remove",
    # a file written whole (section 7)
    "write.before_rename",
    "write.after_rename",
    # a change on the state branch (section 4)
    "push.before_objects",
    "push.after_objects",
    "push.before_send",
    "push.after_send",
    "push.after_record",
    "fetch.before",
    "fetch.after",
    # a change in a clone's own records (section 11)
    "local.before_rename",
    "local.after_rename",
    # bringing what was held alone into a session, and back (section 11)
    "carry.before",
    "carry.after",
    "carry.before_home",
    "carry.after_home",
    # a claim or take-over, and what its holder does (section 6)
    "claim.before_journal",
    "claim.after_journal",
    "claim.before_grant",
    "claim.after_grant",
    "claim.before_answer",
    "release.before",
    "release.after_send",
    "note.before",
    "note.after",
    # a landing (section 8)
    "land.before",
    "land.after_announce",
    "land.after_target",
    "land.after",
    "settle.before",
    "settle.after",
    "beat.before",
    "beat.after",
    # forge collaborate recover --apply (section 7)
    "recover.before",
    "recover.after_depart",
)


def _parse(text: str) -> dict[str, str]:
    return dict(part.strip().split("=", 1) for part in text.split(",") if "=" in part)


_armed = _parse(os.environ.get("FORGE_FAULTS", ""))
_passes: Counter[str] = Counter()


def at(point: str) -> None:
    """Nothing; in a test that armed `point`, what the test asked for.

    :raises OSError: when the test asked for that.
    """
    if not _armed:
        return
    _passes[point] += 1
    action = _armed.get(f"{point}#{_passes[point]}", _armed.get(point))
    if action is not None:
        _act(point, action)


def _act(point: str, action: str) -> None:
    kind, _, argument = action.partition(":")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "sleep":
        time.sleep(float(argument))
    else:
        raise OSError(f"fault at {point}")
