"""What commands print: text for people, or with ``--json`` one versioned document on stdout."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from forge_collab.core.errors import ForgeError

PATIENCE_SECONDS = 10.0
_CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))
_ESCAPED = {code: f"\\u{code:04x}" for code in range(127, 160)}


def done(command: str, data: Mapping[str, Any], text: Iterable[str], *, as_json: bool) -> None:
    """Print the result of a command."""
    if as_json:
        document(command, data)
        return
    for line in text:
        print(clean(line))


def document(command: str, data: Mapping[str, Any]) -> None:
    """Print one JSON document, at once."""
    whole = {"v": 1, "ok": True, "command": command, "data": data}
    _print_json(whole)


def _print_json(whole: Mapping[str, Any]) -> None:
    """JSON escapes most control characters by itself; these it lets through."""
    print(json.dumps(whole, ensure_ascii=False).translate(_ESCAPED), flush=True)


def failed(command: str, error: ForgeError, *, as_json: bool) -> None:
    """Print why a command didn't do what was asked, and what to type next."""
    if as_json:
        whole = {"v": 1, "ok": False, "command": command, "error": error.to_json()}
        _print_json(whole)
        return
    print(f"forge: {clean(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"  try: {clean(error.hint)}", file=sys.stderr)


def notice(text: str) -> None:
    """Say something beside the result."""
    print(f"forge: {clean(text)}", file=sys.stderr)


@contextmanager
def patient(text: str) -> Iterator[None]:
    """Say `text` beside the result when what is done inside takes long."""
    later = threading.Timer(PATIENCE_SECONDS, notice, [text])
    later.daemon = True
    later.start()
    try:
        yield
    finally:
        later.cancel()


def clean(text: str) -> str:
    """Others' text without what could drive a terminal."""
    return text.translate(_CONTROL)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns as wide as they have to be."""
    whole = [list(head), *[[clean(cell) for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in whole) for i in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in whole
    ]


def seconds(value: float | None) -> str:
    """A duration as people read it."""
    if value is None:
        return "?"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def ago(value: float | None) -> str:
    """How long ago something was, as people read it."""
    return "unknown" if value is None else f"{seconds(value)} ago"


def who(claimant: Mapping[str, Any] | None) -> str:
    """A claimant as people read it."""
    return "nobody" if claimant is None else f"{claimant['handle']} ({claimant['worker']})"
